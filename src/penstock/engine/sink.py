"""Writing a batch into a Delta table exactly once.

Rules
- A batch is committed together with its identity (`engine.identity`) in one Delta transaction: after a crash the same
  batch comes again, is found to be in, and is skipped.
- Small batches are fetched as Arrow and committed in milliseconds: appended directly (`engine.appends`) where the table
  asks nothing of its writers, else by delta-rs; large ones by Spark's own writer. All with the same identity, and each
  sees what the others wrote.
- A full refresh is a batch that replaces all rows of the table, in one commit as well.
- The number of rows is known before the batch runs when all inputs are topics; else a bounded look decides.
- An upsert replaces rows by key; rows that are changes (`engine.changes`) replace or delete only what is older.
- Rows that a model expects to be otherwise (`engine.expectations`) are counted, and left out if it says so.
- A replaced writer (higher token in the log) stops with LEASE_LOST before it can write.
- What was written is kept for the progress record, and so is the error that ended the stream: the JVM in between knows
  only a text of it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.checkpoint.offsets import committed_batch, kafka_rows
from penstock.engine import appends
from penstock.engine.arrow import last_per_key
from penstock.engine.changed_rows import Deletions, Follow
from penstock.engine.changes import Changes, clauses, newest_by_arrival
from penstock.engine.expectations import HELD, Judge
from penstock.engine.identity import NO_BATCH, NOTHING, Mark, application
from penstock.engine.publish import CHUNK, Publisher, by_partition
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, LEASE_LOST

log = logging.getLogger(__name__)

ROWS = "rows"  # what the rows of a live test are counted as
_TRIES = 5  # commits that met a concurrent one of somebody else (OPTIMIZE, a delete by hand)
_SIMPLE = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "decimal"})
_SURE = 20_000  # rows for which there is room, however wide they are
_TOO_LARGE = "spark.driver.maxResultSize"  # stands in what Spark says of a result for which there is no room
_REPLACE = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


@dataclass(frozen=True)
class Target:
    """The table a stream writes."""

    stream: str
    table: str  # schema.table
    path: str
    mode: str  # append | upsert | replace
    keys: tuple[str, ...]
    checkpoint: Path
    checkpoint_id: str
    small_batch_rows: int
    stateful: bool
    changes: Changes | Deletions | None = None  # of rows that may delete
    follow: Follow | None = None  # of rows that are made from those of the batch
    judge: Judge | None = None  # of rows that are expected to be somehow
    counts_rows: bool = False  # of a live test, whose rows are all violations


@dataclass(frozen=True)
class Written:
    """What became of a batch."""

    batch_id: int
    writer: str  # direct | delta-rs | spark | skipped | empty
    rows: int
    violations: Mapping[str, int] = field(default_factory=dict)  # expectation -> rows that do not hold it
    anew: bool = False  # the violations are all there are, not those of this batch


class TableWriter:
    """The function that Spark calls with each batch."""

    def __init__(self, target: Target, token: int, publisher: Publisher | None = None) -> None:
        self._target = target
        self._token = token
        self._publisher = publisher
        self._app = application(target.stream, target.checkpoint_id)
        self._busy = threading.Lock()  # held while a batch is being written
        self._guard = threading.Condition()  # of the three below; told when a batch was asked for
        self._closed = False
        self._abandoned = False  # a batch was under way that nobody waits for any more: it must not be committed
        self._written: dict[int, Written] = {}
        self._newest = NO_BATCH  # that was written here
        self.error: BaseException | None = None
        self.small_batch_rows = target.small_batch_rows  # looked up at each batch
        self._most = sys.maxsize  # rows for which there is room in the driver, as far as is known
        self._table = self._open()
        self._known: tuple[int, Mark] | None = None  # the newest version that was looked at, and the newest mark in it
        self._layout: appends.Layout | None = None  # of that version, for rows that are appended directly
        self._large = False  # the last refresh was too large for delta-rs

    def _open(self) -> DeltaTable:
        return DeltaTable(self._target.path)

    # -- life ---------------------------------------------------------------------------------------------------------
    def fence(self) -> None:
        """Shut out an older writer, from the table and from the topic."""
        self._fence_table()
        if self._publisher is not None:
            self._publisher.fence()

    def _fence_table(self) -> None:
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
            self._known = None
            try:
                self._table.create_write_transaction([], "append", self._table.schema(), commit_properties=properties)
            except CommitFailedError:
                continue
            return
        raise LEASE_LOST.error(f"{self._target.stream}: the table's log could not be fenced; somebody else writes.")

    def close(self, timeout: float) -> bool:
        """Let no further batch in; wait for the one under way. False when it did not end in time, and is abandoned."""
        with self._guard:
            self._closed = True
        free = self._busy.acquire(timeout=timeout)
        if free:
            self._busy.release()
            if self._publisher is not None:
                self._publisher.close()
        self._abandoned = not free
        return free

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Let no batch be written meanwhile."""
        with self._busy:
            yield

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being written, or nobody may write one now."""
        return self._busy.locked()

    def newest_batch(self) -> int:
        """The newest batch that is in the table; -1 before the first."""
        return self._mark().batch_id

    def is_published(self, batch_id: int) -> bool:
        """Whether there is nothing left to publish of a batch."""
        return self._publisher is None or self._publisher.has(batch_id)

    def written(self, batch_id: int) -> Written | None:
        """What became of a batch; asked for once, by the progress listener."""
        with self._guard:
            self._guard.notify_all()
            return self._written.pop(batch_id, None)

    def is_told(self, timeout: float) -> bool:
        """Wait until somebody has asked for the newest batch. False when nobody did in time."""
        with self._guard:
            return self._guard.wait_for(lambda: self._newest not in self._written, timeout)

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
            if self._target.counts_rows:
                outcome = replace(outcome, violations={ROWS: self._rows()}, anew=True)
            with self._guard:
                self._written[batch_id] = outcome
                self._newest = batch_id
                for old in sorted(self._written)[:-16]:  # nobody asked for them
                    del self._written[old]

    def _write(self, batch: DataFrame, batch_id: int) -> Written:
        written = self._mark().batch_id >= batch_id
        if written and self.is_published(batch_id):
            return Written(batch_id, "skipped", 0, self._passed(batch))
        changes, keys, follow, judge = self._target.changes, self._target.keys, self._target.follow, self._target.judge
        if judge is not None and follow is None:
            batch = judge.judged(batch)
        rows = self._small(batch, batch_id)
        if rows is None:
            return self._by_spark(batch, batch_id, written=written)
        violations: Mapping[str, int] = {}
        if follow is not None and rows.num_rows:
            rows = follow.rows(batch.sparkSession, rows, batch.schema, keys)
        if judge is not None and HELD in rows.column_names:
            rows, violations = judge.taken(rows)
        if rows.num_rows == 0 and self._target.mode != "replace":
            return Written(batch_id, "empty", 0, violations)
        if self._target.mode == "upsert":
            rows = changes.newest(rows, keys) if changes else last_per_key(rows, keys)
        outcome = Written(batch_id, "skipped", 0) if written else self._by_arrow(rows, batch_id)
        if self._publisher is not None:
            self._publisher.send(rows.to_batches(max_chunksize=CHUNK), batch_id)
        return replace(outcome, violations=violations)

    def _passed(self, batch: DataFrame) -> Mapping[str, int]:
        """What is counted of a batch whose rows are in already, but which nobody counted.

        It has to run all the same: records are counted as they pass, and Spark refuses a batch of a query with state
        whose state was not written by this very run.
        """
        judge = self._target.judge
        if judge is not None and self._target.follow is None:
            return judge.counted(judge.judged(batch))
        batch.count()
        return {}

    def _small(self, batch: DataFrame, batch_id: int) -> pa.Table | None:
        """The batch as Arrow if it is small and its keys can be compared there; None leaves it to Spark."""
        limit = min(self.small_batch_rows, self._most)
        if limit <= 0 or not self._arrow_keys(batch):
            return None
        if self._target.mode == "replace":
            return self._look_at_refresh(batch, limit)
        expected = kafka_rows(self._target.checkpoint, batch_id)
        if expected is not None and not self._target.stateful:
            return self._fetched(batch, expected) if expected <= limit else None
        joined = self._target.mode == "append"  # may give many rows for few messages
        if expected is not None and not joined and expected <= min(limit, _SURE):
            return batch.toArrow()
        if self._target.stateful or batch_id == 0:
            return self._look_persisted(batch, limit)
        rows = self._fetched(batch.limit(limit + 1), limit)
        return rows if rows is not None and rows.num_rows <= limit else None

    def _fetched(self, batch: DataFrame, expected: int) -> pa.Table | None:
        """The rows, if the driver has room for them; else Spark writes batches of that size from now on."""
        try:
            return batch.toArrow()
        except (PySparkException, Py4JJavaError) as problem:
            if _TOO_LARGE not in str(problem):
                raise
        self._most = max(expected // 2, 1)
        log.info("%s: its rows are wide: from %s on, batches are written by Spark", self._target.stream, self._most)
        return None

    def _look_at_refresh(self, rows: DataFrame, limit: int) -> pa.Table | None:
        """All rows of a refresh if they are few; one that was large is not computed twice to find that out again."""
        if self._large:
            return None
        found = self._fetched(rows.limit(limit + 1), limit)
        self._large = found is None or found.num_rows > limit
        return None if self._large else found

    def _look_persisted(self, batch: DataFrame, limit: int) -> pa.Table | None:
        # A stateful plan must run once and whole: half of it would leave partitions without their state. And so must a
        # first batch, whose size is not known before: what passes twice is counted twice.
        batch.persist()
        try:
            count = batch.count()
            rows = self._fetched(batch, count) if count <= limit else None
            if rows is not None:
                batch.unpersist()
        except BaseException:
            batch.unpersist()
            raise
        return rows  # None: it stays cached for Spark's writer, which lets go of it

    def _arrow_keys(self, batch: DataFrame) -> bool:
        if not self._target.keys:
            return True  # without asking the JVM for the columns
        types = dict(batch.dtypes)
        keys = self._target.follow.keys if self._target.follow else self._target.keys
        return all(types[key].split("(")[0] in _SIMPLE for key in keys)

    # -- small batches ------------------------------------------------------------------------------------------------
    def _by_arrow(self, rows: pa.Table, batch_id: int) -> Written:
        for _ in range(_TRIES):
            self._go_on()
            try:
                return Written(batch_id, self._committed(rows, batch_id), rows.num_rows)
            except (CommitFailedError, FileExistsError):
                self._known = None
                if self._mark().batch_id >= batch_id:
                    return Written(batch_id, "skipped", 0)
        raise LEASE_LOST.error(f"{self._target.stream}: batch {batch_id} met {_TRIES} concurrent commits.")

    def _go_on(self) -> None:
        """A batch that was abandoned ends here: the rows of its table may be those of a new generation by now."""
        if self._abandoned:
            raise InterruptedError("the batch took too long to be waited for")

    def _committed(self, rows: pa.Table, batch_id: int) -> str:
        """Commit the rows to the version that is known; who did it."""
        if self._target.mode == "append" and self._appended(rows, batch_id):
            return "direct"
        known, self._known = self._known, None
        if self._target.mode == "upsert":
            self._merge(rows, batch_id)
        else:
            mode: Literal["append", "overwrite"] = "append" if self._target.mode == "append" else "overwrite"
            write_deltalake(self._table, rows, mode=mode, commit_properties=self._commit(batch_id))
        version = self._table.version()
        if known is not None and version == known[0] + 1:  # else others came before this commit, or after it
            self._known = version, Mark(self._token, batch_id)
        return "delta-rs"

    def _appended(self, rows: pa.Table, batch_id: int) -> bool:
        """Append the rows directly; False when the table or the rows are not for that."""
        if self._known is None:
            self._mark()
        fitted = self._layout.fitted(rows) if self._layout is not None else None
        if self._layout is None or fitted is None or self._known is None:
            return False
        version, mark = self._known[0] + 1, Mark(self._token, batch_id)
        appends.append(Path(self._target.path), fitted, version, self._app, mark.version)
        self._known = version, mark
        if version % self._layout.checkpoint_every == 0:
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Let readers of the log begin here. Nothing is lost without it; the next one comes later."""
        try:
            self._load()
            self._table.create_checkpoint()
        except (DeltaError, OSError) as problem:
            log.warning("%s: the log of its table has no new checkpoint: %s", self._target.stream, problem)

    def _merge(self, rows: pa.Table, batch_id: int) -> None:
        same = " AND ".join(f'(target."{key}" IS NOT DISTINCT FROM source."{key}")' for key in self._target.keys)
        merge = self._table.merge(
            rows,
            same or "true",
            source_alias="source",
            target_alias="target",
            commit_properties=self._commit(batch_id),
        )
        if (changes := self._target.changes) is None:
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            return
        newer, gone, mark = changes.is_newer(), changes.deletes(), [changes.deleted]
        merge = merge.when_matched_delete(f"{newer} AND {gone}")
        merge = merge.when_matched_update_all(f"{newer} AND NOT {gone}", except_cols=mark)
        merge.when_not_matched_insert_all(f"NOT {gone}", except_cols=mark).execute()

    # -- Spark --------------------------------------------------------------------------------------------------------
    def _by_spark(self, batch: DataFrame, batch_id: int, *, written: bool = False) -> Written:
        rows, violations = batch, dict[str, int]()
        try:
            if self._target.follow is not None:
                rows = self._target.follow.by_spark(batch.persist(), self._target.keys)
            if self._target.judge is not None:
                batch.persist()
                rows, violations = self._target.judge.taken_by_spark(rows)
            if self._target.mode == "upsert":
                rows = self._changed_by_spark(rows)
            if self._publisher is not None:
                rows = rows.persist()  # read twice, computed once
            outcome = Written(batch_id, "skipped", 0) if written else self._to_table(rows, batch_id)
            if self._publisher is not None:
                self._publisher.send(by_partition(rows), batch_id)
        finally:
            rows.unpersist()
            batch.unpersist()
        return replace(outcome, violations=violations)

    def _to_table(self, rows: DataFrame, batch_id: int) -> Written:
        self._go_on()
        mark = Mark(self._token, batch_id)
        if self._target.mode == "upsert":
            self._merge_by_spark(rows, mark)
        else:
            mode = "append" if self._target.mode == "append" else "overwrite"
            options = {"txnAppId": self._app, "txnVersion": str(mark.version)}
            rows.write.format("delta").mode(mode).options(**options).save(self._target.path)
        found = self._mark()
        if found != mark:
            raise LEASE_LOST.error(f"{self._target.stream}: batch {batch_id} was not taken: {found} is in the log.")
        count = self._rows_of_last_commit()
        self._large = self._large and count > self._target.small_batch_rows
        return Written(batch_id, "spark", count)

    def _changed_by_spark(self, batch: DataFrame) -> DataFrame:
        """The newest row of each key."""
        changes, keys = self._target.changes, self._target.keys
        if changes is not None:
            return changes.newest_by_spark(batch, keys)
        return newest_by_arrival(batch, keys) if keys else batch

    def _merge_by_spark(self, batch: DataFrame, mark: Mark) -> None:
        session = batch.sparkSession
        view = "penstock_batch"
        changes = self._target.changes
        batch.createOrReplaceTempView(view)
        session.conf.set("spark.databricks.delta.write.txnAppId", self._app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(mark.version))
        try:
            same = " AND ".join(f"target.`{key}` <=> source.`{key}`" for key in self._target.keys) or "true"
            session.sql(
                f"MERGE INTO delta.`{self._target.path}` AS target USING {view} AS source ON {same} "
                f"{clauses(changes, batch.columns) if changes else _REPLACE}"
            )
        finally:
            session.conf.unset("spark.databricks.delta.write.txnAppId")
            session.conf.unset("spark.databricks.delta.write.txnVersion")

    def _rows(self) -> int:
        """How many rows the table has."""
        self._load()
        counts = pa.table(self._table.get_add_actions(flatten=True)).column("num_records")
        return sum(int(count or 0) for count in counts.to_pylist())

    def _rows_of_last_commit(self) -> int:
        metrics: dict[str, Any] = self._table.history(1)[0].get("operationMetrics", {})
        return int(metrics.get("numSourceRows") or metrics.get("numOutputRows") or 0)

    # -- identity -----------------------------------------------------------------------------------------------------
    def _mark(self) -> Mark:
        """The newest mark in the log; LEASE_LOST when it is a newer writer's."""
        if self._known is None or not self._is_newest(self._known[0]):
            self._load()
            self._known = self._table.version(), Mark.of(self._table.transaction_version(self._app))
            self._layout = appends.layout(self._table) if self._target.mode == "append" else None
        mark = self._known[1]
        if mark.token > self._token:
            raise LEASE_LOST.error(f"{self._target.stream}: a newer engine (token {mark.token}) writes this table now.")
        return mark

    def _load(self) -> None:
        """Have delta-rs know the newest version of the table."""
        try:
            self._table.update_incremental()
        except DeltaError:  # after a long rest: the commits since are gone from the log, behind a checkpoint
            self._table = self._open()

    def _is_newest(self, version: int) -> bool:
        """Whether nobody has committed since: a look at two names, where delta-rs would go through the log.

        Commits are cleared away from the oldest on: where the one that is known is still there, the next would be, too.
        """
        folder = Path(self._target.path) / "_delta_log"
        return (folder / f"{version:020d}.json").exists() and not (folder / f"{version + 1:020d}.json").exists()

    def _commit(self, batch_id: int) -> CommitProperties:
        return self._properties(Mark(self._token, batch_id))

    def _properties(self, mark: Mark) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._app, mark.version)])


class TopicWriter(TableWriter):
    """The same without a table: rows go to a topic alone."""

    def _open(self) -> Any:
        return None

    def _fence_table(self) -> None:
        """There is none."""

    def _mark(self) -> Mark:
        return Mark(self._token, self._publisher.newest if self._publisher else NO_BATCH)

    def _by_arrow(self, rows: pa.Table, batch_id: int) -> Written:
        return Written(batch_id, "kafka", rows.num_rows)

    def _to_table(self, rows: DataFrame, batch_id: int) -> Written:
        return Written(batch_id, "kafka", int(rows.count()))
