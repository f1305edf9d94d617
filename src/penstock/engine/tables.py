"""The Delta tables of streams, and views over them: make, compare, drop.

Rules
- A table that a stream made carries the property `penstock.stream`; nothing else is ever written over or dropped.
- Columns are those of the query. What becomes of a table whose columns differ is `engine.columns`' to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.engine.maintenance import properties
from penstock.errors import Location
from penstock.errors.catalogue import (
    CHANGE_NEEDS_REBUILD,
    CONSTRAINT_BROKEN,
    CONTRACT_BROKEN,
    MODEL_ANALYSIS,
    TABLE_CONFLICT,
    WATERMARK_INVALID,
)
from penstock.project.watermark import no_column

log = logging.getLogger(__name__)

OWNER = "penstock.stream"
_CHECK = "delta.constraints."
_CHANGE_FEED = "delta.enableChangeDataFeed"
FILE_OF = 1_000_000  # rows, of those that are copied in their order
_PLACE = ("_penstock_time", "_penstock_file", "_penstock_block", "_penstock_row")
_TRIES = 5  # commits that met one of somebody else


def quoted(table: str) -> str:
    """`schema`.`table`, whatever signs the names have."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in table.split("."))


def quoted_name(column: str) -> str:
    """One name, whatever signs it has: a dot is part of it."""
    return f"`{column.replace('`', '``')}`"


def exists(spark: SparkSession, table: str) -> bool:
    return bool(spark.catalog.tableExists(quoted(table)))


def location(spark: SparkSession, table: str) -> str:
    """Where the table's files are."""
    state = spark._jsparkSession.sessionState()
    # The catalog knows; DESCRIBE DETAIL would read the table's log for it.
    found = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(quoted(table))).location()
    return str(found.getPath() if found.getScheme() in (None, "file") else found)


def find(spark: SparkSession, table: str) -> str | None:
    """Where the table's files are, if it exists."""
    return location(spark, table) if exists(spark, table) else None


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


