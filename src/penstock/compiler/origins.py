"""Where in a record a column comes from, as Spark SQL.

Rules
- A field is a field of the decoded key or value (`struct_of`).
- With a schema, a column has the schema's type, and is cast where another one is declared.
- A whole key or value, headers and the record's own fields are cast to the declared type.
"""

from __future__ import annotations

from penstock.compiler.formats import DECODERS, Decoder, Part
from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.sqltext import call, indented, text
from penstock.project.sparktypes import quoted

TOPIC_PARTITION, TOMBSTONE = "topic_partition", "tombstone"  # origins of columns that no user declares
_MADE = {TOPIC_PARTITION: "concat(topic, '-', `partition`)", TOMBSTONE: "`value` is null"}
RECORD = "message_record"  # the full name of the value's type, made beside its struct
_RECORD_TYPES = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP"}


def decoder(source: KafkaInput, name: str) -> Decoder:
    """That of the source's keys or values."""
    return DECODERS[source.key_format if name == "key" else source.value_format]


def part(source: KafkaInput, name: str) -> Part:
    """The key or value with the columns that are fields of it."""
    columns = tuple(column for column in source.columns if column.origin.startswith(f"{name}."))
    return Part(name, columns, dict(source.key_options if name == "key" else source.value_options))


def struct_of(name: str) -> str:
    """The name of the decoded key or value."""
    return "message" if name == "value" else "message_key"


def field_of(column: Column, struct: str | None = None) -> str:
    """The field of the decoded key or value that a column is."""
    name, *path = column.origin.split(".")
    return ".".join([struct or struct_of(name), *(quoted(step) for step in path)])


def expression(column: Column) -> str:
    """The column, of the records with their decoded keys and values."""
    origin, kind = column.origin, column.type
    if column.read_as is not None:
        return field_of(column) if column.read_as == kind else f"cast({field_of(column)} as {kind})"
    if origin == "record":
        return RECORD if kind == "STRING" else f"cast({RECORD} as {kind})"
    if origin.startswith(("value.", "key.")):
        return field_of(column)
    if origin == "headers":
        return _headers(kind)
    if origin in _MADE:
        return _MADE[origin]
    given = given_bytes(column)
    if given is not None:
        return _cast(given, kind)
    return f"`{origin}`" if _RECORD_TYPES[origin] == kind else f"cast(`{origin}` as {kind})"


def given_bytes(column: Column) -> str | None:
    """The bytes that a column is cast from: a whole key, value or header; None for any other column."""
    if column.origin.startswith("header("):
        name = text(column.origin[len("header(") : -1])
        return f"try_element_at(filter(headers, each -> each.key = {name}), -1).value"
    return f"`{column.origin}`" if column.origin in {"key", "value"} else None


def _cast(given: str, kind: str) -> str:
    """Bytes to the declared type: anything but binary goes through text."""
    if kind == "BINARY":
        return given
    characters = f"cast({given} as STRING)"
    return characters if kind == "STRING" else f"cast({characters} as {kind})"


def _headers(kind: str) -> str:
    if kind.startswith("ARRAY"):
        return f"cast(headers as {kind})"
    # A map takes a name once: the last header of a name counts.
    names = "reverse(transform(headers, each -> each.key))"
    last = f"(each, i) -> array_position({names}, each.key) = size(headers) - i"
    return f"cast(\n{indented(call('map_from_entries', [call('filter', ['headers', last])]))} as {kind}\n)"
