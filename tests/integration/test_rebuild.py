"""A rebuild beside the running generation, on a real engine, with rows that flow in all the time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.snapshot import rebuild_view
from penstock.compiler.spec import Output, OutputMode, StreamSpec, Trigger
from penstock.control.lag import table_path
from penstock.control.requests import run_command
from penstock.control.streams import start_stream, stop_stream
from penstock.errors import PenstockError
from penstock.paths import beside
from penstock.store import RebuildPhase, StreamState, Wanted

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

HISTORY = 300


class Flow:
    """Rows that are sent all the time, and what was sent."""

    def __init__(self, produce: Produce, topic: str) -> None:
        self.sent: list[tuple[str, int]] = []
        self._produce = produce
        self._topic = topic
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def send(self, rows: list[tuple[str, int]]) -> None:
        self._produce(self._topic, [(k, {"k": k, "v": v}) for k, v in rows])
        self.sent += rows

    def _run(self) -> None:
        number = 0
        while not self._done.wait(0.3):
            number += 1
            self.send([(f"k{number % 7}", number)])

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def flow(topic: MakeTopic, produce: Produce) -> Flow:
    name = topic(2, name="rebuild")
    made = Flow(produce, name)
    made.send([(f"k{n % 7}", n) for n in range(HISTORY)])
    return made


def taken_over(platform: Platform, spec: StreamSpec, generation: int) -> None:
    def there() -> bool:
        found = platform.store.rebuild(spec.name)
        return platform.store.desired(spec.name).generation == generation and found is None

    platform.until(there, f"generation {generation} of {spec.name}", 240, lambda: seen(platform, spec))
    platform.state(spec.name, StreamState.RUNNING)


def seen(platform: Platform, spec: StreamSpec) -> Any:
    name = spec.name
    return platform.store.rebuild(name), platform.store.actual(name), platform.store.actual(beside(name))


def test_readers_see_the_old_rows_until_the_new_generation_takes_over(
    platform: Platform, make_spec: MakeSpec, flow: Flow
) -> None:
    from deltalake import DeltaTable

    # Given: a count by key and a table of rows, both running.
    topic = flow._topic
    counts = make_spec("counts", topic, "select k, count(*) as n from input group by k", keys=("k",), stateful=True)
    rows = make_spec("rows", topic, "select part, pos, v from input")
    for spec in (counts, rows):
        platform.deploy(spec)
    tables = {spec.name: f"select * from {spec.name}" for spec in (counts, rows)}

    def counted() -> bool:
        return sum(n for _, n in platform.sql(tables[counts.name])) == len(flow.sent)

    platform.until(lambda: counted() and len(platform.sql(tables[rows.name])) == HISTORY, "the history", 90)
    before = {spec.name: platform.store.actual(spec.name).run_id for spec in (counts, rows)}

    # When: both are rebuilt by another definition, while rows flow in; the new generation is held back for a while.
    wider = counts.model_copy(
        update={"sql": "select k, count(*) as n, sum(v) as total from input where v % 2 = 0 group by k"}
    )
    doubled = rows.model_copy(update={"sql": "select part, pos, 2 * v as w, k from input"})
    with flow:
        made = []
        for spec in (wider, doubled):
            made.append(platform.deploy(spec, full_refresh=True))
            platform.store.set_wanted(beside(spec.name), Wanted.STOPPED)
        assert [(each.verdict, each.generation, each.beside) for each in made] == [("REBUILD", 2, True)] * 2
        again = platform.deploy(wider)
        assert (again.verdict, again.changed) == ("NO-OP", False), "it is being built already"

        # Then: the old generation goes on, with its own columns and with rows that came after the rebuild began.
        flow.send([("during", 4)] * 3)
        platform.until(lambda: ("during", 3) in platform.sql(tables[counts.name]), "a row of the old generation")
        for spec in (counts, rows):
            rebuild, actual, new = seen(platform, spec)
            assert rebuild is not None, "the rebuild was too quick for this test"
            assert rebuild.phase is RebuildPhase.CATCHING_UP
            assert actual.run_id == before[spec.name], "the old generation was not even restarted"
            assert (actual.generation, actual.state) == (1, StreamState.RUNNING)
            told = rebuild_view(rebuild, new)
            assert told is not None
            assert told["phase"] == "catching up"

        for spec in (wider, doubled):
            platform.store.set_wanted(beside(spec.name), Wanted.RUNNING)
        for spec in (wider, doubled):
            taken_over(platform, spec, 2)
        flow.send([("after", 6)] * 2)

    # And: in the end there is just what the new definition makes of the topic, nothing lost, nothing twice.
    evens = [(k, v) for k, v in flow.sent if v % 2 == 0]
    n, total = Counter(k for k, _ in evens), Counter[str]()
    for k, v in evens:
        total[k] += v
    want = sorted((k, n[k], total[k]) for k in n)
    platform.until(
        lambda: sorted(platform.sql(tables[counts.name])) == want, "the new counts", 60,
        lambda: sorted(platform.sql(tables[counts.name])),
    )  # fmt: skip
    platform.until(lambda: len(platform.sql(tables[rows.name])) >= len(flow.sent), "every row", 60)
    found = platform.sql(tables[rows.name])
    assert len({row[:2] for row in found}) == len(found) == len(flow.sent)
    assert sorted((k, w) for _, _, w, k in found) == sorted((k, 2 * v) for k, v in flow.sent)

    # And: the rows were replaced in one commit; the version before has the old columns, and rows, as they were then.
    for spec, columns in ((counts, ["k", "n"]), (rows, ["part", "pos", "v"])):
        path = table_path(platform.paths, spec.name)
        table = DeltaTable(path)
        changed = [
            each["version"]
            for each in table.history()
            if each["operation"] == "WRITE" and each["operationParameters"].get("mode") == "Overwrite"
        ]
        assert len(changed) == 1
        old, new = (DeltaTable(path, version=version) for version in (changed[0] - 1, changed[0]))
        assert [field.name for field in old.schema().fields] == columns
        assert [field.name for field in new.schema().fields] != columns
        if spec is rows:
            assert old.to_pyarrow_table().num_rows > HISTORY
            assert new.to_pyarrow_table().num_rows >= old.to_pyarrow_table().num_rows, "a reader never sees less"
        assert not table_path(platform.paths, beside(spec.name)).exists()
        if spec is rows:  # of a stream with state, Spark's maintenance may write into the old one once more
            folder = platform.paths.checkpoint(spec.name, "x").parent
            assert [each.name for each in folder.iterdir()] == [platform.store.desired(spec.name).checkpoint_id]

    # And: an engine that is asked again, because the answer was lost, does not do it again.
    payload = {"members": [{"stream": rows.name, "spec": doubled.to_json(), "checkpoint": made[1].checkpoint}]}
    version = table.version()
    assert run_command(platform.store, "takeover", rows.name, payload) == {"done": False}
    table.update_incremental()
    assert all(
        each["operation"] != "WRITE"
        for each in table.history(max(1, table.version() - version))
        if each["version"] > version
    )
    assert len(platform.sql(tables[rows.name])) == len(flow.sent)

    # And: rows that are in are not taken back when others cannot be put; it is told that there is something left to do.
    gone = {"stream": counts.name, "spec": wider.to_json(), "checkpoint": "g9-of-nobody"}
    with pytest.raises(PenstockError, match=r"PEN-3032 .*the table of the rebuild is gone"):
        run_command(platform.store, "takeover", rows.name, {"members": [*payload["members"], gone]})
    with pytest.raises(PenstockError, match=r"PEN-3030 .*the table of the rebuild is gone"):
        run_command(platform.store, "takeover", counts.name, {"members": [gone]})
    assert sorted(platform.sql(tables[counts.name])) == want


def test_a_rebuild_that_fails_or_is_stopped_leaves_the_old_generation(
    platform: Platform, make_spec: MakeSpec, flow: Flow
) -> None:
    spec = make_spec("kept", flow._topic, "select part, pos, v from input")
    platform.deploy(spec)
    table = f"select part, pos, v from {spec.name}"
    platform.until(lambda: len(platform.sql(table)) == len(flow.sent), "the history", 90)
    run_id = platform.store.actual(spec.name).run_id

    # A row breaks what the new definition promises: the rebuild ends, and says why.
    broken = spec.model_copy(
        update={"output": Output(relation=spec.name, mode=OutputMode.APPEND, checks=(("small", "v < 250"),))}
    )
    platform.deploy(broken, full_refresh=True)

    def failed() -> bool:
        found = platform.store.rebuild(spec.name)
        return found is not None and found.phase is RebuildPhase.FAILED

    platform.until(failed, "the rebuild to fail", 90, lambda: seen(platform, spec))
    rebuild = platform.store.rebuild(spec.name)
    assert rebuild is not None
    assert rebuild.error_code == "PEN-1321"
    assert beside(spec.name) not in (rebuild.error or "")
    flow.send([("later", 999)])
    platform.until(lambda: len(platform.sql(table)) == len(flow.sent), "a row of the old generation")
    actual = platform.store.actual(spec.name)
    assert (actual.generation, actual.state, actual.run_id) == (1, StreamState.RUNNING, run_id)
    assert not table_path(platform.paths, beside(spec.name)).exists()

    # Stopping the stream ends a rebuild, too; what was there goes on when it is started again.
    slow = spec.model_copy(
        update={"sql": "select part, pos, v + 1 as v from input", "trigger": Trigger(max_batch_rows=1)}
    )
    platform.deploy(slow, full_refresh=True)
    platform.state(beside(spec.name), StreamState.RUNNING)
    stop_stream(platform.store, spec.name)
    platform.until(lambda: platform.store.rebuild(spec.name) is None, "the rebuild to be cleared away")
    assert not table_path(platform.paths, beside(spec.name)).exists()
    want = platform.store.desired(spec.name)
    folder = platform.paths.checkpoint(spec.name, "x").parent
    assert [each.name for each in folder.iterdir()] == [want.checkpoint_id]
    start_stream(platform.store, spec.name)
    flow.send([("last", 1000)])
    platform.until(lambda: len(platform.sql(table)) == len(flow.sent), "the last row")
    assert sorted(v for _, _, v in platform.sql(table)) == sorted(v for _, v in flow.sent)
