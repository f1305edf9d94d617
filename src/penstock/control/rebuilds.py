"""How a rebuild beside the deployed generation goes on. Pure: the caller brings all facts.

Rules
- The new generation runs as a stream of its own until it has caught up: it has read what was there when it began, or as
  far as the old one, and is no further behind than that, give or take a few seconds.
- One that reads new rows of others has caught up only with what these had written when they had. How far it is behind
  says nothing before: what it has still to read may be a second old, and all there is.
- Then the old one stands still while the new one reads on to where the old one is, so that a reader never sees less
  than before; then both stand still, and the engine replaces the rows in one commit.
- Rebuilds of streams that read each other are a group, which settles when all have caught up. The new generations come
  to stand one after the other, upstream first: each has read all that those above it have written. Then the rows of all
  are replaced. What does not come to stand in time is tried again later; the old generations go on meanwhile.
- Until the phase "taking over" everything can be taken back: the old generation goes on as if nothing had been. From
  there on it is carried to its end, however often the engine dies; only an engine that says that nothing was replaced
  takes it back.
- A new generation that looks up a table which is rebuilt as well starts when that one has caught up: rows that it made
  of fewer would stay.
- A new generation that is quarantined ends its rebuild, and the group; the error is kept for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.checkpoint.offsets import Offset, place
from penstock.errors.catalogue import ENGINE_LOST, LEASE_LOST, REBUILD_FAILED
from penstock.paths import beside, shown
from penstock.store import Actual, Command, Desired, LinkKind, Rebuild, RebuildLink, RebuildPhase, StreamState, Wanted
from penstock.store.rebuilds import OPEN, component

NEAR = 5.0  # seconds further behind than the old one: as good as caught up
SETTLE_AT_MOST = 30.0  # seconds that the old generation stands still for the new one to draw level
STAND_AT_MOST = 600.0  # seconds that the old generations of a group stand still for the new ones to come to stand
AGAIN = 5.0  # seconds before rows that could not be replaced are tried again
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
    above: frozenset[str] = frozenset()  # streams of the group whose new rows it reads as they come
    looked_up: frozenset[str] = frozenset()  # and those whose new tables it looks up
    caught_up: bool = False
    drained: bool = True  # it has read all that the new generations above it have written
    window: float = 0.0  # seconds between two looks at its inputs

    @property
    def stream(self) -> str:
        return self.rebuild.stream

    @property
    def phase(self) -> RebuildPhase:
        return self.rebuild.phase


@dataclass(frozen=True)
class Advance:
    """Enter a phase with these rebuilds of the group."""

    phase: RebuildPhase
    streams: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """Ask the engine to replace the rows of the group, or to clear away what a rebuild left."""

    kind: Literal["takeover", "discard"]


@dataclass(frozen=True)
class TakeOver:
    """The rows are in: the new generations are the deployed ones."""


@dataclass(frozen=True)
class GiveUp:
    """The old generations go on."""

    stream: str  # whose new one failed
    code: str
    message: str


@dataclass(frozen=True)
class Finish:
    """Nothing is left of it."""


Step = Advance | Ask | TakeOver | GiveUp | Finish


def groups(rebuilds: Mapping[str, Rebuild], links: Sequence[RebuildLink]) -> list[tuple[list[str], set[str]]]:
    """The rebuilds that take over together, and the streams whose rebuilds each group still awaits."""
    phases = {stream: rebuild.phase for stream, rebuild in rebuilds.items()}
    found: list[tuple[list[str], set[str]]] = []
    for stream in rebuilds:
        if any(stream in members for members, _ in found):
            continue
        members = component(stream, phases, links)
        awaited = {each.reader for each in links if each.kind is LinkKind.TOGETHER and each.upstream in members}
        is_open = phases[stream] in OPEN
        found.append((members, awaited - set(members) if is_open else set()))
    return found


def next_step(group: Sequence[Seen], now: float, awaited: Iterable[str] = ()) -> Step | None:
    """What has to be done with a group now; None while there is something to wait for."""
    phases = {each.phase for each in group}
    if phases <= {RebuildPhase.TAKEN_OVER, RebuildPhase.ENDING}:
        return _clearing(group[0])
    if phases == {RebuildPhase.FAILED}:
        return None
    if RebuildPhase.TAKING_OVER in phases:
        return _taking_over(group, now) if len(phases) == 1 else None
    for each in group:
        if each.new.state is StreamState.QUARANTINED:
            return _gave_up(each.stream, each.new.error_code, each.new.error)
    if phases == {RebuildPhase.CATCHING_UP}:
        ready = not tuple(awaited) and all(each.caught_up for each in group)
        return _all(group, RebuildPhase.SETTLING) if ready else None
    return _settling(group, now)


def held(
    desired: Iterable[Desired],
    rebuilds: Mapping[str, Rebuild],
    links: Iterable[RebuildLink] = (),
    early: Iterable[str] = (),
) -> list[Desired]:
    """What is wanted of each stream while rebuilds need some of them to stand still. For others it is too `early`."""
    still = set(early) | standing(rebuilds)
    for stream, rebuild in rebuilds.items():
        if rebuild.phase not in (RebuildPhase.CATCHING_UP, RebuildPhase.SETTLING):
            still.add(beside(stream))
    still |= set(waiting(rebuilds, links))
    return [replace(want, wanted=Wanted.STOPPED) if want.stream in still else want for want in desired]


def standing(rebuilds: Mapping[str, Rebuild]) -> set[str]:
    """The streams that stand still because a new generation is about to take over."""
    return {
        stream
        for stream, rebuild in rebuilds.items()
        if rebuild.phase in OPEN and rebuild.phase is not RebuildPhase.CATCHING_UP
    }


def waiting(rebuilds: Mapping[str, Rebuild], links: Iterable[RebuildLink]) -> dict[str, list[str]]:
    """The streams that start only when rebuilds are over, and which these are."""
    found: dict[str, list[str]] = {}
    for link in links:
        above = rebuilds.get(link.upstream)
        if link.kind is LinkKind.AFTER and above is not None and above.phase in OPEN:
            found.setdefault(link.reader, []).append(link.upstream)
    return found


def caught_up(old: Actual, new: Actual) -> bool:
    """Whether the new generation is no further behind than the old one, or only by a few seconds."""
    measured = new.lag_at is not None and new.started_at is not None and new.lag_at > new.started_at
    if new.state is not StreamState.RUNNING or not measured or new.lag_rows is None:
        return False
    if new.lag_rows == 0:
        return True
    if new.lag_seconds is not None and new.lag_seconds <= (old.lag_seconds or 0.0) + NEAR:
        return True
    return old.lag_rows is not None and new.lag_rows <= old.lag_rows


def has_read_since(new: Actual, since: float) -> bool:
    """Whether the new generation has read all that was there at a time, as far as messages tell their time."""
    if new.lag_rows == 0:
        return True
    return new.lag_at is not None and new.lag_seconds is not None and new.lag_at - new.lag_seconds > since


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
        return new is not None and "reservoirVersion" in new and place(new) >= place(old)
    if new is None:
        return not any(int(at) for partitions in old.values() for at in partitions.values())
    return all(
        int(new[topic].get(number, 0)) >= int(at)
        for topic, partitions in old.items()
        if topic in new  # another topic has other messages
        for number, at in partitions.items()
    )


def _settling(group: Sequence[Seen], now: float) -> Step | None:
    moving = [each for each in group if each.phase is not RebuildPhase.STANDING]
    if any(each.new.state is not StreamState.RUNNING for each in moving):
        return _all(group, RebuildPhase.CATCHING_UP)  # the old ones shall not wait for it to come back
    patience = STAND_AT_MOST + 2 * sum(each.window for each in group)
    if any(now - each.rebuild.updated_at >= patience for each in moving):
        return _all(group, RebuildPhase.CATCHING_UP)
    if any(each.busy for each in group) or any(each.old.state not in _ENDED for each in group):
        return None
    standing = {each.stream for each in group if each not in moving and each.new.state in _ENDED}
    if len(standing) == len(group):
        return _all(group, RebuildPhase.TAKING_OVER)
    for each in moving:
        # No row is lost by a new one that is behind the old one: they come after the takeover. But rows of a group that
        # are not read by then would be.
        late = now - each.rebuild.updated_at >= SETTLE_AT_MOST
        if each.above <= standing and each.drained and (each.level or late):
            return Advance(RebuildPhase.STANDING, (each.stream,))
    return None


def _all(group: Sequence[Seen], phase: RebuildPhase) -> Advance:
    return Advance(phase, tuple(each.stream for each in group))


def _taking_over(group: Sequence[Seen], now: float) -> Step | None:
    first = group[0]
    if any(each.busy for each in group):
        return None
    answer = first.answer
    if answer is not None and answer.state == "done":
        return TakeOver()
    result = (answer.result or {}) if answer is not None else {}
    if result.get("code") == REBUILD_FAILED.code:
        return _gave_up(first.stream, REBUILD_FAILED.code, result.get("message"))
    if answer is not None and result.get("code") not in _OF_ENGINE and now - answer.created_at < AGAIN:
        return None  # whether anything was replaced is not known, or something was
    stopped = all(each.old.state in _ENDED and each.new.state in _ENDED for each in group)
    return Ask("takeover") if stopped and first.engine else None


def trouble(seen: Seen) -> tuple[str, str] | None:
    """Code and message of what keeps a group from taking over, whose first one this is, and is tried again."""
    if seen.phase is not RebuildPhase.TAKING_OVER or seen.answer is None or seen.answer.state != "failed":
        return None
    result = seen.answer.result or {}
    code = str(result.get("code"))
    return None if code in (REBUILD_FAILED.code, *_OF_ENGINE) else (code, shown(str(result.get("message"))))


def _clearing(seen: Seen) -> Step | None:
    if seen.busy:
        return None
    if seen.answer is not None and (seen.answer.result or {}).get("code") not in _OF_ENGINE:
        return Finish()  # also when it could not: the next rebuild writes over what is left
    running = seen.new.state in (StreamState.STARTING, StreamState.RUNNING, StreamState.STOPPING)
    return Ask("discard") if seen.engine and not running else None


def _gave_up(stream: str, code: str | None, message: str | None) -> GiveUp:
    return GiveUp(stream, code or REBUILD_FAILED.code, shown(message or "no message"))
