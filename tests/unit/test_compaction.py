"""Files of a real Delta table put together in the order of their rows; delta-rs reads what became of it."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.engine import appends, compaction
from penstock.engine.compaction import File, Met, Unfit, neighbours
from penstock.engine.maintenance import Upkeep, properties

SMALL = 64 << 20


def commits(path: Path, *values: Any, **more: Any) -> None:
    for value in values:
        write_deltalake(str(path), pa.table({"v": [value]}), mode="append", **more)


def in_order(path: Path) -> list[Any]:
    """The rows as a stream of Spark's finds them that begins with the table."""
    files = compaction.files(DeltaTable(str(path)))
    return [value for file in files for value in pq.read_table(path / file.name).column("v").to_pylist()]


def newest_commit(path: Path) -> list[dict[str, Any]]:
    commit = path / "_delta_log" / f"{DeltaTable(str(path)).version():020d}.json"
    return [json.loads(line) for line in commit.read_text().splitlines()]


def test_rows_stay_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    commits(tmp_path, *range(1, 11), configuration=properties())
    done = Upkeep("shop.a", "shop.a", str(tmp_path)).run()
    assert (done.files_before, done.files_after, done.notes) == (10, 1, ())
    assert in_order(tmp_path) == list(range(1, 11))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().column("v").to_pylist() == list(range(1, 11))
    commits(tmp_path, *range(11, 21))
    Upkeep("shop.a", "shop.a", str(tmp_path)).run()
    assert in_order(tmp_path) == list(range(1, 21)), "what was put together before is older"


def test_a_large_file_stays_where_it_is_among_the_others(tmp_path: Path) -> None:
    commits(tmp_path, 1, 2)
    write_deltalake(str(tmp_path), pa.table({"v": range(100, 5100)}), mode="append")
    commits(tmp_path, 3, 4)
    times = [file.at for file in compaction.files(DeltaTable(str(tmp_path)))]
    compaction.compact(tmp_path, DeltaTable(str(tmp_path)), 5000)
    found = compaction.files(DeltaTable(str(tmp_path)))
    assert in_order(tmp_path) == [1, 2, *range(100, 5100), 3, 4]
    assert [file.at for file in found] == [times[1], times[2], times[4]], "a file is as old as its newest rows"


def test_only_neighbours_are_put_together() -> None:
    def file(number: int, size: int) -> File:
        return File(f"f{number}", size, number, 1)

    listed = [file(number, size) for number, size in enumerate([3, 3, 3, 5, 10, 2, 12, 1, 1])]
    assert [[each.size for each in group] for group in neighbours(listed, 10)] == [[3, 3, 3], [1, 1]]


def test_what_is_appended_meanwhile_is_behind_it(tmp_path: Path) -> None:
    commits(tmp_path, 1, 2, 3)
    table = DeltaTable(str(tmp_path))
    commits(tmp_path, 4, 5)
    compaction.compact(tmp_path, table, SMALL)
    assert DeltaTable(str(tmp_path)).version() == 5
    assert in_order(tmp_path) == [1, 2, 3, 4, 5]


def test_it_gives_up_when_rows_were_deleted_meanwhile_and_leaves_nothing(tmp_path: Path) -> None:
    commits(tmp_path, 1, 2, 3)
    table = DeltaTable(str(tmp_path))
    commits(tmp_path, 4)
    DeltaTable(str(tmp_path)).delete("v = 2")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Met):
        compaction.compact(tmp_path, table, SMALL)
    assert sorted(tmp_path.rglob("*")) == before
    assert in_order(tmp_path) == [1, 3, 4]


