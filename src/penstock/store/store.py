"""Desired and actual state, generations and the history of batches.

Rules
- A generation number is used once per stream, also across a drop.
- A report that carries the token of an older engine changes nothing.
- The history of a stream has a bound; what is older goes when something new comes.
- Deploying a stream, or asking for it to run, gives it a new chance: failures are forgotten, a quarantine is lifted.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, make_url, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import PenstockError
from penstock.errors.catalogue import STORE_UNUSABLE, STREAM_UNKNOWN
from penstock.store import schema
from penstock.store.commands import Commands
from penstock.store.leases import Leases
from penstock.store.records import Actual, Desired, Progress, StreamState, Wanted

PROGRESS_KEPT = 1000  # per stream


class Store(Leases, Commands):
    """The deployment store of one project. Safe to share between threads; each process opens its own."""

    @classmethod
    def open(cls, where: Path | str) -> Store:
        """`where` is a file (SQLite) or an SQLAlchemy address (PostgreSQL). Tables are made when missing."""
        try:
            store = cls(cls._connect(where))
        except (SQLAlchemyError, OSError, ImportError) as problem:
            raise STORE_UNUSABLE.error(
                f"The deployment store at {_shown(where)} cannot be opened: {problem}."
            ) from problem
        try:
            store._migrate()
        except PenstockError as problem:
            store.close()
            raise problem.kind.error(f"{problem.message[:-1]} ({_shown(where)}).", hint=problem.hint) from problem
        return store

    # -- desired ------------------------------------------------------------------------------------------------------
    def deploy(
        self,
        stream: str,
        spec_json: str,
        spec_hash: str,
        *,
        verdict: str,
        new_checkpoint: bool,
        wanted: Wanted | None = None,
        now: float | None = None,
    ) -> Desired:
        """Make a spec the desired state: generation N+1, its own checkpoint when asked or when it is the first.

        What is `wanted` of it stays as it was unless it is given; a new stream is wanted to run.
        """
        now = time.time() if now is None else now
        with self._write() as tx:
            old = tx.execute(select(schema.desired).where(schema.desired.c.stream == stream)).mappings().first()
            last = tx.execute(
                select(schema.generations.c.generation)
                .where(schema.generations.c.stream == stream)
                .order_by(schema.generations.c.generation.desc())
                .limit(1)
            ).scalar()
            generation = (last or 0) + 1
            keep = old is not None and not new_checkpoint
            checkpoint_id = (
                old["checkpoint_id"] if keep and old is not None else f"g{generation}-{uuid.uuid4().hex[:8]}"
            )
            row = {
                "stream": stream,
                "generation": generation,
                "spec_hash": spec_hash,
                "spec_json": spec_json,
                "checkpoint_id": checkpoint_id,
            }
            kept = old["wanted"] if old is not None else Wanted.RUNNING.value
            tx.execute(delete(schema.desired).where(schema.desired.c.stream == stream))
            tx.execute(insert(schema.desired).values(**row, wanted=wanted.value if wanted else kept, updated_at=now))
            tx.execute(insert(schema.generations).values(**row, verdict=verdict, created_at=now))
            self._new_chance(tx, stream, now)
        return self.desired(stream)

    def desired(self, stream: str) -> Desired:
        """The deployed stream; PEN-3001 when there is none."""
        found = self.find_desired(stream)
        if found is None:
            raise STREAM_UNKNOWN.error(f"There is no stream '{stream}'.")
        return found

    def find_desired(self, stream: str) -> Desired | None:
        with self._read() as tx:
            row = tx.execute(select(schema.desired).where(schema.desired.c.stream == stream)).mappings().first()
        return _desired(row) if row else None

    def all_desired(self) -> list[Desired]:
        with self._read() as tx:
            rows = tx.execute(select(schema.desired).order_by(schema.desired.c.stream)).mappings().all()
        return [_desired(row) for row in rows]

    def set_wanted(self, stream: str, wanted: Wanted, *, now: float | None = None) -> None:
        """Stop or start; starting also lifts a quarantine."""
        now = time.time() if now is None else now
        with self._write() as tx:
            done = tx.execute(
                update(schema.desired)
                .where(schema.desired.c.stream == stream)
                .values(wanted=wanted.value, updated_at=now)
            )
            if done.rowcount == 0:
                raise STREAM_UNKNOWN.error(f"There is no stream '{stream}'.")
            if wanted is Wanted.RUNNING:
                self._new_chance(tx, stream, now)

    def forget(self, stream: str) -> None:
        """Remove a dropped stream; its generations stay so that numbers are never used twice."""
        with self._write() as tx:
            tx.execute(delete(schema.desired).where(schema.desired.c.stream == stream))
            tx.execute(delete(schema.actual).where(schema.actual.c.stream == stream))
            tx.execute(delete(schema.progress).where(schema.progress.c.stream == stream))

    def generations(self, stream: str) -> list[dict[str, Any]]:
        """History of deployments, newest first."""
        query = (
            select(schema.generations)
            .where(schema.generations.c.stream == stream)
            .order_by(schema.generations.c.generation.desc())
        )
        with self._read() as tx:
            return [dict(row) for row in tx.execute(query).mappings()]

    # -- actual -------------------------------------------------------------------------------------------------------
    def actual(self, stream: str) -> Actual:
        """What is known of a stream; an empty record when nothing was reported."""
        with self._read() as tx:
            row = tx.execute(select(schema.actual).where(schema.actual.c.stream == stream)).mappings().first()
        return _actual(row) if row else Actual(stream=stream)

    def all_actual(self) -> dict[str, Actual]:
        with self._read() as tx:
            rows = tx.execute(select(schema.actual)).mappings().all()
        return {row["stream"]: _actual(row) for row in rows}

    def report(
        self,
        stream: str,
        *,
        now: float | None = None,
        engine_token: int | None = None,
        if_still: Actual | None = None,
        if_wanted: int | None = None,
        **changes: Any,
    ) -> bool:
        """Change fields of the actual record.

        With a token, an older engine's report is refused (False). With `if_still`, the change is made only when the
        record says what the caller saw: a decision never overwrites what the engine reported in the meantime. With
        `if_wanted`, only when that generation is deployed and wanted running: a stop that was asked for in the
        meantime is never overtaken by a start.
        """
        now = time.time() if now is None else now
        with self._write() as tx:
            if if_wanted is not None:
                row = tx.execute(select(schema.desired).where(schema.desired.c.stream == stream)).mappings().first()
                if not row or (row["generation"], row["wanted"]) != (if_wanted, Wanted.RUNNING.value):
                    return False
            return self._change_actual(tx, stream, now, engine_token=engine_token, if_still=if_still, **changes)

    def record_lag(self, stream: str, rows: int | None, seconds: float | None, *, now: float | None = None) -> None:
        """How far a stream is behind; touches nothing else, so that it cannot disturb a report."""
        now = time.time() if now is None else now
        with self._write() as tx:
            tx.execute(
                update(schema.actual)
                .where(schema.actual.c.stream == stream)
                .values(lag_rows=rows, lag_seconds=seconds, lag_at=now)
            )

    def _new_chance(self, tx: Connection, stream: str, now: float) -> None:
        row = tx.execute(select(schema.actual.c.state).where(schema.actual.c.stream == stream)).first()
        changes: dict[str, Any] = {"failures": 0, "retry_at": None, "error": None, "error_code": None}
        if row and row[0] in (StreamState.QUARANTINED.value, StreamState.FAILED.value):
            changes["state"] = StreamState.PENDING
        self._change_actual(tx, stream, now, **changes)

    def _change_actual(
        self,
        tx: Connection,
        stream: str,
        now: float,
        *,
        engine_token: int | None = None,
        if_still: Actual | None = None,
        **changes: Any,
    ) -> bool:
        row = tx.execute(select(schema.actual).where(schema.actual.c.stream == stream)).mappings().first()
        record = _actual(row) if row else Actual(stream=stream)
        if engine_token is not None:
            if engine_token < record.engine_token:
                return False
            changes["engine_token"] = engine_token
        if if_still is not None and (row is None or _decided_by(record) != _decided_by(if_still)):
            return False
        record = dataclasses.replace(record, updated_at=now, **changes)
        values = dataclasses.asdict(record) | {"state": record.state.value}
        if row:
            tx.execute(update(schema.actual).where(schema.actual.c.stream == stream).values(**values))
        else:
            tx.execute(insert(schema.actual).values(**values))
        return True

    def record_progress(self, batch: Progress, *, engine_token: int) -> bool:
        """Keep a batch in the bounded history and bring the actual record up to date."""
        with self._write() as tx:
            row = tx.execute(select(schema.actual).where(schema.actual.c.stream == batch.stream)).mappings().first()
            before = _actual(row) if row else Actual(stream=batch.stream)
            seconds = max(batch.duration_ms, 1) / 1000
            changes: dict[str, Any] = {
                "generation": batch.generation,
                "batch_id": batch.batch_id,
                "last_batch_at": batch.at,
                "rows_in_per_s": batch.rows_in_per_s,
                "rows_out_per_s": batch.rows_out / seconds,
                "total_rows_in": before.total_rows_in + batch.rows_in,
                "total_rows_out": before.total_rows_out + batch.rows_out,
            }
            if batch.offsets:
                changes["offsets"] = batch.offsets
            if batch.rows_in:
                changes["last_commit_at"] = batch.at
            if not self._change_actual(tx, batch.stream, batch.at, engine_token=engine_token, **changes):
                return False
            tx.execute(insert(schema.progress).values(**dataclasses.asdict(batch)))
            self._trim_progress(tx, batch.stream)
        return True

    def _trim_progress(self, tx: Connection, stream: str) -> None:
        edge = tx.execute(
            select(schema.progress.c.id)
            .where(schema.progress.c.stream == stream)
            .order_by(schema.progress.c.id.desc())
            .offset(PROGRESS_KEPT)
            .limit(1)
        ).scalar()
        if edge is not None:
            tx.execute(delete(schema.progress).where(schema.progress.c.stream == stream, schema.progress.c.id <= edge))

    def progress(self, stream: str, limit: int = 100) -> list[Progress]:
        """The newest batches, newest first."""
        query = (
            select(schema.progress)
            .where(schema.progress.c.stream == stream)
            .order_by(schema.progress.c.id.desc())
            .limit(limit)
        )
        with self._read() as tx:
            rows = tx.execute(query).mappings().all()
        return [Progress(**{k: v for k, v in row.items() if k != "id"}) for row in rows]


def _desired(row: RowMapping) -> Desired:
    return Desired(**dict(row) | {"wanted": Wanted(row["wanted"])})


def _actual(row: RowMapping) -> Actual:
    return Actual(**dict(row) | {"state": StreamState(row["state"])})


def _decided_by(record: Actual) -> tuple[object, ...]:
    return (record.state, record.generation, record.engine_token, record.run_id, record.failures, record.retry_at)


def _shown(where: Path | str) -> str:
    """An address without its password."""
    text = str(where)
    return make_url(text).render_as_string(hide_password=True) if "://" in text else text
