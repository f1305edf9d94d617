"""Desired and actual state, generations and the history of batches.

Rules
- A generation number is used once per stream, also across a drop.
- A report that carries the token of an older engine changes nothing.
- The history of a stream has a bound; what is older goes when something new comes.
- What a rebuild runs beside a deployed generation is a stream that is told of only to those who ask for it.
- Deploying a stream, or asking for it to run, gives it a new chance: failures are forgotten, a quarantine is lifted.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, make_url, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import PenstockError
from penstock.errors.catalogue import STORE_UNUSABLE, STREAM_UNKNOWN
from penstock.paths import beside, is_beside
from penstock.store import schema
from penstock.store.commands import Commands
from penstock.store.leases import Leases
from penstock.store.rebuilds import Rebuilds
from penstock.store.records import Actual, Desired, Part, Progress, RecordCounts, StreamState, Wanted
from penstock.store.sources import Sources

PROGRESS_KEPT = 1000  # per stream


class Store(Leases, Commands, Sources, Rebuilds):
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
            if not keep:  # all is read again from the start
                tx.execute(delete(schema.records).where(schema.records.c.stream == stream))
                tx.execute(delete(schema.violations).where(schema.violations.c.stream == stream))
            self._new_chance(tx, stream, now)
        return self.desired(stream)

    def amend(self, stream: str, spec_json: str, spec_hash: str) -> Desired:
        """Change what the deployed generation says of itself; nothing is started again for it."""
        with self._write() as tx:
            row = {"spec_json": spec_json, "spec_hash": spec_hash}
            tx.execute(update(schema.desired).where(schema.desired.c.stream == stream).values(**row))
            generation = tx.execute(
                select(schema.desired.c.generation).where(schema.desired.c.stream == stream)
            ).scalar()
            of_it = (schema.generations.c.stream == stream, schema.generations.c.generation == generation)
            tx.execute(update(schema.generations).where(*of_it).values(**row))
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

    def all_desired(self, *, hidden: bool = False) -> list[Desired]:
        """Every deployed stream; with `hidden` also those that rebuilds run beside them."""
        with self._read() as tx:
            rows = tx.execute(select(schema.desired).order_by(schema.desired.c.stream)).mappings().all()
        return [_desired(row) for row in rows if hidden or not is_beside(row["stream"])]

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
            self._want_after_takeover(tx, stream, wanted)
            if wanted is Wanted.RUNNING:
                self._new_chance(tx, stream, now)

    def forget(self, stream: str) -> None:
        """Remove a dropped stream; its generations stay so that numbers are never used twice."""
        with self._write() as tx:
            tx.execute(delete(schema.desired).where(schema.desired.c.stream == stream))
            tx.execute(delete(schema.actual).where(schema.actual.c.stream == stream))
            tx.execute(delete(schema.progress).where(schema.progress.c.stream == stream))
            tx.execute(delete(schema.records).where(schema.records.c.stream == stream))
            tx.execute(delete(schema.violations).where(schema.violations.c.stream == stream))
            links = schema.rebuild_links.c
            tx.execute(delete(schema.rebuild_links).where((links.upstream == stream) | (links.reader == stream)))

    def record_beginning(self, stream: str, generation: int, offsets: Mapping[str, Any]) -> None:
        """Where a generation began to read, by input; later starts of the same generation change nothing."""
        of = (schema.beginnings.c.stream == stream, schema.beginnings.c.generation == generation)
        with self._write() as tx:
            if tx.execute(select(schema.beginnings).where(*of)).first() is None:
                row = {"stream": stream, "generation": generation, "offsets": dict(offsets)}
                tx.execute(insert(schema.beginnings).values(**row))

    def beginnings(self, stream: str) -> dict[int, dict[str, Any]]:
        """Generation -> input -> the offset that it began at."""
        query = select(schema.beginnings).where(schema.beginnings.c.stream == stream)
        with self._read() as tx:
            return {row["generation"]: row["offsets"] for row in tx.execute(query).mappings()}

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

    def all_actual(self, *, hidden: bool = False) -> dict[str, Actual]:
        """What is known of each stream; with `hidden` also of those that rebuilds run."""
        with self._read() as tx:
            rows = tx.execute(select(schema.actual)).mappings().all()
        return {row["stream"]: _actual(row) for row in rows if hidden or not is_beside(row["stream"])}

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
        with self._write() as tx:
            # Within the write: a report that waited for its turn is younger than what was written meanwhile.
            now = time.time() if now is None else now
            if if_wanted is not None:
                row = tx.execute(select(schema.desired).where(schema.desired.c.stream == stream)).mappings().first()
                if not row or (row["generation"], row["wanted"]) != (if_wanted, Wanted.RUNNING.value):
                    return False
            return self._change_actual(tx, stream, now, engine_token=engine_token, if_still=if_still, **changes)

    def record_lag(self, found: Actual, rows: int | None, seconds: float | None, *, now: float | None = None) -> None:
        """How far a stream is behind, if it still is the run that was measured; touches nothing else, so that it cannot
        disturb a report."""
        now = time.time() if now is None else now
        table = schema.actual
        same = (
            table.c.stream == found.stream,
            table.c.generation == found.generation,
            table.c.started_at.is_not_distinct_from(found.started_at),
        )
        with self._write() as tx:
            tx.execute(update(table).where(*same).values(lag_rows=rows, lag_seconds=seconds, lag_at=now))

    def amend_error(self, stream: str, engine_token: int, before: str, after: str) -> bool:
        """Say more of a stream's last error, if it is still that one and no newer engine reports the stream."""
        table = schema.actual
        same = (table.c.stream == stream, table.c.error == before, table.c.engine_token <= engine_token)
        with self._write() as tx:
            return tx.execute(update(table).where(*same).values(error=after)).rowcount > 0

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

    def record_progress(
        self,
        batch: Progress,
        *,
        engine_token: int,
        counts: Mapping[str, RecordCounts] | None = None,
        violations: Mapping[str, int] | None = None,
        anew: bool = False,
    ) -> bool:
        """Keep a batch in the bounded history and bring the actual record up to date.

        The `counts` by source and the `violations` by expectation are added up; the latter count `anew` with a batch
        that replaces all rows.
        """
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
            for source, read in (counts or {}).items():
                self._add_records(tx, batch.stream, source, read)
            for name, rows in (violations or {}).items():
                self._add_violations(tx, batch, name, rows, anew=anew)
        return True

    def _add_violations(self, tx: Connection, batch: Progress, name: str, rows: int, *, anew: bool) -> None:
        table = schema.violations
        of = (table.c.stream == batch.stream, table.c.expectation == name)
        old = tx.execute(select(table).where(*of)).mappings().first()
        before = 0 if anew or old is None else int(old["rows"])
        last = batch.at if rows else (old["last_at"] if old is not None else None)
        tx.execute(delete(table).where(*of))
        tx.execute(insert(table).values(stream=batch.stream, expectation=name, rows=before + rows, last_at=last))

    def violations(self) -> dict[str, dict[str, tuple[int, float | None]]]:
        """Stream -> expectation -> how many rows did not hold it, and when the last came."""
        found: dict[str, dict[str, tuple[int, float | None]]] = {}
        with self._read() as tx:
            for row in tx.execute(select(schema.violations)).mappings():
                found.setdefault(row["stream"], {})[row["expectation"]] = (int(row["rows"]), row["last_at"])
        return found

    def _add_records(self, tx: Connection, stream: str, source: str, read: RecordCounts) -> None:
        of = (schema.records.c.stream == stream, schema.records.c.source == source)
        row = tx.execute(select(schema.records).where(*of)).mappings().first()
        total = (_counts(row) if row else RecordCounts()).plus(read)
        tx.execute(delete(schema.records).where(*of))
        tx.execute(insert(schema.records).values(stream=stream, source=source, **dataclasses.asdict(total)))

    def record_counts(self) -> dict[str, dict[str, RecordCounts]]:
        """Stream -> source -> how good the records were that it read."""
        found: dict[str, dict[str, RecordCounts]] = {}
        with self._read() as tx:
            for row in tx.execute(select(schema.records)).mappings():
                found.setdefault(row["stream"], {})[row["source"]] = _counts(row)
        return found

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

    def newest_progress(self) -> dict[str, Progress]:
        """The newest batch of every deployed stream that has one."""
        table = schema.progress
        newest = (  # a look into the index for each stream; grouping would walk over the whole history
            select(func.max(table.c.id)).where(table.c.stream == schema.desired.c.stream).scalar_subquery()
        )
        with self._read() as tx:
            shown = ~schema.desired.c.stream.startswith(beside(""), autoescape=True)
            query = select(newest).select_from(schema.desired).where(shown)
            found: Sequence[int | None] = tx.execute(query).scalars().all()
            ids = [number for number in found if number is not None]
            rows = tx.execute(select(table).where(table.c.id.in_(ids))).mappings().all()
        return {row["stream"]: Progress(**{k: v for k, v in row.items() if k != "id"}) for row in rows}

    # -- parts --------------------------------------------------------------------------------------------------------
    def record_parts(self, seen: Sequence[Part]) -> None:
        """What streams need and whether it answers; what is no longer looked at is forgotten."""
        with self._write() as tx:
            tx.execute(delete(schema.parts))
            if seen:
                tx.execute(insert(schema.parts), [dataclasses.asdict(part) for part in seen])

    def parts(self) -> list[Part]:
        with self._read() as tx:
            rows = tx.execute(select(schema.parts).order_by(schema.parts.c.name)).mappings().all()
        return [Part(**row) for row in rows]


def _desired(row: RowMapping) -> Desired:
    return Desired(**dict(row) | {"wanted": Wanted(row["wanted"])})


def _counts(row: RowMapping) -> RecordCounts:
    return RecordCounts(**{name: value for name, value in row.items() if name not in ("stream", "source")})


def _actual(row: RowMapping) -> Actual:
    return Actual(**dict(row) | {"state": StreamState(row["state"])})


def _decided_by(record: Actual) -> tuple[object, ...]:
    return (record.state, record.generation, record.engine_token, record.run_id, record.failures, record.retry_at)


def _shown(where: Path | str) -> str:
    """An address without its password."""
    text = str(where)
    return make_url(text).render_as_string(hide_password=True) if "://" in text else text
