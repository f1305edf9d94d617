"""Writing a batch into a Delta table exactly once.

Rules
- A batch is committed together with its identity (`engine.identity`) in one Delta transaction: after a crash the same
  batch comes again, is found to be in, and is skipped.
- Small batches are fetched as Arrow and committed by delta-rs in milliseconds; large ones by Spark's own writer, with
  the same identity. Either sees what the other wrote.
- The number of rows is known before the batch runs when all inputs are topics; else a bounded look decides.
- A replaced writer (higher token in the log) stops with LEASE_LOST before it can write.
- What was written is kept for the progress record, and so is the error that ended the stream: the JVM in between knows
  only a text of it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.checkpoint.offsets import committed_batch, kafka_rows
from penstock.engine.arrow import last_per_key
from penstock.engine.identity import NOTHING, Mark, application
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, LEASE_LOST

log = logging.getLogger(__name__)

_TRIES = 5  # commits that met a concurrent one of somebody else (OPTIMIZE, a delete by hand)
_SIMPLE = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "decimal"})
_VACUUM_EVERY = 3600.0
_VACUUM_KEEP = 24  # hours: a reader that began before then may still need the files that were replaced


@dataclass(frozen=True)
class Target:
    """The table a stream writes."""

    stream: str
    table: str  # schema.table
    path: str
    mode: str  # append | upsert
    keys: tuple[str, ...]
    checkpoint: Path
    checkpoint_id: str
    small_batch_rows: int
    stateful: bool


@dataclass(frozen=True)
class Written:
    """What became of a batch."""

    batch_id: int
    writer: str  # delta-rs | spark | skipped | empty
    rows: int


class TableWriter:
    """The function that Spark calls with each batch."""

    def __init__(self, target: Target, token: int) -> None:
        self._target = target
        self._token = token
        self._app = application(target.stream, target.checkpoint_id)
        self._busy = threading.Lock()  # held while a batch is being written
        self._guard = threading.Lock()
        self._closed = False
        self._written: dict[int, Written] = {}
        self.error: BaseException | None = None
        self._vacuumed = time.monotonic()
        self._table = DeltaTable(target.path)

    # -- life ---------------------------------------------------------------------------------------------------------
    def fence(self) -> None:
        """Put this writer's token into the table's log, so that an older writer cannot commit any more.

        The log of a table that this checkpoint has written to names it. One that does not is another table, made after
        the checkpoint: going on would leave out all rows that the checkpoint has passed.
        """
        for _ in range(_TRIES):
            mark = self._mark()
            if mark == NOTHING and committed_batch(self._target.checkpoint) is not None:
                raise CHANGE_NEEDS_REBUILD.error(
                    f"{self._target.stream}: its table was made anew, but its checkpoint is of the table before."
                )
            if mark.token == self._token:
                return
            properties = self._properties(Mark(self._token, mark.batch_id))
            try:
                self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=properties)
            except CommitFailedError:
                continue
            return
        raise LEASE_LOST.error(f"{self._target.stream}: the table's log could not be fenced; somebody else writes.")

    def close(self, timeout: float) -> bool:
        """Let no further batch in; wait for the one under way. False when it did not end in time."""
        with self._guard:
            self._closed = True
        free = self._busy.acquire(timeout=timeout)
        if free:
            self._busy.release()
        return free

    def written(self, batch_id: int) -> Written | None:
        """What became of a batch; asked for once, by the progress listener."""
        with self._guard:
            return self._written.pop(batch_id, None)

    # -- a batch ------------------------------------------------------------------------------------------------------
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._busy:
            with self._guard:
                if self._closed:
                    raise InterruptedError("the stream is being stopped")
            try:
                outcome = self._write(batch, batch_id)
            except BaseException as problem:
                self.error = problem
                raise
            self._vacuum()
            with self._guard:
                self._written[batch_id] = outcome
                for old in sorted(self._written)[:-16]:  # nobody asked for them
                    del self._written[old]

    def _write(self, batch: DataFrame, batch_id: int) -> Written:
        if self._mark().batch_id >= batch_id:
            return Written(batch_id, "skipped", 0)
        rows = self._small(batch, batch_id)
        if rows is None:
            return self._by_spark(batch, batch_id)
        if rows.num_rows == 0:
            return Written(batch_id, "empty", 0)
        if self._target.mode == "upsert":
            rows = last_per_key(rows, self._target.keys)
        return self._by_delta_rs(rows, batch_id)

    def _small(self, batch: DataFrame, batch_id: int) -> pa.Table | None:
        """The batch as Arrow if it is small and delta-rs can write it; None leaves it to Spark."""
        limit = self._target.small_batch_rows
        if limit <= 0 or not self._arrow_keys(batch):
            return None
        expected = kafka_rows(self._target.checkpoint, batch_id)
        joined = self._target.stateful and self._target.mode == "append"  # may give many rows for few messages
        if expected is not None and not joined:
            return batch.toArrow() if expected <= limit else None
        if self._target.stateful:
            return self._look_persisted(batch, limit)
        rows = batch.limit(limit + 1).toArrow()
        return rows if rows.num_rows <= limit else None

    def _look_persisted(self, batch: DataFrame, limit: int) -> pa.Table | None:
        # A stateful plan must run once and whole: half of it would leave partitions without their state.
        batch.persist()
        rows = None
        try:
            if batch.count() <= limit:
                rows = batch.toArrow()
                batch.unpersist()
        except BaseException:
            batch.unpersist()
            raise
        return rows  # None: it stays cached for Spark's writer, which lets go of it

    def _arrow_keys(self, batch: DataFrame) -> bool:
        if not self._target.keys:
            return True  # without asking the JVM for the columns
        types = dict(batch.dtypes)
        return all(types[key].split("(")[0] in _SIMPLE for key in self._target.keys)

    # -- delta-rs -----------------------------------------------------------------------------------------------------
    def _by_delta_rs(self, rows: pa.Table, batch_id: int) -> Written:
        for _ in range(_TRIES):
            try:
                if self._target.mode == "append":
                    write_deltalake(self._table, rows, mode="append", commit_properties=self._commit(batch_id))
                else:
                    self._merge(rows, batch_id)
            except CommitFailedError:
                if self._mark().batch_id >= batch_id:
                    return Written(batch_id, "skipped", 0)
                continue
            return Written(batch_id, "delta-rs", rows.num_rows)
        raise LEASE_LOST.error(f"{self._target.stream}: batch {batch_id} met {_TRIES} concurrent commits.")

    def _merge(self, rows: pa.Table, batch_id: int) -> None:
        same = " AND ".join(f'(target."{key}" IS NOT DISTINCT FROM source."{key}")' for key in self._target.keys)
        (
            self._table.merge(
                rows,
                same or "true",
                source_alias="source",
                target_alias="target",
                commit_properties=self._commit(batch_id),
            )
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    # -- Spark --------------------------------------------------------------------------------------------------------
    def _by_spark(self, batch: DataFrame, batch_id: int) -> Written:
        mark = Mark(self._token, batch_id)
        try:
            if self._target.mode == "append":
                options = {"txnAppId": self._app, "txnVersion": str(mark.version)}
                batch.write.format("delta").mode("append").options(**options).save(self._target.path)
            else:
                self._merge_by_spark(batch, mark)
        finally:
            batch.unpersist()
        found = self._mark()
        if found != mark:
            raise LEASE_LOST.error(f"{self._target.stream}: batch {batch_id} was not taken: {found} is in the log.")
        return Written(batch_id, "spark", self._rows_of_last_commit())

    def _merge_by_spark(self, batch: DataFrame, mark: Mark) -> None:
        session = batch.sparkSession
        view = "penstock_batch"
        if self._target.keys:
            batch = _newest_per_key(batch, self._target.keys)
        batch.createOrReplaceTempView(view)
        session.conf.set("spark.databricks.delta.write.txnAppId", self._app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(mark.version))
        try:
            same = " AND ".join(f"target.`{key}` <=> source.`{key}`" for key in self._target.keys) or "true"
            session.sql(
                f"MERGE INTO delta.`{self._target.path}` AS target USING {view} AS source ON {same} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            session.conf.unset("spark.databricks.delta.write.txnAppId")
            session.conf.unset("spark.databricks.delta.write.txnVersion")

    def _rows_of_last_commit(self) -> int:
        metrics: dict[str, Any] = self._table.history(1)[0].get("operationMetrics", {})
        return int(metrics.get("numSourceRows") or metrics.get("numOutputRows") or 0)

    # -- files that were replaced -------------------------------------------------------------------------------------
    def _vacuum(self) -> None:
        """Delete what upserts replaced a day ago: a small table that is updated every second would fill the disk."""
        if self._target.mode != "upsert" or time.monotonic() - self._vacuumed < _VACUUM_EVERY:
            return
        self._vacuumed = time.monotonic()
        try:
            gone = self._table.vacuum(_VACUUM_KEEP, dry_run=False, enforce_retention_duration=False)
        except DeltaError as problem:
            log.warning("%s: old files could not be deleted: %s", self._target.stream, problem)
        else:
            log.info("%s: %s old files deleted", self._target.stream, len(gone))

    # -- identity -----------------------------------------------------------------------------------------------------
    def _mark(self) -> Mark:
        """The newest mark in the log; LEASE_LOST when it is a newer writer's."""
        self._table.update_incremental()
        mark = Mark.of(self._table.transaction_version(self._app))
        if mark.token > self._token:
            raise LEASE_LOST.error(f"{self._target.stream}: a newer engine (token {mark.token}) writes this table now.")
        return mark

    def _commit(self, batch_id: int) -> CommitProperties:
        return self._properties(Mark(self._token, batch_id))

    def _properties(self, mark: Mark) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._app, mark.version)])


def _newest_per_key(batch: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The last row of each key in the order of the input: partitions keep it, and a key lives in one partition."""
    row = F.struct(*[F.col(f"`{name}`") for name in batch.columns])
    numbered = batch.select(
        *[F.col(f"`{key}`") for key in keys], row.alias("row"), F.monotonically_increasing_id().alias("n")
    )
    newest = numbered.groupBy(*[f"`{key}`" for key in keys]).agg(F.max_by("row", "n").alias("row"))
    return newest.select("row.*")
