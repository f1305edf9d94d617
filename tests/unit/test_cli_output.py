"""What a person, a pipe and a JSON reader get to see."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import output
from penstock.cli.output import Ui
from penstock.cli.query import Result, as_objects, spark_message
from penstock.errors import Location
from penstock.errors.catalogue import FORMAT_UNKNOWN


def ui(mode: str = "text", *, terminal: bool = False) -> tuple[Ui, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    width = 200
    return (
        Ui(
            mode,
            out=Console(file=out, width=width, markup=False, highlight=False),
            err=Console(file=err, width=width, markup=False, highlight=False, force_terminal=terminal),
        ),
        out,
        err,
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (3.0, "3"),
        (0.1, "0.1"),
        (Decimal("12.50"), "12.50"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12, 0, 0, 5000), "2026-01-31 12:00:00.005000"),
        (b"\x01\xff", "0x01ff"),
        ({"a": [1, Decimal("2.5")]}, '{"a": [1, "2.5"]}'),
        ("ümlaut", "ümlaut"),
    ],
)
def test_a_value_is_printed_as_a_person_reads_it(value: Any, shown: str) -> None:
    assert output.cell(value) == shown


def test_every_value_has_a_form_in_json() -> None:
    values = [float("nan"), float("inf"), Decimal("1.10"), datetime(2026, 1, 1, tzinfo=timezone.utc), {1: b"\x00"}]
    assert json.loads(output.to_json([*values, timedelta(seconds=2), (1, None)])) == [
        "nan", "inf", "1.10", "2026-01-01T00:00:00+00:00", {"1": "0x00"}, 2.0, [1, None],
    ]  # fmt: skip


def test_columns_of_the_same_name_both_reach_json() -> None:
    result = Result(("id", "id", "id_2"), ((1, 2, 3),), more=False)
    assert as_objects(result) == [{"id": 1, "id_2": 2, "id_2_2": 3}]


def test_csv_quotes_what_needs_it_and_leaves_null_empty() -> None:
    terminal, out, _ = ui("csv")
    output.write_csv(terminal, ["a", "b"], [['say "hi", you', None], [Decimal("1.0"), True]])
    assert out.getvalue() == 'a,b\n"say ""hi"", you",\n1.0,true\n'


def test_an_error_is_one_line_with_its_place_and_the_hint_below() -> None:
    terminal, out, err = ui()
    terminal.error(FORMAT_UNKNOWN.error("format 'jsonn' is unknown.", at=Location("a.yml", 14), hint="Use [json]."))
    assert err.getvalue() == "PEN-1203 a.yml:14: format 'jsonn' is unknown.\n  Use [json].\n"
    assert out.getvalue() == ""


def test_an_error_in_json_is_an_object_on_standard_output() -> None:
    terminal, out, err = ui("json")
    terminal.error(FORMAT_UNKNOWN.error("format 'x' is unknown.", at=Location("a.yml", 14)))
    assert json.loads(out.getvalue())["error"] == {
        "code": "PEN-1203", "message": "format 'x' is unknown.", "file": "a.yml", "line": 14,
        "hint": "See docs/sources.md.",
    }  # fmt: skip
    assert err.getvalue() == ""


def test_progress_in_a_pipe_is_one_line_a_step() -> None:
    terminal, _, err = ui()
    with terminal.working("starting") as step:
        step("broker")
        step("broker")
        step("engine")
    assert err.getvalue().splitlines() == ["starting", "broker", "engine"]


def test_quiet_progress_says_nothing() -> None:
    terminal, _, err = ui()
    terminal.quiet = True
    with terminal.working("starting") as step:
        step("broker")
    assert err.getvalue() == ""


def test_numbers_are_right_aligned_and_a_wide_table_is_not_cut() -> None:
    terminal, out, _ = ui()
    terminal.show(output.rows_table(["item", "views"], [["a" * 120, 5], ["b", 12345]]))
    lines = out.getvalue().splitlines()
    assert "a" * 120 in lines[1]
    assert lines[1].rstrip().endswith("    5")
    assert lines[2].rstrip().endswith("12345")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.05, "50 ms"), (12, "12 s"), (300, "5 min"), (7200, "2 h"), (4 * 86400, "4 d")]
)
def test_a_length_of_time_is_in_its_natural_unit(seconds: float, shown: str) -> None:
    assert output.span(seconds) == shown


def test_spark_s_message_comes_without_its_plan_and_stack() -> None:
    text = (
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n"
        "Search path: [`system`].\n"
        "'Project [*]\n+- 'UnresolvedRelation [x]\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException"
    )
    assert spark_message(text) == (
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found. SQLSTATE: 42P01; line 1 pos 14."
    )


def test_spark_s_message_of_a_syntax_error_is_kept() -> None:
    text = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'form'. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL ==\nselect"
    assert spark_message(text) == (
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'form'. SQLSTATE: 42601 (line 1, pos 9)."
    )


def test_a_recorded_error_shows_its_code_once() -> None:
    assert output.coded("PEN-4003", "PEN-4003 a.sql: failed.\nmore") == "PEN-4003 a.sql: failed."
    assert output.coded("PEN-4003", "failed.") == "PEN-4003 failed."
    assert output.coded(None, None) == ""
