"""How the columns of a Kafka record become columns of a source, as PySpark expressions.

Rules
- A key or value is decoded once, with a schema that holds just the fields that columns name (`compiler.formats`).
- No field is part of another one, and a field has one type: the reading of sources sees to it.
- A whole key or value, headers and the record's own fields are cast to the declared type.
- Computed columns come last, each after those it uses; then all are put into the declared order.
"""

from __future__ import annotations

from penstock.compiler.formats import DECODERS, Decoder, Part
from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.text import literal
from penstock.project.expressions import columns_of, in_order
from penstock.project.sparktypes import quoted

_HEADER = '''def header(name: str) -> Column:
    """The value of the last header of that name."""
    return F.try_element_at(F.filter("headers", lambda each: each["key"] == name), F.lit(-1))["value"]
'''
_HEADERS = '''def headers() -> Column:
    """All headers as a map. A map takes a name once: the last one counts."""
    names = F.reverse(F.transform("headers", lambda each: each["key"]))

    def is_last(each: Column, index: Column) -> Column:
        return F.array_position(names, each["key"]) == F.size("headers") - index

    return F.map_from_entries(F.filter("headers", is_last))
'''
_RECORD_TYPES = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP"}


def needs_headers(source: KafkaInput) -> bool:
    return any(column.origin.startswith("header") for column in source.columns)


def decoder(source: KafkaInput, name: str) -> Decoder:
    """That of the source's keys or values."""
    return DECODERS[source.key_format if name == "key" else source.value_format]


def part(source: KafkaInput, name: str) -> Part:
    """The key or value with the columns that are fields of it."""
    columns = tuple(column for column in source.columns if column.origin.startswith(f"{name}."))
    return Part(name, columns, dict(source.key_options if name == "key" else source.value_options))


def has_value(source: KafkaInput) -> list[str]:
    """The condition that something could be decoded, as SQL, a part a column: their types differ, so no coalesce."""
    fields = [f"{_struct(column)} is not null" for column in part(source, "value").columns]
    fields = list(dict.fromkeys(fields))
    return [f"{field} or " for field in fields[:-1]] + fields[-1:]


def helpers(source_list: list[KafkaInput]) -> list[str]:
    """The functions for headers that the sources' columns call."""
    origins = {column.origin for source in source_list for column in source.columns}
    types = {column.type for source in source_list for column in source.columns if column.origin == "headers"}
    found = []
    if any(origin.startswith("header(") for origin in origins):
        found.append(_HEADER)
    if any(kind.startswith("MAP") for kind in types):
        found.append(_HEADERS)
    return found


def select_columns(source: KafkaInput) -> list[str]:
    """One PySpark expression a column that is not computed."""
    return [f"{_expression(column)}.alias({literal(column.name)})" for column in source.columns if column.expr is None]


def computed_columns(source: KafkaInput) -> list[tuple[str, str]]:
    """Name and PySpark expression of each computed column, each after those that it needs."""
    computed = {column.name: column for column in source.columns if column.expr is not None}
    known = {column.name.lower(): column.name for column in source.columns}
    uses = {name: columns_of(str(column.expr), known) for name, column in computed.items()}
    return [
        (name, f"F.expr({literal(computed[name].expr)}).cast({literal(_cased(computed[name].type))})")
        for name in in_order(uses)
    ]


def in_place(source: KafkaInput) -> bool:
    """Whether the computed columns come out in the declared order by themselves: they are the last, in their order."""
    names = [column.name for column in source.columns]
    made = [name for name, _ in computed_columns(source)]
    return names[len(names) - len(made) :] == made


def struct_of(name: str) -> str:
    """The name of the decoded key or value."""
    return "message" if name == "value" else "message_key"


def _struct(column: Column) -> str:
    name, *path = column.origin.split(".")
    return ".".join([struct_of(name), *(quoted(step) for step in path)])


def _expression(column: Column) -> str:
    origin, kind = column.origin, column.type
    if origin.startswith(("value.", "key.")):
        return f"F.col({literal(_struct(column))})"
    if origin.startswith("header("):
        name = origin[len("header(") : -1]
        return _cast(f"header({literal(name)})", kind)
    if origin == "headers":
        return _headers(kind)
    if origin in {"key", "value"}:
        return _cast(f"F.col({literal(origin)})", kind)
    own = _RECORD_TYPES[origin]
    return f"F.col({literal(origin)})" if own == kind else f"F.col({literal(origin)}).cast({literal(kind.lower())})"


def _cased(kind: str) -> str:
    """A type in lower case, as people write it; names of fields stay as they are."""
    return kind if "`" in kind else kind.lower()


def _cast(expression: str, kind: str) -> str:
    """Bytes to the declared type: anything but binary goes through text."""
    if kind == "BINARY":
        return expression
    text = f'{expression}.cast("string")'
    return text if kind == "STRING" else f"{text}.cast({literal(kind.lower())})"


def _headers(kind: str) -> str:
    if kind.startswith("ARRAY"):
        return f'F.col("headers").cast({literal(kind.lower())})'
    return f"headers().cast({literal(kind.lower())})"
