"""What becomes of a table when its query has other columns: the model's `on_schema_change`.

Rules
- `fail`: every difference needs a rebuild. `ignore`: new columns are not written, and what is gone needs one.
  `append_new_columns`: new ones are added, and what is gone stays, null in the rows that come. `sync_all_columns`: the
  table gets the columns of the query. A type that changed is a rebuild, except there, where Spark calls the cast safe.
- Columns are dropped and cast by one commit that replaces the rows by themselves: a reader sees the old columns, then
  the new ones. The log of the table keeps what it knows of the writer, who was fenced before.
- Delta's streams do not survive that commit. A table from which others stream is not touched: it is a rebuild.
- Rows are written with the columns of the table, whatever the query has: `fitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from penstock.engine import tables
from penstock.engine.tables import Change
from penstock.errors import Location
from penstock.errors.catalogue import CONSTRAINT_BROKEN

FAIL, IGNORE, APPEND, SYNC = "fail", "ignore", "append_new_columns", "sync_all_columns"


@dataclass(frozen=True)
class Outcome:
    """What becomes of the differences between a table's columns and a query's."""

    refused: tuple[str, ...] = ()  # what needs a rebuild
    followed: tuple[str, ...] = ()  # what happens without one
    added: tuple[StructField, ...] = ()
    replaces: bool = False  # columns are dropped or cast: the rows are written anew


def outcome(changes: Sequence[Change], how: str, *, streamed: bool, safe: Callable[[Change], bool]) -> Outcome:
    """The differences, judged; `streamed` says that others read the table as a stream, `safe` which casts are."""
    refused, followed = [], []
    added: list[StructField] = []
    replaces = False
    for each in changes:
        if each.new is not None and each.is_new and how in (APPEND, SYNC):
            followed.append(f"{each.text} and is added")
            added.append(each.new)
        elif each.is_new and how == IGNORE:
            followed.append(f"{each.text} and is left out")
        elif each.is_gone and how == APPEND:
            followed.append(f"{each.text} and stays, null in new rows")
        elif how == SYNC and (each.is_gone or safe(each)):
            replaces = True
            followed.append(f"{each.text} and is dropped" if each.is_gone else f"{each.text} in all rows")
            refused += [f"{each.text}, and other streams read the table"] if streamed else []
        else:
            refused.append(each.text)
    return Outcome(refused=tuple(refused)) if refused else Outcome((), tuple(followed), tuple(added), replaces)


def written(schema: StructType, changes: Sequence[Change], how: str) -> StructType:
    """The columns of the rows that are written, of a query with that schema."""
    new = {each.new.name for each in changes if each.is_new and each.new} if how == IGNORE else set()
    gone = [each.old for each in changes if each.is_gone and each.old] if how == APPEND else []
    return StructType([field for field in schema.fields if field.name not in new] + gone)


def fitted(rows: DataFrame, table: StructType) -> DataFrame:
    """The rows with the columns of the table: others are left out, and those that are missing are null."""
    there = {name.lower(): name for name in rows.columns}
    if there.keys() == {field.name.lower() for field in table.fields}:
        return rows
    return rows.select(
        *(
            F.col(tables.quoted_name(there[field.name.lower()])).alias(field.name)
            if field.name.lower() in there
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in table.fields
        )
    )


def replace(
    spark: SparkSession, table: str, schema: StructType, checks: Mapping[str, str], at: Location, *, in_order: bool
) -> None:
    """Give the table the columns of the schema, with the rows that it has, in their order where they have one; nothing
    has changed when that fails."""
    path = tables.location(spark, table)

    def rows() -> DataFrame:
        return _cast(spark.read.format("delta").load(path), schema)

    def write() -> None:
        found = _cast(tables.rows_in_order(spark, path), schema) if in_order else rows()
        options = {"overwriteSchema": "true", **({"maxRecordsPerFile": str(tables.FILE_OF)} if in_order else {})}
        found.write.format("delta").mode("overwrite").options(**options).save(path)

    before = tables.checks_of(spark, table)
    kept = dict(before.items() & checks.items())  # the others may name what goes
    tables.rewrite(
        spark, table, write, check=lambda: _check(rows(), table, checks, at), checks=kept, before=before, at=at
    )


def is_safe(spark: SparkSession, change: Change) -> bool:
    """Whether Spark takes every value of the old type for one of the new."""
    if change.old is None or change.new is None:
        return False
    jvm = spark._jvm
    assert jvm is not None
    cast = getattr(getattr(jvm, "org.apache.spark.sql.catalyst.expressions.Cast$"), "MODULE$")
    return bool(cast.canUpCast(*(_of_jvm(spark, each.dataType) for each in (change.old, change.new))))


def _of_jvm(spark: SparkSession, kind: DataType) -> object:
    return spark._jsparkSession.parseDataType(kind.json())


def _cast(rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the columns of the schema, which keep their comments."""
    there = {field.name.lower(): field for field in rows.schema.fields}
    made = []
    for field in schema.fields:
        kind, old = tables.nullable(field.dataType), there.get(field.name.lower())
        value = F.lit(None) if old is None else F.col(tables.quoted_name(old.name))
        comment = old.metadata.get("comment") if old is not None else None
        name = field.name if old is None else old.name
        told = {"metadata": {"comment": comment}} if comment else {}
        made.append(value.cast(kind).alias(name, **told))
    return rows.select(*made)


def _check(rows: DataFrame, table: str, checks: Mapping[str, str], at: Location) -> None:
    """Whether the rows hold the constraints that the table is to have."""
    if not checks:
        return
    try:
        broken = rows.agg(
            *(F.expr(f"count_if(not coalesce(({check}), false))").alias(name) for name, check in checks.items())
        ).first()
    except (PySparkException, Py4JJavaError) as problem:
        raise CONSTRAINT_BROKEN.error(
            f"the constraints of {table} do not fit its columns: {str(problem).splitlines()[0]}", at=at
        ) from problem
    for name, check in checks.items():
        if broken is not None and broken[name]:
            raise CONSTRAINT_BROKEN.error(f"rows of {table} do not hold the constraint {name}: {check}.", at=at)
