"""What the supervisor can be told to do; each action is about one stream, or about the engine."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.store import StreamState


@dataclass(frozen=True)
class StartEngine:
    """No engine runs and it is time for one."""


@dataclass(frozen=True)
class StartStream:
    stream: str
    generation: int
    again: bool = False  # after a failure: counts as a restart


@dataclass(frozen=True)
class StopStream:
    """Wanted no longer, or never deployed."""

    stream: str


@dataclass(frozen=True)
class RestartStream:
    """Another generation than the deployed one runs: stop it; the deployed one starts once it has stopped."""

    stream: str
    generation: int


@dataclass(frozen=True)
class ScheduleRetry:
    """A failure that was not counted yet."""

    stream: str
    failures: int
    retry_at: float


@dataclass(frozen=True)
class Quarantine:
    stream: str
    failures: int
    reason: str


@dataclass(frozen=True)
class MarkLost:
    """The engine that ran the stream is gone; `state` is where that leaves the stream."""

    stream: str
    state: StreamState


@dataclass(frozen=True)
class MarkStopped:
    """Nothing runs and nothing shall: no engine is needed to say so."""

    stream: str


@dataclass(frozen=True)
class ForgetFailures:
    """The stream ran well for long enough."""

    stream: str


StreamAction = (
    StartStream | StopStream | RestartStream | ScheduleRetry | Quarantine | MarkLost | MarkStopped | ForgetFailures
)
Action = StartEngine | StreamAction
