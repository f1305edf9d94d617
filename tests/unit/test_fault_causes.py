"""A batch that failed says little; its causes say why."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from penstock.compiler.spec import Output, OutputMode, StreamSpec
from penstock.engine import failures

SPEC = StreamSpec(
    name="shop.clean", unique_id="model.shop.clean", path="models/clean.sql", sql="select 1", stateful=False,
    inputs=(), output=Output(relation="shop.clean", mode=OutputMode.APPEND),
)  # fmt: skip
WRITING = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/warehouse/shop.db/clean. SQLSTATE: 58030"


def captured(*causes: str) -> PySparkException:
    """As PySpark hands out an exception of the JVM: the message in front, the causes in the stack."""
    problem = PySparkException(WRITING)
    lines = [f"org.apache.spark.SparkException: {WRITING}", "\tat org.apache.spark.Writer.write(Writer.scala:1)"]
    problem._stackTrace = "\n".join([*lines, *(f"Caused by: {cause}\n\tat a.B.c(B.java:2)" for cause in causes)])
    return problem


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("java.io.IOException: No space left on device", "PEN-1006"),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone", "PEN-2002"),
    ],
)
def test_the_code_is_the_cause_s(cause: str, code: str) -> None:
    assert failures.of_stream(captured("java.lang.RuntimeException: in between", cause), SPEC).code == code


def test_an_error_of_the_model_s_own_is_told_and_not_that_a_task_failed() -> None:
    cause = "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] price below zero SQLSTATE: P0001"
    problem = failures.of_stream(captured(cause), SPEC)
    assert problem.message == "shop.clean: price below zero."


def test_the_line_is_the_one_that_spark_names_or_that_raises_or_where_the_query_begins() -> None:
    lines = {"sql": "select a,\n  if(b < 0, raise_error('x'), b) as b\nfrom c", "line_map": (3, 5, 6)}
    spec = SPEC.model_copy(update=lines)
    raised = captured("org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] x SQLSTATE: P0001")
    assert str(failures.of_stream(raised, spec).at) == "models/clean.sql:5"
    named = captured("org.apache.spark.SparkArithmeticException: [OVERFLOW] x == SQL (line 4, position 2) ==")
    assert str(failures.of_stream(named, spec).at) == "models/clean.sql:6"
    plain = spec.model_copy(update={"sql": "select a,\nb\nfrom c"})
    assert str(failures.of_stream(captured("java.lang.RuntimeException: x"), plain).at) == "models/clean.sql:3"
    broken = failures.of_stream("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint positive", plain)
    assert (broken.code, str(broken.at)) == ("PEN-1321", "models/clean.sql:3")


def test_a_failure_without_a_cause_is_told_without_java_s_names() -> None:
    text = f"org.apache.spark.SparkException: {WRITING}"
    assert failures.of_stream(text, SPEC).message.startswith("shop.clean: Task failed while writing rows")
    assert failures.of_stream(captured(), SPEC).message.startswith("shop.clean: Task failed while writing rows")
