"""Deploying: what changes, what does not, and what is said when it cannot be done."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.compiler.spec import (
    Column,
    FromOffsets,
    KafkaInput,
    Output,
    OutputMode,
    Publish,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
)
from penstock.control import inputs, requests
from penstock.control.deploy import check_inputs, deploy, make_table, run_command
from penstock.control.waiting import wait_for
from penstock.engine.failures import of_stream
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import MODEL_ANALYSIS
from penstock.kafka import admin
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings
from penstock.store import Command, LinkKind, RebuildLink, RebuildPhase, Store, StreamState, Wanted, holder_id

REFUSED = MODEL_ANALYSIS.error(
    "there is no column 'prize'.", at=Location("models/a.sql", 3), hint="Did you mean 'price'?"
)


def spec(**changes: Any) -> StreamSpec:
    return StreamSpec(
        name="shop.a", unique_id="model.a", path="models/a.sql", sql="select * from u", stateful=False,
        inputs=(TableStreamInput(view="u", relation="shop.up"),),
        output=Output(relation="shop.a", mode=OutputMode.APPEND),
    ).model_copy(update=changes)  # fmt: skip


FASTER = spec(trigger=Trigger(time_window_ms=10))
KEYED = spec(output=Output(relation="shop.a", mode=OutputMode.UPSERT, keys=("id",)))


class Engine:
    """Answers commands as the engine would, and stops streams as the supervisor would have it do."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commands: list[Command] = []
        self.refuses: set[tuple[str, bool]] = set()  # (kind, dry)
        self.refuses_reading: str | None = None  # SQL that has this in it
        self.changes: list[str] = []  # of columns, that it finds when it prepares
        self.more: dict[str, Any] = {}  # that it answers then
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._lease = store.acquire("engine", holder_id(), 600)

    def _run(self) -> None:
        while not self._ending.wait(0.01):
            for command in self.store.take_commands():
                self.commands.append(command)
                refused = (command.kind, bool(command.payload.get("dry"))) in self.refuses
                if self.refuses_reading is not None and command.kind == "prepare":
                    refused |= self.refuses_reading in StreamSpec.from_json(command.payload["spec"]).sql
                answer = {"changes": [] if command.payload.get("full_refresh") else self.changes, **self.more}
                self.store.finish(command.id, ok=not refused, result=dict(REFUSED.as_dict()) if refused else answer)
            found = self.store.find_desired("shop.a")
            if found and found.wanted is Wanted.STOPPED and self.store.actual("shop.a").state is StreamState.RUNNING:
                self.store.report("shop.a", state=StreamState.STOPPED)

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def asked(self) -> list[tuple[str, bool, bool]]:
        return [(c.kind, c.payload.get("full_refresh", False), c.payload.get("dry", False)) for c in self.commands]


@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    made = ProjectPaths(tmp_path)
    save_settings(made, RuntimeSettings(target="dev", schema="shop"))
    return made


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    return Store.open(paths.store)


@pytest.fixture
def engine(store: Store) -> Iterator[Engine]:
    with Engine(store) as running:
        yield running


