"""How the columns of a Kafka record become columns of a source, as PySpark expressions.

Rules
- Values in JSON are decoded once, with a schema that holds just the paths that columns name.
- No path is part of another one, and a path has one type: the reading of sources sees to it.
- Key, headers and the record's own fields are cast to the declared type.
"""

from __future__ import annotations

from typing import Any

from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.text import literal
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


def value_schema(source: KafkaInput) -> list[str]:
    """The schema for from_json, a part a field; nothing if no column needs the decoded value."""
    fields = [f"{quoted(name)} {_ddl(below)}" for name, below in _tree(source).items()]
    return [f"{field}, " for field in fields[:-1]] + fields[-1:]


def has_value(source: KafkaInput) -> list[str]:
    """The condition that something could be decoded, as SQL, a part a column: their types differ, so no coalesce."""
    paths = dict.fromkeys(_path(column) for column in source.columns if _is_path(column))
    fields = [f"message.{path} is not null" for path in paths]
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
    """One PySpark expression a column."""
    return [f"{_expression(column, source)}.alias({literal(column.name)})" for column in source.columns]


def _tree(source: KafkaInput) -> dict[str, Any]:
    """The paths that columns name, nested; a leaf is a type."""
    tree: dict[str, Any] = {}
    for column in source.columns:
        if _is_path(column):
            *above, last = column.origin.split(".")[1:]
            level = tree
            for name in above:
                level = level.setdefault(name, {})
            level[last] = column.type
    return tree


def _ddl(node: Any) -> str:
    if isinstance(node, str):
        return node
    return f"STRUCT<{', '.join(f'{quoted(name)}: {_ddl(below)}' for name, below in node.items())}>"


def _is_path(column: Column) -> bool:
    return column.origin.startswith("value.")


def _path(column: Column) -> str:
    return ".".join(quoted(name) for name in column.origin.split(".")[1:])


def _expression(column: Column, source: KafkaInput) -> str:
    origin, kind = column.origin, column.type
    if _is_path(column):
        return f"F.col({literal(f'message.{_path(column)}')})"
    if origin.startswith("header("):
        name = origin[len("header(") : -1]
        return _cast(f"header({literal(name)})", kind)
    if origin == "headers":
        return _headers(kind)
    if origin in {"key", "value"}:
        return _cast(f"F.col({literal(origin)})", kind)
    own = _RECORD_TYPES[origin]
    return f"F.col({literal(origin)})" if own == kind else f"F.col({literal(origin)}).cast({literal(kind.lower())})"


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
