"""All rows of a table are replaced, or nothing is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.engine import tables
from penstock.errors import Location

SPARK = cast(Any, None)
BEFORE, MEANWHILE = {"positive": "v > 0"}, dict[str, str]()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done, in its order."""
    found: list[Any] = []
    monkeypatch.setattr(tables, "keep_checks", lambda _spark, _table, checks, _at: found.append(checks))
    return found


def rewrite(told: list[Any], *problems: Exception | None, check: Exception | None = None) -> None:
    left = list(problems)

    def checked() -> None:
        told.append("checked")
        if check is not None:
            raise check

    def write() -> None:
        told.append("written")
        problem = left.pop(0)
        if problem is not None:
            raise problem

    tables.rewrite(SPARK, "shop.a", write, check=checked, checks=MEANWHILE, before=BEFORE, at=Location("models/a.sql"))


def test_the_rows_are_written_without_the_constraints_that_go(told: list[Any]) -> None:
    rewrite(told, None)
    assert told == ["checked", MEANWHILE, "written"]


def test_another_commit_that_came_first_is_no_failure(told: list[Any]) -> None:
    rewrite(told, RuntimeError("ConcurrentAppendException"), None)
    assert told == ["checked", MEANWHILE, "written"] * 2


def test_the_constraints_are_put_back_when_it_fails(told: list[Any]) -> None:
    with pytest.raises(OSError, match="full"):
        rewrite(told, OSError("the disk is full"))
    assert told == ["checked", MEANWHILE, "written", BEFORE]


def test_in_the_end_it_fails_of_other_commits(told: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="Concurrent"):
        rewrite(told, *[RuntimeError("Concurrent")] * 9)
    assert told[-1] == BEFORE


def test_what_is_refused_is_refused_before_anything_is_touched(told: list[Any]) -> None:
    with pytest.raises(ValueError, match="broken"):
        rewrite(told, None, check=ValueError("broken"))
    assert told == ["checked"]
