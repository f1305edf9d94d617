"""What holds of every decision, whatever the state."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.control.actions import Quarantine, ScheduleRetry, StartEngine, StartStream, StopStream
from penstock.control.policy import Policy
from penstock.control.reconcile import EngineView, reconcile
from penstock.store import Actual, Desired, StreamState, Wanted

NAMES = ["shop.a", "shop.b", "shop.c"]
NOW = 1000.0
times = st.none() | st.floats(0, 2 * NOW)
small = st.integers(0, 6)

desired = st.dictionaries(st.sampled_from(NAMES), st.tuples(small, st.sampled_from(list(Wanted)))).map(
    lambda found: {name: Desired(name, g, "h", "{}", "c", want, 0.0) for name, (g, want) in found.items()}
)
records = st.builds(
    Actual,
    stream=st.just(""),
    generation=small,
    state=st.sampled_from(list(StreamState)),
    engine_token=small,
    started_at=times,
    updated_at=st.floats(0, 2 * NOW),
    last_batch_at=times,
    failures=small,
    last_failure_at=times,
    retry_at=times,
    error_code=st.sampled_from([None, "PEN-1304", "PEN-4003"]),
)
actual = st.dictionaries(st.sampled_from(NAMES), records).map(
    lambda found: {name: Actual(**(vars(record) | {"stream": name})) for name, record in found.items()}
)
engines = st.builds(
    EngineView,
    running=st.booleans(),
    starting=st.booleans(),
    token=small,
    failures=small,
    retry_at=times,
    open_since=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 2 * NOW)),
)


@given(desired, actual, engines)
def test_every_stream_has_at_most_one_action_and_the_same_question_has_the_same_answer(
    desired: dict[str, Desired], actual: dict[str, Actual], engine: EngineView
) -> None:
    actions = reconcile(list(desired.values()), actual, engine, NOW, Policy())
    streams = Counter("engine" if isinstance(a, StartEngine) else a.stream for a in actions)
    assert all(count == 1 for count in streams.values())
    assert actions == reconcile(list(desired.values()), actual, engine, NOW, Policy())


@given(desired, actual, engines)
def test_only_what_is_wanted_is_started_and_only_in_a_running_engine(
    desired: dict[str, Desired], actual: dict[str, Actual], engine: EngineView
) -> None:
    for action in reconcile(list(desired.values()), actual, engine, NOW, Policy()):
        if isinstance(action, StartStream):
            assert desired[action.stream].wanted is Wanted.RUNNING
            assert action.generation == desired[action.stream].generation
        if isinstance(action, StartStream | StopStream):
            assert engine.running


@given(desired, actual, engines)
def test_a_quarantined_stream_is_left_alone(
    desired: dict[str, Desired], actual: dict[str, Actual], engine: EngineView
) -> None:
    for action in reconcile(list(desired.values()), actual, engine, NOW, Policy()):
        if not isinstance(action, StartEngine) and action.stream in actual:
            assert actual[action.stream].state is not StreamState.QUARANTINED


@given(desired, actual, engines, st.integers(1, 10))
def test_a_stream_is_quarantined_at_the_limit_and_never_tried_beyond_it(
    desired: dict[str, Desired], actual: dict[str, Actual], engine: EngineView, limit: int
) -> None:
    for action in reconcile(list(desired.values()), actual, engine, NOW, Policy(quarantine_after=limit)):
        if isinstance(action, ScheduleRetry):
            assert action.failures < limit
        if isinstance(action, Quarantine):
            assert action.failures >= limit or actual[action.stream].error_code == "PEN-1304"


@given(st.text(), st.integers(0, 200), st.floats(0.1, 10), st.floats(1, 4), st.floats(10, 600))
def test_a_wait_never_gets_shorter_and_never_exceeds_the_cap(
    name: str, failures: int, base: float, factor: float, cap: float
) -> None:
    policy = Policy(base=base, factor=factor, cap=cap)
    assert 0 < policy.delay(name, failures) <= policy.delay(name, failures + 1) <= cap
