"""Rebuilds beside the deployed generation.

Rules
- A rebuild has a generation and a checkpoint of its own from its beginning. Its new generation runs as a stream of its
  own, with a name that people do not see (`paths.beside`); the deployed generation stays the desired one.
- Rebuilds of streams that read each other's tables are a group (`rebuild_links`): all of it takes over, or none. A
  reader of a table that is rebuilt may be awaited before its own rebuild has begun.
- A phase is left only by the one who saw it, and the whole group: two who decide at once do not overtake each other.
- Taking over is one transaction: the new generations become the desired ones, with their counts and where they began.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from penstock.paths import beside
from penstock.store import schema
from penstock.store.database import Database
from penstock.store.records import Actual, LinkKind, Rebuild, RebuildLink, RebuildPhase, StreamState, Wanted

_REVOCABLE = (RebuildPhase.CATCHING_UP, RebuildPhase.SETTLING, RebuildPhase.STANDING)
OPEN = (*_REVOCABLE, RebuildPhase.TAKING_OVER)  # the new generation is not the deployed one yet, and may become it


class Rebuilds(Database):
    """The rebuilds of a store."""

    def begin_rebuild(
        self,
        stream: str,
        spec_json: str,
        spec_hash: str,
        *,
        beside_json: str,
        beside_hash: str,
        verdict: str,
        inputs: Collection[str] = (),
        readers: Collection[str] = (),
        again: bool = False,
        now: float | None = None,
    ) -> Rebuild | None:
        """Build generation N+1 beside the deployed one; a rebuild that failed before is forgotten.

        It takes over together with the rebuilds of its `inputs`, whose hidden tables it reads, and with those of its
        `readers`, which are awaited. Begun `again`, it keeps those who wait for it, and rebuilds that go on with it.
        None when one that it goes with is about to take over, or has: all has to be looked at anew.
        """
        now = time.time() if now is None else now
        name = beside(stream)
        with self._write() as tx:
            if not _catching_up(tx, [*inputs, *_unlinked(tx, stream, again=again)]):
                return None
            _link(tx, [(stream, reader) for reader in readers], LinkKind.TOGETHER)
            _link(tx, [(above, stream) for above in inputs], LinkKind.TOGETHER)
            last = tx.execute(
                select(func.max(schema.generations.c.generation)).where(schema.generations.c.stream == stream)
            ).scalar()
            generation = int(last or 0) + 1
            checkpoint = f"g{generation}-{uuid.uuid4().hex[:8]}"
            _forget(tx, name)
            tx.execute(delete(schema.rebuilds).where(schema.rebuilds.c.stream == stream))
            row = {"stream": stream, "generation": generation, "checkpoint_id": checkpoint}
            spec = {"spec_json": spec_json, "spec_hash": spec_hash}
            tx.execute(insert(schema.generations).values(**row, **spec, verdict=verdict, created_at=now))
            phase = RebuildPhase.CATCHING_UP.value
            tx.execute(insert(schema.rebuilds).values(**row, **spec, phase=phase, started_at=now, updated_at=now))
            of_new = {"stream": name, "spec_json": beside_json, "spec_hash": beside_hash}
            wanted = {"wanted": Wanted.RUNNING.value, "updated_at": now}
            tx.execute(insert(schema.desired).values(**row | of_new | wanted))
            # A decision about a stream is written only over a record that says what the decision was based on.
            blank = dataclasses.asdict(Actual(stream=name, updated_at=now)) | {"state": StreamState.PENDING.value}
            tx.execute(insert(schema.actual).values(**blank))
        return self.rebuild(stream)

    def start_after(self, stream: str, inputs: Collection[str]) -> bool:
        """Let a stream wait for the rebuilds of its inputs; False when one of them is about to take over, or has."""
        with self._write() as tx:
            if not _catching_up(tx, inputs):
                return False
            _link(tx, [(above, stream) for above in inputs], LinkKind.AFTER)
        return True

    def unlink(self, reader: str, upstreams: Collection[str]) -> None:
        """Let the rebuilds of these take over without a stream that does not read them any more."""
        links = schema.rebuild_links
        awaited = (links.c.reader == reader) & (links.c.kind == LinkKind.TOGETHER.value)
        with self._write() as tx:
            tx.execute(delete(links).where(awaited, links.c.upstream.in_(list(upstreams))))

    def rebuild_links(self) -> list[RebuildLink]:
        with self._read() as tx:
            return _links(tx)

    def rebuild(self, stream: str) -> Rebuild | None:
        """The rebuild of a stream that is under way, or that failed."""
        query = select(schema.rebuilds).where(schema.rebuilds.c.stream == stream)
        with self._read() as tx:
            row = tx.execute(query).mappings().first()
        return _rebuild(row) if row else None

    def rebuilds(self) -> dict[str, Rebuild]:
        with self._read() as tx:
            rows = tx.execute(select(schema.rebuilds)).mappings().all()
        return {row["stream"]: _rebuild(row) for row in rows}

    def advance_rebuilds(
        self, group: Sequence[Rebuild], moved: Collection[str], phase: RebuildPhase, *, now: float | None = None
    ) -> bool:
        """Enter a phase with the `moved` ones of a group, if it is as it was seen."""
        changes: dict[str, Any] = {"phase": phase.value, "updated_at": time.time() if now is None else now}
        with self._write() as tx:
            if not _as_seen(tx, group):
                return False
            tx.execute(update(schema.rebuilds).where(schema.rebuilds.c.stream.in_(list(moved))).values(**changes))
        return True

    def give_up(self, stream: str, *, code: str, message: str, now: float | None = None) -> bool:
        """Give the rebuild of a stream up for an error, and with it those that would take over together with it.

        False when there is none that is open.
        """
        now = time.time() if now is None else now
        with self._write() as tx:
            phases = _phases(tx)
            if phases.get(stream) not in OPEN:
                return False
            for member in component(stream, phases, _links(tx)):
                told = message if member == stream else f"It takes over together with {stream}, which failed: {message}"
                _change(tx, member, phase=RebuildPhase.ENDING, now=now, error_code=code, error=told)
        return True

    def end_rebuild(self, stream: str, *, stop: bool = False, alone: bool = False, now: float | None = None) -> bool:
        """Give a rebuild up, and those that would take over together with it unless it ends `alone`, to begin anew.

        False when it is past that: the new generation takes over, and with `stop` does not run. True as well when
        there is none.
        """
        now = time.time() if now is None else now
        with self._write() as tx:
            phases = _phases(tx)
            phase = phases.get(stream)
            if phase is RebuildPhase.TAKING_OVER:
                if stop:
                    self._want_after_takeover(tx, stream, Wanted.STOPPED)
                return False
            if phase is RebuildPhase.FAILED:
                tx.execute(delete(schema.rebuilds).where(schema.rebuilds.c.stream == stream))
            elif phase in _REVOCABLE:
                for member in component(stream, phases, _links(tx)):
                    ends = member == stream or not alone
                    _change(tx, member, phase=RebuildPhase.ENDING if ends else RebuildPhase.CATCHING_UP, now=now)
        return True

    def _want_after_takeover(self, tx: Connection, stream: str, wanted: Wanted) -> None:
        """Let what is wanted of a stream hold for a new generation that is taking over, too."""
        if _phases(tx).get(stream) is RebuildPhase.TAKING_OVER:
            of_new = schema.desired.c.stream == beside(stream)
            tx.execute(update(schema.desired).where(of_new).values(wanted=wanted.value))

    def take_over(self, group: Sequence[Rebuild], *, now: float | None = None) -> bool:
        """Make the new generations the desired ones: their rows are in the tables."""
        now = time.time() if now is None else now
        with self._write() as tx:
            if not _as_seen(tx, group):
                return False
            for seen in group:
                _change(tx, seen.stream, phase=RebuildPhase.TAKEN_OVER, now=now)
                _adopt(tx, seen, now)
            names = {seen.stream for seen in group}
            for link in _links(tx):
                if link.upstream in names and link.kind is LinkKind.AFTER:
                    _new_chance(tx, link.reader, now)  # what it failed of may have been the old columns
        return True

    def finish_rebuild(self, seen: Rebuild) -> bool:
        """What the rebuild left is cleared away; it is forgotten, but for an error that people have to see."""
        with self._write() as tx:
            if seen.error is None:
                done = tx.execute(delete(schema.rebuilds).where(*_still(seen))).rowcount
            else:
                failed = {"phase": RebuildPhase.FAILED.value}
                done = tx.execute(update(schema.rebuilds).where(*_still(seen)).values(**failed)).rowcount
            if done:
                _forget(tx, beside(seen.stream))
                _unlinked(tx, seen.stream, again=True)  # if it does not begin again, nobody waits for it any more
        return bool(done)


def component(stream: str, phases: Mapping[str, RebuildPhase], links: Iterable[RebuildLink]) -> list[str]:
    """The streams whose rebuilds, as far as they have begun, take over together with that of a stream; itself among
    them."""
    pairs = [
        {each.upstream, each.reader}
        for each in links
        if each.kind is LinkKind.TOGETHER and phases.get(each.upstream) in OPEN and phases.get(each.reader) in OPEN
    ]
    found = {stream}
    while more := {name for pair in pairs if pair & found for name in pair} - found:
        found |= more
    return sorted(found & phases.keys())


def _phases(tx: Connection) -> dict[str, RebuildPhase]:
    rows = tx.execute(select(schema.rebuilds.c.stream, schema.rebuilds.c.phase))
    return {str(stream): RebuildPhase(phase) for stream, phase in rows}


def _links(tx: Connection) -> list[RebuildLink]:
    rows = tx.execute(select(schema.rebuild_links)).mappings()
    return [RebuildLink(row["upstream"], row["reader"], LinkKind(row["kind"])) for row in rows]


def _link(tx: Connection, pairs: Iterable[tuple[str, str]], kind: LinkKind) -> None:
    links = schema.rebuild_links
    for upstream, reader in pairs:
        tx.execute(delete(links).where(links.c.upstream == upstream, links.c.reader == reader))
        tx.execute(insert(links).values(upstream=upstream, reader=reader, kind=kind.value))


def _unlinked(tx: Connection, upstream: str, *, again: bool) -> list[str]:
    """Forget who was linked to a rebuild, but for rebuilds that go on, which are told, and `again` those who wait."""
    running = [stream for stream, phase in _phases(tx).items() if phase in OPEN]
    links = schema.rebuild_links
    together, waits = (links.c.kind == kind.value for kind in (LinkKind.TOGETHER, LinkKind.AFTER))
    gone = together & links.c.reader.not_in(running)
    tx.execute(delete(links).where(links.c.upstream == upstream, gone if again else gone | waits))
    left = tx.execute(select(links.c.reader, links.c.kind).where(links.c.upstream == upstream))
    return [str(reader) for reader, kind in left if kind == LinkKind.TOGETHER.value]


def _catching_up(tx: Connection, streams: Collection[str]) -> bool:
    phases = _phases(tx)
    return all(phases.get(stream) is RebuildPhase.CATCHING_UP for stream in streams)


def _as_seen(tx: Connection, group: Sequence[Rebuild]) -> bool:
    """Whether the rebuilds are in the phases in which they were seen, and nobody has joined them."""
    found = {row["stream"]: _rebuild(row) for row in tx.execute(select(schema.rebuilds)).mappings()}
    now = {stream: (each.generation, each.phase) for stream, each in found.items()}
    if any(now.get(each.stream) != (each.generation, each.phase) for each in group):
        return False
    phases = {stream: each.phase for stream, each in found.items()}
    return component(group[0].stream, phases, _links(tx)) == sorted(each.stream for each in group)


def _change(tx: Connection, stream: str, *, phase: RebuildPhase, now: float, **more: Any) -> None:
    values = {"phase": phase.value, "updated_at": now, **more}
    tx.execute(update(schema.rebuilds).where(schema.rebuilds.c.stream == stream).values(**values))


def _adopt(tx: Connection, seen: Rebuild, now: float) -> None:
    """Make a new generation the desired one."""
    name = beside(seen.stream)
    wanted = tx.execute(select(schema.desired.c.wanted).where(schema.desired.c.stream == name)).scalar()
    tx.execute(
        update(schema.desired)
        .where(schema.desired.c.stream == seen.stream)
        .values(
            generation=seen.generation,
            spec_hash=seen.spec_hash,
            spec_json=seen.spec_json,
            checkpoint_id=seen.checkpoint_id,
            wanted=wanted or Wanted.RUNNING.value,
            updated_at=now,
        )
    )
    for table in (schema.records, schema.violations):
        tx.execute(delete(table).where(table.c.stream == seen.stream))
    for table in (schema.records, schema.violations, schema.beginnings):
        tx.execute(update(table).where(table.c.stream == name).values(stream=seen.stream))
    _new_chance(tx, seen.stream, now)
    _forget(tx, name)


def _still(seen: Rebuild) -> tuple[Any, ...]:
    table = schema.rebuilds
    return (
        table.c.stream == seen.stream,
        table.c.generation == seen.generation,
        table.c.phase == seen.phase.value,
    )


def _forget(tx: Connection, name: str) -> None:
    of_a_stream = (
        schema.desired, schema.actual, schema.progress, schema.records, schema.violations, schema.beginnings,
    )  # fmt: skip
    for table in of_a_stream:
        tx.execute(delete(table).where(table.c.stream == name))


def _new_chance(tx: Connection, stream: str, now: float) -> None:
    """What the old generation failed of says nothing about the new one."""
    of = schema.actual.c.stream == stream
    forgotten = {"failures": 0, "retry_at": None, "error": None, "error_code": None, "updated_at": now}
    tx.execute(update(schema.actual).where(of).values(**forgotten))
    ended = (StreamState.QUARANTINED.value, StreamState.FAILED.value)
    tx.execute(
        update(schema.actual).where(of, schema.actual.c.state.in_(ended)).values(state=StreamState.PENDING.value)
    )


def _rebuild(row: RowMapping) -> Rebuild:
    return Rebuild(**dict(row) | {"phase": RebuildPhase(row["phase"])})