def check_event_time(schema: StructType, column: str | None, at: Location) -> None:
    """Refuse a watermark that those who stream from the table could not set."""
    if column is None:
        return
    found = next((field for field in schema.fields if field.name.lower() == column.lower()), None)
    if found is None:
        raise no_column(column, schema.names, at)
    kind = found.dataType
    if isinstance(kind, StructType) and "end" in kind.names:
        kind = kind["end"].dataType  # a window
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise WATERMARK_INVALID.error(
            f"the watermark's column '{found.name}' is {found.dataType.simpleString()}, not a timestamp.", at=at
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
            _compare(spark, table, schema, stream)
            return False
    columns = nullable(schema).toDDL()
    kept = ", ".join(f"'{name}' = '{value}'" for name, value in properties().items())
    spark.sql(
        f"CREATE TABLE {quoted(table)} ({columns}) USING delta TBLPROPERTIES ('{OWNER}' = '{_escaped(stream)}', {kept})"
    )
    return True


def keep_changes(spark: SparkSession, table: str) -> None:
    """Let the table keep its changes from now on; a stream that is told of deletions needs them."""
    kept = spark.sql(f"SHOW TBLPROPERTIES {quoted(table)}").where(f"key = '{_CHANGE_FEED}' and value = 'true'")
    if kept.isEmpty():
        spark.sql(f"ALTER TABLE {quoted(table)} SET TBLPROPERTIES ('{_CHANGE_FEED}' = 'true')")


def drop(spark: SparkSession, table: str, stream: str) -> bool:
    """Drop the table if this stream made it."""
    if not exists(spark, table) or _is_view(spark, table) or owner(spark, table) != stream:
        return False
    spark.sql(f"DROP TABLE {quoted(table)}")
    return True


def free_view(spark: SparkSession, view: str, stream: str, *, full_refresh: bool = False) -> None:
    """See to it that nothing of somebody else's has the view's name."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(view.rsplit('.', 1)[0])}")
    if not exists(spark, view) or (_is_view(spark, view) and owner(spark, view) == stream):
        return
    if not full_refresh:
        raise TABLE_CONFLICT.error(f"{view} exists and was not made by this stream.")
    spark.sql(f"DROP {'VIEW' if _is_view(spark, view) else 'TABLE'} {quoted(view)}")


def make_view(spark: SparkSession, view: str, table: str, columns: Sequence[str], stream: str) -> None:
    """A view over some columns of a table; nothing can be written through it."""
    names = ", ".join(f"`{name.replace('`', '``')}`" for name in columns)
    spark.sql(
        f"CREATE OR REPLACE VIEW {quoted(view)} TBLPROPERTIES ('{OWNER}' = '{_escaped(stream)}') "
        f"AS SELECT {names} FROM {quoted(table)}"
    )


def drop_view(spark: SparkSession, view: str, stream: str) -> bool:
    """Drop the view if this stream made it."""
    if not exists(spark, view) or not _is_view(spark, view) or owner(spark, view) != stream:
        return False
    spark.sql(f"DROP VIEW {quoted(view)}")
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


def _escaped(text: str) -> str:
    return text.replace("'", "\\'")


def _is_view(spark: SparkSession, table: str) -> bool:
    return bool(spark.catalog.getTable(quoted(table)).tableType == "VIEW")


@dataclass(frozen=True)
class Change:
    """How a column of a query differs from the table's."""

    text: str
    old: StructField | None  # as the table has it
    new: StructField | None  # as the query has it

    @property
    def is_new(self) -> bool:
        return self.old is None

    @property
    def is_gone(self) -> bool:
        return self.new is None


def changes(spark: SparkSession, table: str, schema: StructType, stream: str) -> list[Change]:
    """How the columns of the stream's table differ from the query's; nothing when there is no such table."""
    if not exists(spark, table) or _is_view(spark, table) or owner(spark, table) != stream:
        return []
    old = {c.name.lower(): c for c in spark.table(quoted(table)).schema.fields}
    new = {c.name.lower(): c for c in schema.fields}
    found = [Change(f"column {name} is new", None, new[name]) for name in new if name not in old]
    found += [Change(f"column {name} is gone", old[name], None) for name in old if name not in new]
    for name, types in {n: [c.dataType.simpleString() for c in (old[n], new[n])] for n in new if n in old}.items():
        if types[0] != types[1]:
            found.append(Change(f"column {name} {types[0]} -> {types[1]}", old[name], new[name]))
    return found


def add_columns(spark: SparkSession, table: str, columns: Sequence[StructField]) -> None:
    """Rows that are there already have null in them."""
    spark.sql(f"ALTER TABLE {quoted(table)} ADD COLUMNS ({nullable(StructType(list(columns))).toDDL()})")


def check_contract(schema: StructType, contract: tuple[tuple[str, str], ...], at: Location) -> None:
    """Compare the query's columns with those that the contract promises; nothing to do without one."""
    if not contract:
        return
    promised = {name.lower(): (name, StructType.fromDDL(f"c {kind}")["c"].dataType) for name, kind in contract}
    found = {field.name.lower(): field for field in schema.fields}
    broken = [f"column {name} is missing" for key, (name, _) in promised.items() if key not in found]
    broken += [f"column {field.name} is not in it" for key, field in found.items() if key not in promised]
    broken += [
        f"column {name} is {found[key].dataType.simpleString()}, not {kind.simpleString()}"
        for key, (name, kind) in promised.items()
        if key in found and nullable(found[key].dataType) != nullable(kind)
    ]
    if broken:
        raise CONTRACT_BROKEN.error(f"the query does not keep the contract: {'; '.join(broken)}.", at=at)


def checks_of(spark: SparkSession, table: str) -> dict[str, str]:
    """The constraints of the table."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {quoted(table)}").collect()
    return {row["key"][len(_CHECK) :]: row["value"] for row in rows if row["key"].startswith(_CHECK)}


def rows_in_order(spark: SparkSession, path: str) -> DataFrame:
    """All rows of a table that is appended to, in the order in which they came, to be written by one task.

    Spark reads files by their size, and several tasks end their files in any order, which is then the order in which a
    stream that begins with the table reads them.
    """
    rows = spark.read.format("delta").load(path)
    file = rows.metadataColumn("_metadata")
    # Numbers of rows rise within a task, and a task reads a block of a file from its beginning to its end.
    parts = (
        file["file_modification_time"], file["file_path"], file["file_block_start"], F.monotonically_increasing_id(),
    )  # fmt: skip
    columns = [rows[quoted_name(name)] for name in rows.columns]
    placed = rows.select(*columns, *(part.alias(name) for part, name in zip(parts, _PLACE, strict=True)))
    ordered = placed.repartition(1).sortWithinPartitions(*_PLACE)
    return ordered.select(*(ordered[quoted_name(name)] for name in rows.columns))


def rewrite(
    spark: SparkSession,
    table: str,
    write: Callable[[], None],
    *,
    check: Callable[[], None] = lambda: None,
    checks: dict[str, str],
    before: dict[str, str],
    at: Location,
) -> None:
    """Have all rows replaced while the table has these constraints; when that fails it has those from `before`.

    What `check` refuses is refused before anything is touched. A commit that met one of somebody else is tried again.
    """
    for left in reversed(range(_TRIES)):
        check()
        try:
            keep_checks(spark, table, checks, at)
            write()
        except BaseException as problem:
            if left and "Concurrent" in str(problem):
                log.info("%s: somebody else's commit came first; its rows are replaced again", table)
                continue
            try:
                keep_checks(spark, table, before, at)
            except Exception:  # the error that this is part of says what matters
                log.exception("%s: its constraints could not be put back", table)
            raise
        return


def keep_checks(spark: SparkSession, table: str, checks: dict[str, str], at: Location) -> None:
    """Give the table just these constraints; rows that are there already must hold them."""
    there = checks_of(spark, table)
    for name in there:
        if there[name] != checks.get(name):
            spark.sql(f"ALTER TABLE {quoted(table)} DROP CONSTRAINT {quoted(name)}")
    for name, expression in checks.items():
        if there.get(name) != expression:
            try:
                spark.sql(f"ALTER TABLE {quoted(table)} ADD CONSTRAINT {quoted(name)} CHECK ({expression})")
            except (PySparkException, Py4JJavaError) as problem:
                text = str(problem)
                if "CHECK_CONSTRAINT" not in text and "violate" not in text:
                    raise
                raise CONSTRAINT_BROKEN.error(
                    f"rows of {table} do not hold the constraint {name}: {expression}.", at=at
                ) from problem


def _compare(spark: SparkSession, table: str, schema: StructType, stream: str) -> None:
    found = changes(spark, table, schema, stream)
    if found:
        raise CHANGE_NEEDS_REBUILD.error(f"{table}: the columns changed: {'; '.join(each.text for each in found)}.")
