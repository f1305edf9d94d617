"""Rows that follow from changed rows: what a query makes of them now, and which rows of the table are gone.

Rules
- A batch holds changed rows with their key: those of an aggregate, or those of a table's change feed, where the newest
  change of a key counts and may be a deletion.
- The query is asked what it makes of the rows that are there. It makes one row of one at most and keeps the key, so a
  key that changed and has no row in the result has none in the table either: it is deleted.
- Few rows are fetched, and the query runs over them alone; many stay in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.engine.arrow import last_per_key

GONE = "_penstock_gone"
_KIND, _VERSION = "_change_type", "_commit_version"
_FEED = (_KIND, _VERSION, "_commit_timestamp")  # what Delta's change feed adds to a row


@dataclass(frozen=True)
class Follow:
    """How the rows of a table follow from changed rows."""

    make: Callable[[DataFrame], DataFrame]
    keys: tuple[str, ...]  # of the changed rows, in the order of the table's own

    def schema(self, session: SparkSession, changed: StructType) -> StructType:
        """The columns of the result."""
        return self.make(session.createDataFrame([], _without_feed(changed))).schema

    def rows(self, session: SparkSession, changed: pa.Table, schema: StructType, keys: Sequence[str]) -> pa.Table:
        """The rows of the result with the mark of deletion; `schema` is that of the changed rows."""
        newest = _newest(changed, self.keys)
        there = newest
        if _KIND in changed.column_names:
            there = newest.filter(pc.not_equal(newest.column(_KIND), "delete"))
        there = there.drop_columns([name for name in _FEED if name in there.column_names])
        made = self.make(session.createDataFrame(there, _without_feed(schema))).toArrow()
        made = last_per_key(made, keys)
        kept = set(_tuples(made, keys))
        gone = [key not in kept for key in _tuples(newest, self.keys)]
        missing = newest.select(list(self.keys)).filter(pa.array(gone, pa.bool_())).rename_columns(list(keys))
        marked = [_marked(made, gone=False)]
        if any(gone):
            marked.append(_marked(missing if keys else newest.slice(0, 1).select([]), gone=True))
        return pa.concat_tables(marked, promote_options="default")

    def by_spark(self, batch: DataFrame, keys: Sequence[str]) -> DataFrame:
        """The same of a batch that is too large to be fetched; the caller keeps it from being computed twice."""
        newest = _newest_by_spark(batch, self.keys)
        there = newest.where(f"{_KIND} <> 'delete'") if _KIND in batch.columns else newest
        made = self.make(there.drop(*_FEED))
        changed = newest.select(*[F.col(f"`{old}`").alias(new) for old, new in zip(self.keys, keys, strict=True)])
        both = made.withColumn(GONE, F.lit(False)).unionByName(
            changed.withColumn(GONE, F.lit(True)), allowMissingColumns=True
        )
        # Of a key that is in both, the row that was made. No join: Spark cannot tell two sides of one origin apart.
        by = [F.col(f"`{key}`").alias(f"_penstock_key_{number}") for number, key in enumerate(keys)]
        row = F.struct(*[F.col(f"`{name}`") for name in both.columns])
        return both.groupBy(*by).agg(F.min_by(row, GONE).alias("row")).select("row.*")


@dataclass(frozen=True)
class Deletions:
    """Rows of which some delete; all of them are newer than the table's."""

    deleted: str = GONE

    def is_newer(self) -> str:
        return "true"

    def deletes(self) -> str:
        return f"source.`{self.deleted}`"

    def newest(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        return last_per_key(rows, keys)

    def newest_by_spark(self, batch: DataFrame, keys: Sequence[str]) -> DataFrame:
        return batch  # a key is there once


def _without_feed(schema: StructType) -> StructType:
    return StructType([field for field in schema.fields if field.name not in _FEED])


def _newest(changed: pa.Table, keys: Sequence[str]) -> pa.Table:
    if _KIND in changed.column_names:
        changed = changed.filter(pc.not_equal(changed.column(_KIND), "update_preimage"))
        # Of one commit the deletion comes first: a key that is deleted and inserted is there.
        alive = pc.not_equal(changed.column(_KIND), "delete")
        ordered = pc.sort_indices(
            pa.table({"version": changed.column(_VERSION), "alive": alive}),
            sort_keys=[("version", "ascending"), ("alive", "ascending")],
        )
        changed = changed.take(ordered)
    return last_per_key(changed, keys)


def _newest_by_spark(batch: DataFrame, keys: Sequence[str]) -> DataFrame:
    if _KIND not in batch.columns:
        return batch  # an aggregate gives a group once a batch
    row = F.struct(*[F.col(f"`{name}`") for name in batch.columns])
    order = F.struct(F.col(_VERSION), F.col(_KIND) != "delete")
    changes = batch.where(f"{_KIND} <> 'update_preimage'").select(
        *[F.col(f"`{key}`") for key in keys], row.alias("row"), order.alias("n")
    )
    return changes.groupBy(*[f"`{key}`" for key in keys]).agg(F.max_by("row", "n").alias("row")).select("row.*")


def _tuples(rows: pa.Table, keys: Sequence[str]) -> list[tuple[object, ...]]:
    if not keys:
        return [() for _ in range(rows.num_rows)]
    return list(zip(*(rows.column(key).to_pylist() for key in keys), strict=True))


def _marked(rows: pa.Table, *, gone: bool) -> pa.Table:
    """With the mark; and all columns nullable, because a row that deletes has nothing but its key."""
    count = rows.num_rows if rows.num_columns else 1
    marked = rows.append_column(GONE, pa.array([gone] * count, pa.bool_()))
    schema = pa.schema([field.with_nullable(True) for field in marked.schema])
    return pa.Table.from_arrays(marked.columns, schema=schema)
