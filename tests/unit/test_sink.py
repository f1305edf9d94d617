"""The writer of batches on a real Delta table; only the batch, which Spark would hand over, is given here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from pyspark.errors import PySparkException

from penstock.engine.arrow import last_per_key
from penstock.engine.sink import TableWriter, Target
from penstock.errors import PenstockError

SCHEMA = pa.schema([("item", pa.string()), ("n", pa.int64())])


class Batch:
    """What the writer asks of a DataFrame when the batch is small."""

    dtypes = [("item", "string"), ("n", "bigint")]

    def __init__(self, *rows: tuple[str | None, int]) -> None:
        self._rows = pa.table({"item": [row[0] for row in rows], "n": [row[1] for row in rows]}, schema=SCHEMA)

    def limit(self, count: int) -> Batch:
        return self

    def persist(self) -> Batch:
        return self

    unpersist = persist

    def count(self) -> int:
        return self._rows.num_rows

    def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
        return self._rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    DeltaTable.create(str(path), schema=SCHEMA)
    return path


def writer(
    table: Path, *, token: int = 1, mode: str = "append", stateful: bool = False, keys: tuple[str, ...] = ("item",)
) -> TableWriter:
    target = Target(
        stream="shop.items", table="shop.items", path=str(table), mode=mode,
        keys=keys if mode == "upsert" else (), checkpoint=table.parent / "checkpoint", checkpoint_id="g1-x",
        small_batch_rows=1000, stateful=stateful,
    )  # fmt: skip
    return TableWriter(target, token)


def rows(table: Path) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted((row["item"] or "", row["n"]) for row in found)


def test_a_batch_is_appended_and_remembered(table: Path) -> None:
    write = writer(table)
    write(Batch(("a", 1), ("b", 2)), 0)
    assert rows(table) == [("a", 1), ("b", 2)]
    outcome = write.written(0)
    assert outcome is not None
    assert (outcome.writer, outcome.rows) == ("direct", 2)


def test_a_batch_that_comes_again_is_skipped(table: Path) -> None:
    writer(table)(Batch(("a", 1)), 0)
    again = writer(table)
    again(Batch(("a", 1)), 0)
    assert rows(table) == [("a", 1)]
    outcome = again.written(0)
    assert outcome is not None
    assert outcome.writer == "skipped"


@pytest.mark.parametrize("stateful", [False, True])
def test_a_batch_that_is_skipped_runs_so_that_its_state_is_written(table: Path, stateful: bool) -> None:
    """Spark ends a query with state whose batch left its state alone."""
    writer(table, mode="upsert", stateful=stateful)(Batch(("a", 1)), 0)
    counted: list[int] = []

    class Again(Batch):
        def count(self) -> int:
            counted.append(1)
            return super().count()

    writer(table, mode="upsert", stateful=stateful)(Again(("a", 1)), 0)
    assert counted == [1]
    assert rows(table) == [("a", 1)]


def test_a_batch_that_comes_again_under_a_new_engine_is_skipped(table: Path) -> None:
    writer(table, token=1)(Batch(("a", 1)), 7)
    later = writer(table, token=2)
    later.fence()
    later(Batch(("a", 1)), 7)
    later(Batch(("b", 1)), 8)
    assert rows(table) == [("a", 1), ("b", 1)]


def test_a_new_checkpoint_starts_its_batches_again(table: Path) -> None:
    writer(table)(Batch(("a", 1)), 0)
    fresh = writer(table)
    fresh._app = "penstock/shop.items/g2-y"
    fresh(Batch(("b", 1)), 0)
    assert rows(table) == [("a", 1), ("b", 1)]


def test_a_replaced_writer_cannot_write_any_more(table: Path) -> None:
    old = writer(table, token=1)
    old(Batch(("a", 1)), 0)
    writer(table, token=2).fence()
    with pytest.raises(PenstockError, match="PEN-3006"):
        old(Batch(("b", 1)), 1)
    assert rows(table) == [("a", 1)]
    assert isinstance(old.error, PenstockError)


def test_a_replaced_writer_in_the_middle_of_its_commit_cannot_write(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the fence and commits after it: Delta refuses two commits of one application."""
    old = writer(table, token=1)
    looked = old._mark

    def look_then_be_replaced() -> Any:
        mark = looked()
        monkeypatch.setattr(old, "_mark", looked)
        writer(table, token=2).fence()
        return mark

    monkeypatch.setattr(old, "_mark", look_then_be_replaced)
    with pytest.raises(PenstockError, match="PEN-3006"):
        old(Batch(("b", 1)), 0)
    assert rows(table) == []


def test_an_upsert_replaces_rows_by_key_and_null_is_a_key(table: Path) -> None:
    write = writer(table, mode="upsert", stateful=True)
    write(Batch(("a", 1), (None, 1)), 0)
    write(Batch(("a", 2), (None, 5), ("b", 1)), 1)
    assert rows(table) == [("", 5), ("a", 2), ("b", 1)]


def test_an_upsert_by_several_keys_replaces_only_where_all_are_the_same(table: Path) -> None:
    write = writer(table, mode="upsert", stateful=True, keys=("item", "n"))
    write(Batch(("a", 1), (None, 1)), 0)
    write(Batch(("a", 1), ("a", 2), (None, 1)), 1)
    assert rows(table) == [("", 1), ("a", 1), ("a", 2)]


def test_an_upsert_without_a_key_keeps_one_row(table: Path) -> None:
    write = writer(table, mode="upsert", stateful=True, keys=())
    write(Batch(("a", 1)), 0)
    write(Batch(("a", 2)), 1)
    assert rows(table) == [("a", 2)]


