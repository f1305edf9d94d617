"""Protobuf: compiled without protoc on the machine, typed, and decoded into Arrow, value by value."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.compiler.avro import unknown_ids
from penstock.engine.protobuf import RECORD, ProtobufDecoding
from penstock.project.protobuf import ProtobufSchema, pruned
from penstock.project.protoc import ProtoError, compiled

PROTO = """syntax = "proto3";
package t;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "common/money.proto";
message Other { int32 n = 1; }
message All {
  enum Kind { NONE = 0; SOME = 1; }
  message In { string a = 1; repeated int64 b = 2; In again = 3; }
  double f_double = 1; float f_float = 2; int32 f_int32 = 3; int64 f_int64 = 4; uint32 f_uint32 = 5;
  uint64 f_uint64 = 6; sint32 f_sint32 = 7; sint64 f_sint64 = 8; fixed32 f_fixed32 = 9; fixed64 f_fixed64 = 10;
  sfixed32 f_sfixed32 = 11; sfixed64 f_sfixed64 = 12; bool f_bool = 13; string f_string = 14; bytes f_bytes = 15;
  Kind kind = 16; In in = 17; repeated In ins = 18; map<string, In> by_name = 19; map<int32, Kind> kinds = 20;
  repeated string texts = 21; optional int32 maybe = 22; oneof one { string x = 23; In y = 24; }
  google.protobuf.Timestamp at = 25; google.protobuf.Int64Value wrapped = 26; google.protobuf.Struct free = 27;
  repeated Kind many_kinds = 28; money.Amount amount = 29; All self = 30;
}
"""
MONEY = 'syntax = "proto3"; package money; message Amount { int64 cents = 1; string currency = 2; }'


@pytest.fixture(scope="module")
def schema() -> ProtobufSchema:
    return ProtobufSchema.read(compiled(PROTO, "all.proto", {"common/money.proto": MONEY}).encoded)


def test_every_field_has_its_type_and_what_contains_itself_is_left_out(schema: ProtobufSchema) -> None:
    fields, left_out = schema.fields("t.All")
    types = {name: kind.ddl for name, kind in fields}
    assert left_out == {"in": "t.All.In contains itself", "ins": "t.All.In contains itself",
                        "by_name": "t.All.In contains itself", "y": "t.All.In contains itself",
                        "self": "t.All contains itself"}  # fmt: skip
    assert types == {
        "f_double": "DOUBLE", "f_float": "FLOAT", "f_int32": "INT", "f_int64": "BIGINT", "f_uint32": "BIGINT",
        "f_uint64": "DECIMAL(20,0)", "f_sint32": "INT", "f_sint64": "BIGINT", "f_fixed32": "BIGINT",
        "f_fixed64": "DECIMAL(20,0)", "f_sfixed32": "INT", "f_sfixed64": "BIGINT", "f_bool": "BOOLEAN",
        "f_string": "STRING", "f_bytes": "BINARY", "kind": "STRING", "kinds": "MAP<INT, STRING>",
        "texts": "ARRAY<STRING>", "maybe": "INT", "x": "STRING", "at": "TIMESTAMP", "wrapped": "BIGINT",
        "free": "STRING", "many_kinds": "ARRAY<STRING>", "amount": "STRUCT<`cents`: BIGINT, `currency`: STRING>",
    }  # fmt: skip


def test_messages_have_places_as_in_confluents_wire_format(schema: ProtobufSchema) -> None:
    assert schema.outermost == ["t.Other", "t.All"]
    assert schema.places() == {(0,): "t.Other", (1,): "t.All", (1, 0): "t.All.In"}


def test_a_schema_may_be_given_as_descriptors(schema: ProtobufSchema) -> None:
    given_as = base64.b64encode(schema.files[-1].SerializeToString()).decode()
    found = ProtobufSchema.read(compiled(given_as, "default", {"common/money.proto": MONEY}).encoded)
    assert found.messages == schema.messages


@pytest.mark.parametrize(("text", "why", "line"), [
    ('syntax = "proto3";\nmessage A { Nowhere x = 1; }', '"Nowhere" is not defined', 2),
    ('syntax = "proto3";\n\nmessage A { string x }', "Missing field number", 3),
    ('syntax = "proto3"; import "gone.proto";', "gone.proto", None),
])  # fmt: skip
def test_what_does_not_compile_says_why_and_where(text: str, why: str, line: int | None) -> None:
    with pytest.raises(ProtoError, match=why) as problem:
        compiled(text, "a.proto", {})
    if line is not None:
        assert problem.value.line == line


def test_names_that_lead_out_of_the_folder_stay_in_it(tmp_path: Path) -> None:
    compiled('syntax = "proto3"; message A { int32 x = 1; }', "../../../a.proto", {})
    assert list(tmp_path.iterdir()) == []


# -- decoding ---------------------------------------------------------------------------------------------------------
def decoding(schema: ProtobufSchema, *fields: str, **more: Any) -> ProtobufDecoding:
    paths = tuple(tuple(each.split(".")) if each else () for each in fields)
    options = {"framed": False, "names": (None,), "types": (("t.All", schema.encoded, paths),)} | more
    return ProtobufDecoding(source="r/s", part="value", **options)


def decoded(found: ProtobufDecoding, *values: bytes | None) -> list[Any]:
    (batch,) = found.batches(iter([pa.array(values, pa.binary())]))
    return list(batch.to_pylist())


def test_only_the_wanted_fields_are_decoded(schema: ProtobufSchema) -> None:
    message = GetMessageClass(schema.message("t.All"))(f_string="x", f_int32=5)
    message.amount.cents = 7
    assert decoded(decoding(schema, "f_string", "amount.cents"), message.SerializeToString()) == [
        {"f_string": "x", "amount": {"cents": 7}, RECORD: "t.All"}
    ]


def test_what_is_no_message_is_null_as_a_whole(schema: ProtobufSchema) -> None:
    assert decoded(decoding(schema, "f_int32"), None, b"\xff", b"")[:2] == [None, None]


def frame(schema_id: int, indexes: bytes, body: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + indexes + body


def test_a_frame_says_the_type_of_its_message(schema: ProtobufSchema) -> None:
    every = GetMessageClass(schema.message("t.All"))(f_int32=3).SerializeToString()
    other = GetMessageClass(schema.message("t.Other"))(n=4).SerializeToString()
    found = decoding(schema, "f_int32", framed=True, written={7: schema.places()}, unreadable=frozenset({8}))
    rows = decoded(found, frame(7, b"\x02\x02", every), frame(7, b"\x00", other), frame(8, b"\x00", other),
                   frame(7, b"\x04\x02\x00", b""), b"\x00\x00", b"x" * 9, None)  # fmt: skip
    assert [row and (row["f_int32"] if row[RECORD] == "t.All" else None, row[RECORD]) for row in rows] == [
        (3, "t.All"), (None, "t.Other"), None, (None, "t.All.In"), None, None, None,
    ]  # fmt: skip


def test_several_types_are_a_struct_each(schema: ProtobufSchema) -> None:
    other = GetMessageClass(schema.message("t.Other"))(n=4).SerializeToString()
    types = (("t.All", schema.encoded, (("f_int32",),)), ("t.Other", schema.encoded, (("n",),)))
    found = decoding(schema, framed=True, types=types, names=("All", "Other"), written={7: schema.places()})
    assert decoded(found, frame(7, b"\x00", other)) == [{"All": None, "Other": {"n": 4}, RECORD: "t.Other"}]


def test_an_unknown_id_ends_the_batch_with_its_mark(schema: ProtobufSchema) -> None:
    found = decoding(schema, "f_int32", framed=True, written={})
    with pytest.raises(LookupError) as problem:
        decoded(found, frame(41, b"\x00", b""))
    assert unknown_ids(str(problem.value)) == [("r/s", "value", 41)]
    lenient = decoding(schema, "f_int32", framed=True, written={}, strict=False)
    assert decoded(lenient, frame(41, b"\x00", b"")) == [None]


_I32, _I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_FIELDS = {
    "f_double": st.floats(allow_nan=False), "f_float": st.floats(width=32, allow_nan=False), "f_int32": _I32,
    "f_int64": _I64, "f_uint32": _U32, "f_uint64": _U64, "f_sint32": _I32, "f_sint64": _I64, "f_fixed32": _U32,
    "f_fixed64": _U64, "f_sfixed32": _I32, "f_sfixed64": _I64, "f_bool": st.booleans(), "f_string": _TEXT,
    "f_bytes": st.binary(max_size=20), "kind": st.integers(0, 3), "kinds": st.dictionaries(_I32, st.integers(0, 1)),
    "texts": st.lists(_TEXT, max_size=4), "maybe": _I32, "x": _TEXT, "many_kinds": st.lists(st.integers(0, 1)),
    "at": st.integers(-(10**10), 10**11), "wrapped": _I64, "free": st.dictionaries(_TEXT, _TEXT, max_size=2),
    "amount": st.integers(-9, 9),
}  # fmt: skip
_WITH_PRESENCE = {"maybe", "x", "at", "wrapped", "free", "amount"}


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.fixed_dictionaries({}, optional=_FIELDS), min_size=1, max_size=5))
def test_every_value_of_every_type_comes_out_as_it_went_in(
    schema: ProtobufSchema, values: list[dict[str, Any]]
) -> None:
    message = GetMessageClass(schema.message("t.All"))
    written = []
    for value in values:
        plain = {name: each for name, each in value.items() if name not in ("at", "wrapped", "free", "amount")}
        made = message(**plain)
        if "at" in value:
            made.at.seconds, made.at.nanos = value["at"], 123456789
        if "wrapped" in value:
            made.wrapped.value = value["wrapped"]
        if "free" in value:
            made.free.SetInParent()
            made.free.update(value["free"])
        if "amount" in value:
            made.amount.cents = value["amount"]
        written.append(made.SerializeToString())
    (batch,) = decoding(schema, "").batches(iter([pa.array(written, pa.binary())]))
    for value, row in zip(values, batch.to_pylist(), strict=True):
        expected = {name: _expected(name, value) for name in _FIELDS}
        row = {name: dict(each) if name == "kinds" else each for name, each in row.items() if name != RECORD}
        row["at"] = None if row["at"] is None else row["at"].timestamp() if abs(value["at"]) < 10**10 else value["at"]
        row["free"] = None if row["free"] is None else json.loads(row["free"])
        if "at" in value and abs(value["at"]) < 10**10:
            assert row["at"] == pytest.approx(value["at"] + 0.123456, abs=1e-5)
            row["at"] = value["at"]
        assert row == expected


def _expected(name: str, value: dict[str, Any]) -> Any:
    if name not in value:
        empty = {"kinds": {}, "texts": [], "many_kinds": [], "f_string": "", "f_bytes": b"", "f_bool": False,
                 "kind": "NONE"}  # fmt: skip
        return None if name in _WITH_PRESENCE else empty.get(name, 0)
    found = value[name]
    names = {0: "NONE", 1: "SOME"}
    if name == "kind":
        return names.get(found, str(found))
    if name == "kinds":
        return {key: names[each] for key, each in found.items()}
    if name == "many_kinds":
        return [names[each] for each in found]
    if name == "amount":
        return {"cents": found, "currency": ""}
    return found


def test_the_declared_type_and_the_columns_that_are_built_agree(schema: ProtobufSchema) -> None:
    (batch,) = decoding(schema, "").batches(iter([pa.array([b""], pa.binary())]))
    built = [each.name for each in batch.type if each.name != RECORD]
    assert built == [name for name, _ in pruned(schema.message("t.All"), [()])]
    assert built == [name for name, _ in schema.fields("t.All")[0]]