def test_the_commit_changes_no_row_and_tells_what_is_in_the_file(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 1, 1, 2, 3, 456789, dt.timezone.utc)
    for number, text, day in ((1, "a", dt.date(2026, 1, 1)), (2, "b" * 50, None)):
        rows = pa.table({
            "v": [number], "text": [text], "day": pa.array([day], pa.date32()), "share": [0.5], "tags": [["x"]],
            "at": pa.array([at], pa.timestamp("us", "UTC")), "none": pa.array([None], pa.int32()),
        })  # fmt: skip
        write_deltalake(str(tmp_path), rows, mode="append")
    before = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("v")
    compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    table = DeltaTable(str(tmp_path))
    assert table.to_pyarrow_table().equals(before)
    actions = [
        action for entry in newest_commit(tmp_path) for name, action in entry.items() if name in ("add", "remove")
    ]
    assert [action["dataChange"] for action in actions] == [False, False, False], "readers pass over it"
    assert json.loads(actions[-1]["stats"]) == {
        "numRecords": 2,
        "minValues": {"v": 1, "text": "a", "day": "2026-01-01", "at": "2026-01-01T01:02:03.456Z"},
        "maxValues": {"v": 2, "day": "2026-01-01", "at": "2026-01-01T01:02:03.457Z"},
        "nullCount": {"v": 0, "text": 0, "day": 1, "share": 0, "at": 0, "none": 2},
    }
    assert table.history(1)[0]["operation"] == "OPTIMIZE"


def test_rows_of_before_a_column_was_added_are_null_there(tmp_path: Path) -> None:
    commits(tmp_path, 1)
    write_deltalake(str(tmp_path), pa.table({"v": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    table = DeltaTable(str(tmp_path))
    assert len(table.file_uris()) == 1
    assert table.to_pyarrow_table().to_pylist() == [{"v": 1, "more": None}, {"v": 2, "more": "x"}]


def test_times_as_spark_writes_them_keep_their_value(tmp_path: Path) -> None:
    far = dt.datetime(3026, 1, 1, tzinfo=dt.timezone.utc)
    rows = pa.table({"v": pa.array([far], pa.timestamp("us", "UTC"))})
    table = DeltaTable.create(str(tmp_path), rows.schema)
    for version in (1, 2):
        appends.append(tmp_path, rows, version, "app", version)
        (file,) = {file.name for file in compaction.files(DeltaTable(str(tmp_path)))} - {
            file.name for file in compaction.files(table)
        }
        pq.write_table(rows, tmp_path / file, use_deprecated_int96_timestamps=True)
        table = DeltaTable(str(tmp_path))
    compaction.compact(tmp_path, table, SMALL)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().column("v").to_pylist() == [far, far]


def test_constraints_do_not_stand_in_the_way(tmp_path: Path) -> None:
    commits(tmp_path, 1, 2)
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "v > 0"})
    compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 1
    assert in_order(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"delta.enableDeletionVectors": "true"}, "its protocol has a feature that is not known here"),
        ({"delta.enableInCommitTimestamps": "true"}, "delta.enableInCommitTimestamps is set"),
    ],
)
def test_a_table_whose_files_are_more_than_rows_is_left_alone(
    tmp_path: Path, configuration: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits(tmp_path, *range(10), configuration=properties())
    protocol = DeltaTable.protocol
    if "delta.enableDeletionVectors" in configuration:
        features = ["deletionVectors"]
        monkeypatch.setattr(
            DeltaTable,
            "protocol",
            lambda table: protocol(table)._replace(min_writer_version=7, writer_features=features),
        )
    else:
        metadata = DeltaTable(str(tmp_path)).metadata()
        told = type("Metadata", (), {"configuration": configuration | properties(), "partition_columns": []})
        assert metadata.partition_columns == []
        monkeypatch.setattr(DeltaTable, "metadata", lambda _table: told)
    with pytest.raises(Unfit, match=why):
        compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    done = Upkeep("shop.a", "shop.a", str(tmp_path)).run()
    assert (done.files_after, done.conflict) == (10, False)
    assert done.notes == (f"its small files are left as they are: {why}",)


def test_a_file_of_which_rows_are_missing_is_left_alone(tmp_path: Path) -> None:
    commits(tmp_path, 1, 2)
    first = compaction.files(DeltaTable(str(tmp_path)))[0]
    pq.write_table(pa.table({"v": pa.array([], pa.int64())}), tmp_path / first.name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Unfit, match="1 rows were read of its files, which have 2"):
        compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_pass_through_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_PIECE", 8)
    commits(tmp_path, *range(9))
    compaction.compact(tmp_path, DeltaTable(str(tmp_path)), SMALL)
    (file,) = compaction.files(DeltaTable(str(tmp_path)))
    assert pq.read_metadata(tmp_path / file.name).num_row_groups == 9
    assert in_order(tmp_path) == list(range(9))
