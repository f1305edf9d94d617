"""Given what is wanted and what is, the next step of each stream."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.actions import (
    Action,
    ForgetFailures,
    MarkLost,
    MarkStopped,
    Quarantine,
    RestartStream,
    ScheduleRetry,
    StartEngine,
    StartStream,
    StopStream,
)
from penstock.control.policy import Policy
from penstock.control.reconcile import EngineView, engine_failed, reconcile
from penstock.store import Actual, Desired, StreamState, Wanted

NOW = 10_000.0
POLICY = Policy()
UP = EngineView(running=True, token=3)
DOWN = EngineView(retry_at=NOW + 5)  # waits for its next start
S = StreamState


def wanted(state: Wanted = Wanted.RUNNING, generation: int = 2) -> Desired:
    return Desired("shop.a", generation, "hash", "{}", "g1", state, NOW - 100)


def actual(state: StreamState, **more: Any) -> Actual:
    values: dict[str, Any] = {"generation": 2, "engine_token": 3, "started_at": NOW - 10, "updated_at": NOW - 10}
    return Actual(stream="shop.a", state=state, **(values | more))


def delay(failures: int) -> float:
    return POLICY.delay("shop.a", failures)


CASES: list[tuple[str, Wanted, Actual | None, EngineView, Action | None]] = [
    # -- wanted running
    ("a new stream is started", Wanted.RUNNING, None, UP, StartStream("shop.a", 2)),
    ("a pending one too", Wanted.RUNNING, actual(S.PENDING), UP, StartStream("shop.a", 2)),
    ("a stopped one too", Wanted.RUNNING, actual(S.STOPPED), UP, StartStream("shop.a", 2)),
    ("not without an engine", Wanted.RUNNING, actual(S.PENDING), DOWN, None),
    ("one that starts is left alone", Wanted.RUNNING, actual(S.STARTING), UP, None),
    (
        "one that starts for ever is asked again",
        Wanted.RUNNING,
        actual(S.STARTING, started_at=NOW - 121),
        UP,
        StartStream("shop.a", 2),
    ),
    ("one that runs is left alone", Wanted.RUNNING, actual(S.RUNNING), UP, None),
    (
        "an old generation makes room for the deployed one",
        Wanted.RUNNING,
        actual(S.RUNNING, generation=1),
        UP,
        RestartStream("shop.a", 2),
    ),
    (
        "also while it still starts",
        Wanted.RUNNING,
        actual(S.STARTING, generation=1),
        UP,
        RestartStream("shop.a", 2),
    ),
    ("one that stops is waited for", Wanted.RUNNING, actual(S.STOPPING, generation=1), UP, None),
    (
        "one that stops for ever is asked again",
        Wanted.RUNNING,
        actual(S.STOPPING, updated_at=NOW - 61),
        UP,
        StopStream("shop.a"),
    ),
    # -- failures
    (
        "a failure is counted and waits",
        Wanted.RUNNING,
        actual(S.FAILED, last_failure_at=NOW - 0.1),
        UP,
        ScheduleRetry("shop.a", 1, NOW - 0.1 + delay(1)),
    ),
    (
        "the next failure waits longer",
        Wanted.RUNNING,
        actual(S.FAILED, last_failure_at=NOW, failures=2),
        UP,
        ScheduleRetry("shop.a", 3, NOW + delay(3)),
    ),
    (
        "a failure is counted also while the engine is away",
        Wanted.RUNNING,
        actual(S.FAILED, last_failure_at=NOW),
        DOWN,
        ScheduleRetry("shop.a", 1, NOW + delay(1)),
    ),
    ("a counted failure waits", Wanted.RUNNING, actual(S.FAILED, failures=1, retry_at=NOW + 1), UP, None),
    (
        "then it is tried again",
        Wanted.RUNNING,
        actual(S.FAILED, failures=1, retry_at=NOW),
        UP,
        StartStream("shop.a", 2, again=True),
    ),
    (
        "the fifth failure in a row is one too many",
        Wanted.RUNNING,
        actual(S.FAILED, failures=4, last_failure_at=NOW),
        UP,
        Quarantine("shop.a", 5, "it failed 5 times in a row"),
    ),
    (
        "a wrong model is not tried twice",
        Wanted.RUNNING,
        actual(S.FAILED, error_code="PEN-1304", last_failure_at=NOW),
        UP,
        Quarantine("shop.a", 1, "the model has to be mended first"),
    ),
    (
        "another Kafka cluster is not tried twice",
        Wanted.RUNNING,
        actual(S.FAILED, error_code="PEN-2010", last_failure_at=NOW),
        UP,
        Quarantine("shop.a", 1, "its topic is on another Kafka cluster"),
    ),
    ("a quarantine stays", Wanted.RUNNING, actual(S.QUARANTINED, failures=5), UP, None),
    ("a quarantine outlives its engine", Wanted.RUNNING, actual(S.QUARANTINED, engine_token=1), UP, None),
    (
        "a healthy stretch forgets the failures",
        Wanted.RUNNING,
        actual(S.RUNNING, failures=2, started_at=NOW - 61, last_batch_at=NOW - 1),
        UP,
        ForgetFailures("shop.a"),
    ),
    (
        "a stretch without a batch does not",
        Wanted.RUNNING,
        actual(S.RUNNING, failures=2, started_at=NOW - 61, last_batch_at=NOW - 100),
        UP,
        None,
    ),
    (
        "unless it is a very long one",
        Wanted.RUNNING,
        actual(S.RUNNING, failures=2, started_at=NOW - 601),
        UP,
        ForgetFailures("shop.a"),
    ),
    # -- the engine died
    ("its streams are lost", Wanted.RUNNING, actual(S.RUNNING), DOWN, MarkLost("shop.a", S.PENDING)),
    (
        "they are lost also when the next one is up already",
        Wanted.RUNNING,
        actual(S.RUNNING, engine_token=2),
        UP,
        MarkLost("shop.a", S.PENDING),
    ),
    ("starting ones too", Wanted.RUNNING, actual(S.STARTING, engine_token=2), UP, MarkLost("shop.a", S.PENDING)),
    ("a stop is done by it", Wanted.STOPPED, actual(S.STOPPING, engine_token=2), UP, MarkLost("shop.a", S.STOPPED)),
    ("a failed stream is not lost", Wanted.RUNNING, actual(S.FAILED, retry_at=NOW + 1, engine_token=2), UP, None),
    ("a newer engine's report is not judged by an old view", Wanted.RUNNING, actual(S.PENDING, engine_token=4),
     UP, None),
    # -- wanted stopped
    ("a running stream is stopped", Wanted.STOPPED, actual(S.RUNNING), UP, StopStream("shop.a")),
    ("a starting one too", Wanted.STOPPED, actual(S.STARTING), UP, StopStream("shop.a")),
    ("once", Wanted.STOPPED, actual(S.STOPPING), UP, None),
    (
        "and again when that takes for ever",
        Wanted.STOPPED,
        actual(S.STOPPING, updated_at=NOW - 61),
        UP,
        StopStream("shop.a"),
    ),
    ("one that never ran is stopped at once", Wanted.STOPPED, actual(S.PENDING), DOWN, MarkStopped("shop.a")),
    ("a failed one too", Wanted.STOPPED, actual(S.FAILED), UP, MarkStopped("shop.a")),
    ("a stopped one is left alone", Wanted.STOPPED, actual(S.STOPPED), UP, None),
    ("a quarantined one too", Wanted.STOPPED, actual(S.QUARANTINED), UP, None),
]  # fmt: skip


@pytest.mark.parametrize(("want", "found", "engine", "action"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_next_step(want: Wanted, found: Actual | None, engine: EngineView, action: Action | None) -> None:
    actions = reconcile([wanted(want)], {"shop.a": found} if found else {}, engine, NOW, POLICY)
    assert actions == ([] if action is None else [action])


@pytest.mark.parametrize("state", [S.PENDING, S.RUNNING])
@pytest.mark.parametrize("want", [Wanted.RUNNING, Wanted.STOPPED])
def test_nothing_is_asked_while_a_command_is_open(state: StreamState, want: Wanted) -> None:
    found = actual(state, generation=1)
    asking = EngineView(running=True, token=3, open_since={"shop.a": NOW - 5})
    forgotten = EngineView(running=True, token=3, open_since={"shop.a": NOW - 121})
    assert not any(
        isinstance(a, StartStream | StopStream | RestartStream)
        for a in reconcile([wanted(want)], {"shop.a": found}, asking, NOW, POLICY)
    )
    assert reconcile([wanted(want)], {"shop.a": found}, forgotten, NOW, POLICY)


def test_a_stream_that_runs_without_being_deployed_is_stopped() -> None:
    assert reconcile([], {"shop.a": actual(S.RUNNING)}, UP, NOW, POLICY) == [StopStream("shop.a")]
    assert reconcile([], {"shop.a": actual(S.STOPPED)}, UP, NOW, POLICY) == []


@pytest.mark.parametrize(
    ("engine", "starts"),
    [
        (EngineView(), True),
        (EngineView(retry_at=NOW + 1), False),
        (EngineView(retry_at=NOW), True),
        (EngineView(starting=True), False),
        (EngineView(running=True, token=1), False),
    ],
)
def test_the_engine_is_started_when_none_is_there_and_its_wait_is_over(engine: EngineView, starts: bool) -> None:
    assert reconcile([], {}, engine, NOW, POLICY) == ([StartEngine()] if starts else [])


def test_an_engine_that_was_well_is_started_again_at_once() -> None:
    assert engine_failed(EngineView(failures=3), POLICY.engine_healthy_after, NOW, POLICY) == (1, NOW)


def test_an_engine_that_crashes_again_and_again_waits_longer_each_time_up_to_a_cap() -> None:
    waits = []
    view = EngineView()
    for _ in range(12):
        failures, retry_at = engine_failed(view, None, NOW, POLICY)
        waits.append(retry_at - NOW)
        view = EngineView(failures=failures)
    assert waits == sorted(waits)
    assert 0.7 <= waits[0] <= 1.0
    assert waits[-1] <= POLICY.cap