def test_of_several_rows_of_a_key_in_a_batch_the_last_one_counts(table: Path) -> None:
    write = writer(table, mode="upsert")
    write(Batch(("a", 1), ("b", 1), ("a", 3), ("a", 2)), 0)
    assert rows(table) == [("a", 2), ("b", 1)]


def test_a_concurrent_commit_of_somebody_else_is_no_obstacle(table: Path) -> None:
    write = writer(table, mode="upsert", stateful=True)
    write(Batch(("a", 1)), 0)
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).delete("item = 'a'")
    write(Batch(("a", 2)), 1)
    assert rows(table) == [("a", 2)]


def test_an_append_meets_the_commits_of_others(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes a row, and commits between the writer's look at the log and its own commit."""
    write = writer(table)
    write(Batch(("a", 1)), 0)
    known = write._known
    DeltaTable(str(table)).delete("item = 'a'")
    monkeypatch.setattr(write, "_is_newest", lambda version: (version,) == known[:1] if known else False)
    write(Batch(("b", 1)), 1)
    assert rows(table) == [("b", 1)]
    outcome = write.written(1)
    assert outcome is not None
    assert outcome.writer == "direct"
    assert len(list(table.glob("*.parquet"))) == 2, "nothing is left of the commit that came too late"


def test_a_constraint_that_was_added_holds_for_appends(table: Path) -> None:
    write = writer(table)
    write(Batch(("a", 1)), 0)
    DeltaTable(str(table)).alter.add_constraint({"small": "n < 5"})
    with pytest.raises(DeltaError):
        write(Batch(("c", 9)), 1)
    write(Batch(("b", 2)), 1)
    assert rows(table) == [("a", 1), ("b", 2)]


def test_a_writer_that_knows_nothing_of_a_new_column_does_not_go_on(table: Path) -> None:
    """The stream starts again with the query that has it."""
    write = writer(table)
    write(Batch(("a", 1)), 0)
    DeltaTable(str(table)).alter.add_columns(Schema([Field("more", PrimitiveType("string"))]).fields)
    with pytest.raises(DeltaError, match=r"(?i)schema"):
        write(Batch(("b", 2)), 1)
    assert rows(table) == [("a", 1)]


def test_rows_for_which_the_driver_has_no_room_are_left_to_spark(table: Path) -> None:
    class Wide(Batch):
        def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
            raise PySparkException(
                "Total size of serialized results is bigger than spark.driver.maxResultSize (256.0 MiB)"
            )

    write = writer(table)
    checkpoint(table, 0, 800)
    checkpoint(table, 1, 1600)
    checkpoint(table, 2, 1900)
    wide: Any = Wide(("a", 1))
    assert write._small(wide, 1) is None
    assert write._small(wide, 1) is None, "Spark is not asked twice for as many rows"
    narrow: Any = Batch(("a", 1))
    assert write._small(narrow, 1) is None
    assert write._small(narrow, 2) is not None, "fewer rows may find room"


def test_another_failure_of_a_fetch_is_the_batch_s(table: Path) -> None:
    class Broken(Batch):
        def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
            raise PySparkException("boom")

    checkpoint(table, 0, 1)
    checkpoint(table, 1, 2)
    with pytest.raises(PySparkException, match="boom"):
        writer(table)(Broken(("a", 1)), 1)  # type: ignore[arg-type]


def checkpoint(table: Path, batch: int, offset: int) -> None:
    folder = table.parent / "checkpoint" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch)).write_text(f'v1\n{{}}\n{{"clicks":{{"0":{offset}}}}}')


def test_an_empty_batch_makes_no_commit(table: Path) -> None:
    write = writer(table)
    before = DeltaTable(str(table)).version()
    write(Batch(), 0)
    assert DeltaTable(str(table)).version() == before
    outcome = write.written(0)
    assert outcome is not None
    assert outcome.writer == "empty"


def test_a_checkpoint_whose_table_was_made_anew_is_refused(table: Path) -> None:
    commits = table.parent / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    with pytest.raises(PenstockError, match="PEN-3005"):
        writer(table).fence()


def test_a_checkpoint_goes_on_with_its_own_table(table: Path) -> None:
    first = writer(table)
    first.fence()
    commits = table.parent / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    writer(table, token=2).fence()


def test_a_closed_writer_takes_no_batch(table: Path) -> None:
    write = writer(table)
    assert write.close(timeout=1)
    with pytest.raises(InterruptedError):
        write(Batch(("a", 1)), 0)
    assert rows(table) == []
    assert write.error is None, "being stopped is no failure"


def test_a_batch_that_is_not_waited_for_any_more_is_not_committed(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: a batch that takes its time, and whoever stops the stream does not.
    write, batch = writer(table), Batch(("a", 1))
    fetched = batch.toArrow

    def slowly() -> pa.Table:
        assert not write.close(timeout=0)
        return fetched()

    monkeypatch.setattr(batch, "toArrow", slowly)
    with pytest.raises(InterruptedError):
        write(batch, 0)
    assert rows(table) == []


def test_the_identity_stands_in_the_table_s_own_log(table: Path) -> None:
    writer(table)(Batch(("a", 1)), 0)
    log = sorted((table / "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    txn = next(json.loads(line)["txn"] for line in log if '"txn"' in line)
    assert txn["appId"] == "penstock/shop.items/g1-x"


def test_last_per_key_keeps_the_order_of_the_rest() -> None:
    found = last_per_key(pa.table({"k": ["a", "b", "a", None, None], "v": [1, 2, 3, 4, 5]}), ["k"])
    assert found.to_pylist() == [{"k": "b", "v": 2}, {"k": "a", "v": 3}, {"k": None, "v": 5}]
