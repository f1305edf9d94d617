"""What becomes of a table whose query has other columns, by each `on_schema_change`: the part that needs no Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from penstock.engine.columns import Outcome, outcome, written
from penstock.engine.tables import Change

NEW = Change("column w is new", None, StructField("w", LongType()))
GONE = Change("column v is gone", StructField("v", LongType()), None)
WIDER = Change("column n bigint -> double", StructField("n", LongType()), StructField("n", DoubleType()))
OTHER = Change("column s string -> bigint", StructField("s", StringType()), StructField("s", LongType()))
QUERY = StructType([StructField("k", StringType()), StructField("w", LongType())])


def of(how: str, *changes: Change, streamed: bool = False) -> Outcome:
    return outcome(changes, how, streamed=streamed, safe=lambda change: change is WIDER)


def test_without_a_word_every_difference_needs_a_rebuild() -> None:
    assert of("fail", NEW, GONE, WIDER).refused == (NEW.text, GONE.text, WIDER.text)
    assert of("fail") == Outcome()


def test_ignore_leaves_new_columns_out_and_keeps_what_the_table_has() -> None:
    assert of("ignore", NEW) == Outcome(followed=("column w is new and is left out",))
    assert of("ignore", NEW, GONE, WIDER).refused == (GONE.text, WIDER.text)


def test_append_adds_what_is_new_and_keeps_what_is_gone() -> None:
    assert of("append_new_columns", NEW, GONE) == Outcome(
        followed=("column w is new and is added", "column v is gone and stays, null in new rows"), added=(NEW.new,)
    )  # type: ignore[arg-type]
    assert of("append_new_columns", NEW, WIDER).refused == (WIDER.text,)


def test_sync_drops_what_is_gone_and_casts_what_can_be_cast() -> None:
    found = of("sync_all_columns", NEW, GONE, WIDER)
    assert found.followed == (
        "column w is new and is added", "column v is gone and is dropped", "column n bigint -> double in all rows",
    )  # fmt: skip
    assert (found.added, found.replaces) == ((NEW.new,), True)
    assert not of("sync_all_columns", NEW).replaces, "a column is added without copying the rows"
    assert of("sync_all_columns", NEW, OTHER) == Outcome(refused=(OTHER.text,))


@pytest.mark.parametrize("change", [GONE, WIDER])
def test_a_table_that_others_stream_from_is_not_synced_under_them(change: Change) -> None:
    found = of("sync_all_columns", change, streamed=True)
    assert found == Outcome(refused=(f"{change.text}, and other streams read the table",))
    assert of("sync_all_columns", NEW, streamed=True).added == (NEW.new,)


@pytest.mark.parametrize(
    ("how", "names"),
    [("fail", "k w"), ("ignore", "k"), ("append_new_columns", "k w v"), ("sync_all_columns", "k w")],
)
def test_rows_are_written_with_these_columns(how: str, names: str) -> None:
    assert written(QUERY, [NEW, GONE], how).names == names.split()
