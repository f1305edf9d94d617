"""Rows of a Delta table, read without Spark: for tests that wait for them."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Row

_PLAIN = re.compile(r"select (\*|count\(\*\)|\w+(?:, \w+)*) from (\w+)\.(\w+)", re.IGNORECASE)


def plain_rows(warehouse: Path, query: str) -> list[tuple[Any, ...]] | None:
    """What Spark would give for a query of all rows of one table; None for any other query, and for what is no table
    or one that only Spark can read.
    """
    match = _PLAIN.fullmatch(query.strip())
    if match is None:
        return None
    wanted, schema, name = match.groups()
    place = warehouse / f"{schema.lower()}.db" / name.lower()
    if not (place / "_delta_log").is_dir():
        return None
    try:
        table = DeltaTable(place).to_pyarrow_table()
    except (DeltaError, OSError):  # a feature of Spark's Delta alone, or a table that is being replaced
        return None
    if wanted.startswith("count"):
        return [(table.num_rows,)]
    if wanted != "*":
        columns = wanted.split(", ")
        if not set(columns) <= set(table.column_names):
            return None
        table = table.select(columns)
    kinds = [field.type for field in table.schema]
    values = [
        [_value(value, kind) for value in column.to_pylist()] for column, kind in zip(table.columns, kinds, strict=True)
    ]
    return list(zip(*values, strict=True))


def _value(value: Any, kind: pa.DataType) -> Any:
    """As Spark's rows have it."""
    if value is None:
        return None
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone().replace(tzinfo=None)
    if pa.types.is_struct(kind):
        return Row(**{each.name: _value(value[each.name], each.type) for each in kind})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {_value(key, kind.key_type): _value(each, kind.item_type) for key, each in value}
    return value
