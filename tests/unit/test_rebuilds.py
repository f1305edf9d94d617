"""Rebuilds beside the deployed generation: every phase, what ends it, and what the store keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.checkpoint.offsets import Offset
from penstock.cli.main import app
from penstock.compiler.spec import Output, OutputMode, StreamSpec, TableInput, TableStreamInput
from penstock.control.beside import spec_beside
from penstock.control.lag import table_path
from penstock.control.policy import Policy
from penstock.control.rebuild_driver import RebuildDriver, upstream_first
from penstock.control.rebuilds import (
    AGAIN,
    SETTLE_AT_MOST,
    STAND_AT_MOST,
    Advance,
    Ask,
    Finish,
    GiveUp,
    Seen,
    Step,
    TakeOver,
    caught_up,
    groups,
    has_read_since,
    held,
    level,
    next_step,
    progress,
    waiting,
)
from penstock.control.reconcile import EngineView
from penstock.control.streams import await_settled, want
from penstock.control.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths, beside, original
from penstock.store import (
    Actual,
    Command,
    Desired,
    LinkKind,
    Rebuild,
    RebuildLink,
    RebuildPhase,
    RecordCounts,
    Store,
    StreamState,
    Wanted,
)

NOW = 10_000.0
STREAM, HIDDEN = "shop.a", "penstock__rebuild__shop.a"
P, S = RebuildPhase, StreamState


def spec(name: str, *inputs: TableStreamInput | TableInput, sql: str = "select * from u") -> StreamSpec:
    return StreamSpec(
        name=name, unique_id=f"model.{name}", path=f"models/{name}.sql", sql=sql, stateful=False, inputs=inputs,
        output=Output(relation=name, mode=OutputMode.APPEND),
    )  # fmt: skip


SPEC = spec(STREAM).to_json()


def rebuild(phase: RebuildPhase, **changes: Any) -> Rebuild:
    made = Rebuild(STREAM, 2, "hash", "{}", "g2-abc", phase, None, None, NOW - 100, NOW - 5)
    return replace(made, **changes)


def old(state: StreamState = S.RUNNING, **changes: Any) -> Actual:
    return replace(Actual(STREAM, 1, state, 3, lag_rows=10, lag_seconds=1.0, lag_at=NOW - 1), **changes)


def new(state: StreamState = S.RUNNING, **changes: Any) -> Actual:
    made = Actual(HIDDEN, 2, state, 3, started_at=NOW - 50, lag_rows=500, lag_seconds=900.0, lag_at=NOW - 1)
    return replace(made, **changes)


def answer(state: str, **result: Any) -> Command:
    return Command(1, "takeover", STREAM, {}, state, result)


LEVEL = new(lag_rows=0, lag_seconds=0.0)
BROKEN = new(S.QUARANTINED, error_code="PEN-1321", error=f"{HIDDEN}: a row breaks 'positive'.")
GIVEN_UP = GiveUp(STREAM, "PEN-1321", f"{STREAM}: a row breaks 'positive'.")
STOPPED = {"old": old(S.STOPPED), "new": new(S.STOPPED)}
UNFINISHED = answer("failed", code="PEN-3032", message="the disk is full.")


def advance(phase: RebuildPhase, *streams: str) -> Advance:
    return Advance(phase, streams or (STREAM,))


CASES: list[tuple[str, RebuildPhase, dict[str, Any], Step | None]] = [
    ("it reads on while it is behind", P.CATCHING_UP, {}, None),
    ("it has caught up", P.CATCHING_UP, {"new": LEVEL, "caught_up": True}, advance(P.SETTLING)),
    ("a failure is the supervisor's to repair", P.CATCHING_UP, {"new": new(S.FAILED)}, None),
    ("a quarantine ends it", P.CATCHING_UP, {"new": BROKEN}, GIVEN_UP),
    ("the old one has to stand still first", P.SETTLING, {"new": LEVEL, "level": True}, None),
    ("the new one reads on to where it stands", P.SETTLING, {"old": old(S.STOPPED)}, None),
    (
        "a stop is under way",
        P.SETTLING,
        {"old": old(S.STOPPED), "level": True, "busy": True},
        None,
    ),
    ("both have read the same", P.SETTLING, {"old": old(S.STOPPED), "level": True}, advance(P.STANDING)),
    (
        "an old one in quarantine stands still, too",
        P.SETTLING,
        {"old": old(S.QUARANTINED), "level": True},
        advance(P.STANDING),
    ),
    (
        "the old one waits no longer than that",
        P.SETTLING,
        {"old": old(S.STOPPED), "rebuild": rebuild(P.SETTLING, updated_at=NOW - SETTLE_AT_MOST)},
        advance(P.STANDING),
    ),
    ("the new one is about to stand", P.STANDING, {"old": old(S.STOPPED)}, None),
    ("both stand still, for good", P.STANDING, STOPPED, advance(P.TAKING_OVER)),
    ("a stop of it is under way", P.STANDING, STOPPED | {"busy": True}, None),
    (
        "a new one that failed lets the old one go on",
        P.SETTLING,
        {"old": old(S.STOPPED), "new": new(S.FAILED)},
        advance(P.CATCHING_UP),
    ),
    (
        "so does one whose engine is gone",
        P.SETTLING,
        {"old": old(S.STOPPED), "new": new(S.PENDING)},
        advance(P.CATCHING_UP),
    ),
    ("a quarantine ends it here as well", P.SETTLING, {"old": old(S.STOPPED), "new": BROKEN}, GIVEN_UP),
    ("the new one stops", P.TAKING_OVER, {"old": old(S.STOPPED)}, None),
    ("both stand still", P.TAKING_OVER, STOPPED, Ask("takeover")),
    ("not without an engine", P.TAKING_OVER, STOPPED | {"engine": False}, None),
    ("the engine is at it", P.TAKING_OVER, STOPPED | {"busy": True}, None),
    ("the rows are in", P.TAKING_OVER, STOPPED | {"answer": answer("done")}, TakeOver()),
    (
        "the engine died over it",
        P.TAKING_OVER,
        STOPPED | {"answer": answer("failed", code="PEN-4005")},
        Ask("takeover"),
    ),
    (
        "the engine could not, and did not say why: perhaps rows were replaced",
        P.TAKING_OVER,
        STOPPED | {"answer": answer("failed")},
        Ask("takeover"),
    ),
    (
        "the engine could not",
        P.TAKING_OVER,
        STOPPED | {"answer": answer("failed", code="PEN-3030", message="the disk is full.")},
        GiveUp(STREAM, "PEN-3030", "the disk is full."),
    ),
    ("the hidden table goes", P.TAKEN_OVER, {"new": Actual(HIDDEN)}, Ask("discard")),
    ("nothing is left", P.TAKEN_OVER, {"new": Actual(HIDDEN), "answer": answer("done")}, Finish()),
    ("what was given up stops first", P.ENDING, {"new": new(S.STOPPING)}, None),
    ("then its table goes", P.ENDING, {"new": new(S.STOPPED)}, Ask("discard")),
    ("a quarantined one stands still", P.ENDING, {"new": BROKEN}, Ask("discard")),
    (
        "a table that cannot be dropped holds nobody up",
        P.ENDING,
        {"new": new(S.STOPPED), "answer": answer("failed", code="PEN-4006")},
        Finish(),
    ),
    (
        "an engine that died is asked again",
        P.ENDING,
        {"new": new(S.STOPPED), "answer": answer("failed", code="PEN-4005")},
        Ask("discard"),
    ),
    ("what failed stays as it is", P.FAILED, {"new": BROKEN}, None),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "facts", "step"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_next_step_of_a_rebuild(phase: RebuildPhase, facts: dict[str, Any], step: Step | None) -> None:
    seen = Seen(**{"rebuild": rebuild(phase), "old": old(), "new": new()} | facts)
    assert next_step([seen], NOW) == step


# -- groups -----------------------------------------------------------------------------------------------------------
READER = "shop.b"


def pair(first: RebuildPhase, second: RebuildPhase, **facts: Any) -> list[Seen]:
    """The rebuild of a table, and that of a stream on it; facts of the latter, or of both."""
    of_both = {name: facts.pop(name) for name in ("answer",) if name in facts}
    old_, new_ = facts.pop("old", old(S.STOPPED)), facts.pop("new", LEVEL)
    of_both |= {"caught_up": facts.pop("caught_up", True)}
    upper = Seen(rebuild(first), facts.pop("upper_old", old_), facts.pop("upper_new", new_), level=True, **of_both)
    lower = rebuild(second, stream=READER, updated_at=facts.pop("since", NOW - 5))
    return [upper, Seen(lower, old_, new_, above=frozenset({STREAM}), **({"level": True} | facts | of_both))]


BOTH = (STREAM, READER)
STANDS = {"upper_new": new(S.STOPPED)}
GROUPS: list[tuple[str, list[Seen], Step | None]] = [
    ("all have caught up", pair(P.CATCHING_UP, P.CATCHING_UP), advance(P.SETTLING, *BOTH)),
    ("one has not", pair(P.CATCHING_UP, P.CATCHING_UP, caught_up=False), None),
    ("upstream comes to stand first", pair(P.SETTLING, P.SETTLING), advance(P.STANDING, STREAM)),
    ("it has not stopped writing", pair(P.STANDING, P.SETTLING), None),
    ("then the reader", pair(P.STANDING, P.SETTLING, **STANDS), advance(P.STANDING, READER)),
    ("once it has read all", pair(P.STANDING, P.SETTLING, **STANDS, drained=False), None),
    (
        "rows that are not read are not left behind, however long it takes",
        pair(P.STANDING, P.SETTLING, **STANDS, drained=False, since=NOW - SETTLE_AT_MOST),
        None,
    ),
    (
        "but it is tried again later",
        pair(P.STANDING, P.SETTLING, **STANDS, drained=False, since=NOW - STAND_AT_MOST),
        advance(P.CATCHING_UP, *BOTH),
    ),
    (
        "also while something else is asked for one of them",
        pair(P.STANDING, P.SETTLING, **STANDS, drained=False, busy=True, since=NOW - STAND_AT_MOST),
        advance(P.CATCHING_UP, *BOTH),
    ),
    (
        "a reader that failed lets all old ones go on",
        pair(P.STANDING, P.SETTLING, **STANDS, new=new(S.FAILED)),
        advance(P.CATCHING_UP, *BOTH),
    ),
    ("all stand still", pair(P.STANDING, P.STANDING, new=new(S.STOPPED)), advance(P.TAKING_OVER, *BOTH)),
    ("the engine is asked for all", pair(P.TAKING_OVER, P.TAKING_OVER, new=new(S.STOPPED)), Ask("takeover")),
    (
        "some rows are in: it is asked again, in a while",
        pair(P.TAKING_OVER, P.TAKING_OVER, new=new(S.STOPPED), answer=replace(UNFINISHED, created_at=NOW - 1)),
        None,
    ),
    (
        "and never given up",
        pair(P.TAKING_OVER, P.TAKING_OVER, new=new(S.STOPPED), answer=replace(UNFINISHED, created_at=NOW - AGAIN)),
        Ask("takeover"),
    ),
    (
        "one that is quarantined ends it for all",
        pair(P.SETTLING, P.SETTLING, new=BROKEN, upper_new=LEVEL),
        GiveUp(READER, "PEN-1321", f"{STREAM}: a row breaks 'positive'."),
    ),
]


@pytest.mark.parametrize(("group", "step"), [case[1:] for case in GROUPS], ids=[case[0] for case in GROUPS])
def test_the_next_step_of_rebuilds_that_take_over_together(group: list[Seen], step: Step | None) -> None:
    assert next_step(group, NOW) == step
    assert upstream_first(group[::-1]) == group


def test_a_table_that_is_looked_up_takes_over_before_those_that_need_its_columns() -> None:
    # By their names alone the one that looks up would come before what it looks up.
    first, looked_up = (Seen(rebuild(P.STANDING, stream=name), old(), LEVEL) for name in ("shop.k", "shop.counts"))
    reader = Seen(rebuild(P.STANDING, stream="shop.a"), old(), LEVEL, looked_up=frozenset({"shop.counts"}))
    looked_up = replace(looked_up, above=frozenset({"shop.k"}))
    assert upstream_first([reader, looked_up, first]) == [first, looked_up, reader]


def test_a_group_waits_for_readers_whose_rebuilds_have_not_begun() -> None:
    links = [RebuildLink(STREAM, READER, LinkKind.TOGETHER), RebuildLink(STREAM, "shop.new", LinkKind.AFTER)]
    alone = {STREAM: rebuild(P.CATCHING_UP)}
    assert groups(alone, links) == [([STREAM], {READER})]
    caught = [Seen(rebuild(P.CATCHING_UP), old(), LEVEL, caught_up=True)]
    assert next_step(caught, NOW, {READER}) is None
    assert next_step(caught, NOW) == advance(P.SETTLING)
    both = alone | {READER: rebuild(P.CATCHING_UP, stream=READER)}
    assert groups(both, links) == [([STREAM, READER], set())]
    ended = {STREAM: rebuild(P.ENDING), READER: rebuild(P.ENDING, stream=READER)}
    assert groups(ended, links) == [([STREAM], set()), ([READER], set())], "what is cleared away is so by itself"

    # A stream that starts after the rebuild is held until it is over.
    wants = [Desired("shop.new", 1, "h", "{}", "c", Wanted.RUNNING, 0.0)]
    assert [each.wanted for each in held(wants, alone, links)] == [Wanted.STOPPED]
    assert [each.wanted for each in held(wants, {STREAM: rebuild(P.TAKEN_OVER)}, links)] == [Wanted.RUNNING]
    assert [each.wanted for each in held(wants, {STREAM: rebuild(P.FAILED)}, links)] == [Wanted.RUNNING]


def test_a_new_generation_reads_the_new_rows_of_tables_that_are_rebuilt_as_well() -> None:
    inputs = (
        TableStreamInput(view="u", relation=STREAM),
        TableInput(relation="shop.sizes"),
        TableInput(relation="shop.x"),
    )
    sql = "select u.*, sizes.size from u join shop.sizes on u.id = shop.sizes.id join shop.x x on x.id = u.id"
    made = spec_beside(spec(READER, *inputs, sql=sql), [STREAM, "shop.sizes"])
    assert [each.relation for each in made.inputs] == [HIDDEN, "penstock__rebuild__shop.sizes", "shop.x"]
    assert "join `penstock__rebuild__shop`.`sizes` as sizes on u.id = sizes.id join shop.x x" in made.sql
    assert (made.name, made.output.relation) == ("penstock__rebuild__shop.b", "penstock__rebuild__shop.b")


@pytest.mark.parametrize(
    ("phase", "still"),
    [
        (P.CATCHING_UP, set()),
        (P.SETTLING, {STREAM}),
        (P.STANDING, {STREAM, HIDDEN}),
        (P.TAKING_OVER, {STREAM, HIDDEN}),
        (P.TAKEN_OVER, {HIDDEN}),
        (P.ENDING, {HIDDEN}),
        (P.FAILED, {HIDDEN}),
    ],
)
def test_who_stands_still_in_which_phase(phase: RebuildPhase, still: set[str]) -> None:
    wants = [Desired(name, 1, "h", "{}", "c", Wanted.RUNNING, 0.0) for name in (STREAM, HIDDEN, "shop.b")]
    found = held(wants, {STREAM: rebuild(phase)})
    assert {want.stream for want in found if want.wanted is Wanted.STOPPED} == still


@pytest.mark.parametrize(
    ("then", "found"),
    [
        (new(lag_rows=0), True),
        (new(lag_rows=10), True),  # no further behind than the old one
        (new(lag_rows=11), False),
        (new(lag_rows=5000, lag_seconds=5.9), True),  # the old one is 1 second behind
        (new(lag_rows=5000, lag_seconds=6.1), False),
        (new(lag_rows=None), False),
        (new(lag_rows=0, lag_at=NOW - 60), False),  # measured before it was started
        (new(S.STARTING, lag_rows=0), False),
    ],
)
def test_when_a_new_generation_has_caught_up(then: Actual, found: bool) -> None:
    assert caught_up(old(), then) is found


@pytest.mark.parametrize(
    ("then", "found"),
    [
        (new(lag_rows=0), True),
        (new(lag_rows=5, lag_seconds=8.9), True),  # of ten seconds ago, measured a second ago
        (new(lag_rows=5, lag_seconds=9.1), False),
        (new(lag_rows=5, lag_seconds=None), False),  # messages without a time
    ],
)
def test_whether_a_new_generation_has_read_what_was_there_at_a_time(then: Actual, found: bool) -> None:
    assert has_read_since(then, NOW - 10) is found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"s": {"t": {"0": 5, "1": 7}}}, {"s": {"t": {"0": 5, "1": 9}}}, True),
        ({"s": {"t": {"0": 5, "1": 7}}}, {"s": {"t": {"0": 5, "1": 6}}}, False),
        ({"s": {"t": {"0": 5}}}, {"s": {"t": {"1": 6}}}, False),
        ({"s": {"t": {"0": 5}}}, {}, False),
        ({"s": {"t": {"0": 0}}}, {}, True),
        ({"s": {"t": {"0": 5}}}, {"s": {"other": {"0": 1}}}, True),
        ({"gone": {"t": {"0": 5}}}, {}, True),
        ({"s": {"reservoirVersion": 4}}, {"s": {"reservoirVersion": 4}}, True),
        ({"s": {"reservoirVersion": 4}}, {"s": {"reservoirVersion": 9, "index": 3, "isStartingVersion": True}}, False),
        ({"s": {"reservoirVersion": 4, "index": 2}}, {"s": {"reservoirVersion": 4, "index": 1}}, False),
        ({"s": {"reservoirVersion": 4}}, {"s": {"reservoirVersion": 3}}, False),
        ({"s": {"reservoirVersion": 4}}, {}, False),
    ],
)
def test_what_both_read_is_compared(before: Mapping[str, Offset], after: Mapping[str, Offset], found: bool) -> None:
    assert level(before, after, ["s"]) is found


def test_the_progress_is_the_part_that_was_read() -> None:
    assert progress(new(total_rows_in=300, lag_rows=700)) == 0.3
    assert progress(new(total_rows_in=0, lag_rows=0)) == 1.0
    assert progress(new(lag_rows=None)) is None


# -- the store --------------------------------------------------------------------------------------------------------
@pytest.fixture
def store(project_paths: ProjectPaths) -> Store:
    found = Store.open(project_paths.store)
    found.deploy(STREAM, '{"v": 1}', "h1", verdict="NEW", new_checkpoint=True)
    return found


def begun(store: Store, stream: str = STREAM, **links: Any) -> Rebuild:
    made = store.begin_rebuild(
        stream, SPEC, "h2", beside_json='{"beside": 2}', beside_hash="b2", verdict="REBUILD", **links
    )
    assert made is not None
    return made


def advanced(store: Store, phase: RebuildPhase, *seen: Rebuild) -> bool:
    return store.advance_rebuilds(seen, [each.stream for each in seen], phase)


def test_a_rebuild_is_a_stream_that_only_those_see_who_ask_for_it(store: Store) -> None:
    made = begun(store)
    assert (made.generation, made.phase) == (2, P.CATCHING_UP)
    assert beside(STREAM) == HIDDEN
    assert original(HIDDEN) == original(STREAM) == STREAM
    pending = store.actual(HIDDEN)
    assert store.report(HIDDEN, if_still=pending, if_wanted=2, state=S.RUNNING), "the supervisor can start it"
    assert [want.stream for want in store.all_desired()] == [STREAM]
    assert HIDDEN not in store.all_actual()
    assert {want.stream for want in store.all_desired(hidden=True)} == {STREAM, HIDDEN}
    assert HIDDEN in store.all_actual(hidden=True)
    assert store.desired(STREAM).generation == 1, "the deployed generation is the desired one"
    assert store.desired(HIDDEN).spec_json == '{"beside": 2}'
    assert store.desired(HIDDEN).checkpoint_id == made.checkpoint_id != store.desired(STREAM).checkpoint_id


def test_taking_over_makes_the_new_generation_the_deployed_one(store: Store) -> None:
    made = begun(store)
    store.report(STREAM, state=S.QUARANTINED, failures=5, error="broken", generation=1)
    store.record_beginning(HIDDEN, 2, {"s": {"t": {"0": 3}}})
    assert advanced(store, P.TAKING_OVER, made)
    assert not advanced(store, P.SETTLING, made), "somebody else has gone on"
    ready = store.rebuild(STREAM)
    assert ready is not None
    assert store.take_over([ready])
    want = store.desired(STREAM)
    assert (want.generation, want.spec_hash, want.checkpoint_id) == (2, "h2", made.checkpoint_id)
    assert want.wanted is Wanted.RUNNING
    found = store.actual(STREAM)
    assert (found.state, found.failures, found.error) == (S.PENDING, 0, None)
    assert store.beginnings(STREAM) == {2: {"s": {"t": {"0": 3}}}}
    assert store.find_desired(HIDDEN) is None
    assert not store.take_over([ready]), "once"
    left = store.rebuild(STREAM)
    assert left is not None
    assert store.finish_rebuild(left)
    assert store.rebuild(STREAM) is None
    assert store.deploy(STREAM, "{}", "h3", verdict="RESTART", new_checkpoint=False).generation == 3


def test_counts_of_records_are_those_of_the_generation_that_took_over(store: Store) -> None:
    made = begun(store)
    from penstock.store import Progress

    for stream, read in ((STREAM, 7), (HIDDEN, 9)):
        batch = Progress(stream, 1, 0, NOW, read, read, 5, "delta-rs")
        store.record_progress(batch, engine_token=1, counts={"s": RecordCounts(records=read)})
    advanced(store, P.TAKING_OVER, made)
    store.take_over([replace(made, phase=P.TAKING_OVER)])
    assert store.record_counts() == {STREAM: {"s": RecordCounts(records=9)}}


@pytest.mark.parametrize(
    ("phase", "ended", "after"),
    [
        (P.CATCHING_UP, True, P.ENDING),
        (P.SETTLING, True, P.ENDING),
        (P.STANDING, True, P.ENDING),
        (P.TAKING_OVER, False, P.TAKING_OVER),
        (P.TAKEN_OVER, True, P.TAKEN_OVER),
        (P.FAILED, True, None),
    ],
)
def test_a_rebuild_can_be_given_up_until_it_takes_over(
    store: Store, phase: RebuildPhase, ended: bool, after: RebuildPhase | None
) -> None:
    made = begun(store)
    advanced(store, phase, made)
    assert store.end_rebuild(STREAM, stop=True) is ended
    found = store.rebuild(STREAM)
    assert (found.phase if found else None) is after
    if phase is P.TAKING_OVER and found is not None:
        store.take_over([found])
        assert store.desired(STREAM).wanted is Wanted.STOPPED, "it was to stop, and does not run after it"


def test_an_error_of_a_rebuild_is_kept_until_the_next_one(store: Store) -> None:
    begun(store)
    assert store.give_up(STREAM, code="PEN-1321", message="a row breaks it.")
    ending = store.rebuild(STREAM)
    assert ending is not None
    assert store.finish_rebuild(ending)
    failed = store.rebuild(STREAM)
    assert failed is not None
    assert (failed.phase, failed.error_code) == (P.FAILED, "PEN-1321")
    assert store.find_desired(HIDDEN) is None
    assert begun(store).generation == 3


def chained(store: Store) -> tuple[Rebuild, Rebuild]:
    """The rebuilds of a table and of its reader."""
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    return begun(store, readers=[READER]), begun(store, READER, inputs=[STREAM])


def phases(store: Store) -> dict[str, RebuildPhase]:
    return {stream: each.phase for stream, each in store.rebuilds().items()}


def test_rebuilds_that_belong_together_go_on_and_end_together(store: Store) -> None:
    first, second = chained(store)
    assert not advanced(store, P.SETTLING, first), "somebody has joined it since it was seen"
    assert advanced(store, P.SETTLING, first, second)
    assert begun_on(store, "shop.c", STREAM) is None, "it is about to take over"
    assert not store.start_after("shop.c", [STREAM])
    assert store.end_rebuild(READER, alone=True)
    assert phases(store) == {STREAM: P.CATCHING_UP, READER: P.ENDING}, "the other one waits for it to begin anew"
    assert store.finish_rebuild(store.rebuilds()[READER])
    assert groups(store.rebuilds(), store.rebuild_links()) == [([STREAM], {READER})]
    begun(store, READER, inputs=[STREAM])
    assert store.end_rebuild(STREAM)
    assert phases(store) == {STREAM: P.ENDING, READER: P.ENDING}
    for each in store.rebuilds().values():
        store.finish_rebuild(each)
    assert store.rebuild_links() == []


def begun_on(store: Store, stream: str, above: str) -> Rebuild | None:
    return store.begin_rebuild(stream, SPEC, "h", beside_json="{}", beside_hash="b", verdict="REBUILD", inputs=[above])


def test_rebuilds_that_belong_together_take_over_in_one_transaction(store: Store) -> None:
    made = chained(store)
    assert advanced(store, P.TAKING_OVER, *made)
    seen = [replace(each, phase=P.TAKING_OVER) for each in made]
    assert not store.take_over(seen[:1])
    assert store.take_over(seen)
    assert [store.desired(each).generation for each in BOTH] == [2, 2]
    assert set(phases(store).values()) == {P.TAKEN_OVER}


def test_an_error_of_one_rebuild_is_told_of_all_that_belong_to_it(store: Store) -> None:
    chained(store)
    assert store.give_up(READER, code="PEN-1321", message="a row breaks it.")
    told = {stream: each.error for stream, each in store.rebuilds().items()}
    assert told == {
        READER: "a row breaks it.",
        STREAM: "It takes over together with shop.b, which failed: a row breaks it.",
    }
    assert not store.give_up(READER, code="PEN-1321", message="again"), "it is ending"


def test_a_rebuild_that_begins_anew_keeps_those_that_go_on_with_it(store: Store) -> None:
    chained(store)
    assert store.start_after("shop.c", [STREAM])
    store.end_rebuild(STREAM, alone=True)
    store.finish_rebuild(store.rebuilds()[STREAM])
    (going,) = [each for each in store.rebuilds().values() if each.stream == READER]
    advanced(store, P.SETTLING, going)
    assert (
        store.begin_rebuild(STREAM, SPEC, "h", beside_json="{}", beside_hash="b", verdict="REBUILD", again=True) is None
    ), "one that goes on with it is about to take over"
    advanced(store, P.CATCHING_UP, replace(going, phase=P.SETTLING))
    begun(store, again=True)
    assert set(store.rebuild_links()) == {
        RebuildLink(STREAM, READER, LinkKind.TOGETHER),
        RebuildLink(STREAM, "shop.c", LinkKind.AFTER),
    }
    assert groups(store.rebuilds(), store.rebuild_links()) == [([STREAM, READER], set())]

    # Who waited gets a new chance with the takeover, whatever it failed of before.
    store.deploy("shop.c", SPEC, "h", verdict="NEW", new_checkpoint=True)
    store.report("shop.c", state=S.QUARANTINED, failures=1, error="no column 'b'", error_code="PEN-1304")
    pair_ = [store.rebuilds()[each] for each in BOTH]
    advanced(store, P.TAKING_OVER, *pair_)
    assert store.take_over([replace(each, phase=P.TAKING_OVER) for each in pair_])
    assert store.actual("shop.c").state is S.PENDING


def test_who_waited_for_a_rebuild_goes_on_when_there_is_another_one(store: Store) -> None:
    # Given: a stream that was new while the table above it was rebuilt, and that is rebuilt itself by now.
    done = begun(store)
    assert store.start_after(READER, [STREAM])
    advanced(store, P.TAKING_OVER, done)
    assert store.take_over([replace(done, phase=P.TAKING_OVER)])
    assert store.finish_rebuild(store.rebuilds()[STREAM])
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    assert store.begin_rebuild(READER, SPEC, "h2", beside_json="{}", beside_hash="b", verdict="REBUILD") is not None
    # When: that table is rebuilt once more. Then: the deployed generation of the reader is not held for it.
    begun(store)
    assert store.rebuild_links() == []
    assert waiting(store.rebuilds(), store.rebuild_links()) == {}


def test_a_reader_of_new_rows_waits_for_a_rebuild_that_begins_anew(store: Store, project_paths: ProjectPaths) -> None:
    # Given: a rebuild that looks up the new rows of another one, which is gone because it is begun anew.
    looked_up = TableInput(relation=HIDDEN)
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    made = store.begin_rebuild(
        READER, SPEC, "h2", beside_json=spec(beside(READER), looked_up).to_json(), beside_hash="b", verdict="REBUILD"
    )
    assert made is not None
    driver = RebuildDriver(project_paths, store, lambda _: None)
    actual = {READER: old(), beside(READER): LEVEL}
    assert not driver.drive(store.rebuilds(), actual, engine=True, now=NOW)

    # It does not even start before the rows that it looks up are there.
    hidden = {READER: old(), beside(READER): new(S.PENDING)}
    assert driver.early(store.rebuilds(), hidden) == {beside(READER)}
    begun(store)
    behind = hidden | {HIDDEN: new()}
    assert driver.early(store.rebuilds(), behind) == {beside(READER)}
    begun_before = behind | {beside(READER): new(S.PENDING, batch_id=3)}
    assert driver.early(store.rebuilds(), begun_before) == set(), "it goes on once it has begun"
    assert driver.early(store.rebuilds(), behind | {STREAM: old(), HIDDEN: LEVEL}) == set()
    assert driver.early(store.rebuilds(), behind) == set(), "the rows that it waited for are there"
    wants = [Desired(beside(READER), 1, "h", "{}", "c", Wanted.RUNNING, 0.0)]
    assert [each.wanted for each in held(wants, store.rebuilds(), early=[beside(READER)])] == [Wanted.STOPPED]


def test_a_rebuild_that_begins_between_two_looks_at_the_store_is_held_back_in_that_look(
    store: Store, project_paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a rebuild. When: one that looks up its new rows begins just when the supervisor looks.
    begun(store)
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    below = spec(beside(READER), TableInput(relation=HIDDEN)).to_json()
    wanted = store.all_desired

    def wanted_now(**options: Any) -> list[Desired]:
        if READER not in store.rebuilds():
            assert store.begin_rebuild(READER, SPEC, "h2", beside_json=below, beside_hash="b", verdict="REBUILD")
        return wanted(**options)

    monkeypatch.setattr(store, "all_desired", wanted_now)
    lease = store.acquire("supervisor", "test", ttl=60)
    assert lease is not None
    boss = Supervisor(project_paths, store, lease, spawn=lambda *_: pytest.fail("no engine"), policy=Policy())
    monkeypatch.setattr(boss._engine, "look", lambda *_: EngineView(running=True, token=3))
    boss._look(NOW)
    # Then: all start but that one.
    started = {each.stream for each in store.open_commands() if each.kind == "start"}
    assert started == {STREAM, HIDDEN, READER}


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        (old(batch_id=7, lag_rows=800), True),  # as far as the one that is read today
        (old(lag_rows=800), False),  # which has read nothing yet
        (old(S.QUARANTINED, batch_id=7, lag_rows=800), False),
    ],
)
def test_an_old_generation_that_reads_nothing_is_no_measure(
    store: Store, project_paths: ProjectPaths, before: Actual, complete: bool
) -> None:
    # Given: a rebuild that has read less than the old one has not, and of old messages.
    made = begun(store)
    driver = RebuildDriver(project_paths, store, lambda _: None)
    assert driver.drive(store.rebuilds(), {STREAM: before, HIDDEN: new()}, engine=True, now=NOW) is complete
    assert phases(store)[STREAM] is (P.SETTLING if complete else P.CATCHING_UP)
    # A run of a rebuild before says nothing at all.
    other = new(generation=made.generation + 1, lag_rows=0, lag_seconds=0.0)
    assert complete or not driver.drive(store.rebuilds(), {STREAM: before, HIDDEN: other}, engine=True, now=NOW)


def test_what_is_wanted_while_a_new_generation_takes_over_holds_for_it(store: Store) -> None:
    made = begun(store)
    advanced(store, P.TAKING_OVER, made)
    want(store, STREAM, Wanted.STOPPED)
    want(store, STREAM, Wanted.RUNNING)
    assert store.take_over([replace(made, phase=P.TAKING_OVER)])
    assert (store.desired(STREAM).generation, store.desired(STREAM).wanted) == (2, Wanted.RUNNING)


def test_a_reader_has_caught_up_only_with_what_was_written_to_the_end(
    store: Store, project_paths: ProjectPaths
) -> None:
    # Given: a rebuild, and one that reads its new rows, of which there are two commits.
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    begun(store, readers=[READER])
    below = spec(beside(READER), TableStreamInput(view="u", relation=HIDDEN)).to_json()
    made = store.begin_rebuild(
        READER, SPEC, "h2", beside_json=below, beside_hash="b", verdict="REBUILD", inputs=[STREAM]
    )
    assert made is not None
    driver = RebuildDriver(project_paths, store, lambda _: None)
    log = table_path(project_paths, HIDDEN) / "_delta_log"
    log.mkdir(parents=True)

    def write(version: int) -> None:
        (log / f"{version:020d}.json").write_text('{"add": {"path": "f", "dataChange": true}}')

    def look(upper: Actual, read: int | None, **lag: Any) -> bool:
        """Whether both settle, when the reader has read all commits before that one."""
        place = {} if read is None else {HIDDEN: {"reservoirId": "t", "reservoirVersion": read, "index": -1}}
        lower = replace(LEVEL, stream=beside(READER), generation=made.generation, offsets=place, **lag)
        actual = {STREAM: old(), READER: old(), HIDDEN: upper, beside(READER): lower}
        return driver.drive(store.rebuilds(), actual, engine=True, now=NOW)

    write(0)
    write(1)
    assert not look(new(), 2), "the one above has more to write"
    near = {"lag_rows": 9, "lag_seconds": 0.7}
    # When the upper one is complete, then what it had written by then has to be read, however new it is.
    assert not look(LEVEL, None, **near)
    assert not look(LEVEL, 1, **near)
    write(2)
    # And not what comes while rows flow. It is enough that the upper one was complete once, but it settles level.
    assert not look(new(), 2, **near)
    assert look(LEVEL, 2, **near)
    assert set(phases(store).values()) == {P.SETTLING}


def test_what_is_dropped_is_not_awaited(store: Store) -> None:
    store.deploy(READER, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    begun(store, readers=[READER])
    store.forget(READER)
    assert groups(store.rebuilds(), store.rebuild_links()) == [([STREAM], set())]


def test_a_rebuild_that_does_not_end_is_not_waited_for_for_ever(store: Store) -> None:
    made = begun(store)
    await_settled(store, STREAM, lambda _: None, 0.1)
    advanced(store, P.ENDING, made)
    with pytest.raises(PenstockError, match=r"rebuild of 'shop.a' to end"):
        await_settled(store, STREAM, lambda _: None, 0.1)


# -- the driver -------------------------------------------------------------------------------------------------------
def test_the_driver_asks_once_and_a_new_one_asks_again(store: Store, project_paths: ProjectPaths) -> None:
    said: list[str] = []
    made = begun(store)
    advanced(store, P.TAKING_OVER, made)
    actual = {STREAM: old(S.STOPPED), HIDDEN: new(S.STOPPED)}

    def look(driver: RebuildDriver) -> bool:
        return driver.drive(store.rebuilds(), actual, engine=True, now=NOW)

    first = RebuildDriver(project_paths, store, said.append)
    assert look(first)
    assert not look(first), "it is asked"
    (command,) = store.open_commands()
    assert (command.kind, command.stream) == ("takeover", STREAM)
    (member,) = command.payload["members"]
    assert (member["stream"], member["checkpoint"]) == (STREAM, made.checkpoint_id)
    store.finish(command.id, ok=True, result={})
    second = RebuildDriver(project_paths, store, said.append)
    assert look(second)
    assert len(store.open_commands()) == 1, "it does not know of the answer: the engine does it once"
    store.finish(store.open_commands()[0].id, ok=True, result={})
    assert look(second)
    assert store.desired(STREAM).generation == 2
    assert said == ["shop.a: generation 2 has taken over"]
    assert look(second)
    assert store.open_commands()[0].kind == "discard"
    store.finish(store.open_commands()[0].id, ok=True, result={})
    assert look(second)
    assert store.rebuilds() == {}


def test_a_takeover_that_is_tried_again_says_why_once_and_in_the_status(
    store: Store, project_paths: ProjectPaths
) -> None:
    said: list[str] = []
    made = begun(store)
    advanced(store, P.TAKING_OVER, made)
    driver = RebuildDriver(project_paths, store, said.append)

    def look(now: float) -> bool:
        actual = {STREAM: old(S.STOPPED), HIDDEN: replace(store.actual(HIDDEN), state=S.STOPPED)}
        return driver.drive(store.rebuilds(), actual, engine=True, now=now)

    for number in range(3):
        assert look(NOW + number * (AGAIN + 1))
        (command,) = store.open_commands()
        message = f"{beside(STREAM)}: the disk is full."
        store.finish(command.id, ok=False, result={"code": "PEN-3032", "message": message})
        assert not look(NOW + number * (AGAIN + 1)), "in a while"
    assert said == ["shop.a: its rows could not be replaced, trying again: PEN-3032 shop.a: the disk is full."]
    (project_paths.project / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    arguments = ["status", "--project-dir", str(project_paths.project)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "250"}).stdout
    assert "PEN-3032 shop.a: the disk is full." in " ".join(shown.split())


def test_a_rebuild_that_is_quarantined_is_given_up_and_told(store: Store, project_paths: ProjectPaths) -> None:
    said: list[str] = []
    begun(store)
    driver = RebuildDriver(project_paths, store, said.append)
    actual = {STREAM: old(), HIDDEN: BROKEN}
    while driver.drive(store.rebuilds(), actual, engine=True, now=NOW):
        for command in store.open_commands():
            store.finish(command.id, ok=True, result={})
    (project_paths.project / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    shown = (
        CliRunner().invoke(app, ["status", "--project-dir", str(project_paths.project)], env={"COLUMNS": "250"}).stdout
    )
    assert "rebuild to 2 failed" in shown
    assert "PEN-1321 shop.a: a row breaks 'positive'." in " ".join(shown.split())
    assert said == ["shop.a: the rebuild is given up, the old generation goes on: shop.a: a row breaks 'positive'."]


def test_status_says_who_waits_for_a_rebuild(store: Store, project_paths: ProjectPaths) -> None:
    for stream in (READER, "shop.new"):
        store.deploy(stream, SPEC, "h1", verdict="NEW", new_checkpoint=True)
    begun(store, readers=[READER])
    assert store.start_after("shop.new", [STREAM])
    store.report("shop.new", state=S.STOPPED)
    (project_paths.project / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    arguments = ["status", "--project-dir", str(project_paths.project), "--output", "json"]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)["streams"]
    waits = {each["name"]: each["waits_for"] for each in found}
    assert waits == {STREAM: [READER], READER: [], "shop.new": [STREAM]}
    shown = CliRunner().invoke(app, arguments[:-2], env={"COLUMNS": "250"}).stdout
    assert "stopped (waits for the rebuild of shop.a)" in shown


def test_status_says_how_far_a_rebuild_is(store: Store, project_paths: ProjectPaths) -> None:
    begun(store)
    store.report(HIDDEN, state=S.RUNNING, total_rows_in=40)
    store.record_lag(store.actual(HIDDEN), 60, 100.0)
    (project_paths.project / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    arguments = ["status", "--project-dir", str(project_paths.project)]
    assert "rebuilding 40 %" in CliRunner().invoke(app, arguments, env={"COLUMNS": "250"}).stdout
    (stream,) = json.loads(CliRunner().invoke(app, [*arguments, "--output", "json"]).stdout)["streams"]
    assert (stream["name"], stream["rebuild"]["phase"], stream["rebuild"]["progress"]) == (STREAM, "catching up", 0.4)
