"""What a topic lacks when other rows take the place of a table's. Columns and types may be others.

Rules
- Of rows with a key: those that are new or changed, and the keys that are gone, as rows with the mark of deletion. Of a
  topic that may not have all old rows, all new ones in place of those that are new or changed.
- Of rows without one: those that were not there, as often as they were not. What is gone stays in the topic.
- Rows are the same when all their columns are, by name and value.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.engine.changed_rows import GONE
from penstock.engine.tables import quoted_name

_TEXT, _ROW, _COUNT, _NUMBER = "_penstock_text", "_penstock_row", "_penstock_count", "_penstock_number"

_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # without it, to the millisecond
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def lacking(new: DataFrame, old: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows to publish when the new rows replace the old ones, which are published."""
    return _changed(new, old, keys) if keys else _added(new, old)


def anew(new: DataFrame, old: DataFrame, keys: Sequence[str]) -> DataFrame:
    """All new rows, and the keys that are gone."""
    return _changed(new, old, keys, same=F.lit(False))


def comparable(new: DataFrame, old: DataFrame, keys: Sequence[str]) -> bool:
    """Whether the old rows have the same keys."""
    return [_type(new, key) for key in keys] == [_type(old, key) for key in keys]


def _type(rows: DataFrame, column: str) -> str | None:
    return next((field.dataType.simpleString() for field in rows.schema.fields if field.name == column), None)


def _changed(new: DataFrame, old: DataFrame, keys: Sequence[str], *, same: Column | None = None) -> DataFrame:
    there = new.select(_text(new), _row(new)).alias("there")
    before = old.select(_text(old), _row(old)).alias("before")
    on = [
        F.col(f"there.{_ROW}.{quoted_name(key)}").eqNullSafe(F.col(f"before.{_ROW}.{quoted_name(key)}")) for key in keys
    ]
    both = there.join(before, on=on, how="full_outer")
    is_there = F.col(f"there.{_TEXT}").isNotNull()
    is_same = F.col(f"there.{_TEXT}") == F.col(f"before.{_TEXT}") if same is None else same
    rows = both.where(is_there & ~F.coalesce(is_same, F.lit(False))).select(f"there.{_ROW}.*")
    gone = both.where(~is_there).select(*[F.col(f"before.{_ROW}.{quoted_name(key)}").alias(key) for key in keys])
    return rows.withColumn(GONE, F.lit(False)).unionByName(gone.withColumn(GONE, F.lit(True)), allowMissingColumns=True)


def _added(new: DataFrame, old: DataFrame) -> DataFrame:
    before = old.select(_text(old)).groupBy(_TEXT).agg(F.count("*").alias(_COUNT))
    numbered = new.select(_text(new), _row(new)).withColumn(
        _NUMBER, F.row_number().over(Window.partitionBy(_TEXT).orderBy(F.lit(1)))
    )
    both = numbered.join(before, on=_TEXT, how="left")
    return both.where(F.col(_NUMBER) > F.coalesce(F.col(_COUNT), F.lit(0))).select(f"{_ROW}.*")


def _row(rows: DataFrame) -> Column:
    return F.struct(*[F.col(quoted_name(name)) for name in rows.columns]).alias(_ROW)


def _text(rows: DataFrame) -> Column:
    ordered = [F.col(quoted_name(name)) for name in sorted(rows.columns)]
    return F.to_json(F.struct(*ordered), _EXACT).alias(_TEXT)
