"""Avro schemas: types, parts of them, and readers that fit writers."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compiler.avro import AvroDecoding, ReadType, Writer, Written, mark, unknown_ids
from penstock.project.avro import READ, AvroSchema, SchemaError, fitted

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "doc": "x", "fields": [
  {"name": "id", "type": "long"},
  {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
   "default": null},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "day", "type": {"type": "int", "logicalType": "date"}},
  {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
  {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
  {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
  {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
    {"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}}},
  {"name": "first", "type": ["null", "Line"]},
  {"name": "either", "type": ["int", "string"]},
  {"name": "wide", "type": ["null", "int", "long"]},
  {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
  {"name": "tags", "type": {"type": "map", "values": "State"}},
  {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
  {"name": "next", "type": ["null", "Order"], "default": null}]}"""
TYPES = {
    "id": "BIGINT", "price": "DECIMAL(10,2)", "at": "TIMESTAMP", "day": "DATE", "local": "TIMESTAMP_NTZ",
    "clock": "BIGINT", "uid": "STRING", "lines": "ARRAY<STRUCT<`sku`: STRING, `n`: INT>>",
    "first": "STRUCT<`sku`: STRING, `n`: INT>", "either": "STRUCT<`member_int`: INT, `member_string`: STRING>",
    "wide": "BIGINT", "state": "STRING", "tags": "MAP<STRING, STRING>", "hash": "BINARY",
}  # fmt: skip


def test_every_field_has_the_type_that_spark_gives_it() -> None:
    fields, left_out = AvroSchema.read(ORDER).fields("shop.Order")
    assert {name: kind.ddl for name, kind in fields} == TYPES
    assert left_out == {"next": "shop.Order contains itself"}


def test_a_reader_has_the_wanted_fields_alone() -> None:
    schema = AvroSchema.read(ORDER)
    reader = AvroSchema.read(schema.reader("shop.Order", [("id",), ("first", "sku"), ("tags",), ("clock",)]))
    assert {name: kind.ddl for name, kind in reader.fields("shop.Order")[0]} == {
        "id": "BIGINT", "first": "STRUCT<`sku`: STRING>", "tags": "MAP<STRING, STRING>", "clock": "BIGINT",
    }  # fmt: skip
    assert "time-micros" not in json.dumps(reader.root), "Spark would make a type of it that no table has"
    assert json.loads(schema.reader("shop.Order", []))["fields"] == []


def test_a_type_that_is_wanted_as_a_whole_is_whole_wherever_it_is() -> None:
    reader = AvroSchema.read(AvroSchema.read(ORDER).reader("shop.Order", [("first", "sku"), ("lines",)]))
    assert dict(reader.fields("shop.Order")[0])["first"].ddl == TYPES["first"]


def test_the_fingerprint_is_of_the_meaning_and_not_of_the_text() -> None:
    same = json.dumps({key: json.loads(ORDER)[key] for key in ("fields", "namespace", "name", "type")})
    assert AvroSchema.read(same).fingerprint == AvroSchema.read(ORDER).fingerprint
    other = ORDER.replace('"name": "id", "type": "long"', '"name": "id", "type": "int"')
    assert AvroSchema.read(other).fingerprint != AvroSchema.read(ORDER).fingerprint


def test_what_a_schema_refers_to_becomes_part_of_it() -> None:
    line = '{"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}'
    order = '{"type": "record", "name": "O", "fields": [{"name": "a", "type": "shop.Line"}, {"name": "b", "type": "shop.Line"}]}'  # noqa: E501
    schema = AvroSchema.read(order, {"shop.Line": line})
    assert (
        AvroSchema.read(schema.text).type("O").ddl == "STRUCT<`a`: STRUCT<`sku`: STRING>, `b`: STRUCT<`sku`: STRING>>"
    )


@pytest.mark.parametrize(("text", "why"), [
    ('{"type": "rec"', "not JSON"),
    ('{"type": "record", "name": "x", "fields": [{"name": "a", "type": "Nowhere"}]}', "'Nowhere', which is not there"),
    ('{"type": "record", "fields": []}', "no Avro schema"),
])  # fmt: skip
def test_what_is_no_schema_says_why(text: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        AvroSchema.read(text)


def test_simple_types_and_unions_of_records_are_schemas_too() -> None:
    assert AvroSchema.read("long").type(None).ddl == AvroSchema.read('"long"').type(None).ddl == "BIGINT"
    both = AvroSchema.read('["null", {"type": "record", "name": "A", "fields": []}]')
    assert both.records == ["A"]
    assert [number for number, _ in both.branches()] == [0, 1]


# -- a reader and a writer --------------------------------------------------------------------------------------------
def record(*fields: dict[str, Any], name: str = "R") -> AvroSchema:
    return AvroSchema.read(json.dumps({"type": "record", "name": name, "fields": fields}))


def read(reader: AvroSchema, writer: AvroSchema, value: dict[str, Any]) -> Any:
    """A value written with one schema and read with the fitted pair."""
    fit = fitted(reader, writer)
    assert fit is not None
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(writer.compact)), value)
    out.seek(0)
    found = fastavro.schemaless_reader(out, fastavro.parse_schema(json.loads(fit.writer)),
                                       fastavro.parse_schema(json.loads(fit.reader)))  # fmt: skip
    assert isinstance(found, dict)
    assert found.pop(READ) is True
    return found


