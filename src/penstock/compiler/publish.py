"""What a model publishes: which columns are key and value, and their schemas in Avro and Protobuf. Pure.

Rules
- A column has the type that Spark gives it, as its schema's JSON says it. All values may be null: what a query proves
  today need not hold for the next message.
- A key of one column is the bare value, except in Protobuf, which knows messages alone; of several, a record.
- Records are named after the topic, nested ones after the way to them: a schema depends on topic and columns alone.
- In Protobuf a field keeps the number that it had in the schema registered last; new ones get numbers of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from penstock.compiler.shape import Shape
from penstock.compiler.spec import Input, KafkaInput, OutputMode, Publish
from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import (
    PUBLISH_KEY,
    PUBLISH_LOOP,
    PUBLISH_NO_TABLE,
    PUBLISH_TYPE,
    PUBLISH_UNFIT,
    REAL_TIME_UNFIT,
)
from penstock.project.model import DynamicTable

Type = str | Mapping[str, Any]  # as in the JSON of a Spark schema
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")

_AVRO: dict[str, Any] = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long", "float": "float",
    "double": "double", "string": "string", "binary": "bytes", "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip
# Protobuf has no type of its own for dates, decimals and times without a zone: they are texts.
_PROTOBUF = {
    "boolean": "bool", "byte": "int32", "short": "int32", "integer": "int32", "long": "int64", "float": "float",
    "double": "double", "string": "string", "binary": "bytes", "date": "string",
    "timestamp": "google.protobuf.Timestamp", "timestamp_ntz": "string",
}  # fmt: skip
_PROTOBUF_KEYS = frozenset({"boolean", "byte", "short", "integer", "long", "string"})
_JSON = frozenset(_AVRO)
_PLAIN = frozenset({"string", "byte", "short", "integer", "long", "boolean"})  # Spark spells them as Penstock does


class _NoTypeError(Exception):
    """What a format cannot say."""


@dataclass(frozen=True)
class Field:
    """A column of the messages."""

    name: str
    type: Type


@dataclass(frozen=True)
class Layout:
    """The columns of key and value."""

    key: tuple[Field, ...]
    value: tuple[Field, ...]


# -- the setting and the query ----------------------------------------------------------------------------------------
def published(table: DynamicTable, shape: Shape, reason: str | None, inputs: Sequence[Input]) -> Publish | None:
    """How the model is published; None if it is not. Raises what does not fit the query."""
    setting = table.publish
    if setting is None:
        if table.mode == "real_time":
            at = Location(table.path)
            raise REAL_TIME_UNFIT.error(f"{table.name} is not published to a topic.", at=at)
        return None
    at = setting.at
    if reason is not None:
        raise PUBLISH_UNFIT.error(f"{table.name} cannot be published, it is refreshed in full: {reason}", at=at)
    for each in inputs:
        if isinstance(each, KafkaInput) and each.bootstrap is None and each.reads(setting.topic):
            raise PUBLISH_LOOP.error(f"{table.name} reads topic '{setting.topic}' by way of {each.relation}.", at=at)
    if not setting.table and table.checks:
        raise PUBLISH_UNFIT.error(
            f"{table.name} has constraints, and no table that could hold them.", at=at,
            hint="Leave out publish.table, or the constraints.",
        )  # fmt: skip
    key = setting.key or ()
    if shape.columns is not None and key:
        named = {column.lower(): column for column in shape.columns}
        key = tuple(_column(name, named, at) for name in key)
    if shape.mode is OutputMode.UPSERT:
        key = _own_key(table.name, key, shape, at)
    if not setting.key_in_value and shape.columns is not None and _all_in(key, shape.columns):
        raise _no_value(at)
    suits = "json" if len(key) > 1 else "string"
    made = Publish(
        topic=setting.topic,
        key=key,
        key_format=cast(Any, setting.key_format or (suits if setting.value_format == "json" else setting.value_format)),
        value_format=cast(Any, setting.value_format),
        key_in_value=setting.key_in_value or not key,
        table=setting.table,
        delivery=cast(Literal["exactly_once", "at_least_once"], setting.delivery),
        partitions=setting.partitions,
        real_time=table.mode == "real_time",
    )
    if made.real_time and (why := _not_in_real_time(table, made, shape, inputs)) is not None:
        raise REAL_TIME_UNFIT.error(f"{table.name} cannot run in real time: {why}.", at=at)
    return made


def _not_in_real_time(table: DynamicTable, publish: Publish, shape: Shape, inputs: Sequence[Input]) -> str | None:
    """What keeps the model from Spark's real-time trigger."""
    if publish.table:
        return "it has a table"
    if publish.delivery != "at_least_once":
        return "it is to be published exactly once"
    if publish.value_format != "json" or publish.key_format not in ("string", "json"):
        return "its messages are not JSON"
    if table.expectations:
        return "it has expectations"
    if shape.stateful or shape.mode is not OutputMode.APPEND:
        return "its query keeps state" if shape.stateful else "its rows are replaced"
    for each in inputs:
        if not isinstance(each, KafkaInput):
            return f"{each.relation} is a table"
        if each.key_schema is not None or each.value_schema is not None:
            return f"{each.relation} is decoded by a schema"
        if each.backfill:
            return f"{each.relation} begins with a backfill"
    return None


