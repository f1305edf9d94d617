"""Spark's words become the user's."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ParseException

from penstock.compiler.spec import Column, Function, KafkaInput, Output, OutputMode, StreamSpec
from penstock.engine import failures
from penstock.errors.catalogue import MODEL_ANALYSIS

SPEC = StreamSpec(
    name="shop.clean", unique_id="model.shop.clean", path="models/clean.sql",
    sql="select a,\n b\nfrom shop__clicks", stateful=False,
    inputs=(KafkaInput(view="shop__clicks", relation="shop.clicks", topic="clicks",
                       columns=(Column(name="a", type="string", origin="value.a"),)),),
    output=Output(relation="shop.clean", mode=OutputMode.APPEND), line_map=(5, 6, 7),
)  # fmt: skip


def test_a_syntax_error_names_the_line_of_the_model() -> None:
    problem = failures.of_model(
        ParseException(
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'frm'. SQLSTATE: 42601 (line 4, pos 0)\n\n== SQL ==\n…"
        ),
        SPEC,
    )
    assert str(problem).startswith("PEN-1303 models/clean.sql:7: Syntax error at or near 'frm'.")


def test_an_unknown_column_is_told_with_the_author_s_names() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `b` cannot be resolved. Did you mean one of the "
        "following? [`shop__clicks`.`a`]. SQLSTATE: 42703; line 3 pos 1;\n'Project [a#1, 'b]\n+- Relation"
    )
    problem = failures.of_model(AnalysisException(text), SPEC)
    assert problem.kind is MODEL_ANALYSIS
    assert str(problem.at) == "models/clean.sql:6"
    assert "`shop.clicks`.`a`" in problem.message
    assert "Project" not in problem.message


def test_a_function_of_the_project_is_told_with_its_own_name() -> None:
    function = Function(name="shop.with_tax", called="shop__with_tax", signature="() RETURNS int", body="1")
    text = "[WRONG_NUM_ARGS] The `shop__with_tax` requires 0 parameters but the actual number is 1. SQLSTATE: 42605"
    problem = failures.of_model(AnalysisException(text), SPEC.model_copy(update={"functions": (function,)}))
    assert problem.message == "The `shop.with_tax` requires 0 parameters but the actual number is 1."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("java.io.IOException: No space left on device", "PEN-1006"),
        ("OSError: Generic LocalFileSystem error: … (os error 28) No space left on device", "PEN-1006"),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server …", "PEN-2002"),
        ("java.lang.IllegalStateException: [KAFKA_DATA_LOSS.START_OFFSET_RESET] …", "PEN-2003"),
        ("TimeoutException: Timed out waiting for a node assignment. Call: describeTopics", "PEN-2001"),
        ("[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] …", "PEN-4008"),
        ("java.lang.RuntimeException: something new", "PEN-4003"),
    ],
)
def test_a_failure_of_a_stream_has_its_code(text: str, code: str) -> None:
    assert failures.of_stream(text, SPEC).code == code


def test_the_innermost_cause_of_a_trace_is_told() -> None:
    text = (
        "StreamingQueryException: Job aborted\n\tat a.b\nCaused by: x.y.Outer: one\n\tat c\n"
        "Caused by: java.lang.ArithmeticException: / by zero"
    )
    problem = failures.of_stream(text, SPEC)
    assert "/ by zero" in problem.message
    assert "\tat" not in problem.message


def test_sorting_is_told_without_the_plan() -> None:
    problem = failures.of_model(
        AnalysisException("Sorting is not supported on streaming DataFrames/Datasets;\n~Sort [a#1 ASC], true"), SPEC
    )
    assert problem.code == "PEN-1305"
    assert "Sort [" not in problem.message
