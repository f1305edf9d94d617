"""How a rebuild beside the deployed generation goes on. Pure: the caller brings all facts.

Rules
- The new generation runs as a stream of its own until it has caught up: it has read all, or is no further behind than
  the old one, give or take a few seconds.
- Then the old one stands still while the new one reads on to where the old one is, so that a reader never sees less
  than before; then both stand still, and the engine replaces the rows in one commit.
- Until the phase "taking over" everything can be taken back: the old generation goes on as if nothing had been. From
  there on it is carried to its end, however often the engine dies; only an engine that says that it could not replace
  the rows takes it back.
- A new generation that is quarantined ends its rebuild; the error is kept for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.checkpoint.offsets import Offset
from penstock.errors.catalogue import ENGINE_LOST, LEASE_LOST, REBUILD_FAILED
from penstock.paths import beside
from penstock.store import Actual, Command, Desired, Rebuild, RebuildPhase, StreamState, Wanted

NEAR = 5.0  # seconds further behind than the old one: as good as caught up
SETTLE_AT_MOST = 30.0  # seconds that the old generation stands still for the new one to draw level
_ENDED = (StreamState.STOPPED, StreamState.QUARANTINED)
_OF_ENGINE = (ENGINE_LOST.code, LEASE_LOST.code)


@dataclass(frozen=True)
class Seen:
    """A rebuild and all that its next step depends on."""

    rebuild: Rebuild
    old: Actual
    new: Actual
    engine: bool = True  # there is one to ask
    busy: bool = False  # something is asked of the engine for one of the two, and not answered
    level: bool = False  # the new generation has read what the old one has
    answer: Command | None = None  # to what was asked last in this phase


@dataclass(frozen=True)
class Advance:
    """Enter a phase."""

    phase: RebuildPhase


@dataclass(frozen=True)
class Ask:
    """Ask the engine to replace the rows, or to clear away what the rebuild left."""

    kind: Literal["takeover", "discard"]


@dataclass(frozen=True)
class TakeOver:
    """The rows are in: the new generation is the deployed one."""


@dataclass(frozen=True)
class GiveUp:
    """The old generation goes on."""

    code: str
    message: str


@dataclass(frozen=True)
class Finish:
    """Nothing is left of it."""


Step = Advance | Ask | TakeOver | GiveUp | Finish


def next_step(seen: Seen, now: float) -> Step | None:
    """What has to be done now; None while there is something to wait for."""
    match seen.rebuild.phase:
        case RebuildPhase.CATCHING_UP:
            return _quarantined(seen) or (Advance(RebuildPhase.SETTLING) if caught_up(seen.old, seen.new) else None)
        case RebuildPhase.SETTLING:
            return _settling(seen, now)
        case RebuildPhase.TAKING_OVER:
            return _taking_over(seen)
        case RebuildPhase.TAKEN_OVER | RebuildPhase.ENDING:
            return _clearing(seen)
        case RebuildPhase.FAILED:
            return None


def held(desired: Iterable[Desired], rebuilds: Mapping[str, Rebuild]) -> list[Desired]:
    """What is wanted of each stream while rebuilds need some of them to stand still."""
    still: set[str] = set()
    for stream, rebuild in rebuilds.items():
        if rebuild.phase in (RebuildPhase.SETTLING, RebuildPhase.TAKING_OVER):
            still.add(stream)
        if rebuild.phase not in (RebuildPhase.CATCHING_UP, RebuildPhase.SETTLING):
            still.add(beside(stream))
    return [replace(want, wanted=Wanted.STOPPED) if want.stream in still else want for want in desired]


def caught_up(old: Actual, new: Actual) -> bool:
    """Whether the new generation may take the old one's place."""
    measured = new.lag_at is not None and new.started_at is not None and new.lag_at > new.started_at
    if new.state is not StreamState.RUNNING or not measured or new.lag_rows is None:
        return False
    if new.lag_rows == 0:
        return True
    if new.lag_seconds is not None and new.lag_seconds <= (old.lag_seconds or 0.0) + NEAR:
        return True
    return old.lag_rows is not None and new.lag_rows <= old.lag_rows


def level(old: Mapping[str, Offset], new: Mapping[str, Offset], inputs: Sequence[str]) -> bool:
    """Whether the new generation has read all that the old one has, of the topics and tables that both read."""
    return all(_passed(old[relation], new.get(relation)) for relation in inputs if relation in old)


def progress(new: Actual) -> float | None:
    """How much of its inputs the new generation has read, from 0 to 1; None while that is not known."""
    if new.lag_rows is None or new.lag_at is None:
        return None
    whole = new.total_rows_in + new.lag_rows
    return new.total_rows_in / whole if whole else 1.0


def _passed(old: Offset, new: Offset | None) -> bool:
    if "reservoirVersion" in old:
        return new is not None and int(new.get("reservoirVersion", 0)) >= int(old["reservoirVersion"])
    if new is None:
        return not any(int(at) for partitions in old.values() for at in partitions.values())
    return all(
        int(new[topic].get(number, 0)) >= int(at)
        for topic, partitions in old.items()
        if topic in new  # another topic has other messages
        for number, at in partitions.items()
    )


def _quarantined(seen: Seen) -> GiveUp | None:
    if seen.new.state is not StreamState.QUARANTINED:
        return None
    return _gave_up(seen, seen.new.error_code, seen.new.error)


def _settling(seen: Seen, now: float) -> Step | None:
    if (quarantined := _quarantined(seen)) is not None:
        return quarantined
    if seen.new.state is not StreamState.RUNNING:
        return Advance(RebuildPhase.CATCHING_UP)  # the old one shall not wait for it to come back
    if seen.old.state not in _ENDED or seen.busy:
        return None
    late = now - seen.rebuild.updated_at >= SETTLE_AT_MOST  # no row is lost by it: they come after the takeover
    return Advance(RebuildPhase.TAKING_OVER) if seen.level or late else None


def _taking_over(seen: Seen) -> Step | None:
    if seen.busy:
        return None
    answer = seen.answer
    if answer is not None and answer.state == "done":
        return TakeOver()
    if answer is not None and (result := answer.result or {}).get("code") not in _OF_ENGINE:
        return _gave_up(seen, result.get("code"), result.get("message"))
    stopped = seen.old.state in _ENDED and seen.new.state in _ENDED
    return Ask("takeover") if stopped and seen.engine else None


def _clearing(seen: Seen) -> Step | None:
    if seen.busy:
        return None
    if seen.answer is not None and (seen.answer.result or {}).get("code") not in _OF_ENGINE:
        return Finish()  # also when it could not: the next rebuild writes over what is left
    running = seen.new.state in (StreamState.STARTING, StreamState.RUNNING, StreamState.STOPPING)
    return Ask("discard") if seen.engine and not running else None


def _gave_up(seen: Seen, code: str | None, message: str | None) -> GiveUp:
    stream = seen.rebuild.stream
    told = (message or "no message").replace(beside(stream), stream)
    return GiveUp(code or REBUILD_FAILED.code, told)
