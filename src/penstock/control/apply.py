"""Carrying out what `reconcile` decided about streams.

Rules
- The record says "starting" before the engine is asked to start: its own report, which comes later, has the last word.
- A change is made only if the record still says what the decision was based on.
- A command that the engine refused without reporting a state is turned into one here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.control.actions import (
    ForgetFailures,
    MarkLost,
    MarkStopped,
    Quarantine,
    RestartStream,
    ScheduleRetry,
    StartStream,
    StopStream,
    StreamAction,
)
from penstock.errors.catalogue import ENGINE_LOST, STREAM_FAILED
from penstock.store import Actual, Store, StreamState


class Applier:
    """Writes decisions into the store and commands to the engine."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._starts: dict[str, int] = {}  # stream -> id of its last start command

    def apply(self, action: StreamAction, actual: Mapping[str, Actual], token: int, now: float) -> None:
        seen = actual.get(action.stream) or Actual(stream=action.stream)
        match action:
            case StartStream():
                self._start(action, seen, token, now)
            case StopStream() | RestartStream():
                if self._report(seen, now, state=StreamState.STOPPING):
                    self._store.submit("stop", action.stream, {}, now=now)
                    why = f"for generation {action.generation}" if isinstance(action, RestartStream) else "not wanted"
                    self._say(f"{action.stream}: stopping ({why})")
            case ScheduleRetry():
                failed_at = seen.last_failure_at if seen.last_failure_at is not None else now
                if self._report(
                    seen, now, failures=action.failures, retry_at=action.retry_at, last_failure_at=failed_at
                ):
                    wait = max(0.0, action.retry_at - now)
                    self._say(f"{action.stream}: failure {action.failures}, next try in {wait:.1f} s: {_cause(seen)}")
            case Quarantine():
                if self._report(
                    seen, now, state=StreamState.QUARANTINED, failures=action.failures, retry_at=None,
                    last_failure_at=seen.last_failure_at if seen.last_failure_at is not None else now,
                ):  # fmt: skip
                    self._say(f"{action.stream}: quarantined, {action.reason}: {_cause(seen)}")
            case MarkLost():
                self._lost(action, seen, now)
            case MarkStopped():
                if self._report(seen, now, state=StreamState.STOPPED, retry_at=None):
                    self._say(f"{action.stream}: stopped")
            case ForgetFailures():
                if self._report(seen, now, failures=0):
                    self._say(f"{action.stream}: healthy again")

    def settle_refused(self, actual: Mapping[str, Actual], now: float) -> None:
        """Give a state to streams whose start the engine refused without a word in the record."""
        for stream, command_id in list(self._starts.items()):
            command = self._store.command(command_id)
            if command is not None and command.state in ("new", "taken"):
                continue
            del self._starts[stream]
            seen = actual.get(stream)
            if command is None or command.state == "done" or seen is None or seen.state is not StreamState.STARTING:
                continue
            result = command.result or {}
            if result.get("code") == ENGINE_LOST.code:
                self._report(seen, now, state=StreamState.PENDING)
                continue
            self._report(
                seen, now, state=StreamState.FAILED, last_failure_at=now, retry_at=None,
                error_code=result.get("code", STREAM_FAILED.code),
                error=result.get("message", "The engine refused to start the stream."),
            )  # fmt: skip

    def _start(self, action: StartStream, seen: Actual, token: int, now: float) -> None:
        restarts = seen.restarts + (1 if action.again else 0)
        # Another generation may have another checkpoint: the old one's offsets say nothing about it.
        offsets = seen.offsets if seen.generation == action.generation else {}
        if self._report(
            seen, now, state=StreamState.STARTING, generation=action.generation, started_at=now, retry_at=None,
            restarts=restarts, engine_token=token, offsets=offsets,
            if_wanted=action.generation,
        ):  # fmt: skip
            self._starts[action.stream] = self._store.submit(
                "start", action.stream, {"generation": action.generation}, now=now
            )
            self._say(f"{action.stream}: starting generation {action.generation}")

    def _lost(self, action: MarkLost, seen: Actual, now: float) -> None:
        if action.state is StreamState.STOPPED:
            done = self._report(seen, now, state=action.state)
        else:
            done = self._report(
                seen, now, state=action.state, restarts=seen.restarts + 1, last_failure_at=now, retry_at=None,
                error_code=ENGINE_LOST.code, error="The engine ended while the stream was running.",
            )  # fmt: skip
        if done:
            self._say(f"{action.stream}: its engine is gone, now {action.state.value}")

    def _report(self, seen: Actual, now: float, **changes: Any) -> bool:
        return self._store.report(seen.stream, now=now, if_still=seen, **changes)


def _cause(seen: Actual) -> str:
    text = f"{seen.error_code or STREAM_FAILED.code} {seen.error or 'no message'}"
    return text.splitlines()[0][:300]
