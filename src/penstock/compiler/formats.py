"""How each format of keys and values is decoded, as PySpark.

Rules
- A format is one class here and one in `penstock.project.formats` (its settings), under the same name; `DECODERS` is
  the only place that knows them all.
- A format with fields makes one struct of a key or value, with just the fields that columns name (`call`); a format
  without makes none, and its columns are cast from the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.compiler.spec import Column
from penstock.compiler.text import joined, literal
from penstock.project.sparktypes import quoted


@dataclass(frozen=True)
class Part:
    """The key or the value of a record, and the columns that are fields of it."""

    name: str  # key | value
    columns: tuple[Column, ...]
    options: Mapping[str, str]

    def path(self, column: Column) -> list[str]:
        return column.origin.split(".")[1:]


class Decoder:
    """A format without fields: the bytes are the column."""

    shown = "binary"
    imports: tuple[str, ...] = ()  # lines of the job beside those that every job has

    def schema(self, part: Part) -> list[str]:
        """The schema of the struct as Spark's DDL, a text a field; nothing if there is no struct."""
        return []

    def call(self, part: Part) -> tuple[str, list[str]] | None:
        """Function and arguments of the call that makes the struct from the column of the part's name."""
        return None


class Text(Decoder):
    shown = "text"


class Json(Decoder):
    shown = "JSON"

    def schema(self, part: Part) -> list[str]:
        return _listed([f"{quoted(name)} {_ddl(below)}" for name, below in self._tree(part).items()])

    def call(self, part: Part) -> tuple[str, list[str]] | None:
        if not part.columns:
            return None
        return "F.from_json", [_text(part), joined(self.schema(part), indent=8), '{"mode": "PERMISSIVE"}']

    def _tree(self, part: Part) -> dict[str, Any]:
        """The paths that columns name, nested; a leaf is a type."""
        tree: dict[str, Any] = {}
        for column in part.columns:
            *above, last = part.path(column)
            level = tree
            for name in above:
                level = level.setdefault(name, {})
            level[last] = column.type
        return tree


class Csv(Decoder):
    shown = "CSV"
    _options = {"delimiter": "sep", "quote": "quote", "escape": "escape", "null_value": "nullValue"}

    def schema(self, part: Part) -> list[str]:
        return _listed([f"{quoted(name)} {kind}" for name, kind in self._fields(part).items()])

    def call(self, part: Part) -> tuple[str, list[str]] | None:
        if not part.columns:
            return None
        options = {"mode": "PERMISSIVE"} | {self._options[name]: value for name, value in part.options.items()}
        texts = ", ".join(f"{literal(name)}: {literal(value)}" for name, value in options.items())
        return "F.from_csv", [_text(part), joined(self.schema(part), indent=8), f"{{{texts}}}"]

    def _fields(self, part: Part) -> dict[str, str]:
        return {part.path(column)[0]: column.type for column in part.columns}


DECODERS: dict[str, Decoder] = {"json": Json(), "csv": Csv(), "string": Text(), "raw": Decoder()}


def _text(part: Part) -> str:
    return f'F.col({literal(part.name)}).cast("string")'


def _ddl(node: Any) -> str:
    if isinstance(node, str):
        return node
    return f"STRUCT<{', '.join(f'{quoted(name)}: {_ddl(below)}' for name, below in node.items())}>"


def _listed(fields: list[str]) -> list[str]:
    return [f"{field}, " for field in fields[:-1]] + fields[-1:]
