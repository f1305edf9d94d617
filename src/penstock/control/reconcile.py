"""What to do, given what is wanted and what is. Pure: the same question has the same answer.

Rules
- At most one action for each stream and one for the engine; the next look decides the next step.
- Nothing is asked twice while a command is open, or while the stream says that it is starting or stopping, until that
  took too long.
- A failure waits, longer each time; K failures in a row without a healthy stretch quarantine the stream, an error that
  cannot heal by itself (the model is wrong, the topic is on another cluster) at once. A quarantine ends when a person
  starts or deploys the stream.
- A full disk or a broker that is away is not the stream's fault: it is tried again for as long as that takes.
- An engine that died is the engine's failure: its streams are lost, not failed, and start again under the next one.
- A stream that runs without being deployed is stopped.
- The engine itself is never stopped from here; `down` does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    StreamAction,
)
from penstock.control.policy import Policy
from penstock.errors.catalogue import BROKER_UNREACHABLE, CLUSTER_CHANGED, DISK_FULL, REGISTRY_UNREACHABLE
from penstock.store import Actual, Desired, StreamState, Wanted

_OUTAGES = (DISK_FULL.code, BROKER_UNREACHABLE.code, REGISTRY_UNREACHABLE.code)
_LIVE = (StreamState.STARTING, StreamState.RUNNING, StreamState.STOPPING)


@dataclass(frozen=True)
class EngineView:
    """The engine as it is seen from outside."""

    running: bool = False
    starting: bool = False
    token: int = 0  # of the running engine
    failures: int = 0  # in a row
    retry_at: float | None = None
    open_since: Mapping[str, float] = field(default_factory=dict)  # stream -> when its open start or stop was asked


def reconcile(
    desired: Sequence[Desired], actual: Mapping[str, Actual], engine: EngineView, now: float, policy: Policy
) -> list[Action]:
    """The actions that bring what is closer to what is wanted."""
    actions: list[Action] = []
    if not engine.running and not engine.starting and (engine.retry_at is None or engine.retry_at <= now):
        actions.append(StartEngine())
    for want in desired:
        found = actual.get(want.stream) or Actual(stream=want.stream)
        action = _stream(want, found, engine, now, policy)
        if action is not None:
            actions.append(action)
    known = {want.stream for want in desired}
    for stream in sorted(set(actual) - known):
        action = _ending(actual[stream], engine, now, policy)
        if action is not None:
            actions.append(action)
    return actions


def engine_failed(engine: EngineView, lived: float | None, now: float, policy: Policy) -> tuple[int, float]:
    """Failures in a row and the time of the next try, after an engine that was ready for that long, or never."""
    if lived is not None and lived >= policy.engine_healthy_after:
        return 1, now  # it was well: go on at once
    failures = engine.failures + 1
    return failures, now + policy.delay("engine", failures)


def _stream(want: Desired, found: Actual, engine: EngineView, now: float, policy: Policy) -> StreamAction | None:
    if want.wanted is Wanted.STOPPED:
        return _ending(found, engine, now, policy)
    if _lost(found, engine):
        return MarkLost(want.stream, StreamState.PENDING)
    if found.state is StreamState.QUARANTINED:
        return None
    if found.state is StreamState.FAILED and found.retry_at is None:
        return _failure(found, now, policy)
    if not engine.running or found.engine_token > engine.token or _asked(found, engine, now, policy):
        return None
    if found.state is StreamState.FAILED:
        due = found.retry_at is not None and found.retry_at <= now
        return StartStream(want.stream, want.generation, again=True) if due else None
    if found.state in (StreamState.PENDING, StreamState.STOPPED):
        return StartStream(want.stream, want.generation)
    if found.state is StreamState.STOPPING:
        return StopStream(want.stream) if _overdue(found.updated_at, policy.stop_timeout, now) else None
    if found.generation != want.generation:
        return RestartStream(want.stream, want.generation)
    if found.state is StreamState.STARTING:
        late = _overdue(found.started_at, policy.start_timeout, now)
        return StartStream(want.stream, want.generation) if late else None
    return ForgetFailures(want.stream) if found.failures and _healthy(found, now, policy) else None


def _ending(found: Actual, engine: EngineView, now: float, policy: Policy) -> StreamAction | None:
    """The way to a stop, for a stream that is not wanted or not deployed."""
    if _lost(found, engine):
        return MarkLost(found.stream, StreamState.STOPPED)
    if found.state in (StreamState.STOPPED, StreamState.QUARANTINED):
        return None
    if found.state in (StreamState.PENDING, StreamState.FAILED):
        return MarkStopped(found.stream)
    if not engine.running or found.engine_token > engine.token or _asked(found, engine, now, policy):
        return None
    if found.state is StreamState.STOPPING and not _overdue(found.updated_at, policy.stop_timeout, now):
        return None
    return StopStream(found.stream)


def _failure(found: Actual, now: float, policy: Policy) -> StreamAction:
    failures = found.failures + 1
    if (found.error_code or "").startswith("PEN-13"):
        return Quarantine(found.stream, failures, "the model has to be mended first")
    if found.error_code == CLUSTER_CHANGED.code:
        return Quarantine(found.stream, failures, "its topic is on another Kafka cluster")
    if failures >= policy.quarantine_after and found.error_code not in _OUTAGES:
        return Quarantine(found.stream, failures, f"it failed {failures} times in a row")
    since = found.last_failure_at if found.last_failure_at is not None else now
    return ScheduleRetry(found.stream, failures, max(since, now - policy.cap) + policy.delay(found.stream, failures))


def _lost(found: Actual, engine: EngineView) -> bool:
    """Does the record speak of a run under an engine that is gone?"""
    if found.state not in _LIVE:
        return False
    return not engine.running or found.engine_token < engine.token


def _asked(found: Actual, engine: EngineView, now: float, policy: Policy) -> bool:
    return not _overdue(engine.open_since.get(found.stream), policy.command_timeout, now)


def _overdue(since: float | None, timeout: float, now: float) -> bool:
    return since is None or now - since >= timeout


def _healthy(found: Actual, now: float, policy: Policy) -> bool:
    """Long enough without a failure: with batches, or ten times as long without any (no input, nothing to do)."""
    if found.started_at is None or now - found.started_at < policy.healthy_after:
        return False
    batches = found.last_batch_at is not None and found.last_batch_at >= found.started_at
    return batches or now - found.started_at >= 10 * policy.healthy_after
