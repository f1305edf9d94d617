"""Rebuilds beside the deployed generation.

Rules
- A rebuild has a generation and a checkpoint of its own from its beginning. Its new generation runs as a stream of its
  own, with a name that people do not see (`paths.beside`); the deployed generation stays the desired one.
- A phase is left only by the one who saw it: two who decide at once do not overtake each other.
- Taking over is one transaction: the new generation becomes the desired one, with its counts and where it began.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from penstock.paths import beside
from penstock.store import schema
from penstock.store.database import Database
from penstock.store.records import Actual, Rebuild, RebuildPhase, StreamState, Wanted

_OPEN = (RebuildPhase.CATCHING_UP, RebuildPhase.SETTLING)


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
        now: float | None = None,
    ) -> Rebuild:
        """Build generation N+1 beside the deployed one; a rebuild that failed before is forgotten."""
        now = time.time() if now is None else now
        name = beside(stream)
        with self._write() as tx:
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
        found = self.rebuild(stream)
        assert found is not None
        return found

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

    def advance_rebuild(
        self,
        seen: Rebuild,
        phase: RebuildPhase,
        *,
        error_code: str | None = None,
        error: str | None = None,
        now: float | None = None,
    ) -> bool:
        """Enter a phase, if the rebuild is still in the one that was seen."""
        changes: dict[str, Any] = {"phase": phase.value, "updated_at": time.time() if now is None else now}
        if error is not None:
            changes |= {"error_code": error_code, "error": error}
        with self._write() as tx:
            return bool(tx.execute(update(schema.rebuilds).where(*_still(seen)).values(**changes)).rowcount)

    def end_rebuild(self, stream: str, *, stop: bool = False, now: float | None = None) -> bool:
        """Give a rebuild up; False when it is past that: the new generation takes over, and with `stop` does not run.

        True as well when there is none.
        """
        now = time.time() if now is None else now
        with self._write() as tx:
            of = schema.rebuilds.c.stream == stream
            phase = tx.execute(select(schema.rebuilds.c.phase).where(of)).scalar()
            if phase == RebuildPhase.TAKING_OVER.value:
                of_new = schema.desired.c.stream == beside(stream)
                if stop:
                    tx.execute(update(schema.desired).where(of_new).values(wanted=Wanted.STOPPED.value))
                return False
            if phase == RebuildPhase.FAILED.value:
                tx.execute(delete(schema.rebuilds).where(of))
            elif phase in [each.value for each in _OPEN]:
                values = {"phase": RebuildPhase.ENDING.value, "updated_at": now}
                tx.execute(update(schema.rebuilds).where(of).values(**values))
        return True

    def take_over(self, seen: Rebuild, *, now: float | None = None) -> bool:
        """Make the new generation the desired one: its rows are in the table."""
        now = time.time() if now is None else now
        name = beside(seen.stream)
        with self._write() as tx:
            changes = {"phase": RebuildPhase.TAKEN_OVER.value, "updated_at": now}
            if not tx.execute(update(schema.rebuilds).where(*_still(seen)).values(**changes)).rowcount:
                return False
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
            tx.execute(delete(schema.records).where(schema.records.c.stream == seen.stream))
            for table in (schema.records, schema.beginnings):
                tx.execute(update(table).where(table.c.stream == name).values(stream=seen.stream))
            _new_chance(tx, seen.stream, now)
            _forget(tx, name)
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
        return bool(done)


def _still(seen: Rebuild) -> tuple[Any, ...]:
    table = schema.rebuilds
    return (
        table.c.stream == seen.stream,
        table.c.generation == seen.generation,
        table.c.phase == seen.phase.value,
    )


def _forget(tx: Connection, name: str) -> None:
    for table in (schema.desired, schema.actual, schema.progress, schema.records, schema.beginnings):
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
