"""What the sensors tell, and how much of it: states and a memory in, events and a memory out."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import NOW, STREAM, batch, healthy, limits_of, running, with_actual, with_wanted

from penstock.control.health import Severity, State, Verdict
from penstock.control.world import Liveness, World
from penstock.dagster.budget import (
    CHECKS,
    DAY,
    POINTS,
    ROLL_UP,
    UPDATES,
    Purse,
    events_per_day,
    quiet_events_per_day,
    quiet_runs_per_day,
    restarts_per_day,
    run_events,
    run_events_per_day,
    runs_per_day,
)
from penstock.dagster.findings import BROKER, HEALTH, Finding, health_findings, lag_findings
from penstock.dagster.memory import Cursor
from penstock.dagster.telling import Point, Seen, Told, Update, changed, plotted
from penstock.store import Part, StreamState, Wanted


def _finding(state: State = State.RUNNING, severity: Severity = Severity.OK) -> Finding:
    return Finding(STREAM, HEALTH, Verdict(state, severity, "as it is"))


FAILED = _finding(State.FAILED, Severity.ERROR)


def test_a_state_is_told_when_it_is_new_then_when_it_changes_then_every_hour() -> None:
    told, memory = changed([_finding()], {}, NOW)
    assert told == [_finding()]
    told, memory = changed([_finding()], memory, NOW + 10)
    assert told == []
    told, memory = changed([FAILED], memory, NOW + 20)
    assert told == [FAILED]
    told, memory = changed([FAILED], memory, NOW + 20 + ROLL_UP - 1)
    assert told == []
    told, memory = changed([FAILED], memory, NOW + 20 + ROLL_UP)
    assert told == [FAILED]


def test_a_stream_that_comes_and_goes_is_told_within_its_budget_and_with_the_truth_in_the_end() -> None:
    memory: dict[str, Told] = {}
    events = []
    seconds = range(0, int(DAY), 10)
    for second in seconds:
        finding = FAILED if second % 20 else _finding()
        told, memory = changed([finding], memory, NOW + second)
        events += told
    assert len(events) <= CHECKS.per_day()
    assert len(events) > CHECKS.per_day() / 2, "the budget is there to be used"
    _, memory = changed([FAILED], memory, NOW + DAY + 1000)
    assert next(iter(memory.values())).state == FAILED.state


def test_what_is_gone_is_forgotten_and_told_anew_when_it_comes_back() -> None:
    _, memory = changed([_finding()], {}, NOW)
    _, memory = changed([], memory, NOW + 10)
    assert memory == {}
    told, _ = changed([_finding()], memory, NOW + 20)
    assert told


def test_after_an_hour_without_dagster_each_difference_is_told_once() -> None:
    names = [f"shop.t{n}" for n in range(100)]
    world = healthy(*names)
    _, memory = changed(health_findings(world, limits_of), {}, NOW)
    for name in names[:3]:
        world = with_actual(world, name, state=StreamState.FAILED, error="boom")
    later = replace(world, at=NOW + ROLL_UP / 2)
    told, memory = changed(health_findings(later, limits_of), memory, later.at)
    assert sorted(each.subject for each in told) == sorted(names[:3])
    again, _ = changed(health_findings(later, limits_of), memory, later.at + 10)
    assert again == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), step=st.sampled_from([5, 30, 200]))
def test_no_day_has_more_events_than_its_bound(seed: int, step: int) -> None:
    chance = random.Random(seed)
    told: dict[str, Told] = {}
    seen: dict[str, Seen] = {}
    lagged: dict[str, Told] = {}
    events = 0
    world = healthy()
    rows = 900
    for second in range(0, int(DAY / 8), step):
        rows += chance.choice([0, 5])
        state = chance.choice([StreamState.RUNNING, StreamState.FAILED, StreamState.STARTING])
        lag = chance.choice([0, 10, 1000])
        world = with_actual(
            replace(world, at=NOW + second), state=state, lag_rows=lag, lag_seconds=float(lag), lag_at=NOW + second,
            total_rows_out=rows, batch_id=second,
        )  # fmt: skip
        some, told = changed(health_findings(world, limits_of), told, world.at)
        more, lagged = changed(lag_findings(world, limits_of), lagged, world.at)
        points, seen = plotted(world, seen)
        events += len(some) + len(more) + len(points)
    # an eighth of a day: the bursts and an eighth of what comes in
    bursts = 7 * CHECKS.burst + POINTS.burst + UPDATES.burst
    assert events <= bursts + (events_per_day(1, 4) - bursts) / 8 + 5


def test_the_bound_is_linear_and_a_quiet_day_is_far_below_it() -> None:
    assert events_per_day(100, 4) == 472 * 100 + 5 * 108
    assert quiet_events_per_day(100, 4) == 288 * 100 + 5 * 24
    assert events_per_day(200, 0) - events_per_day(100, 0) == 472 * 100
    assert events_per_day(100, 4, nodes=10) - events_per_day(100, 4) == 10 * 108


def test_the_runs_of_a_day_that_nobody_starts_have_a_bound_and_so_have_their_events() -> None:
    quiet = quiet_runs_per_day(followed=1)
    assert (quiet.tests, quiet.followers, quiet.restarts, quiet.purge, quiet.all) == (24, 96, 0, 1, 121)
    worst = runs_per_day(100, followed=1)
    assert (worst.tests, worst.followers, worst.restarts) == (24, 208, 101 * restarts_per_day())
    assert runs_per_day(100, followed=100).followers == 2880, "Dagster looks at conditions every 30 s"
    assert run_events(10) == 120
    assert run_events_per_day(quiet, tests=10, following=2) == 24 * 120 + 96 * 56 + 40


def test_a_clock_that_goes_back_pays_nothing() -> None:
    empty = Purse(0.0, NOW)
    assert empty.filled(CHECKS, NOW - 9999).left == 0.0
    assert empty.filled(CHECKS, NOW + 10 * DAY).left == CHECKS.burst


def _events(world: World, memory: dict[str, Seen]) -> tuple[list[Point | Update], dict[str, Seen]]:
    return plotted(world, memory)


def test_numbers_are_told_at_first_sight_and_while_something_happens() -> None:
    first, memory = _events(healthy(), {})
    assert [type(each) for each in first] == [Point, Update]
    assert first[0].facts == {
        "lag_rows": 0, "lag_seconds": 0.0, "total_rows_in": 1000, "total_rows_out": 900, "restarts": 0,
        "batch_seconds": 0.25, "state_rows": 5, "state_bytes": 4096,
    }  # fmt: skip
    idle, memory = _events(healthy(at=NOW + 30), memory)
    assert idle == []
    busy = healthy(at=NOW + 60)
    busy = with_actual(busy, batch_id=51, total_rows_in=1600, total_rows_out=1500, lag_rows=7)
    told, memory = _events(busy, memory)
    point = next(each for each in told if isinstance(each, Point))
    assert point.facts["rows_in_per_s"] == 10.0
    assert point.facts["rows_out_per_s"] == 10.0
    assert point.facts["lag_rows"] == 7
    update = next(each for each in told if isinstance(each, Update))
    assert update.rows == 600


def test_an_idle_stream_has_a_point_every_hour_and_no_news() -> None:
    _, memory = _events(healthy(), {})
    told, _ = _events(healthy(at=NOW + ROLL_UP), memory)
    assert [type(each) for each in told] == [Point]


def test_new_rows_that_could_not_be_told_are_told_later_all_together() -> None:
    world = healthy()
    _, memory = _events(world, {})
    told: list[Update] = []
    for n in range(1, 8):
        world = with_actual(replace(world, at=NOW + 30 * n), total_rows_out=900 + 10 * n, batch_id=50 + n)
        events, memory = _events(world, memory)
        told += [each for each in events if isinstance(each, Update)]
    assert len(told) == UPDATES.burst - 1, "one was told at first sight"
    events, _ = _events(replace(world, at=world.at + UPDATES.every), memory)
    told += [each for each in events if isinstance(each, Update)]
    assert sum(each.rows for each in told) == 70


def test_a_stream_that_was_dropped_and_deployed_anew_begins_to_count_again() -> None:
    _, memory = _events(healthy(), {})
    anew = with_actual(healthy(at=NOW + 60), total_rows_out=5, total_rows_in=5, batch_id=0)
    told, _ = _events(anew, memory)
    assert next(each for each in told if isinstance(each, Update)).rows == 5
    assert "rows_in_per_s" not in next(each for each in told if isinstance(each, Point)).facts


def test_several_brokers_are_as_well_as_the_worst() -> None:
    parts = (
        Part("one:9092", "broker", ok=True, detail="", at=NOW),
        Part("two:9092", "broker", ok=False, detail="No Kafka broker answers at two:9092.", at=NOW),
    )
    found = [each for each in health_findings(healthy(parts=parts), limits_of) if each.subject == BROKER]
    assert [each.verdict.severity for each in found] == [Severity.ERROR]
    assert found[0].facts == {"address": "two:9092", "known": 2}


def test_a_part_that_nobody_uses_is_well_and_says_so() -> None:
    found = {each.subject: each.verdict for each in health_findings(healthy(), limits_of) if each.is_part}
    assert set(found) == {"supervisor", "engine", "broker", "registry"}
    assert {each.severity for each in found.values()} == {Severity.OK}
    assert found["registry"].summary == "not in use"


def test_every_stream_has_a_finding_for_health_and_one_for_lag() -> None:
    world = healthy("a.b", "a.c")
    world = with_wanted(world, "a.c", wanted=Wanted.STOPPED)
    world = replace(world, engine=Liveness.LOST, actual={"a.b": running("a.b", error_code="PEN-4003", error="boom\nx")})
    health = {each.subject: each for each in health_findings(world, limits_of) if not each.is_part}
    assert set(health) == {"a.b", "a.c"} == {each.subject for each in lag_findings(world, limits_of)}
    assert health["a.b"].facts["last_error"] == "PEN-4003 boom"


def test_a_cursor_is_read_back_and_an_unreadable_one_is_empty() -> None:
    cursor = Cursor(Seen)
    _, memory = _events(replace(healthy(), batches={STREAM: batch()}), {})
    assert cursor.read(cursor.write(memory)) == memory
    for text in (None, "", "{", "[]", '{"version":99,"entries":{}}', '{"version":1,"entries":{"a":{"at":"x"}}}'):
        assert cursor.read(text) == {}


def test_the_cursor_of_two_hundred_streams_is_small() -> None:
    _, memory = _events(healthy(*(f"shop.table_{n}" for n in range(200))), {})
    assert len(Cursor(Seen).write(memory)) < 60_000
