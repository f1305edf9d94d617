"""The judgement of streams and parts: a table of states in, a verdict out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import NOW, STREAM, batch, healthy, wanted, with_actual, with_wanted

from penstock.control.health import (
    DEFAULT_LIMITS,
    Severity,
    State,
    judge_engine,
    judge_lag,
    judge_part,
    judge_stream,
    judge_supervisor,
)
from penstock.control.world import Liveness, World, liveness
from penstock.errors.catalogue import ENGINE_LOST
from penstock.store import Lease, Part, StreamState, Wanted, holder_id

OK, WARN, ERROR = Severity.OK, Severity.WARN, Severity.ERROR
UP, OFF, LOST = Liveness.UP, Liveness.OFF, Liveness.LOST
HEALTHY = healthy()
STOPPED = with_wanted(HEALTHY, wanted=Wanted.STOPPED)
LATE = {"lag_rows": 500, "lag_seconds": 400.0}
LOST_RUN = {"engine_token": 6}

STREAMS = {
    "runs": (HEALTHY, State.RUNNING, OK, "runs generation 3"),
    "runs on an idle topic for a day": (
        with_actual(HEALTHY, last_batch_at=NOW - 86_400), State.RUNNING, OK, "runs generation 3"),
    "is behind and gets on": (with_actual(HEALTHY, **LATE), State.CATCHING_UP, OK, "500 rows behind"),
    "is stuck": (
        with_actual(HEALTHY, **LATE, last_batch_at=NOW - 400), State.FAILED, ERROR, "no batch for 7 min while 500"),
    "has a long batch behind it and is not stuck yet": (
        replace(with_actual(HEALTHY, **LATE, last_batch_at=NOW - 400), batches={STREAM: batch(duration_ms=60_000)}),
        State.CATCHING_UP, OK, "runs"),
    "waits for new rows that only just came": (
        with_actual(HEALTHY, lag_rows=1, lag_seconds=0.3, last_batch_at=NOW - 4000), State.RUNNING, OK, "runs"),
    "runs another generation": (with_actual(HEALTHY, generation=2), State.DEGRADED, WARN, "generation 2 runs, 3 is"),
    "runs after failures": (
        with_actual(HEALTHY, failures=2, error_code="PEN-4003", error="boom"), State.DEGRADED, WARN, "PEN-4003 boom"),
    "failed": (
        with_actual(HEALTHY, state=StreamState.FAILED, retry_at=NOW + 30, error_code="PEN-4003", error="boom"),
        State.FAILED, ERROR, "next try in 30 s: PEN-4003 boom"),
    "is quarantined": (
        with_actual(HEALTHY, state=StreamState.QUARANTINED, failures=5, error_code="PEN-4003", error="boom"),
        State.QUARANTINED, ERROR, "after 5 failures in a row: PEN-4003 boom"),
    "is stopped on purpose": (with_actual(STOPPED, state=StreamState.STOPPED), State.STOPPED, OK, "on purpose"),
    "waits for a rebuild": (
        replace(with_actual(HEALTHY, state=StreamState.STOPPED, updated_at=NOW - 900), waiting={STREAM: ["shop.up"]}),
        State.STOPPED, OK, "starts when the rebuild of shop.up is over"),
    "stands still for a takeover": (
        replace(with_actual(HEALTHY, state=StreamState.STOPPED, updated_at=NOW - 900), standing=frozenset([STREAM])),
        State.STOPPED, OK, "while its new generation takes over"),
    "is stopped on purpose and all else is dead": (
        replace(STOPPED, engine=LOST, supervisor=LOST), State.STOPPED, OK, "on purpose"),
    "starts": (
        with_actual(HEALTHY, state=StreamState.STARTING, updated_at=NOW - 5), State.DEGRADED, WARN, "in a moment"),
    "starts for too long": (
        with_actual(HEALTHY, state=StreamState.STARTING, updated_at=NOW - 200), State.FAILED, ERROR, "starting for"),
    "was lost with its engine": (
        with_actual(HEALTHY, state=StreamState.PENDING, updated_at=NOW, error_code=ENGINE_LOST.code),
        State.FAILED, ERROR, "its engine ended"),
    "is in the record of an engine before": (with_actual(HEALTHY, **LOST_RUN), State.FAILED, ERROR, "its engine ended"),
    "has no engine": (replace(HEALTHY, engine=LOST), State.FAILED, ERROR, "its engine is not running"),
    "runs without a supervisor": (replace(HEALTHY, supervisor=LOST), State.RUNNING, OK, "runs"),
    "lost engine and supervisor": (
        replace(HEALTHY, supervisor=LOST, engine=LOST), State.FAILED, ERROR, "engine and supervisor are gone"),
    "is in a project that was taken down": (
        replace(HEALTHY, supervisor=OFF, engine=OFF), State.STOPPED, WARN, "the project is down"),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS)
def test_the_state_of_a_stream_that(case: str) -> None:
    world, state, severity, text = STREAMS[case]
    verdict = judge_stream(world.desired[0], world, DEFAULT_LIMITS)
    assert (verdict.state, verdict.severity) == (state, severity), verdict
    assert text in verdict.summary
    assert verdict.stuck == (case == "is stuck")
    assert verdict.advice or state in (State.RUNNING, State.DEGRADED), "a person has to know what to do"


LAGS = {
    "nothing unread": ({}, State.RUNNING, OK, "nothing unread"),
    "little": ({"lag_rows": 10, "lag_seconds": 2.0}, State.RUNNING, OK, "10 rows behind, the oldest 2 s old"),
    "above the limit": ({"lag_rows": 10, "lag_seconds": 301.0}, State.CATCHING_UP, WARN, "allowed are 5 min"),
    "above twice the limit": ({"lag_rows": 10, "lag_seconds": 601.0}, State.CATCHING_UP, ERROR, "10 min old"),
    "an idle topic since yesterday": ({"last_batch_at": NOW - 86_400}, State.RUNNING, OK, "nothing unread"),
    "messages without a time": ({"lag_rows": 10, "lag_seconds": None}, State.RUNNING, OK, "10 rows behind"),
    "an input that does not answer": ({"lag_rows": None}, State.DEGRADED, WARN, "an input does not answer"),
    "nobody measures": ({"lag_at": NOW - 60}, State.DEGRADED, WARN, "nobody has measured it"),
    "a dead stream's": (
        {"state": StreamState.FAILED, "lag_rows": 99, "lag_seconds": 700.0}, State.CATCHING_UP, ERROR, "99 rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", LAGS)
def test_the_lag_with(case: str) -> None:
    changes, state, severity, text = LAGS[case]
    world = with_actual(HEALTHY, **changes)
    verdict = judge_lag(world.desired[0], world, DEFAULT_LIMITS)
    assert (verdict.state, verdict.severity) == (state, severity), verdict
    assert text in verdict.summary


def test_rows_can_have_a_limit_too() -> None:
    world = with_actual(HEALTHY, lag_rows=250, lag_seconds=1.0)
    assert judge_lag(world.desired[0], world, replace(DEFAULT_LIMITS, max_lag_rows=200)).severity is WARN
    assert judge_lag(world.desired[0], world, replace(DEFAULT_LIMITS, max_lag_rows=100)).severity is ERROR


def test_lag_of_a_stopped_stream_is_told_and_is_no_failure() -> None:
    world = with_actual(STOPPED, lag_rows=10_000, lag_seconds=9000.0)
    verdict = judge_lag(world.desired[0], world, DEFAULT_LIMITS)
    assert (verdict.state, verdict.severity) == (State.STOPPED, OK)
    assert "10,000 rows behind" in verdict.summary


PARTS = [
    (UP, UP, (State.RUNNING, OK), (State.RUNNING, OK)),
    (LOST, UP, (State.FAILED, ERROR), (State.RUNNING, OK)),
    (UP, LOST, (State.RUNNING, OK), (State.FAILED, ERROR)),
    (UP, OFF, (State.RUNNING, OK), (State.DEGRADED, WARN)),
    (LOST, LOST, (State.FAILED, ERROR), (State.FAILED, ERROR)),
    (OFF, OFF, (State.STOPPED, WARN), (State.STOPPED, WARN)),
]


@pytest.mark.parametrize(("supervisor", "engine", "of_supervisor", "of_engine"), PARTS)
def test_supervisor_and_engine(
    supervisor: Liveness, engine: Liveness, of_supervisor: tuple[State, Severity], of_engine: tuple[State, Severity]
) -> None:
    world = replace(HEALTHY, supervisor=supervisor, engine=engine)
    first, second = judge_supervisor(world), judge_engine(world)
    assert (first.state, first.severity) == of_supervisor
    assert (second.state, second.severity) == of_engine


def _broker(*, ok: bool = True, at: float = NOW) -> Part:
    return Part("127.0.0.1:9092", "broker", ok=ok, detail="" if ok else "No Kafka broker answers.", at=at)


@pytest.mark.parametrize(
    ("part", "world", "state", "severity"),
    [
        (_broker(), HEALTHY, State.RUNNING, OK),
        (_broker(ok=False), HEALTHY, State.FAILED, ERROR),
        (_broker(at=NOW - 60), replace(HEALTHY, supervisor=LOST), State.DEGRADED, WARN),
        (_broker(at=NOW - 60), replace(HEALTHY, supervisor=OFF, engine=OFF), State.STOPPED, WARN),
    ],
)
def test_a_broker_as_the_supervisor_saw_it(part: Part, world: World, state: State, severity: Severity) -> None:
    verdict = judge_part(part, world, DEFAULT_LIMITS)
    assert (verdict.state, verdict.severity) == (state, severity)


def test_a_lease_that_was_given_back_is_off_and_one_whose_holder_died_is_lost() -> None:
    me = holder_id()
    assert liveness(None, NOW) is OFF
    assert liveness(Lease("engine", "", 3, 0.0), NOW) is OFF
    assert liveness(Lease("engine", me, 3, NOW + 5), NOW) is UP
    assert liveness(Lease("engine", me, 3, NOW - 5), NOW) is LOST
    host = me.split(":")[0]
    assert liveness(Lease("engine", f"{host}:999999:1.00", 3, NOW + 5), NOW) is LOST


def test_a_stream_of_which_nothing_was_reported_is_starting_then_failed() -> None:
    fresh = replace(HEALTHY, desired=(wanted(updated_at=NOW - 3),), actual={})
    assert judge_stream(fresh.desired[0], fresh, DEFAULT_LIMITS).severity is WARN
    old = replace(fresh, desired=(wanted(updated_at=NOW - 300),))
    assert judge_stream(old.desired[0], old, DEFAULT_LIMITS).severity is ERROR