def _own_key(name: str, key: tuple[str, ...], shape: Shape, at: Location) -> tuple[str, ...]:
    """Changed rows have the key of their table; its order may be another."""
    if key and {each.lower() for each in key} != {each.lower() for each in shape.keys}:
        own = f"replaced by ({', '.join(shape.keys)})" if shape.keys else "one row, without a key"
        raise PUBLISH_UNFIT.error(
            f"publish.key is ({', '.join(key)}), but the rows of {name} are {own}.", at=at,
            hint="Leave out publish.key: the key of the table is taken.",
        )  # fmt: skip
    if not shape.keys and shape.changed is not None:
        raise PUBLISH_UNFIT.error(
            f"the row of {name} may be gone, and without a key no message can say so.", at=at,
            hint="Group by a column, or leave out HAVING.",
        )  # fmt: skip
    return key or shape.keys


def _column(name: str, named: Mapping[str, str], at: Location | None) -> str:
    if name.lower() not in named:
        raise PUBLISH_KEY.error(
            f"publish.key '{name}' is not among the columns of the model.", at=at,
            hint=did_you_mean(name, named.values()),
        )  # fmt: skip
    return named[name.lower()]


def _all_in(key: Sequence[str], columns: Sequence[str]) -> bool:
    return {column.lower() for column in columns} <= {each.lower() for each in key}


def _no_value(at: Location | None) -> PenstockError:
    return PUBLISH_UNFIT.error(
        "all columns are in the key, and nothing is left for the value.", at=at, hint="Set key_in_value: true."
    )


def read_table(table: DynamicTable, here: Location) -> DynamicTable:
    """The dynamic table that is read; PEN-1335 when it has no table."""
    if table.publish is not None and not table.publish.table:
        raise PUBLISH_NO_TABLE.error(f"{table.name} is published to '{table.publish.topic}' alone.", at=here)
    return table


# -- the columns ------------------------------------------------------------------------------------------------------
def layout(publish: Publish, schema: Mapping[str, Any], at: Location | None = None) -> Layout:
    """Key and value of messages; `schema` is the JSON of the result's. Raises what cannot be published."""
    fields = tuple(Field(str(each["name"]), each["type"]) for each in schema["fields"])
    named = {each.name.lower(): each for each in fields}
    names = [_column(name, {key: each.name for key, each in named.items()}, at) for name in publish.key]
    key = tuple(named[name.lower()] for name in names)
    value = fields if publish.key_in_value else tuple(each for each in fields if each not in key)
    if not value:
        raise _no_value(at)
    for format_, parts in ((publish.key_format, key), (publish.value_format, value)):
        for each in parts:
            try:
                _check(format_, each.type)
                if publish.real_time and format_ == "string" and each.type not in _PLAIN:
                    raise _NoTypeError(f"in real time a key of one column is a text or a whole number, not {each.type}")
            except _NoTypeError as problem:
                raise PUBLISH_TYPE.error(f"column '{each.name}' cannot be written as {format_}: {problem}.", at=at) \
                    from None  # fmt: skip
    return Layout(key, value)


def _check(format_: str, kind: Type) -> None:
    if format_ == "avro":
        _avro(kind, "check")
    elif format_ == "protobuf":
        _Messages({}).field(kind, "Check", ())
    elif format_ == "string" and not isinstance(kind, str):
        raise _NoTypeError(f"{kind['type']} is no text")
    else:
        _json_type(kind)


def _json_type(kind: Type) -> None:
    if isinstance(kind, str):
        if kind not in _JSON and not _DECIMAL.fullmatch(kind):
            raise _NoTypeError(f"it has no way to say {kind}")
    elif kind["type"] == "struct":
        for each in kind["fields"]:
            _json_type(each["type"])
    elif kind["type"] == "array":
        _json_type(kind["elementType"])
    elif kind["type"] == "map":
        if not isinstance(kind["keyType"], str):
            raise _NoTypeError("a map has keys that are texts")
        _json_type(kind["valueType"])
    else:
        raise _NoTypeError(f"it has no way to say {kind['type']}")


# -- Avro -------------------------------------------------------------------------------------------------------------
def avro_schema(fields: Sequence[Field], name: str, *, bare: bool = False) -> str:
    """The schema of a record with these fields, or `bare` that of the one field, as JSON."""
    found = _avro(fields[0].type, name) if bare else _avro_record([(each.name, each.type) for each in fields], name)
    return json.dumps(found, separators=(",", ":"))


def _avro(kind: Type, name: str) -> Any:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return {"type": "bytes", "logicalType": "decimal", "precision": int(decimal[1]), "scale": int(decimal[2])}
        if kind not in _AVRO:
            raise _NoTypeError(f"it has no way to say {kind}")
        return _AVRO[kind]
    if kind["type"] == "struct":
        return _avro_record([(each["name"], each["type"]) for each in kind["fields"]], name)
    if kind["type"] == "array":
        return {"type": "array", "items": ["null", _avro(kind["elementType"], name)]}
    if kind["type"] == "map":
        if kind["keyType"] != "string":
            raise _NoTypeError("a map has keys that are texts")
        return {"type": "map", "values": ["null", _avro(kind["valueType"], name)]}
    raise _NoTypeError(f"it has no way to say {kind['type']}")


