"""How each format of keys and values is decoded, as Spark SQL.

Rules
- A format is one class here and one in `penstock.project.formats` (its settings), under the same name; `DECODERS` is
  the only place that knows them all.
- A format with fields makes one struct of a key or value, with just the fields that columns name (`struct`); a format
  without makes none, and its columns are cast from the bytes.
- The struct of a key or value that is judged also says whether something in it did not fit (`mark`). What exactly is
  asked only of those: `faults` may cost as much as it likes.
- The text of an expression may have several lines; whoever embeds it indents them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.compiler.spec import Column
from penstock.compiler.sqltext import call, indented, listed, text, texts
from penstock.project.sparktypes import quoted


@dataclass(frozen=True)
class Part:
    """The key or the value of a record, and the columns that are fields of it."""

    name: str  # key | value
    columns: tuple[Column, ...]
    options: Mapping[str, str]

    def path(self, column: Column) -> list[str]:
        return column.origin.split(".")[1:]

    @property
    def mark(self) -> str:
        """The field that a judged struct has beside those of the columns: set when something did not fit."""
        taken = {self.path(column)[0].lower() for column in self.columns}
        name = "_unfit"
        while name in taken:
            name = f"_{name}"
        return name

    def only(self, column: Column) -> Part:
        return replace(self, columns=(column,))


class Decoder:
    """A format without fields: the bytes are the column."""

    shown = "binary"
    misfit = "the message has none of the declared columns"  # when no single column is at fault
    ready = False  # True: the struct is made before, and null where nothing could be decoded

    def struct(self, part: Part, *, judged: bool = False) -> str | None:
        """The expression that makes the struct from the column of the part's name; None if there is no struct.

        With `judged`, its field `part.mark` is not null when something in the key or value did not fit.
        """
        return None

    def marks(self) -> bool:
        """Whether a judged struct has the mark. One that has none is there whole or not at all."""
        return False

    def without_values(self, part: Part, struct: str) -> str:
        """Of a value without a single declared field: the condition that it is sound and holds just nothing."""
        return f"{struct} is not null"

    def unreadable(self, part: Part, struct: str) -> str:
        """The condition that nothing can be made of it at all."""
        return f"`{part.name}` is not null and {struct} is null"

    def faults(self, part: Part, struct: str) -> list[tuple[Column, str]]:
        """The columns that are fields, each with the condition that it does not fit."""
        return []


class Text(Decoder):
    shown = "text"


class Json(Decoder):
    shown = "JSON"

    def struct(self, part: Part, *, judged: bool = False) -> str | None:
        if not part.columns:
            return None
        return call("from_json", [_characters(part), texts(self._schema(part, judged)), _parsing(part, {}, judged)])

    def marks(self) -> bool:
        return True

    def without_values(self, part: Part, struct: str) -> str:
        """`{}` or nulls alone. Fields that nobody declared are something else: a message of another kind."""
        names: dict[str, dict[str, None]] = {}
        for column in part.columns:
            *above, last = part.path(column)
            names.setdefault(_keys(part, above), {})[text(last)] = None
        declared = [call("arrays_overlap", [keys, call("array", [*fields])]) for keys, fields in names.items()]
        holds_nothing = listed([f"coalesce(size({_keys(part)}), 0) < 1", *declared], "or")
        return f"{struct}.{quoted(part.mark)} is null\nand (\n{indented(holds_nothing)}\n)"

    def unreadable(self, part: Part, struct: str) -> str:
        return f"`{part.name}` is not null and {_keys(part)} is null"

    def faults(self, part: Part, struct: str) -> list[tuple[Column, str]]:
        found = []
        for column in part.columns:
            only = part.only(column)
            found.append((column, f"{self.struct(only, judged=True)}.{quoted(only.mark)} is not null"))
        return found

    def _schema(self, part: Part, judged: bool) -> list[str]:
        fields = [f"{quoted(name)} {_ddl(below)}" for name, below in self._tree(part).items()]
        return _listed(fields + ([f"{quoted(part.mark)} STRING"] if judged else []))

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
    misfit = "the line has another number of fields than the source has columns"
    _names = {"delimiter": "sep", "quote": "quote", "escape": "escape", "null_value": "nullValue"}

    def struct(self, part: Part, *, judged: bool = False) -> str | None:
        return self._struct(part, {part.path(column)[0]: column.type for column in part.columns}, judged)

    def marks(self) -> bool:
        return True

    def without_values(self, part: Part, struct: str) -> str:
        return f"{struct}.{quoted(part.mark)} is null"

    def faults(self, part: Part, struct: str) -> list[tuple[Column, str]]:
        """What is there as text and not as the type."""
        characters = self._struct(part, {part.path(column)[0]: "STRING" for column in part.columns}, False)
        names = {column: quoted(part.path(column)[0]) for column in part.columns}
        return [(c, f"{characters}.{name} is not null and {struct}.{name} is null") for c, name in names.items()]

    def _struct(self, part: Part, fields: Mapping[str, str], judged: bool) -> str | None:
        if not fields:
            return None
        schema = [f"{quoted(name)} {kind}" for name, kind in fields.items()]
        schema += [f"{quoted(part.mark)} STRING"] if judged else []
        own = {self._names[name]: value for name, value in part.options.items()}
        return call("from_csv", [_characters(part), texts(_listed(schema)), _parsing(part, own, judged)])


class WithSchema(Decoder):
    """Decoded with what the schema registry knows when a stream starts: see `penstock.compiler.messages`."""

    ready = True

    def __init__(self, shown: str) -> None:
        self.shown = shown


DECODERS: dict[str, Decoder] = {
    "json": Json(),
    "avro": WithSchema("Avro"),
    "protobuf": WithSchema("Protobuf"),
    "csv": Csv(),
    "string": Text(),
    "raw": Decoder(),
}

# A format whose fields are found by their place, not by their name: all of them are decoded, used or not.
BY_PLACE = frozenset({"csv"})


def _characters(part: Part) -> str:
    return f"cast(`{part.name}` as string)"


def _keys(part: Part, path: Sequence[str] = ()) -> str:
    """The keys of the JSON object at a path; null when none is there."""
    found = _characters(part)
    for step in path:
        found = f"from_json({found}, {text(f'{quoted(step)} STRING')}).{quoted(step)}"
    return f"json_object_keys({found})"


def _parsing(part: Part, own: Mapping[str, str], judged: bool) -> str:
    mark = {"columnNameOfCorruptRecord": part.mark} if judged else {}
    return _options({"mode": "PERMISSIVE", **own, **mark})


def _options(options: Mapping[str, str]) -> str:
    return f"map({', '.join(f'{text(name)}, {text(value)}' for name, value in options.items())})"


def _ddl(node: Any) -> str:
    if isinstance(node, str):
        return node
    return f"STRUCT<{', '.join(f'{quoted(name)}: {_ddl(below)}' for name, below in node.items())}>"


def _listed(fields: list[str]) -> list[str]:
    return [f"{field}, " for field in fields[:-1]] + fields[-1:]
