"""The Delta tables of dynamic tables: make, compare, drop.

Rules
- A table that a stream made carries the property `penstock.stream`; nothing else is ever written over or dropped.
- Columns are those of the query. A table whose columns differ from the query's needs a rebuild.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from penstock.errors import Location
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, MODEL_ANALYSIS, TABLE_CONFLICT

OWNER = "penstock.stream"


def quoted(table: str) -> str:
    """`schema`.`table`, whatever signs the names have."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in table.split("."))


def exists(spark: SparkSession, table: str) -> bool:
    return bool(spark.catalog.tableExists(quoted(table)))


def location(spark: SparkSession, table: str) -> str:
    """Where the table's files are."""
    row = spark.sql(f"DESCRIBE DETAIL {quoted(table)}").first()
    assert row is not None
    return str(row["location"]).removeprefix("file:")


def owner(spark: SparkSession, table: str) -> str | None:
    """The stream that made the table; None for anything else."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {quoted(table)}").collect()
    return next((str(row["value"]) for row in rows if row["key"] == OWNER), None)


def check_columns(schema: StructType, at: Location) -> None:
    """Refuse what no table can hold."""
    seen: set[str] = set()
    for column in schema.fields:
        if column.name.lower() in seen:
            raise MODEL_ANALYSIS.error(
                f"column '{column.name}' is there twice.", at=at, hint="Give one of them another name."
            )
        seen.add(column.name.lower())
        if isinstance(column.dataType, NullType):
            raise MODEL_ANALYSIS.error(
                f"column '{column.name}' is only ever null and has no type.",
                at=at,
                hint=f"Write cast(null as string) as {column.name}, or the type you mean.",
            )


def ensure(spark: SparkSession, table: str, schema: StructType, stream: str, *, full_refresh: bool = False) -> bool:
    """Make the table when it is missing; True when it was made now."""
    database = table.rsplit(".", 1)[0]
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}")
    if exists(spark, table):
        made_by = owner(spark, table) if not _is_view(spark, table) else None
        if made_by != stream:
            if not full_refresh:
                raise TABLE_CONFLICT.error(f"{table} exists and was not made by this stream.")
            spark.sql(f"DROP {'VIEW' if _is_view(spark, table) else 'TABLE'} {quoted(table)}")
        elif full_refresh:
            spark.sql(f"DROP TABLE {quoted(table)}")
        else:
            _compare(spark, table, schema)
            return False
    name = stream.replace("'", "\\'")
    columns = nullable(schema).toDDL()
    spark.sql(
        f"CREATE TABLE {quoted(table)} ({columns}) USING delta TBLPROPERTIES ("
        f"'{OWNER}' = '{name}', 'delta.logRetentionDuration' = 'interval 7 days')"
    )
    return True


def drop(spark: SparkSession, table: str, stream: str) -> bool:
    """Drop the table if this stream made it."""
    if not exists(spark, table) or _is_view(spark, table) or owner(spark, table) != stream:
        return False
    spark.sql(f"DROP TABLE {quoted(table)}")
    return True


def nullable(kind: DataType) -> Any:
    """The type with everything in it nullable: what a query proves today need not hold for the next message."""
    match kind:
        case StructType():
            return StructType([StructField(f.name, nullable(f.dataType), True, f.metadata) for f in kind.fields])
        case ArrayType():
            return ArrayType(nullable(kind.elementType), True)
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
        case _:
            return kind


def _is_view(spark: SparkSession, table: str) -> bool:
    return bool(spark.catalog.getTable(quoted(table)).tableType == "VIEW")


def _compare(spark: SparkSession, table: str, schema: StructType) -> None:
    old = {c.name.lower(): c.dataType.simpleString() for c in spark.table(quoted(table)).schema.fields}
    new = {c.name.lower(): c.dataType.simpleString() for c in schema.fields}
    if old == new:
        return
    changes = [f"column {name} is new" for name in new if name not in old]
    changes += [f"column {name} is gone" for name in old if name not in new]
    changes += [f"column {n} {old[n]} -> {new[n]}" for n in new if n in old and old[n] != new[n]]
    raise CHANGE_NEEDS_REBUILD.error(f"{table}: the columns changed: {'; '.join(changes)}.")
