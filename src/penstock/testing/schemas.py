"""Avro and Protobuf messages of a test, and the schemas that they name, without a registry.

Rules
- A row is written with the schema that the source reads, under an id of this test; recorded messages keep their ids.
- Both kinds of schemas are put where the engine keeps what it has learnt of a registry, so that it finds them there.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.compiler.messages import format_of, schema_of
from penstock.compiler.spec import KafkaInput, MessageType, Schema
from penstock.paths import ProjectPaths
from penstock.project.protobuf import ProtobufSchema
from penstock.project.schemas import short_name
from penstock.registry.address import access
from penstock.registry.cache import SchemaCache
from penstock.registry.client import Registered
from penstock.testing.fixtures import Recorded
from penstock.testing.values import UnfitError, canonical

_FIRST = 1_000_000  # ids of tests; those of a registry begin at 1


class Schemas:
    """The schemas of one test."""

    def __init__(self, paths: ProjectPaths) -> None:
        self._paths = paths
        self._ids: dict[tuple[str, str, str], int] = {}  # source, part, type

    def know(self, source: KafkaInput) -> None:
        """Let the engine find the schemas that rows of this source are written with."""
        for part in ("key", "value"):
            schema = schema_of(source, part)
            if schema is None or not schema.subjects:
                continue
            cache = self._cache(source)
            for each in schema.types:
                key = (source.relation, part, each.name or "")
                if key in self._ids:
                    continue
                number = self._ids[key] = _FIRST + len(self._ids)
                cache.keep(_registered(number, format_of(source, part), each))
                for subject in schema.subjects:
                    cache.keep_versions(subject, {**cache.versions(subject), number: number})

    def recorded(self, source: KafkaInput, recorded: Recorded) -> None:
        """Let the engine find the schemas of recorded messages."""
        cache = self._cache(source)
        subjects = {each for schema in (source.key_schema, source.value_schema) if schema for each in schema.subjects}
        for found in recorded.schemas.values():
            cache.keep(found)
            if found.subject in subjects:
                cache.keep_versions(
                    found.subject, {**cache.versions(found.subject), found.version or found.id: found.id}
                )
            for part in ("key", "value"):
                cache.meet(f"{source.relation}.{part}", {found.id: True})

    def _cache(self, source: KafkaInput) -> SchemaCache:
        return SchemaCache(self._paths, access(dict(source.registry), {}, self._paths, asked=False).name)

    def encode(self, source: KafkaInput, part: str, fields: Mapping[str, Any]) -> bytes:
        """A key or value as its format has it; raises UnfitError."""
        schema = schema_of(source, part)
        if schema is None:
            raise UnfitError(f"a {part} of the format {format_of(source, part)} has no fields: give '_{part}'")
        self.know(source)
        chosen, fields = _chosen(schema, fields, source)
        number = self._ids.get((source.relation, part, chosen.name or ""), 0)
        try:
            if format_of(source, part) == "avro":
                content, body = schema.written or chosen.content, fields.get("", fields)
                head = _frame(number) if schema.framed else b""
                return head + _avro(content, body)
            return _protobuf(chosen, fields, number if schema.framed else None)
        except (ValueError, TypeError, KeyError, AttributeError, json_format.ParseError) as problem:
            raise UnfitError(f"the {part} of {source.relation} cannot be written: {problem}") from None


def _chosen(schema: Schema, fields: Mapping[str, Any], source: KafkaInput) -> tuple[MessageType, Mapping[str, Any]]:
    """The type of a message and its fields; of several types, the one whose columns are given."""
    if not schema.several:
        return schema.types[0], fields
    named = [each for each in schema.types if short_name(str(each.name)) in fields]
    if len(named) != 1:
        raise UnfitError(f"a message of {source.relation} is of one type: give the columns of one")
    return named[0], fields[short_name(str(named[0].name))]


def _frame(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def _registered(number: int, kind: str, message: MessageType) -> Registered:
    if kind == "avro":
        return Registered(number, "AVRO", message.content)
    *others, own = ProtobufSchema.read(message.content).files
    files = {each.name: _encoded(each) for each in others}
    return Registered(number, "PROTOBUF", _encoded(own), files)


def _encoded(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


# -- Avro -------------------------------------------------------------------------------------------------------------
def _avro(content: str, value: Any) -> bytes:
    schema = json.loads(content)
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), _fitted(value, schema))
    return out.getvalue()


_TIMES = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")


def _fitted(value: Any, schema: Any) -> Any:
    """Texts of YAML as the values that Avro's writer takes; what a row leaves out is null."""
    if isinstance(schema, list):
        if value is None:
            return None
        return _fitted(value, next(each for each in schema if each != "null"))
    if not isinstance(schema, Mapping) or value is None:
        return value
    logical, kind = schema.get("logicalType"), schema.get("type")
    if logical in _TIMES:
        return canonical(value, pa.timestamp("us", tz=None if str(logical).startswith("local") else "UTC"))
    if logical == "date":
        return canonical(value, pa.date32()) if not isinstance(value, date) or isinstance(value, datetime) else value
    if logical == "decimal":
        return Decimal(str(value))
    if kind == "record":
        return {each["name"]: _fitted(value.get(each["name"], each.get("default")), each["type"])
                for each in schema["fields"]}  # fmt: skip
    if kind == "array":
        return [_fitted(each, schema["items"]) for each in value]
    if kind == "map":
        return {name: _fitted(each, schema["values"]) for name, each in value.items()}
    if isinstance(kind, list | dict):
        return _fitted(value, kind)
    return value.encode() if kind in ("bytes", "fixed") and isinstance(value, str) else value


# -- Protobuf ---------------------------------------------------------------------------------------------------------
def _protobuf(kind: MessageType, fields: Mapping[str, Any], number: int | None) -> bytes:
    schema = ProtobufSchema.read(kind.content)
    made = message_factory.GetMessageClass(schema.message(str(kind.name)))()
    json_format.ParseDict(_texts(fields), made)
    body: bytes = made.SerializeToString()
    return body if number is None else _frame(number) + _indexes(schema.indexes(str(kind.name))) + body


def _texts(value: Any) -> Any:
    """Times as JSON has them."""
    if isinstance(value, datetime):
        return canonical(value, pa.timestamp("us", tz="UTC")).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {name: _texts(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value


def _indexes(indexes: Sequence[int]) -> bytes:
    """Which message of the schema it is, as Confluent writes it; the first is a zero alone."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(_zigzag(each) for each in (len(indexes), *indexes))


def _zigzag(number: int) -> bytes:
    left, out = number << 1, b""
    while left > 0x7F:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])
