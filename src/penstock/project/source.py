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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    SOURCE_KEY_UNKNOWN,
    SOURCE_NOT_STREAM,
    SOURCE_TABLE_SETTING,
    SOURCE_VALUE_INVALID,
    START_INVALID,
    TOPIC_CHOICE,
)
from penstock.kafka.security import Value
from penstock.project.columns import ColumnReader, SourceColumn
from penstock.project.formats import FormatSettings, SchemaFormat
from penstock.project.lockfile import Lock, read_lock
from penstock.project.options import OptionError, is_option, read_options
from penstock.project.positions import Named, Positions, Step
from penstock.project.primary_key import read_primary_key
from penstock.project.problems import Problem, first_problem
from penstock.project.schemas import PartSchema, part_schema
from penstock.project.settings import StreamSettings
from penstock.project.start import StartAt
from penstock.project.watermark import WatermarkSetting, read_watermark

__all__ = ["SourceColumn", "StreamSource", "is_source_table", "is_stream", "read_source", "relation_of"]


@dataclass(frozen=True)
class StreamSource:
    """A topic, or the topics of a pattern, that dynamic tables read."""

    unique_id: str
    relation: str  # shop.clicks
    topic: str | None
    topic_pattern: str | None
    partitions: tuple[int, ...]  # empty: all
    bootstrap: str | None
    start: str | StartAt
    key: FormatSettings
    value: FormatSettings
    columns: tuple[SourceColumn, ...]
    watermark: WatermarkSetting | None
    on_bad_record: str
    options: tuple[tuple[str, Value], ...]  # kafka.*, sorted; secrets are references
    registry: tuple[tuple[str, Value], ...] = ()  # its own schema registry: url and options
    key_schema: PartSchema | None = None
    value_schema: PartSchema | None = None
    primary_key: tuple[str, ...] = ()  # of a source table; empty: a source stream

    @property
    def is_table(self) -> bool:
        return bool(self.primary_key)


def is_stream(source: Mapping[str, Any]) -> bool:
    """Whether the source table has stream settings of its own or from its source."""
    return own_settings(source) is not None or _source_settings(source) is not None


def is_source_table(source: Mapping[str, Any]) -> bool:
    """Whether a manifest entry declares a table; what is wrong with it is told when it is read."""
    for settings in (own_settings(source), _source_settings(source)):
        if isinstance(settings, Mapping) and settings.get("kind") is not None:
            return bool(settings["kind"] == "table")
    return False


def read_source(source: Mapping[str, Any], project_dir: Path) -> StreamSource:
    """The typed source of a manifest entry; raises the first thing that is wrong with it."""
    return _Reader(source, project_dir).read()


@dataclass(frozen=True)
class SchemaSettings:
    """The part of a source that its schemas depend on, checked as far as that goes without them."""

    name: str  # source.table, as the lock file has it
    topic: str | None
    parts: Mapping[str, SchemaFormat]  # key, value
    registry: Mapping[str, Value]
    at: Callable[..., Location]  # of a setting


def read_schema_settings(source: Mapping[str, Any], project_dir: Path) -> SchemaSettings:
    """What is needed to find a source's schemas; raises what is wrong with its settings."""
    return _Reader(source, project_dir).schema_settings()


def relation_of(node: Mapping[str, Any]) -> str:
    """schema.identifier of any manifest node."""
    return f"{node['schema']}.{node.get('identifier') or node.get('alias') or node['name']}"


def own_settings(holder: Mapping[str, Any]) -> Any:
    """What a source table or column has below `stream`."""
    for place in (holder.get("config") or {}, holder):
        meta = place.get("meta") or {}
        if isinstance(meta, Mapping) and "stream" in meta:
            return meta["stream"]
    return None


def _source_settings(source: Mapping[str, Any]) -> Any:
    meta = source.get("source_meta") or {}
    return meta.get("stream") if isinstance(meta, Mapping) else None


def _with_schema(settings: StreamSettings) -> dict[str, SchemaFormat]:
    parts = {"key": settings.key, "value": settings.value}
    return {name: each for name, each in parts.items() if isinstance(each, SchemaFormat)}


