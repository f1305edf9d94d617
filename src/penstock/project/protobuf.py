"""Protobuf schemas: the messages of a descriptor set, and which Spark types their fields have.

Rules
- Types follow Spark's own protobuf functions, except that unsigned numbers get a type that holds all of them and
  google.protobuf.Struct, Value and ListValue are JSON texts.
- A field with presence (optional, oneof, a message) is null when it is not set; one without has its default value.
- A message that contains itself, or has no fields, can be no column.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from penstock.project.avro import NoTypeError
from penstock.project.sparktypes import SparkType, struct

_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_DOUBLE: "DOUBLE", _F.TYPE_FLOAT: "FLOAT", _F.TYPE_BOOL: "BOOLEAN", _F.TYPE_STRING: "STRING",
    _F.TYPE_BYTES: "BINARY", _F.TYPE_ENUM: "STRING", _F.TYPE_INT32: "INT", _F.TYPE_SINT32: "INT",
    _F.TYPE_SFIXED32: "INT", _F.TYPE_INT64: "BIGINT", _F.TYPE_SINT64: "BIGINT", _F.TYPE_SFIXED64: "BIGINT",
    _F.TYPE_UINT32: "BIGINT", _F.TYPE_FIXED32: "BIGINT", _F.TYPE_UINT64: "DECIMAL(20,0)",
    _F.TYPE_FIXED64: "DECIMAL(20,0)",
}  # fmt: skip
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
TIMESTAMP = "google.protobuf.Timestamp"


@dataclass(frozen=True)
class ProtobufSchema:
    """The messages of a descriptor set; the last file is the schema's own, the others are what it imports."""

    encoded: str  # FileDescriptorSet, base64
    pool: Any
    files: tuple[FileDescriptorProto, ...]

    @classmethod
    def read(cls, encoded: str) -> ProtobufSchema:
        files = tuple(FileDescriptorSet.FromString(base64.b64decode(encoded)).file)
        pool = DescriptorPool()
        for file in files:
            pool.Add(file)
        return cls(encoded, pool, files)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the descriptors, which do not change with white space and comments."""
        return hashlib.sha256(base64.b64decode(self.encoded)).hexdigest()

    @property
    def messages(self) -> list[str]:
        """The full names of the schema's own messages, the outermost first."""
        own = self.pool.FindFileByName(self.files[-1].name)
        found = list(own.message_types_by_name.values())
        order = [proto.name for proto in self.files[-1].message_type]
        found.sort(key=lambda each: order.index(each.name))
        return [each.full_name for each in _with_nested(found)]

    @property
    def outermost(self) -> list[str]:
        package = f"{self.files[-1].package}." if self.files[-1].package else ""
        return [f"{package}{each.name}" for each in self.files[-1].message_type]

    def message(self, name: str) -> Descriptor:
        return self.pool.FindMessageTypeByName(name)

    def indexes(self, name: str) -> tuple[int, ...]:
        """Where a message is in its file, as Confluent's wire format says it: (0,) is the first of the outermost."""
        steps: list[int] = []
        found: Any = self.message(name)
        while found is not None:
            above = found.containing_type
            siblings = above.nested_types if above is not None else self._siblings(found)
            steps.insert(0, [each.full_name for each in siblings].index(found.full_name))
            found = above
        return tuple(steps)

    def at(self, indexes: tuple[int, ...]) -> str | None:
        """The full name of the schema's own message at that place."""
        return self.places().get(indexes)

    def places(self) -> dict[tuple[int, ...], str]:
        """The schema's own messages by their places, as Confluent's wire format says them."""
        return {self.indexes(name): name for name in self.messages}

    def _siblings(self, found: Descriptor) -> list[Descriptor]:
        file = next(each for each in self.files if each.name == found.file.name)
        return [found.file.message_types_by_name[each.name] for each in file.message_type]

    def type(self, name: str) -> SparkType:
        return struct(self.fields(name)[0])

    def fields(self, name: str) -> tuple[tuple[tuple[str, SparkType], ...], dict[str, str]]:
        """The fields of a message with their types, and those that can be no columns with the reason."""
        found: list[tuple[str, SparkType]] = []
        left_out: dict[str, str] = {}
        for field in self.message(name).fields:
            try:
                found.append((field.name, field_type(field, (name,))))
            except NoTypeError as problem:
                left_out[field.name] = str(problem)
        return tuple(found), left_out


def pruned(message: Descriptor, paths: Sequence[tuple[str, ...]]) -> list[tuple[str, SparkType]]:
    """The fields of a message that paths lead to, with types that have no other fields; () is all of it."""
    found: list[tuple[str, SparkType]] = []
    for field in message.fields:
        below = [path[1:] for path in paths if path and path[0] == field.name]
        if () in paths or () in below:
            with suppress(NoTypeError):
                found.append((field.name, field_type(field, (message.full_name,))))
        elif below:
            found.append((field.name, struct(tuple(pruned(field.message_type, below)))))
    return found


def field_type(field: FieldDescriptor, above: tuple[str, ...] = ()) -> SparkType:
    """The Spark type of a field. Raises NoTypeError."""
    if is_map(field):
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return SparkType(f"MAP<{_single(key, above).ddl}, {_single(value, above).ddl}>")
    kind = _single(field, above)
    return SparkType(f"ARRAY<{kind.ddl}>") if field.is_repeated else kind


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> SparkType:
    if field.message_type is None:
        return SparkType(_SCALARS[field.type])
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return SparkType("TIMESTAMP")
    if name in WRAPPERS:
        return SparkType(_SCALARS[field.message_type.fields_by_name["value"].type])
    if name in JSON:
        return SparkType("STRING")
    if name in above:
        raise NoTypeError(f"{name} contains itself")
    fields = tuple((each.name, field_type(each, (*above, name))) for each in field.message_type.fields)
    if not fields:
        raise NoTypeError(f"{name} has no fields")
    return struct(fields)


def _with_nested(messages: list[Descriptor]) -> Iterator[Descriptor]:
    for each in messages:
        if not each.GetOptions().map_entry:
            yield each
            yield from _with_nested(list(each.nested_types))
