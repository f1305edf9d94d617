"""A source table of the manifest, as a typed and validated stream source.

Rules
- Settings live below `config.meta.stream` (or `meta.stream`) of the table; those of the source are their defaults.
  dbt does not merge the two, so it is done here, key by key.
- A column's settings live below its own `config.meta.stream` (or `meta.stream`).
- Every wrong or unknown setting is an error of its own kind, with the file and line of the YAML.
- Values come from the manifest; the YAML file is read again for positions and for columns that dbt folded into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import Location, did_you_mean
from penstock.errors.catalogue import (
    COLUMN_NO_TYPE,
    COLUMN_ORIGIN,
    COLUMN_TWICE,
    COLUMN_TYPE,
    FORMAT_UNKNOWN,
    SOURCE_KEY_UNKNOWN,
    SOURCE_NO_COLUMNS,
    SOURCE_NOT_STREAM,
    SOURCE_TYPE_UNKNOWN,
    SOURCE_VALUE_INVALID,
)
from penstock.project.positions import Named, Positions, Step
from penstock.project.sparktypes import KNOWN, SparkType, TypeSyntaxError, parse_type
from penstock.project.watermark import WatermarkSetting, read_watermark, said

SOURCE_TYPES = ("kafka",)
VALUE_FORMATS = ("json", "string", "raw")
KEY_FORMATS = ("string", "raw")
STARTS = ("earliest", "latest")
_KEYS = frozenset({"type", "topic", "bootstrap.servers", "value", "key", "start", "watermark"})
_COLUMN_KEYS = frozenset({"from"})
_RECORD = ("key", "headers", "topic", "partition", "offset", "timestamp", "value")
_HEADERS_TYPES = frozenset({
    "MAP<STRING, STRING>", "MAP<STRING, BINARY>", "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>",
    "ARRAY<STRUCT<`key`: STRING, `value`: STRING>>",
})  # fmt: skip
_HEADER = re.compile(r"header\((.*)\)", re.DOTALL)
# Options of Spark's Kafka source that Penstock sets itself or that would break exactly-once.
_RESERVED = frozenset({
    "kafka.bootstrap.servers", "kafka.group.id", "kafka.auto.offset.reset", "kafka.enable.auto.commit",
    "kafka.key.deserializer", "kafka.value.deserializer", "kafka.interceptor.classes",
})  # fmt: skip


@dataclass(frozen=True)
class SourceColumn:
    """A declared column: its type and where in the record it comes from."""

    name: str
    type: SparkType
    origin: str  # value.a.b | value | key | headers | header(x) | topic | partition | offset | timestamp


@dataclass(frozen=True)
class StreamSource:
    """A topic that dynamic tables read."""

    unique_id: str
    relation: str  # shop.clicks
    topic: str
    bootstrap: str | None
    start: str
    key_format: str
    value_format: str
    columns: tuple[SourceColumn, ...]
    watermark: WatermarkSetting | None
    options: tuple[tuple[str, str], ...]


def is_stream(source: Mapping[str, Any]) -> bool:
    """Whether the source table has stream settings of its own or from its source."""
    return _own_settings(source) is not None or _source_settings(source) is not None


def read_source(source: Mapping[str, Any], project_dir: Path) -> StreamSource:
    """The typed source of a manifest entry; raises the first thing that is wrong with it."""
    return _Reader(source, project_dir).read()


def relation_of(node: Mapping[str, Any]) -> str:
    """schema.identifier of any manifest node."""
    return f"{node['schema']}.{node.get('identifier') or node.get('alias') or node['name']}"


def _own_settings(source: Mapping[str, Any]) -> Any:
    for holder in (source.get("config") or {}, source):
        meta = holder.get("meta") or {}
        if isinstance(meta, Mapping) and "stream" in meta:
            return meta["stream"]
    return None


def _source_settings(source: Mapping[str, Any]) -> Any:
    meta = source.get("source_meta") or {}
    return meta.get("stream") if isinstance(meta, Mapping) else None


class _Reader:
    def __init__(self, source: Mapping[str, Any], project_dir: Path) -> None:
        self.source = source
        file = str(source.get("original_file_path") or source.get("path") or "")
        self.where = Positions.read(project_dir / file, file)
        self.of_source: tuple[Step, ...] = ("sources", Named(str(source.get("source_name"))))
        self.of_table: tuple[Step, ...] = (*self.of_source, "tables", Named(str(source["name"])))
        self.shown = f"{source.get('source_name')}.{source['name']}"

    def read(self) -> StreamSource:
        settings = self._settings()
        kind = settings.get("type", "kafka")
        if kind not in SOURCE_TYPES:
            raise SOURCE_TYPE_UNKNOWN.error(
                f"source type '{kind}' is unknown.", at=self._at("type"), hint=did_you_mean(str(kind), SOURCE_TYPES)
            )
        options = self._options(settings)
        for key in settings:
            if key not in _KEYS and not key.startswith("kafka."):
                raise SOURCE_KEY_UNKNOWN.error(
                    f"setting '{key}' is unknown.", at=self._at(key), hint=did_you_mean(key, _KEYS)
                )
        topic = self._text(settings, "topic")
        if not topic:
            raise SOURCE_VALUE_INVALID.error(
                f"source {self.shown} has no topic.", at=self._at("topic"), hint="Add 'topic:' with a Kafka topic."
            )
        start = self._text(settings, "start") or "earliest"
        if start not in STARTS:
            raise SOURCE_VALUE_INVALID.error(
                f"'start' is '{start}'.", at=self._at("start"), hint=did_you_mean(start, STARTS)
            )
        value_format = self._format(settings, "value", "json", VALUE_FORMATS)
        key_format = self._format(settings, "key", "string", KEY_FORMATS)
        columns = self._columns(value_format)
        return StreamSource(
            unique_id=str(self.source["unique_id"]),
            relation=relation_of(self.source),
            topic=topic,
            bootstrap=self._text(settings, "bootstrap.servers"),
            start=start,
            key_format=key_format,
            value_format=value_format,
            columns=columns,
            watermark=self._watermark(settings, columns),
            options=options,
        )

    # -- settings of the table ----------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        own, above = _own_settings(self.source), _source_settings(self.source)
        if own is None and above is None:
            raise SOURCE_NOT_STREAM.error(f"source {self.shown} is no stream.", at=self.where.at(*self.of_table))
        for settings in (above, own):
            if settings is not None and not isinstance(settings, Mapping):
                raise SOURCE_VALUE_INVALID.error("'stream' must be a mapping.", at=self._at())
        return {**(above or {}), **(own or {})}

    def _text(self, settings: Mapping[str, Any], key: str) -> str | None:
        value = settings.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise SOURCE_VALUE_INVALID.error(f"'{key}' must be a text, not {said(value)}.", at=self._at(key))
        return value

    def _format(self, settings: Mapping[str, Any], part: str, default: str, known: tuple[str, ...]) -> str:
        value = settings.get(part)
        if value is None:
            return default
        if not isinstance(value, Mapping):
            raise SOURCE_VALUE_INVALID.error(
                f"'{part}' must be a mapping, not {said(value)}.", at=self._at(part),
                hint=f"Write '{part}: {{format: {default}}}'.",
            )  # fmt: skip
        for key in value:
            if key != "format":
                raise SOURCE_KEY_UNKNOWN.error(
                    f"setting '{part}.{key}' is unknown.",
                    at=self._at(part, str(key)),
                    hint=did_you_mean(key, ["format"]),
                )
        name = value.get("format", default)
        if name not in known:
            raise FORMAT_UNKNOWN.error(
                f"format '{name}' is unknown for the {part}.", at=self._at(part, "format"),
                hint=did_you_mean(str(name), known),
            )  # fmt: skip
        return str(name)

    def _options(self, settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        options: list[tuple[str, str]] = []
        for key, value in settings.items():
            if not key.startswith("kafka."):
                continue
            if key in _RESERVED:
                raise SOURCE_KEY_UNKNOWN.error(
                    f"setting '{key}' is not for a source to set.", at=self._at(key),
                    hint="Use 'bootstrap.servers' and 'start'.",
                )  # fmt: skip
            if isinstance(value, Mapping | list) or value is None:
                raise SOURCE_VALUE_INVALID.error(f"'{key}' must be a text or a number.", at=self._at(key))
            options.append((key, str(value).lower() if isinstance(value, bool) else str(value)))
        return tuple(sorted(options))

    def _watermark(self, settings: Mapping[str, Any], columns: tuple[SourceColumn, ...]) -> WatermarkSetting | None:
        value = settings.get("watermark")
        if value is None:
            return None
        types = {column.name: column.type for column in columns}
        return read_watermark(value, types, self._watermark_at, SOURCE_KEY_UNKNOWN)

    def _watermark_at(self, *steps: str) -> Location:
        return self._at("watermark", *steps)

    # -- columns ------------------------------------------------------------------------------------------------------

    def _columns(self, value_format: str) -> tuple[SourceColumn, ...]:
        declared: Mapping[str, Mapping[str, Any]] = self.source.get("columns") or {}
        if not declared:
            raise SOURCE_NO_COLUMNS.error(f"source {self.shown} has no columns.", at=self.where.at(*self.of_table))
        self._no_column_twice([str(column.get("name", name)) for name, column in declared.items()])
        columns = tuple(
            self._column(str(each.get("name", name)), each, value_format) for name, each in declared.items()
        )
        self._no_path_in_two_ways(columns)
        return columns

    def _no_path_in_two_ways(self, columns: tuple[SourceColumn, ...]) -> None:
        """A value is decoded once, so a path has one type and is not part of another path."""
        paths = [(column, column.origin.split(".")[1:]) for column in columns if column.origin.startswith("value.")]
        for index, (column, path) in enumerate(paths):
            for other, before in paths[:index]:
                shared = min(len(path), len(before))
                if [step.lower() for step in path[:shared]] != [step.lower() for step in before[:shared]]:
                    continue
                if path == before and column.type == other.type:
                    continue
                raise COLUMN_ORIGIN.error(
                    f"columns '{other.name}' and '{column.name}' take {column.origin} in two ways.",
                    at=self._column_at((*self.of_table, "columns", Named(column.name)), "from"),
                    hint="Declare the larger one as a struct, and take it apart in a model.",
                )

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

    def _column(self, name: str, column: Mapping[str, Any], value_format: str) -> SourceColumn:
        at = (*self.of_table, "columns", Named(name))
        text = column.get("data_type")
        if not text:
            raise COLUMN_NO_TYPE.error(f"column '{name}' of {self.shown} has no data_type.", at=self.where.at(*at))
        try:
            kind = parse_type(str(text))
        except TypeSyntaxError as problem:
            raise COLUMN_TYPE.error(
                f"data_type '{text}' of column '{name}' is not a Spark SQL type: {problem.reason}.",
                at=self.where.at(*at, "data_type"), hint=did_you_mean(problem.word, KNOWN),
            ) from None  # fmt: skip
        return SourceColumn(name, kind, self._origin(name, column, kind, value_format, at))

    def _origin(
        self, name: str, column: Mapping[str, Any], kind: SparkType, value_format: str, at: tuple[Step, ...]
    ) -> str:
        settings = _own_settings(column)
        default = f"value.{name}" if value_format == "json" else "value"
        if settings is None:
            return default
        if not isinstance(settings, Mapping):
            raise SOURCE_VALUE_INVALID.error("'stream' of a column must be a mapping.", at=self.where.at(*at, "config"))
        for key in settings:
            if key not in _COLUMN_KEYS:
                raise SOURCE_KEY_UNKNOWN.error(
                    f"setting '{key}' of column '{name}' is unknown.", at=self._column_at(at, str(key)),
                    hint=did_you_mean(str(key), _COLUMN_KEYS),
                )  # fmt: skip
        origin = settings.get("from", default)
        if not isinstance(origin, str) or not _origin_known(origin, value_format):
            shown = "header() without a name" if _empty_header(origin) else f"'{origin}'"
            names = [*_RECORD, "header(name)"]
            raise COLUMN_ORIGIN.error(
                f"column '{name}' comes from {shown}, which is unknown.", at=self._column_at(at, "from"),
                hint=None if _empty_header(origin) else _origin_hint(str(origin), names),
            )  # fmt: skip
        header = _HEADER.fullmatch(origin)
        if header is not None:
            return f"header({header.group(1).strip()})"
        if origin == "headers" and kind.ddl not in _HEADERS_TYPES:
            raise COLUMN_TYPE.error(
                f"column '{name}' holds all headers and cannot be {kind.ddl.lower()}.",
                at=self.where.at(*at, "data_type"), hint="Use map<string, string>, or 'header(name)' for one of them.",
            )  # fmt: skip
        if origin in {"key", "value"} and kind.ddl.startswith(("ARRAY", "MAP", "STRUCT")):
            raise COLUMN_TYPE.error(
                f"column '{name}' is the whole {origin} and cannot be {kind.ddl.lower()}.",
                at=self.where.at(*at, "data_type"), hint="Use string or binary, or name a field: value.path.to.field.",
            )  # fmt: skip
        return origin

    # -- places -------------------------------------------------------------------------------------------------------

    def _at(self, *steps: str) -> Location:
        """Of a setting: the table's own first, then the source's default, config.meta before meta."""
        return self.where.first(
            *(
                (*above, *path, *steps)
                for above in (self.of_table, self.of_source)
                for path in (("config", "meta", "stream"), ("meta", "stream"))
            )
        )

    def _column_at(self, at: tuple[Step, ...], key: str) -> Location:
        return self.where.first((*at, "config", "meta", "stream", key), (*at, "meta", "stream", key))


def _origin_known(origin: str, value_format: str) -> bool:
    if origin in _RECORD:
        return True
    header = _HEADER.fullmatch(origin)
    if header is not None:
        return bool(header.group(1).strip())
    return value_format == "json" and origin.startswith("value.") and all(origin.split("."))


def _empty_header(origin: object) -> bool:
    header = _HEADER.fullmatch(origin) if isinstance(origin, str) else None
    return origin == "header" or (header is not None and not header.group(1).strip())


def _origin_hint(origin: str, names: list[str]) -> str | None:
    hint = did_you_mean(origin, names)
    return hint if hint.startswith("Did") else None