def test_what_the_writer_lacks_is_its_default_or_null() -> None:
    reader = record({"name": "a", "type": "int"}, {"name": "b", "type": "string"},
                    {"name": "c", "type": "int", "default": 7})  # fmt: skip
    assert read(reader, record({"name": "a", "type": "int"}), {"a": 1}) == {"a": 1, "b": None, "c": 7}


def test_what_has_another_meaning_is_null_and_the_rest_is_read() -> None:
    millis = {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    micros = {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    a = {"name": "a", "type": "long"}
    assert read(record(a, micros), record(millis, {"name": "a", "type": "int"}), {"a": 5, "t": 3}) == {
        "a": 5,
        "t": None,
    }
    text = {"name": "a", "type": "string"}
    assert read(record(a), record(text, {"name": "x", "type": "int"}), {"a": "no", "x": 1}) == {"a": None}


def test_fields_of_fields_are_fitted_too() -> None:
    def nested(*fields: dict[str, Any]) -> dict[str, Any]:
        return {"name": "in", "type": {"type": "array", "items": {"type": "record", "name": "In", "fields": fields}}}

    reader = record(nested({"name": "a", "type": "int"}, {"name": "b", "type": "int"}))
    writer = record(nested({"name": "a", "type": "int"}, {"name": "b", "type": "string"}))
    assert read(reader, writer, {"in": [{"a": 1, "b": "x"}]}) == {"in": [{"a": 1, "b": None}]}


def test_schemas_with_nothing_in_common_do_not_fit() -> None:
    assert fitted(record({"name": "a", "type": "int"}), AvroSchema.read("string")) is None


_names = st.sampled_from(["a", "b", "c", "d"])
_types = st.sampled_from(["int", "long", "float", "double", "string", "boolean", '["null","int"]', '["int","string"]'])
_records = st.dictionaries(_names, _types, min_size=1).map(
    lambda found: record(
        *({"name": name, "type": json.loads(kind) if kind[0] == "[" else kind} for name, kind in found.items())
    )
)
_VALUES = {"int": 1, "long": 2, "float": 1.5, "double": 2.5, "string": "s", "boolean": True}


@given(_records, _records)
def test_any_two_records_can_be_read_as_each_other(reader: AvroSchema, writer: AvroSchema) -> None:
    value = {each["name"]: None if each["type"] == ["null", "int"] else _VALUES[each["type"]]
             if isinstance(each["type"], str) else "s" for each in writer.root["fields"]}  # fmt: skip
    try:
        found = read(reader, writer, value)
    except fastavro._schema_common.SchemaParseException:
        raise
    except (ValueError, TypeError, fastavro.read.SchemaResolutionError):
        # a union of the writer's whose branch the reader does not take: the message is bad, and said to be
        assert any(isinstance(each["type"], list) for each in writer.root["fields"])
    else:
        assert set(found) == {each["name"] for each in reader.root["fields"]}


# -- SQL --------------------------------------------------------------------------------------------------------------
def test_an_unknown_id_is_found_in_the_failure_of_a_batch() -> None:
    said = f"org.apache.SparkRuntimeException: {mark('embedded/shop.orders', 'value', None)}0000002A SQLSTATE"
    assert unknown_ids(said) == [("embedded/shop.orders", "value", 42)]
    assert unknown_ids(f"LookupError: {mark('x/y', 'key', 7)}") == [("x/y", "key", 7)]
    assert unknown_ids("something else") == []


def test_the_message_is_decoded_by_its_id_and_in_one_place() -> None:
    writers = tuple(Writer(Written(number, None, "R"), "R", "W", "X") for number in (7, 300))
    decoding = AvroDecoding("s", "value", True, (ReadType("R", None, (("a", "INT"),)),), writers,
                            others=(Written(9, 1, "P"),), unreadable=(11,))  # fmt: skip
    sql = decoding.raw()
    assert sql.count("from_avro") == 2
    assert "= X'0000000007' then from_avro(substring(`value`, 6)" in sql
    assert "X'000000012C'" in sql
    assert "not in (X'0000000007', X'0000000009', X'000000000B', X'000000012C') then cast(raise_error" in sql
    assert "spark_partition_id()" in sql
    assert decoding.is_read() == (
        "not coalesce((substring(`value`, 1, 5) = X'0000000009' and substring(`value`, 6, 1) = X'02'), false)"
    )
