"""Which rows follow from changed rows, and which are gone: the part that needs no Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.changed_rows import GONE, Follow


class Session:
    """Stands for Spark: hands the rows on as they are."""

    def createDataFrame(self, rows: pa.Table, schema: Any) -> pa.Table:  # noqa: N802
        return rows


class Made:
    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._rows


def few(rows: pa.Table) -> Made:
    """select k as id, n where n < 3"""
    kept = [row for row in rows.to_pylist() if row["n"] < 3]
    types = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    return Made(pa.Table.from_pylist([{"id": row["k"], "n": row["n"]} for row in kept], schema=types))


class Fields:
    fields: tuple[()] = ()


def followed(rows: list[dict[str, Any]], keys: tuple[str, ...] = ("id",), of: tuple[str, ...] = ("k",)) -> list[Any]:
    follow = Follow(few, of)  # type: ignore[arg-type]
    made = follow.rows(Session(), pa.Table.from_pylist(rows), Fields(), keys)  # type: ignore[arg-type]
    assert all(field.nullable for field in made.schema)
    return sorted((row["id"], row["n"], row[GONE]) for row in made.to_pylist())


def test_a_changed_group_without_a_row_in_the_result_is_gone() -> None:
    rows = [{"k": "a", "n": 1}, {"k": "b", "n": 5}, {"k": "c", "n": 2}]
    assert followed(rows) == [("a", 1, False), ("b", None, True), ("c", 2, False)]


def test_when_all_pass_none_is_gone() -> None:
    assert followed([{"k": "a", "n": 1}]) == [("a", 1, False)]


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ([(1, "insert", 1), (2, "update_preimage", 1), (2, "update_postimage", 2)], ("a", 2, False)),
        ([(2, "update_postimage", 2), (1, "insert", 1)], ("a", 2, False)),
        ([(1, "insert", 1), (2, "delete", 1)], ("a", None, True)),
        ([(2, "insert", 2), (2, "delete", 1)], ("a", 2, False)),
        ([(1, "delete", 1), (2, "insert", 2)], ("a", 2, False)),
        ([(1, "insert", 1), (2, "update_preimage", 1), (2, "update_postimage", 9)], ("a", None, True)),
    ],
)
def test_of_a_change_feed_the_newest_change_of_a_key_counts(changes: list[tuple[Any, ...]], want: Any) -> None:
    rows = [{"k": "a", "n": n, "_change_type": kind, "_commit_version": version, "_commit_timestamp": None}
            for version, kind, n in changes]  # fmt: skip
    assert followed(rows) == [want]
