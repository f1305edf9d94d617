"""Rows of stream tests: as values, as messages, and beside those that a table holds."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.compiler.spec import Column, KafkaInput
from penstock.engine.topic_files import Record
from penstock.testing.compare import compare
from penstock.testing.encoding import FIRST, Places, encode
from penstock.testing.values import UnfitError, canonical

TIME = pa.timestamp("us", tz="UTC")


# -- values -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        ("2026-01-01 10:00:00", TIME, datetime(2026, 1, 1, 10, tzinfo=timezone.utc)),
        ("2026-01-01T12:00:00+02:00", TIME, datetime(2026, 1, 1, 10, tzinfo=timezone.utc)),
        ("2026-01-01T10:00:00Z", pa.timestamp("us"), datetime(2026, 1, 1, 10)),
        (12.5, pa.decimal128(10, 2), Decimal("12.50")),
        ("7", pa.int64(), 7),
        (0.1 + 0.2, pa.float64(), 0.3),
        (5, pa.string(), "5"),
        (True, pa.string(), "true"),
        ("true", pa.bool_(), True),
        ({"base64": "/wA="}, pa.binary(), b"\xff\x00"),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"A": 1}, pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}),
        ({"k": 1}, pa.map_(pa.string(), pa.int64()), {"k": 1}),
        (None, pa.int64(), None),
    ],
)
def test_a_value_becomes_one_of_its_column_s_type(value: Any, kind: pa.DataType, found: Any) -> None:
    assert canonical(value, kind) == found


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("soon", TIME, "soon is no timestamp"),
        (1.5, pa.int64(), "1.5 is no bigint"),
        ("much", pa.decimal128(10, 2), r"much is no decimal\(10, 2\)"),
        (1, pa.bool_(), "1 is no boolean"),
        ({"x": 1}, pa.struct([("a", pa.int64())]), "has a field 'x' that the column has not"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(UnfitError, match=message):
        canonical(value, kind)


# -- messages ---------------------------------------------------------------------------------------------------------
def source(**changes: Any) -> KafkaInput:
    columns = {
        "id": ("INT", "value.id"), "city": ("STRING", "value.place.city"), "who": ("STRING", "key"),
        "trace": ("STRING", "header(trace_id)"), "sent": ("TIMESTAMP", "timestamp"), "at": ("BIGINT", "offset"),
    }  # fmt: skip
    made = [Column(name=name, type=kind, origin=origin) for name, (kind, origin) in columns.items()]
    return KafkaInput(
        view="v", relation="shop.clicks", topic="clicks", columns=(*made, *changes.pop("more", ())), **changes
    )


def none(*_: Any) -> bytes:
    raise AssertionError("no schema here")


def test_a_row_is_a_message_with_each_column_in_its_place() -> None:
    row = {"id": 1, "city": "Oslo", "who": "ann", "trace": "t", "sent": "2026-01-01 10:00:00", "at": 5, "_partition": 2}
    (record,) = encode(source(), row, Places(), none)
    assert json.loads(record.value or b"") == {"id": 1, "place": {"city": "Oslo"}}
    assert record == Record("clicks", 2, 5, 1767261600000, b"ann", record.value, (("trace_id", b"t"),))


def test_what_is_not_said_is_the_same_each_time() -> None:
    places = Places()
    rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "_repeat": 2}, {"id": 3, "_partition": 1}]
    records = [record for row in rows for record in encode(source(), row, places, none)]
    assert [(each.partition, each.offset) for each in records] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [each.timestamp - FIRST for each in records] == [1000, 2000, 3000, 4000]
    assert records[1].value == records[2].value
    assert records[0].key is None


def test_words_with_an_underscore_are_the_message_as_it_is() -> None:
    row = {"_key": "k", "_value": "{broken", "_headers": [["a", "1"], ["a", "2"]], "_timestamp": 5}
    (record,) = encode(source(), row, Places(), none)
    assert (record.key, record.value, record.timestamp) == (b"k", b"{broken", 5)
    assert record.headers == (("a", b"1"), ("a", b"2"))
    (tombstone,) = encode(source(), {"_key": "k", "_value": None}, Places(), none)
    assert tombstone.value is None
    (raw,) = encode(source(), {"_value_base64": "/wA="}, Places(), none)
    assert raw.value == b"\xff\x00"


def test_csv_has_its_columns_in_their_order_and_its_quotes() -> None:
    columns = (
        Column(name="a", type="STRING", origin="value.a"),
        Column(name="b", type="INT", origin="value.b"),
        Column(name="c", type="STRING", origin="value.c"),
    )
    csv = KafkaInput(view="v", relation="s.t", topic="t", value_format="csv", columns=columns)
    (record,) = encode(csv, {"c": 'say "hi"', "a": "x,y"}, Places(), none)
    assert record.value == b'"x,y",,"say \\"hi\\""'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"idd": 1}, "shop.clicks has no column 'idd'. Did you mean 'id'?"),
        ({"_valeu": 1}, "Did you mean '_value'?"),
        ({"day": "x"}, "column 'day' of shop.clicks is computed"),
        ({"_value_base64": "%"}, "'_value_base64' is not base64"),
    ],
)
def test_a_row_that_is_no_message_is_refused(row: dict[str, Any], message: str) -> None:
    day = Column(name="day", type="DATE", origin="computed", expr="to_date(sent)")
    with pytest.raises(UnfitError) as problem:
        encode(source(more=(day,)), row, Places(), none)
    assert message in str(problem.value) + "?"


def test_a_source_of_several_topics_wants_to_know_which() -> None:
    several = source().model_copy(update={"topic": None, "topic_pattern": "c.*"})
    with pytest.raises(UnfitError, match="say which with '_topic'"):
        encode(several, {"id": 1}, Places(), none)
    (record,) = encode(several, {"id": 1, "_topic": "clicks2"}, Places(), none)
    assert record.topic == "clicks2"


# -- comparing --------------------------------------------------------------------------------------------------------
TABLE = pa.table({"id": [1, 2, 2], "name": ["a", "b", "b"], "n": [1.0, 2.0, 2.0]})


def test_rows_are_a_bag_and_only_named_columns_count() -> None:
    assert compare([{"id": 2}, {"id": 1, "name": "a"}, {"ID": 2, "n": 2}], TABLE) is None
    assert compare([{"id": 2}], TABLE, subset=True) is None
    assert compare([], pa.table({"id": pa.array([], pa.int64())})) is None


def test_how_often_a_row_is_there_counts() -> None:
    diff = compare([{"id": 1}, {"id": 2}], TABLE)
    assert diff is not None
    assert diff.summary == "1 unexpected, 2 as expected"
    diff = compare([{"id": 2}] * 3, TABLE, subset=True)
    assert diff is not None
    assert diff.summary == "1 missing, 2 as expected"


def test_rows_of_one_key_are_shown_as_one_row_with_different_cells() -> None:
    diff = compare([{"id": 1, "name": "x", "n": 9.0}, {"id": 2}, {"id": 2}], TABLE, keys=["id"])
    assert diff is not None
    assert [line.sign for line in diff.lines] == ["~"]
    assert diff.lines[0].cells == (("1", "1"), ("x", "a"), ("9.0", "1.0"))
    assert diff.lines[0].as_dict(diff.columns) == {
        "kind": "different",
        "row": {"id": "1", "name": {"expected": "x", "found": "a"}, "n": {"expected": "9.0", "found": "1.0"}},
    }


def test_without_a_key_rows_that_are_mostly_alike_are_shown_together() -> None:
    diff = compare([{"id": 1, "name": "a", "n": 5.0}, {"id": 7, "name": "q", "n": 7.0}], TABLE.slice(0, 1))
    assert diff is not None
    assert [line.sign for line in diff.lines] == ["~", "-"]


def test_null_is_not_the_word_null() -> None:
    diff = compare([{"name": "null"}], pa.table({"name": pa.array([None], pa.string())}))
    assert diff is not None
    assert [line.sign for line in diff.lines] == ["-", "+"]


def test_the_order_counts_when_it_is_asked_for() -> None:
    assert compare([{"id": 1}, {"id": 2}, {"id": 2}], TABLE, ordered=True) is None
    diff = compare([{"id": 2}, {"id": 1}, {"id": 2}], TABLE, ordered=True)
    assert diff is not None
    assert [line.sign for line in diff.lines] == ["~", "~"]


def test_a_column_that_the_table_does_not_have_is_told() -> None:
    with pytest.raises(UnfitError, match=r"there is no column 'nmae'. Did you mean 'name'"):
        compare([{"nmae": 1}], TABLE)
