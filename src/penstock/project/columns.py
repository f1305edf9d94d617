"""The columns of a source: where each comes from, and whether it can.

Rules
- A column without `from` or `expr` is the field of its name, in a format that has fields, or else the whole value.
- A message is decoded once: no field is part of another column's field, and a field has one type.
- Fields of a flat format belong to the columns in the order of their declaration.
- A computed column is checked against all other columns; its expression is kept as it is written.
- With a schema (avro, protobuf), a column's field must be in it and fit the declared type, which may be left out, and
  the fields of the value that no declared column takes are columns, too, after the declared ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import (
    COLUMN_NO_TYPE,
    COLUMN_ORIGIN,
    COLUMN_OVERLAP,
    COLUMN_TWICE,
    COLUMN_TYPE,
    COLUMN_UNFIT,
    FIELD_UNKNOWN,
    HEADER_NO_NAME,
    SOURCE_KEY_UNKNOWN,
    SOURCE_NO_COLUMNS,
    SOURCE_VALUE_INVALID,
)
from penstock.project.expressions import ExpressionError, columns_of, in_order
from penstock.project.formats import FormatSettings
from penstock.project.positions import Named, Positions, Step
from penstock.project.problems import first_problem
from penstock.project.schemas import PartSchema
from penstock.project.settings import RECORD, ColumnSettings, StreamSettings
from penstock.project.sparktypes import KNOWN, SparkType, TypeSyntaxError, fits, parse_type

COMPUTED = "computed"
_HEADERS_TYPES = frozenset({
    "MAP<STRING, STRING>", "MAP<STRING, BINARY>", "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>",
    "ARRAY<STRUCT<`key`: STRING, `value`: STRING>>",
})  # fmt: skip
_HEADER = re.compile(r"header\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class SourceColumn:
    """A declared column: its type and where it comes from."""

    name: str
    type: SparkType
    origin: str  # value[.a.b] | key[.a.b] | headers | header(x) | topic | partition | offset | timestamp | computed
    expr: str | None = None  # of a computed column
    read_as: SparkType | None = None  # the type that its schema has for it; None without a schema


class ColumnReader:
    """Reads the columns of one source table."""

    def __init__(
        self,
        where: Positions,
        of_table: tuple[Step, ...],
        shown: str,
        settings: StreamSettings,
        schemas: Mapping[str, PartSchema],
    ) -> None:
        self.where = where
        self.of_table = of_table
        self.shown = shown
        self.formats: dict[str, FormatSettings] = {"key": settings.key, "value": settings.value}
        self.schemas = schemas

    def read(self, declared: Mapping[str, tuple[Mapping[str, Any], Any]]) -> tuple[SourceColumn, ...]:
        """The columns; `declared` has for each name the manifest's entry and its stream settings."""
        if not declared and self.formats["value"].needs_columns:
            raise SOURCE_NO_COLUMNS.error(f"source {self.shown} has no columns.", at=self.where.at(*self.of_table))
        self._no_column_twice(list(declared))
        columns = tuple(self._column(name, *each) for name, each in declared.items())
        columns += tuple(self._inferred(columns))
        self._no_overlap(columns)
        self._computed(columns)
        return columns

    # -- one column ---------------------------------------------------------------------------------------------------

    def _column(self, name: str, entry: Mapping[str, Any], raw: Any) -> SourceColumn:
        settings = self._settings(name, raw)
        if not entry.get("data_type") and settings.expr is None and (typed := self._typed(name, settings)) is not None:
            return typed
        kind = self._type(name, entry.get("data_type"))
        if settings.expr is not None:
            if settings.origin is not None:
                raise SOURCE_VALUE_INVALID.error(
                    f"column '{name}' has both 'from' and 'expr'.", at=self._at(name, "expr"), hint="Keep one of them."
                )
            return SourceColumn(name, kind, COMPUTED, settings.expr)
        origin = self._origin_of(name, settings)
        self._fits(name, kind, origin)
        found: SparkType | None = None
        if (known := self._schema_type(name, origin, kind)) is not None:
            origin, found = known
            if not fits(found, kind):
                raise COLUMN_UNFIT.error(
                    f"column '{name}' is declared as {kind.ddl}, the schema has {found.ddl}.",
                    at=self.where.at(*self.of_table, "columns", Named(name), "data_type"),
                    hint=f"Declare it as '{found.ddl.lower() if not found.fields else found.ddl}', or leave out its "
                    "data_type, and cast in a model.",
                )
        return SourceColumn(name, kind, origin, read_as=found)

    # -- with a schema ------------------------------------------------------------------------------------------------

    def _typed(self, name: str, settings: ColumnSettings) -> SourceColumn | None:
        """A column whose type is the schema's; None if there is no schema for it."""
        origin = self._origin_of(name, settings)
        known = self._schema_type(name, origin, None)
        return None if known is None else SourceColumn(name, known[1], known[0], read_as=known[1])

    def _schema_type(self, name: str, origin: str, kind: SparkType | None) -> tuple[str, SparkType] | None:
        """The origin as the schema spells it, and the type it has there; None if no schema says anything of it."""
        part, _, path = origin.partition(".")
        if part not in self.schemas:
            return None
        found = self.schemas[part].type
        if not path:
            raw = kind is not None and kind.ddl == "BINARY" and found.ddl != "BINARY"
            return None if raw else (origin, found)
        steps = [part]
        for step in path.split("."):
            below = dict(found.fields)
            right = step if step in below else next((each for each in below if each.lower() == step.lower()), None)
            if right is None:
                where = f"'{'.'.join(steps[1:])}' of the schema" if len(steps) > 1 else "the schema"
                raise FIELD_UNKNOWN.error(
                    f"column '{name}' takes {origin}, but {where} has no field '{step}'.", at=self._at(name, "from"),
                    hint=did_you_mean(step, below) if below else None,
                )  # fmt: skip
            steps.append(right)
            found = below[right]
        return ".".join(steps), found

    def _inferred(self, declared: tuple[SourceColumn, ...]) -> Iterator[SourceColumn]:
        """A column for each field of the value that no declared column takes."""
        if "value" not in self.schemas:
            return
        kind = self.schemas["value"].type
        taken = {column.origin.split(".")[1] for column in declared if column.origin.startswith("value.")}
        names = {column.name.lower() for column in declared}
        if not kind.fields and "value" not in {column.origin for column in declared} and "value" not in names:
            yield SourceColumn("value", kind, "value", read_as=kind)
        for name, found in kind.fields:
            if name not in taken and name.lower() not in names:
                names.add(name.lower())
                yield SourceColumn(name, found, f"value.{name}", read_as=found)

    def _type(self, name: str, text: Any) -> SparkType:
        if not text:
            raise COLUMN_NO_TYPE.error(f"column '{name}' of {self.shown} has no data_type.", at=self._at(name))
        try:
            return parse_type(str(text))
        except TypeSyntaxError as problem:
            raise COLUMN_TYPE.error(
                f"data_type '{text}' of column '{name}' is not a Spark SQL type: {problem.reason}.",
                at=self.where.at(*self.of_table, "columns", Named(name), "data_type"),
                hint=did_you_mean(problem.word, KNOWN),
            ) from None

    def _is_whole(self, part: str) -> bool:
        if part in self.schemas:
            return not self.schemas[part].type.fields
        return self.formats[part].fields == "whole"

    def _settings(self, name: str, raw: Any) -> ColumnSettings:
        if raw is None:
            return ColumnSettings()
        if not isinstance(raw, Mapping):
            raise SOURCE_VALUE_INVALID.error("'stream' of a column must be a mapping.", at=self._at(name))
        try:
            return ColumnSettings.model_validate({str(key): value for key, value in raw.items()})
        except ValidationError as problem:
            found = first_problem(problem, ColumnSettings)
            message = f"column '{name}': {found.message}"
            if found.kind is SOURCE_KEY_UNKNOWN:
                message = f"setting '{found.steps[-1]}' of column '{name}' is unknown."
            raise found.kind.error(message, at=self._at(name, *found.steps), hint=found.hint) from None

    def _origin_of(self, name: str, settings: ColumnSettings) -> str:
        if settings.origin is not None:
            return self._origin(name, settings.origin)
        return "value" if self._is_whole("value") else f"value.{name}"

    def _origin(self, name: str, origin: str) -> str:
        if origin == "record" and "value" not in self.schemas:
            hint = "A value of the format avro or protobuf has one."
            why = f"because a value of the format {self.formats['value'].format} has none"
            raise self._unknown(name, origin, hint, why)
        if origin in RECORD:
            return origin
        header = _HEADER.fullmatch(origin)
        if origin == "header" or (header is not None and not header.group(1).strip()):
            raise HEADER_NO_NAME.error(
                f"column '{name}' comes from header() without a name.", at=self._at(name, "from")
            )
        if header is not None:
            return f"header({header.group(1).strip()})"
        part, _, path = origin.partition(".")
        if part not in self.formats or not path or not all(path.split(".")):
            hint = did_you_mean(origin, [*RECORD, "header(name)"])
            raise self._unknown(name, origin, hint if hint.startswith("Did") else None)
        chosen = self.formats[part]
        if self._is_whole(part):
            hint = f"Use '{part}' alone, or another format for the {part}."
            raise self._unknown(name, origin, hint, f"because the format {chosen.format} has no fields")
        if chosen.fields == "flat" and "." in path:
            hint = f"Use '{part}.{path.split('.', maxsplit=1)[0]}'."
            raise self._unknown(name, origin, hint, f"because fields of {chosen.format} have no fields of their own")
        return origin

    def _unknown(self, name: str, origin: str, hint: str | None, why: str = "which is unknown") -> PenstockError:
        message = f"column '{name}' comes from '{origin}', {why}."
        if why.startswith("because"):
            message = f"column '{name}' cannot come from '{origin}' {why}."
        return COLUMN_ORIGIN.error(message, at=self._at(name, "from"), hint=hint)

    def _fits(self, name: str, kind: SparkType, origin: str) -> None:
        part, _, path = origin.partition(".")
        message, hint = "", None
        if origin == "headers":
            if kind.ddl not in _HEADERS_TYPES:
                message = f"column '{name}' holds all headers and cannot be {kind.ddl.lower()}."
                hint = "Use map<string, string>, or 'header(name)' for one of them."
        elif origin.startswith("header(") or origin in {"topic", "partition", "offset", "timestamp", "record"}:
            if kind.is_nested:
                message = f"column '{name}' comes from {origin} and cannot be {kind.ddl.lower()}."
                hint = "Use a simple type."
        elif part in self.schemas:
            return  # the schema decides
        elif path:
            hint = self.formats[part].refuses(kind)
            message = f"column '{name}' cannot be {kind.ddl.lower()} in the format {self.formats[part].format}."
        else:
            whole = self.formats[part].refuses(kind) if self.formats[part].fields == "whole" else None
            if kind.is_nested:
                whole = "Use string or binary, or name a field: value.path.to.field."
            hint = whole
            message = f"column '{name}' is the whole {part} and cannot be {kind.ddl.lower()}."
        if message and hint:
            raise COLUMN_TYPE.error(
                message, at=self.where.at(*self.of_table, "columns", Named(name), "data_type"), hint=hint
            )

    # -- all columns --------------------------------------------------------------------------------------------------

    def _no_column_twice(self, names: list[str]) -> None:
        written = self.where.names(*self.of_table, "columns") or names  # dbt folds equal names into one
        seen: set[str] = set()
        for index, name in enumerate(written):
            if name.lower() in seen:
                raise COLUMN_TWICE.error(
                    f"column '{name}' of {self.shown} is declared twice.",
                    at=self.where.at(*self.of_table, "columns", Named(name, written[:index].count(name))),
                )
            seen.add(name.lower())

    def _no_overlap(self, columns: tuple[SourceColumn, ...]) -> None:
        fields = [(column, column.origin.lower().split(".")) for column in columns if "." in column.origin
                  and column.origin.startswith(("value.", "key."))]  # fmt: skip
        for index, (column, path) in enumerate(fields):
            for other, before in fields[:index]:
                shared = min(len(path), len(before))
                if path[:shared] != before[:shared]:
                    continue
                if column.origin == other.origin and column.type == other.type:
                    continue
                raise COLUMN_OVERLAP.error(
                    f"columns '{other.name}' and '{column.name}' take {column.origin} in two ways.",
                    at=self._at(column.name, "from"),
                )

    def _computed(self, columns: tuple[SourceColumn, ...]) -> None:
        known = {column.name.lower(): column.name for column in columns}
        uses: dict[str, frozenset[str]] = {}
        for column in columns:
            if column.expr is not None:
                try:
                    uses[column.name] = columns_of(column.expr, known)
                except ExpressionError as problem:
                    raise self._expression(column.name, problem) from None
        for name in uses:
            try:
                in_order({name: uses[name], **uses})
            except ExpressionError as problem:
                raise self._expression(name, problem) from None

    def _expression(self, name: str, problem: ExpressionError) -> PenstockError:
        message = f"the expression of column '{name}' cannot be used: {problem.message}."
        return problem.kind.error(message, at=self._at(name, "expr"), hint=problem.hint)

    def _at(self, name: str, *steps: str) -> Location:
        above = (*self.of_table, "columns", Named(name))
        if not steps:
            return self.where.at(*above)
        return self.where.first((*above, "config", "meta", "stream", *steps), (*above, "meta", "stream", *steps))
