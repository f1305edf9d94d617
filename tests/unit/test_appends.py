"""Rows that are appended to a real Delta table without delta-rs, which reads them here."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from penstock.engine import appends
from penstock.engine.sink import TableWriter, Target

ROWS = pa.table(
    {
        "text": ["a", None],
        "number": pa.array([1, None], pa.int32()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 1, 1), None], pa.timestamp("us")),
        "tags": pa.array([["x", None], None], pa.list_(pa.string())),
        "place": pa.array([{"x": 1, "y": None}, None], pa.struct([("x", pa.int64()), ("y", pa.string())])),
        "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
    }
)


def made(path: Path, schema: Any = ROWS.schema, **more: Any) -> DeltaTable:
    return DeltaTable.create(str(path), schema=schema, **more)


def test_rows_of_every_kind_are_read_as_they_were_written(tmp_path: Path) -> None:
    layout = appends.layout(made(tmp_path))
    assert layout is not None
    fitted = layout.fitted(ROWS)
    assert fitted is not None
    appends.append(tmp_path, fitted, 1, "app", 7)
    found = DeltaTable(str(tmp_path))
    assert found.to_pyarrow_table().to_pylist() == ROWS.to_pylist()
    assert (found.version(), found.transaction_version("app")) == (1, 7)
    assert pa.table(found.get_add_actions(flatten=True)).column("num_records").to_pylist() == [2]
    assert found.history(1)[0]["operation"] == "WRITE"


def test_rows_take_the_types_of_the_table_and_have_all_its_columns(tmp_path: Path) -> None:
    layout = appends.layout(made(tmp_path, ROWS.schema.remove(2).remove(2).remove(2).remove(2).remove(2).remove(2)))
    assert layout is not None
    fitted = layout.fitted(pa.table({"number": pa.array([5], pa.int64()), "text": ["b"]}))
    assert fitted is not None
    appends.append(tmp_path, fitted, 1, "app", 1)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [{"number": 5, "text": "b"}]
    large = pa.table({"number": pa.array([2**40], pa.int64()), "text": ["b"]})
    assert layout.fitted(large) is None, "it does not fit"
    assert layout.fitted(pa.table({"number": [1]})) is None, "who knows nothing of a new column must not go on"
    assert layout.fitted(pa.table({"number": [1], "unknown": [1]})) is None


def test_a_version_that_is_there_is_not_written_and_nothing_is_left_behind(tmp_path: Path) -> None:
    made(tmp_path)
    appends.append(tmp_path, ROWS, 1, "app", 1)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError):
        appends.append(tmp_path, ROWS, 1, "app", 2)
    assert sorted(tmp_path.rglob("*")) == before
    assert DeltaTable(str(tmp_path)).transaction_version("app") == 1


NOT_NULL = Schema([Field("n", PrimitiveType("long"), nullable=False)])
GENERATED = Schema([Field("n", PrimitiveType("long"), metadata={"delta.generationExpression": "1"})])
ITEMS = pa.schema([("n", pa.list_(pa.field("element", pa.int64(), nullable=False)))])


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        (NOT_NULL, {}),
        (ITEMS, {}),
        (GENERATED, {}),
        (ROWS.schema, {"partition_by": ["text"]}),
    ],
    ids=["a column that is never null", "elements that are never null", "a generated column", "partitions"],
)
def test_a_table_that_asks_something_of_its_writers_is_left_to_delta_rs(
    tmp_path: Path, schema: Any, more: dict[str, Any]
) -> None:
    assert appends.layout(made(tmp_path, schema, **more)) is None


@pytest.mark.parametrize(
    ("protocol", "configuration"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]}, {}),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}, {}),
        ({"minReaderVersion": 1, "minWriterVersion": 5}, {}),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, {"delta.constraints.small": "n < 5"}),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, {"delta.columnMapping.mode": "name"}),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, {"delta.enableInCommitTimestamps": "true"}),
    ],
    ids=["unknown", "row tracking", "version 5", "constraint", "column mapping", "in-commit timestamps"],
)
def test_a_protocol_or_a_setting_that_binds_writers_is_left_to_delta_rs(
    protocol: dict[str, Any], configuration: dict[str, str]
) -> None:
    class Table:
        def protocol(self) -> Any:
            names = {"minWriterVersion": "min_writer_version", "writerFeatures": "writer_features"}
            found = {names[name]: value for name, value in protocol.items() if name in names}
            return type("Protocol", (), {"writer_features": None, **found})

        def metadata(self) -> Any:
            return type("Metadata", (), {"configuration": configuration, "partition_columns": []})

        def schema(self) -> Any:
            return Schema([Field("n", PrimitiveType("long"))])

    table: Any = Table()
    assert appends.layout(table) is None
    protocol.update(minWriterVersion=2)
    protocol.pop("writerFeatures", None)
    configuration.clear()
    assert appends.layout(table) is not None


def test_the_log_gets_its_checkpoints(tmp_path: Path) -> None:
    table = tmp_path / "table"
    made(table, configuration={"delta.checkpointInterval": "5"})
    target = Target(
        stream="shop.items", table="shop.items", path=str(table), mode="append", keys=(),
        checkpoint=tmp_path / "checkpoint", checkpoint_id="g1", small_batch_rows=1000, stateful=False,
    )  # fmt: skip
    write = TableWriter(target, 1)

    class Batch:
        def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
            return ROWS

        def limit(self, _count: int) -> Batch:
            return self

    for number in range(1, 13):
        write(Batch(), number)  # type: ignore[arg-type]
    last = json.loads((table / "_delta_log" / "_last_checkpoint").read_text())
    assert last["version"] == 10
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 24
    assert TableWriter(target, 1).newest_batch() == 12
