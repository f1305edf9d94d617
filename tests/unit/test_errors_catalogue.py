"""The catalogue of errors and the pages made from it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.docs import pages
from penstock.cli.main import app
from penstock.errors import ExitCode, Kind, Location, catalogue
from penstock.errors.catalogue import ALL, FORMAT_UNKNOWN

DOCS = Path(__file__).parents[2] / "docs"


def test_no_code_is_given_twice() -> None:
    kinds = [value for value in vars(catalogue).values() if isinstance(value, Kind)]
    assert len(kinds) == len({kind.code for kind in kinds}) == len(ALL)


@pytest.mark.parametrize("kind", ALL.values(), ids=lambda kind: kind.code)
def test_every_kind_says_what_why_and_what_to_do(kind: Kind) -> None:
    assert re.fullmatch(r"PEN-\d{4}", kind.code)
    assert kind.title
    assert not kind.title.endswith(".")
    assert kind.why.endswith(".")
    assert kind.fix.endswith(".")
    assert kind.exit_code in set(ExitCode) - {ExitCode.OK}


def test_an_error_reads_as_code_place_message_and_next_step() -> None:
    problem = FORMAT_UNKNOWN.error("format 'jsonn' is unknown.", at=Location("a.yml", 14), hint="Did you mean 'json'?")
    assert str(problem) == "PEN-1203 a.yml:14: format 'jsonn' is unknown. Did you mean 'json'?"


def test_an_error_survives_pickling() -> None:
    problem = FORMAT_UNKNOWN.error("x is unknown.", at=Location("a.yml", 14))
    assert str(pickle.loads(pickle.dumps(problem))) == str(problem)


@pytest.mark.parametrize("code", ["PEN-1203", "pen-1203", "1203"])
def test_explain_error_prints_the_long_form(code: str) -> None:
    result = CliRunner().invoke(app, ["explain-error", code])
    assert result.exit_code == 0
    assert FORMAT_UNKNOWN.title in result.stdout
    assert FORMAT_UNKNOWN.why in result.stdout
    assert FORMAT_UNKNOWN.fix in result.stdout


def test_explain_error_in_json_has_every_part() -> None:
    result = CliRunner().invoke(app, ["explain-error", "PEN-1203", "--output", "json"])
    assert json.loads(result.stdout) | {"why": "", "fix": ""} == {
        "code": "PEN-1203", "title": "A format is unknown", "why": "", "fix": "", "exit_code": 2,
    }  # fmt: skip


def test_an_unknown_code_is_answered_with_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["explain-error", "PEN-1293"])
    assert result.exit_code == 2
    assert "PEN-5003" in result.stderr


@pytest.mark.parametrize("name", pages(DOCS))
def test_the_page_in_docs_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages(DOCS)[name], "run: python -m penstock.cli.docs"


def test_every_kind_has_a_test_that_names_it() -> None:
    """By its code, the code's number in quotes, or its name."""
    tests = DOCS.parent / "tests"
    texts = " ".join(file.read_text(encoding="utf-8") for file in tests.rglob("*.py"))
    names = {kind.code: name for name, kind in vars(catalogue).items() if isinstance(kind, Kind)}
    missing = [
        code
        for code, name in names.items()
        if not re.search(rf"{code}|\"{code.removeprefix('PEN-')}\"|\b{name}\b", texts)
    ]
    assert missing == []