def test_a_new_stream_is_prepared_and_then_deployed(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    made = deploy(store, paths, spec(), full_refresh=False)
    assert (made.stream, made.generation, made.verdict, made.changed) == ("shop.a", 1, "NEW", True)
    assert made.checkpoint == store.desired("shop.a").checkpoint_id
    assert engine.asked == [("prepare", False, False)]
    assert StreamSpec.from_json(engine.commands[0].payload["spec"]) == spec()


def test_an_unchanged_stream_changes_nothing_and_asks_nobody(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    first = deploy(store, paths, spec())
    before = store.desired("shop.a")
    second = deploy(store, paths, spec())
    assert (second.verdict, second.changed, second.generation) == ("NO-OP", False, first.generation)
    assert store.desired("shop.a") == before
    assert len(engine.commands) == 1


def test_a_change_that_the_state_survives_keeps_the_checkpoint(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    first = deploy(store, paths, spec())
    second = deploy(store, paths, FASTER)
    assert (second.verdict, second.generation, second.checkpoint) == ("RESTART", 2, first.checkpoint)
    assert second.reasons


def test_a_change_that_needs_a_rebuild_is_refused_with_its_reason(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec())
    with pytest.raises(PenstockError, match=r"PEN-3005 models/a.sql: .*output mode append -> upsert.*--full-refresh"):
        deploy(store, paths, KEYED)
    assert store.desired("shop.a").generation == 1
    assert len(engine.commands) == 1


def test_settings_alone_are_taken_over_while_the_stream_runs(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    first = deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING, generation=1)
    second = deploy(store, paths, spec(small_batch_rows=7))
    assert (second.verdict, second.generation, second.changed) == ("HOT", first.generation, True)
    assert [command.kind for command in engine.commands] == ["prepare", "adjust"]
    assert StreamSpec.from_json(store.desired("shop.a").spec_json).small_batch_rows == 7
    assert StreamSpec.from_json(store.generations("shop.a")[0]["spec_json"]).small_batch_rows == 7
    assert deploy(store, paths, spec(small_batch_rows=7)).verdict == "NO-OP"


LINES = "select id,\n  if(n < 0, raise_error('below zero'), n) as n\nfrom u"


@pytest.mark.parametrize(
    ("sql", "line_map"),
    [
        (LINES, (5, 6, 7)),  # two blank lines more above the query
        (f"-- all of it\n{LINES.replace('as n', 'as n  -- never below zero')}", (4, 5, 6, 7)),
        (LINES.replace("id,\n", "id,\n\n  -- never\n  -- below zero\n"), (3, 4, 5, 6, 7, 8)),
        (LINES.replace("select id,\n", "select\n  id,\n  -- never below zero\n"), (3, 4, 5, 6, 7)),
    ],
)
def test_errors_name_the_lines_that_a_model_has_now_though_nothing_but_comments_changed(
    store: Store, paths: ProjectPaths, engine: Engine, sql: str, line_map: tuple[int, ...]
) -> None:
    before = spec(sql=LINES, line_map=(3, 4, 5))
    deploy(store, paths, before)
    store.report("shop.a", state=StreamState.RUNNING, generation=1)
    was = store.desired("shop.a")
    now = spec(sql=sql, line_map=line_map)
    made = deploy(store, paths, now)
    assert (made.verdict, made.generation, made.changed) == ("NO-OP", 1, False)
    kept = store.desired("shop.a")
    assert replace(kept, spec_json="") == replace(was, spec_json=""), "no other generation, checkpoint or hash"
    stored = StreamSpec.from_json(kept.spec_json)
    assert (stored.sql, stored.hash) == (before.sql, before.hash), "what runs is what was started"
    failed = of_stream("java.lang.RuntimeException: below zero", stored)
    assert failed.at == Location("models/a.sql", line_map[next(n for n, t in enumerate(sql.split("\n")) if "if(" in t)])
    assert failed.at != of_stream("java.lang.RuntimeException: below zero", before).at
    told = wait_for(lambda: [each.kind for each in engine.commands if each.kind == "adjust"] or None, 10)
    assert told == ["adjust"], "the running stream gets it"
    deploy(store, paths, now)
    assert store.desired("shop.a") == kept


def test_a_stream_that_does_not_run_gets_its_new_lines_without_an_engine(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec(line_map=(3,)))
    deploy(store, paths, spec(line_map=(8,)))
    assert StreamSpec.from_json(store.desired("shop.a").spec_json).line_map == (8,)
    assert StreamSpec.from_json(store.generations("shop.a")[0]["spec_json"]).line_map == (8,)
    assert [each.kind for each in [*engine.commands, *store.open_commands()]] == ["prepare"]


def test_continue_leaves_the_deployed_version_and_says_so(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    deploy(store, paths, spec())
    before = store.desired("shop.a")
    made = deploy(store, paths, KEYED, on_change="continue")
    assert (made.verdict, made.changed, made.generation) == ("REFUSED", False, 1)
    assert made.reasons == (
        "output mode append -> upsert", "generation 1 goes on: on_configuration_change is 'continue'",
    )  # fmt: skip
    assert store.desired("shop.a") == before


def test_apply_rebuilds_as_full_refresh_does(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    first = deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING)
    second = deploy(store, paths, KEYED, on_change="apply")
    assert second.verdict == "REBUILD"
    assert second.checkpoint != first.checkpoint


def test_columns_that_the_engine_finds_changed_are_a_rebuild(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING)
    engine.changes = ["column pos is new"]
    wider = spec(sql="select *, 1 as pos from u")
    with pytest.raises(PenstockError, match=r"PEN-3005 models/a.sql: .*column pos is new"):
        deploy(store, paths, wider)
    assert store.desired("shop.a").generation == 1
    assert deploy(store, paths, wider, on_change="apply").verdict == "REBUILD"


def test_who_looks_up_a_table_whose_columns_were_replaced_starts_again(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec())
    deploy(store, paths, spec(name="shop.b", inputs=(TableInput(relation="shop.a"),)))
    store.report("shop.b", state=StreamState.RUNNING)
    engine.more = {"followed": ["column pos is gone and is dropped"], "replaced": True}
    made = deploy(store, paths, spec(sql="select id from u"))
    assert (made.verdict, made.generation) == ("RESTART", 2)
    assert made.reasons[-1] == "column pos is gone and is dropped"
    wait_for(lambda: ("stop", "shop.b") in [(each.kind, each.stream) for each in engine.commands] or None, 5)
    assert ("stop", "shop.b") in [(each.kind, each.stream) for each in engine.commands]


@pytest.mark.parametrize("how", ["sync_all_columns", "append_new_columns"])
def test_an_empty_run_drops_no_column_of_a_stream_that_is_deployed(
    store: Store, paths: ProjectPaths, engine: Engine, how: str
) -> None:
    made = spec(output=spec().output.model_copy(update={"on_schema_change": how}))
    assert make_table(store, made) == ()
    deploy(store, paths, made)
    make_table(store, made)
    assert [dry for _, _, dry in engine.asked] == [False, False, how == "sync_all_columns"]


def test_a_rebuild_that_leaves_a_reader_behind_is_refused(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    reader = spec(name="shop.b", inputs=(TableStreamInput(view="u", relation="shop.a"),))
    deploy(store, paths, spec())
    deploy(store, paths, reader)
    store.report("shop.a", state=StreamState.RUNNING)
    with pytest.raises(PenstockError, match=r"PEN-3008 models/a.sql: .*'shop.b' would not be.*--select a\+"):
        deploy(store, paths, spec(), full_refresh=True)
    assert deploy(store, paths, spec(), full_refresh=True, together={"shop.a", "shop.b"}).verdict == "REBUILD"
    with pytest.raises(PenstockError, match=r"PEN-3005 .*its input shop.a was rebuilt"):
        deploy(store, paths, reader)
    store.report("shop.b", state=StreamState.STOPPED)
    assert deploy(store, paths, reader, full_refresh=True).verdict == "REBUILD"
    assert deploy(store, paths, reader).verdict == "NO-OP"


def test_a_spec_of_another_version_needs_a_rebuild(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    store.deploy("shop.a", '{"format_version": 0, "what": "ever"}', "h", verdict="NEW", new_checkpoint=False)
    with pytest.raises(PenstockError, match=r"PEN-3005 .*another version"):
        deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.STOPPED)
    assert deploy(store, paths, spec(), full_refresh=True).generation == 2


def test_a_full_refresh_is_built_beside_the_running_generation(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    first = deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING)
    second = deploy(store, paths, KEYED, full_refresh=True)
    assert engine.asked[1:] == [("prepare", True, True), ("prepare", True, False)]
    built = StreamSpec.from_json(engine.commands[-1].payload["spec"])
    assert (built.name, built.output.relation) == ("penstock__rebuild__shop.a", "penstock__rebuild__shop.a")
    assert (second.verdict, second.generation, second.beside) == ("REBUILD", 2, True)
    assert "built beside generation 1" in second.reasons[-1]
    assert second.checkpoint != first.checkpoint
    want = store.desired("shop.a")
    assert (want.generation, want.wanted, want.checkpoint_id) == (1, Wanted.RUNNING, first.checkpoint)
    assert store.desired(built.name).checkpoint_id == second.checkpoint

    # The same again is what is being built; another definition, or the old one, ends it.
    again = deploy(store, paths, KEYED)
    assert (again.verdict, again.changed) == ("NO-OP", False)
    assert "generation 2 is being built" in again.reasons[0]
    _end_when_asked(store, "shop.a")
    assert deploy(store, paths, spec()).verdict == "NO-OP"
    assert store.rebuild("shop.a") is None


@pytest.mark.parametrize(
    ("publish", "beside"),
    [
        (Publish(topic="out"), True),
        (Publish(topic="out", table=False), True),
        (Publish(topic="out", table=False, real_time=True), False),  # there is no table that could be built
    ],
)
def test_a_published_table_publishes_nothing_while_it_is_rebuilt_beside(
    store: Store, paths: ProjectPaths, engine: Engine, publish: Publish, beside: bool
) -> None:
    deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING)
    made = deploy(store, paths, KEYED.model_copy(update={"publish": publish}), full_refresh=True)
    assert (made.verdict, made.generation, made.beside) == ("REBUILD", 2, beside)
    if beside:
        assert StreamSpec.from_json(engine.commands[-1].payload["spec"]).publish is None


def test_a_table_that_a_topic_alone_had_not_is_there_at_once(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    deploy(store, paths, KEYED.model_copy(update={"publish": Publish(topic="out", table=False)}))
    deploy(store, paths, KEYED.model_copy(update={"publish": Publish(topic="out")}), full_refresh=True)
    made = [StreamSpec.from_json(each.payload["spec"]).name for each in engine.commands[1:] if not each.payload["dry"]]
    assert made == ["shop.a", "penstock__rebuild__shop.a"]


READER = spec(name="shop.b", inputs=(TableStreamInput(view="u", relation="shop.a"),))


def _built(store: Store, stream: str) -> StreamSpec:
    return StreamSpec.from_json(store.desired(f"penstock__rebuild__{stream}").spec_json)


def test_a_reader_is_rebuilt_on_the_new_rows_and_takes_over_with_them(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    both = {"shop.a", "shop.b"}
    deploy(store, paths, spec())
    deploy(store, paths, READER)
    assert deploy(store, paths, KEYED, full_refresh=True, together=both).beside
    assert store.rebuild_links() == [RebuildLink("shop.a", "shop.b", LinkKind.TOGETHER)]

    # It has to be rebuilt though it is the same. Who does not confirm it changes nothing.
    with pytest.raises(PenstockError, match=r"PEN-3005 .*its input shop.a was rebuilt"):
        deploy(store, paths, READER)
    assert "shop.a" in store.rebuilds()
    assert deploy(store, paths, READER, full_refresh=True, together=both).beside
    assert [each.relation for each in _built(store, "shop.b").inputs] == ["penstock__rebuild__shop.a"]
    assert [deploy(store, paths, each).verdict for each in (KEYED, READER)] == ["NO-OP", "NO-OP"]

    # Another version of the reader is built on the same new rows; another one of the table begins both anew.
    other = READER.model_copy(update={"sql": "select 1 as one from u"})
    _end_when_asked(store, "shop.b")
    assert deploy(store, paths, other, full_refresh=True, together=both).beside
    assert store.rebuilds()["shop.a"].generation == 2
    assert deploy(store, paths, spec(stateful=True), full_refresh=True, together=both).beside
    assert store.rebuilds().keys() == {"shop.a"}
    assert store.rebuild_links() == [RebuildLink("shop.a", "shop.b", LinkKind.TOGETHER)]


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("NO-OP", {}),
        ("HOT", {"small_batch_rows": 7}),
        ("RESTART", {"trigger": Trigger(time_window_ms=7000)}),
    ],
)
def test_a_rebuild_does_not_wait_for_who_goes_back_to_what_does_not_read_it(
    store: Store, paths: ProjectPaths, engine: Engine, verdict: str, changes: dict[str, Any]
) -> None:
    # Given: a stream that is being rebuilt to read a table, which is rebuilt itself then.
    both = {"shop.a", "shop.b"}
    elsewhere = spec(name="shop.b")
    deploy(store, paths, spec())
    deploy(store, paths, elsewhere)
    deploy(store, paths, READER, full_refresh=True)
    _end_when_asked(store, "shop.b")
    assert deploy(store, paths, KEYED, full_refresh=True, together=both).beside
    assert store.rebuild_links() == [RebuildLink("shop.a", "shop.b", LinkKind.TOGETHER)]
    # When: it is taken back to what is deployed, or nearly so.
    assert deploy(store, paths, elsewhere.model_copy(update=changes), together=both).verdict == verdict
    assert store.rebuild_links() == []
    assert store.rebuilds().keys() == {"shop.a"}


def test_who_has_looked_up_rows_of_a_rebuild_begins_anew_with_it(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    # Given: a rebuild, and one beside it that looks up its rows.
    both = {"shop.a", "shop.b"}
    looks_up = spec(name="shop.b", inputs=(*spec().inputs, TableInput(relation="shop.a")))
    deploy(store, paths, spec())
    deploy(store, paths, looks_up)
    assert deploy(store, paths, KEYED, full_refresh=True, together=both).beside
    assert deploy(store, paths, looks_up, full_refresh=True, together=both).beside
    # When: the first begins anew. Then: not without the other one, which may have rows of what is given up.
    with pytest.raises(PenstockError, match=r"PEN-3008 .*shop\.b"):
        deploy(store, paths, KEYED, full_refresh=True)
    _end_when_asked(store, "shop.b")
    assert deploy(store, paths, KEYED, full_refresh=True, together=both).beside
    assert store.rebuilds().keys() == {"shop.a"}
    assert deploy(store, paths, looks_up, full_refresh=True, together=both).beside
    assert store.rebuilds().keys() == both


def test_when_a_reader_cannot_be_rebuilt_its_input_is_not(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    both = {"shop.a", "shop.b"}
    deploy(store, paths, spec())
    deploy(store, paths, READER)
    deploy(store, paths, KEYED, full_refresh=True, together=both)
    engine.refuses = {("prepare", True)}
    with pytest.raises(PenstockError, match="no column 'prize'"):
        deploy(store, paths, READER, full_refresh=True, together=both)
    found = store.rebuild("shop.a")
    assert found is not None
    assert (found.phase, found.error_code) == (RebuildPhase.ENDING, "PEN-1304")
    assert found.error is not None
    assert found.error.startswith("'shop.b', which reads it, could not be rebuilt: there is no column 'prize'.")


def test_a_new_reader_starts_when_the_rebuild_is_over(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    deploy(store, paths, spec())
    deploy(store, paths, KEYED, full_refresh=True)
    made = deploy(store, paths, READER)
    assert (made.verdict, made.reasons[-1]) == ("NEW", "it starts when the rebuild of 'shop.a' is over")
    prepared = StreamSpec.from_json(engine.commands[-1].payload["spec"])
    assert (prepared.name, prepared.inputs[0].relation) == ("shop.b", "penstock__rebuild__shop.a")
    assert StreamSpec.from_json(store.desired("shop.b").spec_json).inputs == READER.inputs
    assert store.rebuild_links() == [RebuildLink("shop.a", "shop.b", LinkKind.AFTER)]
    assert deploy(store, paths, READER).verdict == "NO-OP", "it is not behind the table that it waits for"


def test_a_changed_stream_that_needs_the_new_columns_of_a_table_waits_for_them(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec())
    joined = spec(name="shop.c", inputs=(*READER.inputs[:0], TableInput(relation="shop.a")), sql="select a from shop.a")
    deploy(store, paths, joined)
    deploy(store, paths, KEYED, full_refresh=True)
    store.report("shop.c", state=StreamState.RUNNING)
    wider = joined.model_copy(update={"sql": "select a, b from shop.a"})
    engine.refuses_reading = "from shop.a"
    made = deploy(store, paths, wider)
    assert (made.verdict, made.reasons[-1]) == ("RESTART", "it starts when the rebuild of 'shop.a' is over")
    assert store.rebuild_links() == [RebuildLink("shop.a", "shop.c", LinkKind.AFTER)]


def test_a_rebuild_that_is_under_way_ends_before_the_columns_of_the_table_change(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec())
    deploy(store, paths, KEYED, full_refresh=True)
    store.report("shop.a", state=StreamState.RUNNING)
    _end_when_asked(store, "shop.a")
    seen: list[tuple[bool, bool]] = []
    submit = store.submit

    def submitted(kind: str, stream: str, payload: Any = None, **options: Any) -> int:
        if kind == "prepare":
            seen.append((payload["dry"], store.rebuild("shop.a") is not None))
        return submit(kind, stream, payload, **options)

    store.submit = submitted  # type: ignore[method-assign]
    assert deploy(store, paths, FASTER).verdict == "RESTART"
    assert seen == [(True, True), (False, False)]


def _end_when_asked(store: Store, stream: str) -> None:
    """Clear a rebuild away as the supervisor does, once it is given up."""

    original = store.end_rebuild

    def ended(name: str, **options: Any) -> bool:
        done = original(name, **options)
        found = store.rebuild(name)
        if found is not None and found.phase is RebuildPhase.ENDING:
            store.finish_rebuild(found)
        return done

    store.end_rebuild = ended  # type: ignore[method-assign]


def test_a_full_refresh_of_an_unchanged_stream_is_a_rebuild_as_well(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    first = deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.STOPPED)
    second = deploy(store, paths, spec(), full_refresh=True)
    assert second.changed
    assert second.checkpoint != first.checkpoint


def test_a_model_that_is_never_refreshed_is_not_told_to_be(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    deploy(store, paths, spec())
    assert deploy(store, paths, spec(), full_refresh=True, own_refresh=False).verdict == "NO-OP"
    with pytest.raises(PenstockError, match=r"PEN-3005 .*apply computes the table anew\. --full-refresh does not"):
        deploy(store, paths, KEYED, full_refresh=True, own_refresh=False)


def test_a_model_that_is_always_refreshed_is_rebuilt_without_a_word(
    store: Store, paths: ProjectPaths, engine: Engine
) -> None:
    deploy(store, paths, spec())
    made = deploy(store, paths, spec(), own_refresh=True)
    assert (made.verdict, made.reasons[0]) == ("REBUILD", "its full_refresh is true")


@pytest.mark.parametrize("full_refresh", [False, True])
@pytest.mark.parametrize("dry", [False, True])
def test_nothing_is_changed_when_the_engine_refuses(
    store: Store, paths: ProjectPaths, engine: Engine, full_refresh: bool, dry: bool
) -> None:
    deploy(store, paths, spec())
    store.report("shop.a", state=StreamState.RUNNING)
    before = store.desired("shop.a")
    engine.refuses = {("prepare", dry), ("prepare", full_refresh and dry)}
    with pytest.raises(PenstockError) as caught:
        deploy(store, paths, FASTER, full_refresh=full_refresh)
    assert str(caught.value) == "PEN-1304 models/a.sql:3: there is no column 'prize'. Did you mean 'price'?"
    after = store.desired("shop.a")
    assert (after.generation, after.spec_hash, after.wanted) == (before.generation, before.spec_hash, before.wanted)
    if full_refresh and dry:
        assert store.actual("shop.a").state is StreamState.RUNNING, "it was refused before the stream was stopped"


def test_a_second_deployment_waits_then_says_who_is_in_the_way(store: Store, paths: ProjectPaths) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        lease = store.acquire("deploy", holder_id(other.pid), 60)
        assert lease is not None
        told: list[str] = []
        with pytest.raises(PenstockError, match=rf"PEN-3003 .*process {other.pid}"):
            deploy(store, paths, spec(), busy_timeout=1.2, progress=told.append)
        assert told == ["Waiting for another deployment to end"]
        other.communicate(b"\n")


def test_the_turn_of_a_dead_process_is_over_at_once(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store.acquire("deploy", holder_id(other.pid), 600)
    other.communicate(b"\n")
    assert deploy(store, paths, spec(), busy_timeout=0.1).changed
    assert store.lease("deploy") is None


def test_threads_of_one_process_take_turns(store: Store, paths: ProjectPaths, engine: Engine) -> None:
    made: list[str] = []

    def deploy_one(number: int) -> None:
        made.append(deploy(store, paths, spec(name=f"shop.s{number}"), busy_timeout=0.2).verdict)

    threads = [threading.Thread(target=deploy_one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["NEW"] * 6


def test_a_question_that_nobody_answers_is_withdrawn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ENGINE_GRACE", 0.2)
    with pytest.raises(PenstockError, match="PEN-4002"):
        run_command(store, "prepare", "shop.a", {}, 30)
    assert store.take_commands() == []


def test_a_question_to_an_engine_that_died_fails_as_lost(store: Store) -> None:
    threading.Timer(0.2, store.abandon_commands).start()
    with pytest.raises(PenstockError, match="PEN-4005"):
        run_command(store, "prepare", "shop.a", {}, 30)


# -- inputs -----------------------------------------------------------------------------------------------------------
def from_topic(**changes: Any) -> StreamSpec:
    columns = (Column(name="a", type="STRING", origin="value.a"),)
    source = KafkaInput(view="c", relation="shop.clicks", topic="clicks", bootstrap="b:1", columns=columns)
    return spec(inputs=(source.model_copy(update=changes),))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a topic of three partitions."""
    monkeypatch.setattr(admin, "topics", lambda *_: {"clicks": 3, "clicks_b": 1})
    monkeypatch.setattr(inputs, "topics", lambda *_: {"clicks": 3, "clicks_b": 1})


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partitions": (0, 2)},
        {"topic": None, "topic_pattern": "clicks_.*"},
        {"starting": FromOffsets(offsets=((0, 1), (1, -1), (2, -2)))},
        {"partitions": (2,), "starting": FromOffsets(offsets=((2, 9),))},
    ],
)
def test_inputs_that_are_there_are_fine(changes: dict[str, Any], paths: ProjectPaths) -> None:
    check_inputs(from_topic(**changes), paths)


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"topic": "clacks"}, "2002", "no topic 'clacks'"),
        ({"topic": None, "topic_pattern": "clocks.*"}, "2002", "matches 'clocks.*'"),
        ({"partitions": (1, 3)}, "2007", "partition 3"),
        ({"starting": FromOffsets(offsets=((0, 1), (2, 5)))}, "2007", "partition 1 of topic 'clicks' has no offset"),
        (
            {"starting": FromOffsets(offsets=((0, 1), (1, 1), (2, 5), (3, 0)))},
            "2007",
            "partition 3 of topic 'clicks' is not",
        ),
    ],
)
def test_inputs_that_are_not_there_are_found_before_anything_is_deployed(
    changes: dict[str, Any], code: str, said: str, paths: ProjectPaths
) -> None:
    with pytest.raises(PenstockError) as caught:
        check_inputs(from_topic(**changes), paths)
    assert caught.value.code == f"PEN-{code}"
    assert said in str(caught.value)
