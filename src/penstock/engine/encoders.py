"""Rows as the keys and values of messages: text, JSON, Avro and Protobuf. Pure.

Rules
- An encoder is made once from the columns, and called with each row as Arrow gives it to Python.
- JSON says everything: null fields are there, whole and decimal numbers are exact, times are in UTC, bytes in base64.
- Avro and Protobuf have Confluent's wire format: a zero, the schema's id in four bytes, then, for Protobuf, which
  message of the schema it is (the first), then the content.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from penstock.compiler.publish import Field, Type

Row = Mapping[str, Any]
Encode = Callable[[Row], bytes]
Text = Callable[[Any], str]

_string = json.encoder.encode_basestring  # with all signs as they are


def framed(schema_id: int) -> bytes:
    """What comes before a message of a registered schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


# -- text -------------------------------------------------------------------------------------------------------------
def text_encoder(field: Field) -> Callable[[Any], bytes]:
    """The plain text of one column."""
    if field.type == "string":
        return lambda value: str(value).encode()
    if field.type == "binary":
        return bytes
    spelled = _json(field.type)
    return lambda value: spelled(value).strip('"').encode()


# -- JSON -------------------------------------------------------------------------------------------------------------
def json_encoder(fields: Sequence[Field]) -> Encode:
    """An object of all fields."""
    spelled = _object([(each.name, each.type) for each in fields])
    return lambda row: spelled(row).encode()


def json_value_encoder(field: Field) -> Callable[[Any], bytes]:
    """One value."""
    spelled = _json(field.type)
    return lambda value: b"null" if value is None else spelled(value).encode()


def _object(fields: Sequence[tuple[str, Type]]) -> Text:
    parts = [(name, f"{_string(name)}:", _json(kind)) for name, kind in fields]

    def spelled(row: Row) -> str:
        inner = [begin + ("null" if (value := row[name]) is None else text(value)) for name, begin, text in parts]
        return "{" + ",".join(inner) + "}"

    return spelled


def _json(kind: Type) -> Text:
    if not isinstance(kind, str):
        return _nested(kind)
    if kind.startswith("decimal"):
        return lambda value: format(value, "f")
    return _TEXTS.get(kind, str)


def _nested(kind: Mapping[str, Any]) -> Text:
    if kind["type"] == "struct":
        return _object([(each["name"], each["type"]) for each in kind["fields"]])
    if kind["type"] == "array":
        item = _json(kind["elementType"])
        return lambda values: "[" + ",".join("null" if each is None else item(each) for each in values) + "]"
    key, item = _json(kind["keyType"]), _json(kind["valueType"])

    def spelled(pairs: Sequence[tuple[Any, Any]]) -> str:
        inner = [f"{_quoted(key(k))}:{'null' if v is None else item(v)}" for k, v in pairs]
        return "{" + ",".join(inner) + "}"

    return spelled


def _quoted(text: str) -> str:
    return text if text.startswith('"') else f'"{text}"'


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{"NaN" if math.isnan(value) else _infinity(value)}"'


def _infinity(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


def moment(value: datetime) -> str:
    """A time in UTC, with as many digits as it has."""
    utc = value.astimezone(timezone.utc).replace(tzinfo=None)
    return f"{local(utc)}Z"


def local(value: datetime) -> str:
    return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")


_TEXTS: dict[str, Text] = {
    "boolean": lambda value: "true" if value else "false",
    "string": _string,
    "float": _float,
    "double": _float,
    "binary": lambda value: f'"{base64.b64encode(value).decode()}"',
    "date": lambda value: f'"{value.isoformat()}"',
    "timestamp": lambda value: f'"{moment(value)}"',
    "timestamp_ntz": lambda value: f'"{local(value)}"',
}


# -- Avro -------------------------------------------------------------------------------------------------------------
def avro_encoder(schema: str, schema_id: int, fields: Sequence[Field]) -> Callable[[Any], bytes]:
    """A row, or the one value of a schema that is no record."""
    parsed, prefix = parse_schema(json.loads(schema)), framed(schema_id)
    fits = _fitted({"type": "struct", "fields": [{"name": each.name, "type": each.type} for each in fields]})
    is_record = isinstance(parsed, dict) and parsed["type"] == "record"

    def encode(row: Any) -> bytes:
        out = io.BytesIO(prefix)
        out.seek(len(prefix))
        schemaless_writer(out, parsed, fits(row) if is_record else row)
        return out.getvalue()

    return encode


def _fitted(kind: Type) -> Callable[[Any], Any]:
    """A value as the Avro writer takes it: a map is a dict there, and a list of pairs in Arrow."""
    if isinstance(kind, str):
        return lambda value: value
    if kind["type"] == "struct":
        inner = [(each["name"], _fitted(each["type"])) for each in kind["fields"]]
        return lambda row: None if row is None else {name: fits(row[name]) for name, fits in inner}
    if kind["type"] == "array":
        item = _fitted(kind["elementType"])
        return lambda values: None if values is None else [item(each) for each in values]
    item = _fitted(kind["valueType"])
    return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}


