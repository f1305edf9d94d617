"""Functions of the engine's sessions: Python ones that every session knows, and SQL ones of the project.

Rules
- A permanent view may not use a function of one session. Spark copies its own functions into each new session, so a
  function that is put among them is there for every client that connects afterwards, and allowed in a view.
- The name of a function says what it does (a digest of it): another definition is another function, and sessions that
  were opened before go on with what they have.
- A stream calls the project's functions as its spec has them. They are made in its session each time it is prepared or
  started, so that neither a function that was replaced in the catalog nor one that is not there yet matters to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.engine import failures
from penstock.errors.catalogue import FUNCTION_UNFIT


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


def make(session: SparkSession, functions: Mapping[str, str]) -> None:
    """Have the session know functions of the project: name -> the statement that makes one for the session alone."""
    for name, definition in functions.items():
        try:
            session.sql(definition)
        except AnalysisException as problem:
            raise FUNCTION_UNFIT.error(f"{name}: {failures.sentence(problem)}") from problem