class _Reader:
    def __init__(self, source: Mapping[str, Any], project_dir: Path) -> None:
        self.source = source
        self.project = project_dir
        file = str(source.get("original_file_path") or source.get("path") or "")
        self.where = Positions.read(project_dir / file, file)
        self.of_source: tuple[Step, ...] = ("sources", Named(str(source.get("source_name"))))
        self.of_table: tuple[Step, ...] = (*self.of_source, "tables", Named(str(source["name"])))
        self.shown = f"{source.get('source_name')}.{source['name']}"

    def read(self) -> StreamSource:
        raw = self._settings()
        settings, options = self._checked(raw)
        self._topic(settings)
        self._start(settings)
        schemas = self._schemas(settings)
        columns = ColumnReader(self.where, self.of_table, self.shown, settings, schemas).read(self._declared())
        if settings.kind == "table" and raw.get("watermark") is not None:
            raise SOURCE_TABLE_SETTING.error(f"source table {self.shown} has a watermark.", at=self._at("watermark"))
        return StreamSource(
            unique_id=str(self.source["unique_id"]),
            relation=relation_of(self.source),
            topic=settings.topic,
            topic_pattern=settings.topic_pattern,
            partitions=tuple(sorted(set(settings.partitions or ()))),
            bootstrap=settings.bootstrap_servers,
            start=settings.start,
            key=settings.key,
            value=settings.value,
            columns=columns,
            watermark=self._watermark(raw.get("watermark"), columns),
            on_bad_record=settings.on_bad_record,
            options=options,
            primary_key=read_primary_key(settings, columns, self.shown, self._at),
            registry=tuple(settings.registry().items()),
            key_schema=schemas.get("key"),
            value_schema=schemas.get("value"),
        )

    def schema_settings(self) -> SchemaSettings:
        settings, _ = self._checked(self._settings())
        self._topic(settings)
        return SchemaSettings(self.shown, settings.topic, _with_schema(settings), settings.registry(), self._at)

    def _schemas(self, settings: StreamSettings) -> dict[str, PartSchema]:
        parts = _with_schema(settings)
        lock = read_lock(self.project) if any(each.from_registry for each in parts.values()) else Lock()
        return {
            part: part_schema(each, part, self.shown, settings.topic, lock, self.project, self._at(part))
            for part, each in parts.items()
        }

    def _settings(self) -> dict[str, Any]:
        own, above = own_settings(self.source), _source_settings(self.source)
        if own is None and above is None:
            raise SOURCE_NOT_STREAM.error(f"source {self.shown} is no stream.", at=self.where.at(*self.of_table))
        for settings in (above, own):
            if settings is not None and not isinstance(settings, Mapping):
                raise SOURCE_VALUE_INVALID.error("'stream' must be a mapping.", at=self._at())
        merged = {str(key): value for key, value in {**(above or {}), **(own or {})}.items()}
        # A table that names its topic in one way means it, whatever its source says in the other.
        for one, other in (("topic", "topic_pattern"), ("topic_pattern", "topic")):
            if own and own.get(one) is not None and own.get(other) is None:
                merged.pop(other, None)
        return {key: value for key, value in merged.items() if value is not None}

    def _checked(self, raw: Mapping[str, Any]) -> tuple[StreamSettings, tuple[tuple[str, Value], ...]]:
        try:
            # The watermark is checked with the columns, and options of the client by themselves.
            plain = {key: value for key, value in raw.items() if key != "watermark" and not is_option(key)}
            settings = StreamSettings.model_validate(plain)
            return settings, tuple(read_options(raw).items())
        except ValidationError as problem:
            raise self._error(first_problem(problem, StreamSettings)) from None
        except OptionError as problem:
            raise self._error(problem.problem) from None

    def _error(self, problem: Problem) -> PenstockError:
        return problem.kind.error(problem.message, at=self._at(*problem.steps), hint=problem.hint)

    def _topic(self, settings: StreamSettings) -> None:
        if settings.topic is None and settings.topic_pattern is None:
            raise TOPIC_CHOICE.error(
                f"source {self.shown} has no topic.", at=self._at("topic"), hint="Add 'topic:' with a Kafka topic."
            )
        if settings.topic is not None and settings.topic_pattern is not None:
            raise TOPIC_CHOICE.error(
                f"source {self.shown} has both 'topic' and 'topic_pattern'.", at=self._at("topic_pattern")
            )
        if settings.topic_pattern is None:
            return
        if settings.partitions is not None:
            raise TOPIC_CHOICE.error(
                "'partitions' are those of one topic, not of a pattern.", at=self._at("partitions"),
                hint="Name the topic with 'topic', or remove 'partitions'.",
            )  # fmt: skip
        try:
            re.compile(settings.topic_pattern)
        except re.error as problem:
            raise SOURCE_VALUE_INVALID.error(
                f"'topic_pattern' is not a regular expression: {problem}.", at=self._at("topic_pattern"),
                hint="Write it as 'clicks_.*'.",
            ) from None  # fmt: skip

    def _start(self, settings: StreamSettings) -> None:
        if not isinstance(settings.start, StartAt) or settings.start.offsets is None:
            return
        if settings.topic_pattern is not None:
            raise START_INVALID.error(
                "offsets are those of one topic, not of a pattern.", at=self._at("start", "offsets"),
                hint="Start at earliest, latest or a timestamp.",
            )  # fmt: skip
        if settings.partitions is not None and set(settings.partitions) != set(settings.start.offsets):
            raise START_INVALID.error(
                "'start' has other partitions than 'partitions'.", at=self._at("start", "offsets"),
                hint=f"Give an offset for each of: {', '.join(map(str, sorted(set(settings.partitions))))}.",
            )  # fmt: skip

    def _watermark(self, value: object, columns: tuple[SourceColumn, ...]) -> WatermarkSetting | None:
        if value is None:
            return None
        types = {column.name: column.type for column in columns}
        return read_watermark(value, types, lambda *steps: self._at("watermark", *steps), SOURCE_KEY_UNKNOWN)

    def _declared(self) -> dict[str, tuple[Mapping[str, Any], Any]]:
        columns: Mapping[str, Mapping[str, Any]] = self.source.get("columns") or {}
        return {str(each.get("name", name)): (each, own_settings(each)) for name, each in columns.items()}

    def _at(self, *steps: str) -> Location:
        """Of a setting: the table's own first, then the source's default, config.meta before meta."""
        return self.where.first(
            *(
                (*above, *path, *steps)
                for above in (self.of_table, self.of_source)
                for path in (("config", "meta", "stream"), ("meta", "stream"))
            )
        )