def _avro_record(fields: Sequence[tuple[str, Type]], name: str) -> dict[str, Any]:
    for each, _ in fields:
        if not re.fullmatch(r"[A-Za-z_]\w*", each, re.ASCII):
            raise _NoTypeError(f"'{each}' is no name there")
    made = [
        {"name": each, "type": ["null", _avro(kind, f"{name}_{each}")], "default": None} for each, kind in fields
    ]  # fmt: skip
    return {"type": "record", "name": name, "fields": made}


def avro_name(topic: str, part: str) -> str:
    """The name of the record: that of the topic, with `_key` for its keys."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"
    return f"{name}_key" if part == "key" else name


# -- Protobuf ---------------------------------------------------------------------------------------------------------
def protobuf_schema(fields: Sequence[Field], name: str, before: Descriptor | None = None) -> str:
    """The .proto text of a message with these fields; `before` is the message that was registered last."""
    messages = _Messages(_numbers(before) if before is not None else {})
    lines = messages.message([(each.name, each.type) for each in fields], name, ())
    imports = ['import "google/protobuf/timestamp.proto";', ""] if messages.has_timestamp else []
    return "\n".join(['syntax = "proto3";', "", *imports, *lines, ""])


def protobuf_name(topic: str, part: str) -> str:
    """The name of the message: the topic's in camel case, with `Key` for its keys."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", topic) if word]
    name = "".join(word[0].upper() + word[1:] for word in words) or "Row"
    name = name if name[0].isalpha() else f"T{name}"
    return f"{name}Key" if part == "key" else name


class _Messages:
    def __init__(self, numbers: Mapping[tuple[str, ...], Mapping[str, int]]) -> None:
        self.numbers = numbers
        self.has_timestamp = False

    def message(self, fields: Sequence[tuple[str, Type]], name: str, way: tuple[str, ...]) -> list[str]:
        known = self.numbers.get(way, {})
        free = max(known.values(), default=0) + 1
        nested: list[str] = []
        own: list[tuple[int, str]] = []
        for each, kind in fields:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", each):
                raise _NoTypeError(f"'{each}' is no name there")
            below = (*way, each)
            spelled, inner = self.field(kind, protobuf_name(each, "value"), below)
            if each not in known:
                free, number = free + 1, free
                own.append((number, f"  {spelled} {each} = {number};"))
            else:
                own.append((known[each], f"  {spelled} {each} = {known[each]};"))
            nested += [f"  {line}" for line in inner]
        gone = sorted(number for each, number in known.items() if each not in dict(fields))
        reserved = [f"  reserved {', '.join(map(str, gone))};"] if gone else []
        return [f"message {name} {{", *reserved, *nested, *(line for _, line in sorted(own)), "}"]

    def field(self, kind: Type, name: str, way: tuple[str, ...]) -> tuple[str, list[str]]:
        """How a field is declared, and the messages that it needs."""
        if not isinstance(kind, str) and kind["type"] == "array":
            spelled, inner = self._single(kind["elementType"], name, way, "a list in a list")
            return f"repeated {spelled}", inner
        if not isinstance(kind, str) and kind["type"] == "map":
            if kind["keyType"] not in _PROTOBUF_KEYS:
                raise _NoTypeError("a map has keys that are texts or whole numbers")
            spelled, inner = self._single(kind["valueType"], name, way, "a list in a map")
            return f"map<{_PROTOBUF[kind['keyType']]}, {spelled}>", inner
        spelled, inner = self._single(kind, name, way, "")
        return f"optional {spelled}", inner

    def _single(self, kind: Type, name: str, way: tuple[str, ...], why: str) -> tuple[str, list[str]]:
        if isinstance(kind, str):
            self.has_timestamp |= kind == "timestamp"
            if _DECIMAL.fullmatch(kind):
                return "string", []
            if kind not in _PROTOBUF:
                raise _NoTypeError(f"it has no way to say {kind}")
            return _PROTOBUF[kind], []
        if kind["type"] != "struct":
            raise _NoTypeError(f"it has no way to say {why}")
        made = self.message([(each["name"], each["type"]) for each in kind["fields"]], f"{name}Value", way)
        return f"{name}Value", made


def _numbers(message: Descriptor, way: tuple[str, ...] = ()) -> dict[tuple[str, ...], dict[str, int]]:
    """The numbers of all fields by the way to them; of fields that are gone, too."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    reserved = [number for each in proto.reserved_range for number in range(each.start, each.end)]
    found = {way: {f"#{number}": number for number in reserved}}
    found[way] |= {field.name: field.number for field in message.fields}
    for field in message.fields:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            kind = kind.fields_by_name["value"].message_type
        if kind is not None and kind.file.name == message.file.name:
            found |= _numbers(kind, (*way, field.name))
    return found
