"""Functions of the engine's sessions: Python ones that every session knows, and SQL ones of the project.

Rules
- A permanent view may not use a function of one session. Spark copies its own functions into each new session, so a
  function that is put among them is there for every client that connects afterwards, and allowed in a view.
- The name of a function says what it does (a digest of it): another definition is another function, and sessions that
  were opened before go on with what they have.
- A session keeps the body of a SQL function that it has called once, whatever becomes of the function; Spark 4.2 has no
  REFRESH for one. A stream that starts again in its session has it look the function up anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession


def publish(spark: SparkSession, name: str, function: Any) -> None:
    """Make a user-defined function one of Spark's own, under a name without schema."""
    spark.udf.register(name, function)
    jvm = spark._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst
    some = jvm.scala.Option.apply
    here = catalyst.FunctionIdentifier(name, some("session"), some("system"))
    known = spark._jsparkSession.sessionState().functionRegistry()
    information, builder = known.lookupFunction(here).get(), known.lookupFunctionBuilder(here).get()
    catalyst.analysis.FunctionRegistry.builtin().registerFunction(
        catalyst.FunctionIdentifier(name), information, builder
    )
    # In this session, too; here the function of the session would hide it, and keep a view from being permanent.
    known.registerFunction(catalyst.FunctionIdentifier(name, some("builtin"), some("system")), information, builder)
    known.dropFunction(here)


def forget(session: SparkSession, names: Iterable[str]) -> None:
    """Have the session look up the functions `schema.name` of the catalog when they are called next."""
    jvm = session._jvm
    assert jvm is not None
    some = jvm.scala.Option.apply
    for schema, _, name in (each.rpartition(".") for each in names):
        here = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some(schema), some("spark_catalog"))
        session._jsparkSession.sessionState().catalog().unregisterFunction(here)
