"""Changes of a table, written by delta-rs into a real Delta table: the newest one of each key counts, or deletes."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.changes import Changes
from penstock.engine.sink import TableWriter, Target

CHANGES = Changes("_partition", "_offset", "_timestamp", "_deleted")
TABLE = pa.schema([
    ("Id", pa.string()), ("n", pa.int64()),
    ("_partition", pa.string()), ("_offset", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC")),
])  # fmt: skip
BATCH = TABLE.append(pa.field("_deleted", pa.bool_()))


class Message(NamedTuple):
    """A message of a topic; without `n` it is a tombstone."""

    key: str
    n: int | None
    partition: str = "t-0"
    offset: int = 0
    second: int = 0


class Batch:
    """What the writer asks of a DataFrame when the batch is small."""

    dtypes = [("Id", "string"), ("n", "bigint")]

    def __init__(self, messages: Iterable[Message]) -> None:
        rows = [
            {"Id": each.key, "n": each.n, "_partition": each.partition, "_offset": each.offset,
             "_timestamp": dt.datetime.fromtimestamp(each.second, dt.timezone.utc), "_deleted": each.n is None}
            for each in messages
        ]  # fmt: skip
        self._rows = pa.Table.from_pylist(rows, schema=BATCH)

    def limit(self, count: int) -> Batch:
        return self

    def persist(self) -> Batch:
        return self

    unpersist = persist

    def count(self) -> int:
        return self._rows.num_rows

    def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
        return self._rows


def made(folder: Path) -> Path:
    DeltaTable.create(str(folder / "table"), schema=TABLE)
    return folder / "table"


def writer(table: Path) -> TableWriter:
    target = Target(
        stream="shop.users", table="shop.users", path=str(table), mode="upsert", keys=("Id",),
        checkpoint=table.parent / "checkpoint", checkpoint_id="g1-x", small_batch_rows=1000, stateful=False,
        changes=CHANGES,
    )  # fmt: skip
    return TableWriter(target, 1)


def written(folder: Path, *batches: Sequence[Message]) -> dict[str, int]:
    table = made(folder)
    write = writer(table)
    for number, batch in enumerate(batches):
        write(Batch(batch), number)
    return rows(table)


def rows(table: Path) -> dict[str, Any]:
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert len(found) == len({row["Id"] for row in found}), "a key is there once"
    return {row["Id"]: row["n"] for row in found}


def test_a_tombstone_deletes_the_row_of_its_key_and_no_other(tmp_path: Path) -> None:
    assert written(tmp_path, [Message("a", 1), Message("b", 2, offset=1)], [Message("a", None, offset=2)]) == {"b": 2}


def test_a_tombstone_of_an_unknown_key_makes_no_row(tmp_path: Path) -> None:
    assert written(tmp_path, [Message("a", None)], [Message("b", 1, offset=1)]) == {"b": 1}


def test_a_key_comes_back_after_its_tombstone(tmp_path: Path) -> None:
    gone_and_back = [Message("a", 1), Message("a", None, offset=1), Message("a", 3, offset=2)]
    assert written(tmp_path, gone_and_back) == {"a": 3}


def test_a_batch_of_changes_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    table = made(tmp_path)
    first, second = [Message("a", 1), Message("b", 1, offset=1)], [Message("a", None, offset=2)]
    writer(table)(Batch(first), 0)
    writer(table)(Batch(second), 1)
    again = writer(table)
    again(Batch(first), 0)
    again(Batch(second), 1)
    assert rows(table) == {"b": 1}
    outcome = again.written(1)
    assert outcome is not None
    assert outcome.writer == "skipped"


def test_the_order_of_a_batchs_rows_does_not_matter_their_offsets_do(tmp_path: Path) -> None:
    assert written(tmp_path, [Message("a", 9, offset=9), Message("a", 3, offset=3)]) == {"a": 9}


def test_a_later_offset_counts_whatever_its_timestamp_says(tmp_path: Path) -> None:
    assert written(tmp_path, [Message("a", 1, second=100)], [Message("a", 2, offset=1, second=5)]) == {"a": 2}


def test_of_a_key_in_two_partitions_the_later_timestamp_counts_in_one_batch_or_two(tmp_path: Path) -> None:
    moved = [Message("a", 1, "t-1", offset=50, second=10), Message("a", 2, "t-0", offset=0, second=20)]
    folders = [tmp_path / name for name in ("one", "two", "late")]
    for folder in folders:
        folder.mkdir()
    assert written(folders[0], moved) == {"a": 2}
    assert written(folders[1], moved[:1], moved[1:]) == {"a": 2}
    assert written(folders[2], moved[1:], moved[:1]) == {"a": 2}


def test_of_equal_timestamps_the_higher_partition_counts(tmp_path: Path) -> None:
    same = [Message("a", 1, "t-1", second=10), Message("a", 2, "t-0", second=10)]
    (tmp_path / "other").mkdir()
    assert written(tmp_path, same[:1], same[1:]) == {"a": 1}
    assert written(tmp_path / "other", same[1:], same[:1]) == {"a": 1}


MESSAGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 99), st.integers(0, 5)), min_size=1, max_size=30
)


@settings(max_examples=25, deadline=None)
@given(messages=MESSAGES, cuts=st.sets(st.integers(1, 29), max_size=3))
def test_the_table_is_the_last_message_of_each_key_however_the_topic_is_cut_into_batches(
    messages: list[tuple[str, int | None, int]], cuts: set[int]
) -> None:
    topic = [Message(key, n, f"t-{ord(key) % 2}", offset, second) for offset, (key, n, second) in enumerate(messages)]
    edges = [0, *sorted(cut for cut in cuts if cut < len(topic)), len(topic)]
    with tempfile.TemporaryDirectory() as folder:
        found = written(Path(folder), *(topic[low:high] for low, high in pairwise(edges)))
    last = {message.key: message.n for message in topic}
    assert found == {key: n for key, n in last.items() if n is not None}
