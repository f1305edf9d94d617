"""Rows that are changes of a table: which of two is the newer one, and which delete.

Rules
- Each row says where its message stood (partition, offset, timestamp) and whether it deletes the row of its key.
- Within a partition the higher offset is the newer change, whatever the timestamps say. A key belongs in one partition;
  when it is found in two, the later timestamp is the newer change, and of equal ones the higher name of a partition.
- The table keeps the place of each row for the comparison with later batches, and not the mark of deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.engine.arrow import last_per_key
from penstock.engine.changed_rows import Deletions


@dataclass(frozen=True)
class Changes:
    """The columns that make a row a change."""

    partition: str
    offset: str
    timestamp: str
    deleted: str

    def is_newer(self) -> str:
        """The condition that a change comes after the row in the table: from batch to batch, offsets only rise."""
        partition, timestamp = ([f"{side}.`{name}`" for side in ("source", "target")]
                                for name in (self.partition, self.timestamp))  # fmt: skip
        return (
            f"({partition[0]} = {partition[1]} OR {timestamp[0]} > {timestamp[1]}"
            f" OR ({timestamp[0]} = {timestamp[1]} AND {partition[0]} > {partition[1]}))"
        )

    def deletes(self) -> str:
        return f"source.`{self.deleted}`"

    def newest(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The newest change of each key."""
        ordered = rows.sort_by([(self.partition, "ascending"), (self.offset, "ascending")])
        ordered = last_per_key(ordered, [*keys, self.partition])
        return last_per_key(ordered.sort_by([(self.timestamp, "ascending"), (self.partition, "ascending")]), keys)

    def newest_by_spark(self, batch: DataFrame, keys: Sequence[str]) -> DataFrame:
        """The same of a batch that is too large to be fetched."""
        by = [F.col(f"`{key}`") for key in keys]
        place = [F.col(f"`{name}`") for name in (self.partition, self.timestamp)]
        rows = batch.select(*by, *place, F.col(f"`{self.offset}`").alias("n"), _row(batch).alias("row"))
        rows = rows.groupBy(*by, place[0]).agg(F.max_by(F.struct(place[1], "row"), "n").alias("last"))
        later = F.struct(f"last.`{self.timestamp}`", place[0])
        return rows.groupBy(*by).agg(F.max_by("last.row", later).alias("row")).select("row.*")


def clauses(changes: Changes | Deletions, columns: Sequence[str]) -> str:
    """What Spark's MERGE does with rows that are changes."""
    names = [f"`{name}`" for name in columns if name != changes.deleted]
    updates = ", ".join(f"target.{name} = source.{name}" for name in names)
    values = ", ".join(f"source.{name}" for name in names)
    newer, deletes = changes.is_newer(), changes.deletes()
    return (
        f"WHEN MATCHED AND {newer} AND {deletes} THEN DELETE "
        f"WHEN MATCHED AND {newer} AND NOT {deletes} THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND NOT {deletes} THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )


def _row(batch: DataFrame) -> Any:
    return F.struct(*[F.col(f"`{name}`") for name in batch.columns])


def newest_by_arrival(batch: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The last row of each key in the order of the input: partitions keep it, and a key lives in one partition."""
    numbered = batch.select(
        *[F.col(f"`{key}`") for key in keys], _row(batch).alias("row"), F.monotonically_increasing_id().alias("n")
    )
    newest = numbered.groupBy(*[f"`{key}`" for key in keys]).agg(F.max_by("row", "n").alias("row"))
    return newest.select("row.*")