# -- Protobuf ---------------------------------------------------------------------------------------------------------
def protobuf_encoder(message: Descriptor, schema_id: int, fields: Sequence[Field]) -> Encode:
    """A row as the first message of the schema."""
    made = GetMessageClass(message)
    prefix = framed(schema_id) + b"\x00"  # short for "the first of the outermost"
    fill = _filled({"type": "struct", "fields": [{"name": each.name, "type": each.type} for each in fields]})

    def encode(row: Row) -> bytes:
        target = made()
        fill(target, row)
        return bytes(prefix + target.SerializeToString(deterministic=True))

    return encode


def _filled(kind: Mapping[str, Any]) -> Callable[[Any, Row], None]:
    """Writes a struct into a message; what is null is not set."""
    setters = [(str(each["name"]), _setter(str(each["name"]), each["type"])) for each in kind["fields"]]

    def fill(target: Any, row: Row) -> None:
        for name, put in setters:
            if (value := row[name]) is not None:
                put(target, value)

    return fill


def _setter(name: str, kind: Type) -> Callable[[Any, Any], None]:
    if isinstance(kind, str):
        if kind == "timestamp":
            return lambda target, value: getattr(target, name).FromDatetime(value)
        said = _said(kind)
        return lambda target, value: setattr(target, name, said(value))
    if kind["type"] == "struct":
        fill = _filled(kind)

        def put_struct(target: Any, value: Row) -> None:
            inner = getattr(target, name)
            inner.SetInParent()
            fill(inner, value)

        return put_struct
    if kind["type"] == "array":
        return _list_setter(name, kind["elementType"])
    return _map_setter(name, kind["valueType"])


def _list_setter(name: str, kind: Type) -> Callable[[Any, Any], None]:
    """Protobuf has no null in a list: such elements are left out."""
    if kind == "timestamp":
        return lambda target, values: [getattr(target, name).add().FromDatetime(each) for each in _there(values)]  # type: ignore[return-value]
    if isinstance(kind, str):
        said = _said(kind)
        return lambda target, values: getattr(target, name).extend([said(each) for each in _there(values)])
    fill = _filled(kind)
    return lambda target, values: [fill(getattr(target, name).add(), each) for each in _there(values)]  # type: ignore[return-value]


def _map_setter(name: str, kind: Type) -> Callable[[Any, Any], None]:
    said = _said(kind) if isinstance(kind, str) else None
    fill = _filled(kind) if not isinstance(kind, str) else None

    def put(target: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        into = getattr(target, name)
        for key, value in pairs:
            if value is None:
                continue
            if kind == "timestamp":
                into[key].FromDatetime(value)
            elif fill is not None:
                fill(into[key], value)
            elif said is not None:
                into[key] = said(value)

    return put


def _there(values: Sequence[Any]) -> list[Any]:
    return [each for each in values if each is not None]


def _said(kind: str) -> Callable[[Any], Any]:
    if kind.startswith("decimal"):
        return _decimal
    return {"date": date.isoformat, "timestamp_ntz": local}.get(kind, _same)


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _same(value: Any) -> Any:
    return value
