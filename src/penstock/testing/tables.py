"""Tables of a test that no stream keeps: seeds, and rows that the test gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from penstock.compiler.functions import declared
from penstock.errors import did_you_mean
from penstock.project.source import relation_of
from penstock.testing.values import UnfitError, canonical


def quoted(relation: str) -> str:
    return ".".join(f"`{part}`" for part in relation.split("."))


def register(spark: SparkSession, relation: str, path: Path) -> None:
    """Give a Delta table its name in the catalog."""
    spark.sql(f"CREATE TABLE {quoted(relation)} USING delta LOCATION '{path}'")


def make_function(spark: SparkSession, name: str, entry: Mapping[str, Any]) -> None:
    """A function of the project, as dbt makes it."""
    signature, body = declared(entry)
    spark.sql(f"CREATE OR REPLACE FUNCTION {quoted(name)} {signature} RETURN {body}")


def write(path: Path, rows: pa.Table) -> None:
    """Make a Delta table of these rows, or replace its rows."""
    write_deltalake(str(path), rows, mode="overwrite")


def arrow_schema(struct: StructType) -> pa.Schema:
    return pa.schema([(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in struct.fields])


def typed(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, relation: str) -> pa.Table:
    """Rows of a test with the types of a table; raises UnfitError."""
    known = {name.lower(): name for name in schema.names}
    made: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row in rows:
        given = {str(name).lower(): value for name, value in row.items()}
        for name in given:
            if name not in known:
                raise UnfitError(f"{relation} has no column '{name}'. {did_you_mean(name, schema.names)}".rstrip(". "))
        for lower, name in known.items():
            try:
                made[name].append(canonical(given.get(lower), schema.field(name).type))
            except UnfitError as problem:
                raise UnfitError(f"column '{name}' of {relation}: {problem}") from None
    return pa.table([pa.array(made[field.name], type=field.type) for field in schema], schema=schema)


def seed(entry: Mapping[str, Any], project: Path) -> tuple[pa.Table, pa.Schema]:
    """The rows of a seed's file with the types that dbt gives them."""
    from dbt.adapters.spark import SparkAdapter
    from dbt_common.clients.agate_helper import from_csv

    own: Mapping[str, str] = entry["config"].get("column_types") or {}
    folder = Path(entry["root_path"]) if entry.get("root_path") else project
    file = folder / str(entry["original_file_path"])
    found = from_csv(str(file), text_columns=list(own), delimiter=entry["config"].get("delimiter") or ",")
    names = [str(name) for name in found.column_names]
    types = {name: own.get(name) or SparkAdapter.convert_agate_type(found, at) for at, name in enumerate(names)}
    schema = _schema(types)
    rows = [dict(zip(names, row, strict=True)) for row in found.rows]
    return typed(rows, schema, relation_of(entry)), schema


def given(entry: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], project: Path) -> pa.Table:
    """The rows that a test gives for a table; its types are the seed's, the declared ones, or as the values are."""
    if entry.get("resource_type") == "seed":
        return typed(rows, seed(entry, project)[1], relation_of(entry))
    columns: Mapping[str, Mapping[str, Any]] = entry.get("columns") or {}
    types = {name: str(each["data_type"]) for name, each in columns.items() if each.get("data_type")}
    known = {name.lower() for name in types}
    for row in rows:
        for name, value in row.items():
            if str(name).lower() not in known and value is not None:
                types[str(name)] = _kind(value, str(name))
                known.add(str(name).lower())
    return typed(rows, _schema(types), relation_of(entry))


def _schema(types: Mapping[str, str]) -> pa.Schema:
    return arrow_schema(StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in types.items())))


def _kind(value: Any, name: str) -> str:
    for python, kind in ((bool, "boolean"), (int, "bigint"), (float, "double"), (datetime, "timestamp"), (date, "date"),
                         (str, "string")):  # fmt: skip
        if isinstance(value, python):
            return kind
    raise UnfitError(f"the type of column '{name}' is not known: declare its data_type in the project")
