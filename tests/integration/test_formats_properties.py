"""Random values of every type, written by somebody else's code, come out of a stream's table value by value."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_messages import Serialize, avro_serializer, messages_of, protobuf_serializer
from source_files import compiled, entries

from penstock.control.locking import complete
from penstock.store import StreamState

pytestmark = pytest.mark.deep

MakeTopic = Callable[..., str]
Produce = Callable[..., int]
UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
_int, _long = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
_double = st.floats(allow_nan=False, allow_infinity=False)
_date = st.dates(date(1900, 1, 1), date(2200, 1, 1))
_micros = st.integers(-(2**50), 2**52).map(lambda n: EPOCH + timedelta(microseconds=n))
_millis = st.integers(-(2**40), 2**42).map(lambda n: EPOCH + timedelta(milliseconds=n))
_decimal = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-3))

# name -> Avro type, values, what Spark makes of a value
AVRO: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "f_boolean": ("boolean", st.booleans(), lambda v: v),
    "f_int": ("int", _int, lambda v: v),
    "f_long": ("long", _long, lambda v: v),
    "f_float": ("float", _float, lambda v: v),
    "f_double": ("double", _double, lambda v: v),
    "f_string": ("string", _text, lambda v: v),
    "f_bytes": ("bytes", st.binary(max_size=9), bytearray),
    "f_fixed": ({"type": "fixed", "name": "Four", "size": 4}, st.binary(min_size=4, max_size=4), bytearray),
    "f_enum": ({"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}, st.sampled_from(["RED", "BLUE"]),
               lambda v: v),
    "f_date": ({"type": "int", "logicalType": "date"}, _date, lambda v: v),
    "f_millis": ({"type": "long", "logicalType": "timestamp-millis"}, _millis, lambda v: v.replace(tzinfo=None)),
    "f_micros": ({"type": "long", "logicalType": "timestamp-micros"}, _micros, lambda v: v.replace(tzinfo=None)),
    "f_decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, _decimal, lambda v: v),
    "f_uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids(), str),
    "f_array": ({"type": "array", "items": ["null", "long"]}, st.lists(st.none() | _long, max_size=3), list),
    "f_map": ({"type": "map", "values": "double"}, st.dictionaries(_text, _double, max_size=3), dict),
    "f_record": (
        {"type": "record", "name": "In", "fields": [{"name": "a", "type": ["null", "string"]},
                                                    {"name": "b", "type": {"type": "array", "items": "int"}}]},
        st.fixed_dictionaries({"a": st.none() | _text, "b": st.lists(_int, max_size=2)}),
        lambda v: (v["a"], v["b"]),
    ),
    "f_union": (["int", "string"], _int | _text,
                lambda v: (v, None) if isinstance(v, int) else (None, v)),
}  # fmt: skip


def nullable(kind: Any) -> list[Any]:
    return ["null", *kind] if isinstance(kind, list) else ["null", kind]


AVRO_SCHEMA = json.dumps({"type": "record", "name": "Everything", "fields": [
    {"name": "n", "type": "long"}, *({"name": name, "type": nullable(kind)} for name, (kind, _, _) in AVRO.items()),
]})  # fmt: skip
AVRO_ROWS = st.fixed_dictionaries({name: st.none() | values for name, (_, values, _) in AVRO.items()})

PROTO = """syntax = "proto3";
package values;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Everything {
  enum Kind { NONE = 0; SOME = 1; }
  message In { string a = 1; repeated int64 b = 2; }
  int64 n = 1;
  double f_double = 2; float f_float = 3; int32 f_int32 = 4; int64 f_int64 = 5; uint32 f_uint32 = 6;
  uint64 f_uint64 = 7; sint32 f_sint32 = 8; sint64 f_sint64 = 9; fixed32 f_fixed32 = 10; fixed64 f_fixed64 = 11;
  sfixed32 f_sfixed32 = 12; sfixed64 f_sfixed64 = 13; bool f_bool = 14; string f_string = 15; bytes f_bytes = 16;
  Kind kind = 17; In inner = 18; repeated In ins = 19; map<string, double> by_name = 20; map<int32, Kind> kinds = 21;
  repeated string texts = 22; optional int32 maybe = 23; oneof one { string text = 24; int64 number = 25; }
  google.protobuf.Timestamp at = 26; google.protobuf.Int64Value wrapped = 27;
}
"""
_uint, _ulong = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_kind = st.integers(0, 2)  # the last one has no name
_in = st.fixed_dictionaries({"a": _text, "b": st.lists(_long, max_size=2)})


def _is(value: Any) -> Any:
    return value


def _kind_name(number: int) -> str:
    return {0: "NONE", 1: "SOME"}.get(number, str(number))


# name -> values, what is there when nothing was written, what Spark makes of a value
PROTOBUF: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "f_double": (_double, 0, _is), "f_float": (_float, 0, _is), "f_int32": (_int, 0, _is), "f_int64": (_long, 0, _is),
    "f_uint32": (_uint, 0, _is), "f_uint64": (_ulong, 0, Decimal), "f_sint32": (_int, 0, _is),
    "f_sint64": (_long, 0, _is), "f_fixed32": (_uint, 0, _is), "f_fixed64": (_ulong, 0, Decimal),
    "f_sfixed32": (_int, 0, _is), "f_sfixed64": (_long, 0, _is), "f_bool": (st.booleans(), False, _is),
    "f_string": (_text, "", _is), "f_bytes": (st.binary(max_size=9), bytearray(), bytearray),
    "kind": (_kind, "NONE", _kind_name),
    "inner": (_in, None, lambda v: (v["a"], v["b"])),
    "ins": (st.lists(_in, max_size=2), [], lambda v: [(each["a"], each["b"]) for each in v]),
    "by_name": (st.dictionaries(_text, _double, max_size=3), {}, dict),
    "kinds": (st.dictionaries(_int, _kind, max_size=3), {}, lambda v: {key: _kind_name(at) for key, at in v.items()}),
    "texts": (st.lists(_text, max_size=3), [], list),
    "maybe": (_int, None, _is),
}  # fmt: skip
PROTOBUF_ROWS = st.fixed_dictionaries({
    **{name: st.none() | values for name, (values, _, _) in PROTOBUF.items()},
    "at": st.none() | st.integers(-(2**50), 2**52), "wrapped": st.none() | _long, "one": st.none() | _text | _long,
})  # fmt: skip

# name -> Spark type, values, as JSON, what Spark makes of it
JSON: dict[str, tuple[str, Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "f_boolean": ("boolean", st.booleans(), lambda v: v, lambda v: v),
    "f_tinyint": ("tinyint", st.integers(-128, 127), lambda v: v, lambda v: v),
    "f_smallint": ("smallint", st.integers(-(2**15), 2**15 - 1), lambda v: v, lambda v: v),
    "f_int": ("int", _int, lambda v: v, lambda v: v),
    "f_bigint": ("bigint", _long, lambda v: v, lambda v: v),
    "f_float": ("float", _float, lambda v: v, lambda v: v),
    "f_double": ("double", _double, lambda v: v, lambda v: v),
    "f_decimal": ("decimal(12, 3)", _decimal, str, lambda v: v),
    "f_string": ("string", _text, lambda v: v, lambda v: v),
    "f_binary": ("binary", st.binary(max_size=9), lambda v: base64.b64encode(v).decode(), bytearray),
    "f_date": ("date", _date, lambda v: v.isoformat(), lambda v: v),
    "f_timestamp": ("timestamp", _micros, lambda v: v.isoformat(), lambda v: v.replace(tzinfo=None)),
    "f_ntz": ("timestamp_ntz", _micros, lambda v: v.replace(tzinfo=None).isoformat(), lambda v: v.replace(tzinfo=None)),
    "f_array": ("array<bigint>", st.lists(st.none() | _long, max_size=3), list, list),
    "f_map": ("map<string, double>", st.dictionaries(_text, st.none() | _double, max_size=3), dict, dict),
    "f_struct": ("struct<a: string, b: array<int>>",
                 st.fixed_dictionaries({"a": st.none() | _text, "b": st.lists(_int, max_size=2)}), dict,
                 lambda v: (v["a"], v["b"])),
}  # fmt: skip
JSON_ROWS = st.fixed_dictionaries({name: st.none() | values for name, (_, values, _, _) in JSON.items()})
FLAT = {name: each for name, each in JSON.items() if not each[0].startswith(("array", "map", "struct", "binary"))}
_word = st.text("abcdefgh,;|äß€'", min_size=1, max_size=8)  # CSV knows no empty text beside null
CSV_ROWS = st.fixed_dictionaries({
    name: st.none() | (_word if name == "f_string" else values) for name, (_, values, _, _) in FLAT.items()
})  # fmt: skip


class Table:
    """A stream over a topic of a format, and what its table says of rows that are written there."""

    def __init__(self, platform: Any, project: Path, schema: str, topic: str, produce: Produce, text: str) -> None:
        complete(entries(text, project), project, dict)
        spec = compiled(text, project, name=f"{schema}.m")
        platform.deploy(spec)
        platform.state(spec.name, StreamState.RUNNING)
        self.platform, self.stream, self.topic, self.produce = platform, spec.name, topic, produce
        self.written = 0

    def through(self, rows: list[dict[str, Any]], encode: Callable[[dict[str, Any]], bytes]) -> list[dict[str, Any]]:
        """The rows as they come out, in their order."""
        first = self.written
        self.written += len(rows)
        self.produce(self.topic, [encode({"n": first + at, **row}) for at, row in enumerate(rows)])

        def there() -> Any:
            found = self._rows(first)
            return found if len(found) >= len(rows) else None

        found = self.platform.until(there, f"{len(rows)} rows of {self.stream}", 60,
                                    lambda: self.platform.store.actual(self.stream))  # fmt: skip
        return [dict(sorted_row) for sorted_row in sorted(found, key=lambda row: row["n"])]

    def _rows(self, first: int) -> list[dict[str, Any]]:
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(self.platform.endpoint().url).create()
        try:
            return [row.asDict() for row in session.sql(f"select * from {self.stream} where n >= {first}").collect()]
        finally:
            session.stop()


def plain(value: Any) -> Any:
    """A value of Spark's in the form of the expected ones."""
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return bytearray(value) if isinstance(value, bytes) else value


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        came = plain(found[name])
        if isinstance(value, float) and isinstance(came, float):
            assert came == value or math.isclose(came, value, rel_tol=1e-6), name
        else:
            assert came == value, name


