"""Avro schemas: what is in them, which Spark types their fields have, and the reader's part of one.

Rules
- A schema is a record, a union of records (several types in one topic), or a simple type (mostly of keys).
- Types are those that Spark's `from_avro` gives, with stable names in unions; a field that contains itself has none.
- A reader has only the fields that are asked for, so that the others are skipped and not decoded.
- A reader is fitted to each writer: a field that the writer does not have is null, unless it has a default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, fingerprint, parse_schema, to_parsing_canonical_form

from penstock.project.sparktypes import SparkType, struct

READ = "penstock_read"  # a field of every reader with a constant value: what could not be decoded does not have it

_SIMPLE = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "string": "STRING",
    "bytes": "BINARY", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_READ_AS = frozenset({"decimal", *(logical for _, logical in _LOGICAL)})
_KINDS = frozenset(_SIMPLE) | {"array", "map", "record", "null"}
_PRIMITIVE = frozenset(_SIMPLE) - {"enum", "fixed"} | {"null"}


class SchemaError(Exception):
    """Why a text is no schema."""


class NoTypeError(Exception):
    """Why a field can be no column."""


FieldHook = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class AvroSchema:
    """A schema with everything that it refers to."""

    root: Any
    named: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, text: str, files: Mapping[str, str] | None = None) -> AvroSchema:
        """The schema of a text; `files` are what it refers to, what is needed first first. Raises SchemaError."""
        named: dict[str, Any] = {}
        try:
            for content in (files or {}).values():
                parse_schema(_json(content), named_schemas=named, _write_hint=False)
            root = parse_schema(_json(text), named_schemas=named, _write_hint=False)
        except UnknownType as problem:
            raise SchemaError(f"it refers to '{problem.name}', which is not there") from None
        except (SchemaParseException, KeyError, TypeError, AttributeError) as problem:
            raise SchemaError(f"it is no Avro schema: {_first_line(problem)}") from None
        return cls(_plain(root), {name: _plain(node) for name, node in named.items()})

    @property
    def text(self) -> str:
        """The schema with all that it refers to, as JSON that reads well in a diff."""
        return json.dumps(self._inlined(self.root, set()), indent=2, ensure_ascii=False)

    @property
    def compact(self) -> str:
        """The same in one line."""
        return json.dumps(self._inlined(self.root, set()), separators=(",", ":"), ensure_ascii=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical form: it does not change with white space, docs and order of keys."""
        canonical = to_parsing_canonical_form(self._inlined(self.root, set()))
        return str(fingerprint(canonical, "SHA-256"))

    @property
    def records(self) -> list[str]:
        """The full names of the types of messages: one record, those of a union, or none of a simple type."""
        return [str(node["name"]) for _, node in self.branches() if node["type"] == "record"]

    def branches(self) -> list[tuple[int | None, Mapping[str, Any]]]:
        """The types of messages; in a union each has a number, which comes before the message."""
        if isinstance(self.root, list):
            return [(number, self.node(each)) for number, each in enumerate(self.root)]
        return [(None, self.node(self.root))]

    def type(self, record: str | None) -> SparkType:
        """The Spark type of a record, or of the whole schema if there is none; fields that cannot be columns are not
        part of it. Raises NoTypeError."""
        if record is None:
            return self._type(self.root, ())
        fields, _ = self.fields(record)
        return struct(fields)

    def fields(self, record: str) -> tuple[tuple[tuple[str, SparkType], ...], dict[str, str]]:
        """The fields of a record with their types, and those that can be no columns with the reason."""
        found: list[tuple[str, SparkType]] = []
        left_out: dict[str, str] = {}
        for field in self.named[record]["fields"]:
            try:
                found.append((str(field["name"]), self._type(field["type"], (record,))))
            except NoTypeError as problem:
                left_out[str(field["name"])] = str(problem)
        return tuple(found), left_out

    def reader(self, record: str | None, paths: Iterable[tuple[str, ...]]) -> str:
        """The schema with only the fields at these paths, as compact JSON; () is the whole."""
        if record is None:
            return json.dumps(self._pruned(self.root, {}, set()), separators=(",", ":"))
        needed: dict[str, set[str] | None] = {}
        for path in paths:
            self._need(record, path, needed)
        needed.setdefault(record, set())
        return json.dumps(self._pruned(record, needed, set()), separators=(",", ":"))

    # -- types --------------------------------------------------------------------------------------------------------
    def _type(self, node: Any, above: tuple[str, ...]) -> SparkType:
        if isinstance(node, list):
            return self._union(node, above)
        node = self.node(node)
        kind = str(node["type"])
        if kind == "array":
            return SparkType(f"ARRAY<{self._type(node['items'], above).ddl}>")
        if kind == "map":
            return SparkType(f"MAP<STRING, {self._type(node['values'], above).ddl}>")
        if kind == "record":
            name = str(node["name"])
            if name in above:
                raise NoTypeError(f"{name} contains itself")
            fields = tuple((str(f["name"]), self._type(f["type"], (*above, name))) for f in node["fields"])
            if not fields:
                raise NoTypeError(f"{name} has no fields")
            return struct(fields)
        if kind == "null":
            raise NoTypeError("it is always null")
        logical = node.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return SparkType(f"DECIMAL({node['precision']},{node.get('scale', 0)})")
        return SparkType(_LOGICAL.get((kind, str(logical)), _SIMPLE[kind]))

    def _union(self, nodes: list[Any], above: tuple[str, ...]) -> SparkType:
        members = [self.node(each) for each in nodes]
        members = [each for each in members if each["type"] != "null"]
        kinds = {str(each["type"]) for each in members}
        if not members:
            raise NoTypeError("it is always null")
        if len(members) == 1:
            return self._type(members[0], above)
        plain = not any("logicalType" in each for each in members)
        if plain and kinds == {"int", "long"}:
            return SparkType("BIGINT")
        if plain and kinds == {"float", "double"}:
            return SparkType("DOUBLE")
        fields = tuple((f"member_{_short(each).lower()}", self._type(each, above)) for each in members)
        if len({name for name, _ in fields}) < len(fields):
            raise NoTypeError("it is a union of types whose names differ in nothing but their case or namespace")
        return struct(fields)

    def node(self, node: Any) -> Mapping[str, Any]:
        """A type as a mapping; a name is looked up."""
        if isinstance(node, str):
            return {"type": node} if node in _PRIMITIVE else self.named[node]
        if isinstance(node["type"], Mapping):  # {"type": {"type": "string"}}
            return self.node(node["type"])
        if node["type"] not in _KINDS:
            return self.node(node["type"])
        found: Mapping[str, Any] = node
        return found

    # -- parts of it --------------------------------------------------------------------------------------------------
    def emitted(self, node: Any, field: FieldHook) -> Any:
        """A type with all that it refers to, each field as the hook makes it of its record's name and itself."""
        return self._inlined(node, set(), field)

    def _inlined(self, node: Any, done: set[str], hook: FieldHook | None = None) -> Any:
        """Each named type where it is used first; its name from then on."""
        if isinstance(node, list):
            return [self._inlined(each, done, hook) for each in node]
        if isinstance(node, str):
            if node in _PRIMITIVE or node in done:
                return node
            node = self.named[node]
        if "name" in node:
            if node["name"] in done:
                return node["name"]
            done.add(str(node["name"]))
        made = dict(node)
        for key in ("type", "items", "values"):
            if isinstance(made.get(key), Mapping | list) or (key != "type" and key in made):
                made[key] = self._inlined(made[key], done, hook)
        if "fields" in made:
            fields = [{**each, "type": self._inlined(each["type"], done, hook)} for each in made["fields"]]
            made["fields"] = [hook(str(made["name"]), each) if hook else each for each in fields]
        return made

    def _need(self, record: str, path: tuple[str, ...], needed: dict[str, set[str] | None]) -> None:
        """Mark what a path needs; a record that is needed as a whole is marked with None, and so is all below it."""
        if not path:
            if needed.get(record, ...) is None:
                return
            needed[record] = None
            for field in self.named[record]["fields"]:
                for below in self._records_in(field["type"]):
                    self._need(below, (), needed)
            return
        known = needed.setdefault(record, set())
        if known is not None:
            known.add(path[0])
        field = next(each for each in self.named[record]["fields"] if each["name"] == path[0])
        for below in self._records_in(field["type"]):
            self._need(below, path[1:], needed)

    def _records_in(self, node: Any) -> list[str]:
        if isinstance(node, list):
            return [name for each in node for name in self._records_in(each)]
        node = self.node(node)
        if node["type"] == "record":
            return [str(node["name"])]
        return self._records_in(node.get("items") or node["values"]) if node["type"] in ("array", "map") else []

    def _pruned(self, node: Any, needed: Mapping[str, set[str] | None], done: set[str]) -> Any:
        if isinstance(node, list):
            return [self._pruned(each, needed, done) for each in node]
        node = self.node(node)
        if "name" in node:
            if node["name"] in done:
                return node["name"]
            done.add(str(node["name"]))
        kept = {key: value for key, value in node.items() if key in _MEANING}
        if kept.get("logicalType") not in _READ_AS and "logicalType" in kept:
            del kept["logicalType"]  # Spark would make a type of it that tables cannot have
        if set(kept) == {"type"}:
            return kept["type"]
        for key in ("items", "values"):
            if key in kept:
                kept[key] = self._pruned(kept[key], needed, done)
        if node["type"] == "record":
            wanted = needed[str(node["name"])]
            kept["fields"] = [
                {**{key: value for key, value in each.items() if key in ("name", "default", "aliases")},
                 "type": self._pruned(each["type"], needed, done)}
                for each in node["fields"] if wanted is None or each["name"] in wanted
            ]  # fmt: skip
        return kept


