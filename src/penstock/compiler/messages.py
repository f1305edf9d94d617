"""Keys and values with a schema: what of them is decoded, and by which schema.

Rules
- A format with a schema is decoded before the SELECT of its source, with what the schema registry knows when a stream
  starts (`penstock.engine.messages`); here it is said what is wanted of it.
- A spec holds of a registry's Avro schema only the fields that columns take: a change of another field is no change.
- Only the fields that the wanted columns take are decoded. Of a value something is always decoded, be it no field:
  whether it could be decoded decides whether there is a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.compiler.spec import Column, KafkaInput, MessageType, Schema
from penstock.project.avro import AvroSchema
from penstock.project.schemas import short_name

Path = tuple[str, ...]


def schema_of(source: KafkaInput, part: str) -> Schema | None:
    return source.key_schema if part == "key" else source.value_schema


def format_of(source: KafkaInput, part: str) -> str:
    return source.key_format if part == "key" else source.value_format


def with_own_fields(source: KafkaInput) -> KafkaInput:
    """The source with Avro schemas that have just the fields of its columns, and what messages are written with."""
    changes = {}
    for part in ("key", "value"):
        schema = schema_of(source, part)
        if schema is None or format_of(source, part) != "avro":
            continue
        taken = fields(schema, part, source.columns)
        types = tuple(
            MessageType(name=each.name, content=reader(each, taken[each.name or ""])) for each in schema.types
        )
        written = None
        if not schema.subjects:
            written = AvroSchema.read(schema.types[0].content).compact
        changes[f"{part}_schema"] = schema.model_copy(update={"types": types, "written": written})
    return source.model_copy(update=changes)


def fields(schema: Schema, part: str, columns: Sequence[Column]) -> dict[str, tuple[Path, ...]]:
    """Of each type of messages (by its name; "" without one) the fields that columns take; () is the whole."""
    found: dict[str, list[Path]] = {each.name or "": [] for each in schema.types}
    for column in columns:
        name, *path = column.origin.split(".")
        if column.read_as is None or name != part:
            continue
        for each, paths in found.items():
            if not schema.several or not path:
                paths.append(tuple(path))
            elif path[0] == short_name(each):
                paths.append(tuple(path[1:]))
    return {name: tuple(dict.fromkeys(paths)) for name, paths in found.items()}


def reader(kind: MessageType, wanted: Sequence[Path]) -> str:
    """The Avro schema of a type with these fields alone."""
    return AvroSchema.read(kind.content).reader(kind.name, wanted)


@dataclass(frozen=True)
class Messages:
    """The keys or values of a source that are decoded before its SELECT."""

    part: str  # key | value
    format: str  # avro | protobuf
    types: Mapping[str, str]  # full name ("" without one) -> Avro: the reader; Protobuf: descriptors, base64
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Protobuf: a.b of each type; "" is all of it
    framed: bool = True
    subjects: tuple[str, ...] = ()
    written: str | None = None  # Avro without a registry: what messages are written with
    record: bool = False  # whether the full name of the type is wanted
    whole: bool = False  # whether a column is a whole message, which then has no marks in it


def messages(source: KafkaInput, columns: Sequence[Column]) -> list[Messages]:
    """What has to be decoded for these columns."""
    found = []
    for part in ("key", "value"):
        schema = schema_of(source, part)
        if schema is None or (part == "key" and not any(_is_of(column, part) for column in columns)):
            continue
        taken = fields(schema, part, columns)
        kind = format_of(source, part)
        found.append(
            Messages(
                part=part,
                format=kind,
                types={
                    each.name or "": reader(each, taken[each.name or ""]) if kind == "avro" else each.content
                    for each in schema.types
                },
                fields={name: tuple(".".join(path) for path in paths) for name, paths in taken.items()}
                if kind == "protobuf"
                else {},
                framed=schema.framed,
                subjects=schema.subjects,
                written=schema.written,
                record=part == "value" and any(column.origin == "record" for column in columns),
                whole=any(() in paths for paths in taken.values()),
            )
        )
    return found


def _is_of(column: Column, part: str) -> bool:
    return column.read_as is not None and column.origin.split(".")[0] == part