def source(topic: str, value: str, columns: dict[str, str]) -> str:
    lines = "".join(f'          - {{name: {name}, data_type: "{kind}"}}\n' for name, kind in columns.items())
    return f"""
sources:
  - name: shop
    tables:
      - name: clicks
        config: {{meta: {{stream: {{topic: {topic}, value: {value}}}}}}}
        columns:
{lines}"""


few = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def test_avro(
    platform: Any, with_registry: Path, schema: str, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(name="avro")
    serialize: Serialize = avro_serializer(client, name, AVRO_SCHEMA)
    serialize({"n": 0} | dict.fromkeys(AVRO))  # registers the schema
    found = Table(platform, with_registry, schema, name, produce, source(name, "{format: avro}", {"n": "bigint"}))

    @few
    @given(st.lists(AVRO_ROWS, min_size=40, max_size=80))
    def check(rows: list[dict[str, Any]]) -> None:
        for row, came in zip(rows, found.through(rows, serialize), strict=True):
            same(came, {name: None if row[name] is None else as_spark(row[name])
                        for name, (_, _, as_spark) in AVRO.items()})  # fmt: skip

    check()


def test_protobuf(
    platform: Any,
    with_registry: Path,
    schema: str,
    client: SchemaRegistryClient,
    topic: MakeTopic,
    produce: Produce,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    name = topic(name="protobuf")
    message = messages_of(PROTO, tmp_path_factory.mktemp("producer"), "everything")("values.Everything")
    serialize = protobuf_serializer(client, name, message)
    serialize(message())  # registers the schema
    text = source(name, "{format: protobuf, message: values.Everything}", {"n": "bigint"})
    found = Table(platform, with_registry, schema, name, produce, text)

    def encode(row: dict[str, Any]) -> bytes:
        made = message(n=row["n"], **{each: row[each] for each in PROTOBUF if row.get(each) is not None})
        if row["at"] is not None:
            made.at.seconds, made.at.nanos = row["at"] // 10**6, row["at"] % 10**6 * 1000
        if row["wrapped"] is not None:
            made.wrapped.value = row["wrapped"]
        if row["one"] is not None:
            setattr(made, "text" if isinstance(row["one"], str) else "number", row["one"])
        return serialize(made)

    def expected(row: dict[str, Any]) -> dict[str, Any]:
        plain_ones = {each: absent if row[each] is None else as_spark(row[each])
                      for each, (_, absent, as_spark) in PROTOBUF.items()}  # fmt: skip
        at = None if row["at"] is None else EPOCH.replace(tzinfo=None) + timedelta(microseconds=row["at"])
        one = row["one"]
        return {**plain_ones, "at": at, "wrapped": row["wrapped"], "text": one if isinstance(one, str) else None,
                "number": one if isinstance(one, int) else None}  # fmt: skip

    @settings(few, max_examples=3)
    @given(st.lists(PROTOBUF_ROWS, min_size=20, max_size=40))
    def check(rows: list[dict[str, Any]]) -> None:
        for row, came in zip(rows, found.through(rows, encode), strict=True):
            same(came, expected(row))

    check()


def test_json(platform: Any, tmp_path: Path, schema: str, topic: MakeTopic, produce: Produce) -> None:
    name = topic(name="json")
    columns = {"n": "bigint"} | {column: kind for column, (kind, _, _, _) in JSON.items()}
    found = Table(platform, tmp_path, schema, name, produce, source(name, "{format: json}", columns))

    def encode(row: dict[str, Any]) -> bytes:
        written = {column: None if value is None else JSON[column][2](value) for column, value in row.items()
                   if column != "n"}  # fmt: skip
        return json.dumps({"n": row["n"], **written}).encode()

    @few
    @given(st.lists(JSON_ROWS, min_size=40, max_size=80))
    def check(rows: list[dict[str, Any]]) -> None:
        for row, came in zip(rows, found.through(rows, encode), strict=True):
            same(came, {column: None if row[column] is None else as_spark(row[column])
                        for column, (_, _, _, as_spark) in JSON.items()})  # fmt: skip

    check()


def test_csv(platform: Any, tmp_path: Path, schema: str, topic: MakeTopic, produce: Produce) -> None:
    name = topic(name="csv")
    columns = {"n": "bigint"} | {column: kind for column, (kind, _, _, _) in FLAT.items()}
    found = Table(platform, tmp_path, schema, name, produce, source(name, "{format: csv}", columns))

    def encode(row: dict[str, Any]) -> bytes:
        texts = [str(row["n"])]
        texts += ["" if row[column] is None else _csv_text(FLAT[column][2](row[column])) for column in FLAT]
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL, escapechar="\\", doublequote=False, lineterminator="")
        writer.writerow(texts)
        return out.getvalue().encode()

    @few
    @given(st.lists(CSV_ROWS, min_size=40, max_size=80))
    def check(rows: list[dict[str, Any]]) -> None:
        for row, came in zip(rows, found.through(rows, encode), strict=True):
            same(came, {column: None if row[column] is None else as_spark(row[column])
                        for column, (_, _, _, as_spark) in FLAT.items()})  # fmt: skip

    check()


def _csv_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