_MEANING = frozenset({"type", "name", "aliases", "items", "values", "symbols", "default", "size", "logicalType",
                      "precision", "scale"})  # fmt: skip


# -- a reader and a writer --------------------------------------------------------------------------------------------
_WIDER = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """What a message of one writer is decoded with."""

    writer: str
    reader: str


def fitted(reader: AvroSchema, writer: AvroSchema, branch: int | None = None) -> Fitted | None:
    """Writer and reader that resolve against each other, whatever became of single fields; None if nothing is common.

    A field that the writer does not have, or has with another meaning, is null; the rest of the message is read.
    """
    fit = _Fit(reader, writer)
    root = writer.root if branch is None else writer.root[branch]
    if not fit.compatible(reader.root, root):
        return None
    made = reader.emitted(reader.root, lambda record, field: _nullable(field) if (record, field["name"]) in fit.absent
                          else field)  # fmt: skip
    if isinstance(made, dict) and made.get("type") == "record":
        made["fields"] = [*made["fields"], {"name": READ, "type": "boolean", "default": True}]
    written = writer.emitted(root, lambda record, field: {**field, "name": f"{field['name']}__other"}
                             if (record, field["name"]) in fit.other else field)  # fmt: skip
    return Fitted(json.dumps(written, separators=(",", ":")), json.dumps(made, separators=(",", ":")))


class _Fit:
    """Which fields of the reader a writer cannot fill, and which of the writer's must not be taken for them."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self.reader = reader
        self.writer = writer
        self.absent: set[tuple[str, str]] = set()  # of the reader: record, field
        self.other: set[tuple[str, str]] = set()  # of the writer
        self._seen: set[tuple[str, str]] = set()

    def compatible(self, wanted: Any, written: Any) -> bool:
        if isinstance(written, list):
            return self._any([(wanted, each) for each in written])
        if isinstance(wanted, list):
            return self._any([(each, written) for each in wanted])
        one, two = self.reader.node(wanted), self.writer.node(written)
        if one["type"] == two["type"] == "record":
            self._record(one, two)
            return True
        for kind, below in (("array", "items"), ("map", "values")):
            if one["type"] == two["type"] == kind:
                return self.compatible(one[below], two[below])
        if _meaning(one) != _meaning(two):
            return False
        if one["type"] == two["type"]:
            return one["type"] != "fixed" or (one["size"], one["name"]) == (two["size"], two["name"])
        return (two["type"], one["type"]) in _WIDER

    def _any(self, pairs: list[tuple[Any, Any]]) -> bool:
        """Whether one of them is; all are looked at, for what there is to find in them."""
        found = [self.compatible(*pair) for pair in pairs if "null" not in pair]
        return any(found)

    def _record(self, wanted: Mapping[str, Any], written: Mapping[str, Any]) -> None:
        pair = (str(wanted["name"]), str(written["name"]))
        if pair in self._seen:
            return
        self._seen.add(pair)
        known = {str(each["name"]): each for each in written["fields"]}
        for field in wanted["fields"]:
            name = next((each for each in (field["name"], *field.get("aliases", ())) if each in known), None)
            if name is None:
                if "default" not in field:
                    self.absent.add((pair[0], str(field["name"])))
            elif not self.compatible(field["type"], known[name]["type"]):
                self.absent.add((pair[0], str(field["name"])))
                self.other.add((pair[1], name))


def _meaning(node: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the bytes of a type stand for: Avro resolves the bytes alone, and would take milliseconds for micros."""
    logical = node.get("logicalType")
    if logical == "decimal":
        return logical, node.get("scale", 0)
    return (logical if (node["type"], logical) in _LOGICAL else None,)


def _nullable(field: Mapping[str, Any]) -> dict[str, Any]:
    kind = field["type"]
    members = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    return {**field, "type": ["null", *members], "default": None}


def _plain(node: Any) -> Any:
    """Without what fastavro writes into it."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items() if not str(key).startswith("__")}
    return node


def _short(node: Mapping[str, Any]) -> str:
    return str(node.get("name") or node["type"]).rpartition(".")[2]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        word = text.strip()
        if word in _PRIMITIVE:  # a simple type may stand without quotes
            return word
        raise SchemaError(f"it is not JSON: {problem}") from None


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
