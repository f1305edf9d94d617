"""The config of a dynamic table, typed and validated.

Rules
- Own keys and every standard key of a dbt model are allowed, from config(...), a YAML file or dbt_project.yml alike;
  anything else is an error with the nearest right name, because a misspelt key would be ignored without a word.
- The line of a key is that of the model file if the key is written there, else of the YAML file that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import MODEL_KEY_UNKNOWN, MODEL_LANGUAGE, MODEL_NOT_FOLLOWED, MODEL_VALUE_INVALID
from penstock.project.durations import milliseconds
from penstock.project.positions import Named, Positions
from penstock.project.source import relation_of
from penstock.project.watermark import WatermarkSetting, read_watermark, said

MATERIALIZED = "dynamic_table"
OWN_KEYS = frozenset({
    "time_window", "buffer_limit", "unique_key", "watermark", "shuffle_partitions", "small_batch_rows",
    "max_batch_rows",
})  # fmt: skip
_DBT_KEYS = frozenset({
    "enabled", "materialized", "tags", "meta", "docs", "group", "access", "contract", "schema", "database", "alias",
    "persist_docs", "pre-hook", "pre_hook", "post-hook", "post_hook", "quoting", "column_types", "full_refresh",
    "on_schema_change", "on_configuration_change", "grants", "packages", "incremental_strategy", "event_time",
    "freshness", "lookback", "batch_size", "begin", "concurrent_batches", "static_analysis", "sql_header",
    "file_format", "location_root", "partition_by", "clustered_by", "buckets", "options", "tblproperties", "catalog",
    "merge_update_columns", "merge_exclude_columns", "description", "latest_version", "version",
})  # fmt: skip

# Keys of a dbt-spark table that a dynamic table does not follow: taking them without a word would be a lie.
_NOT_FOLLOWED = frozenset({
    "location_root", "partition_by", "clustered_by", "buckets", "options", "tblproperties", "incremental_strategy",
    "merge_update_columns", "merge_exclude_columns", "sql_header",
})  # fmt: skip


@dataclass(frozen=True)
class DynamicTable:
    """A dynamic table of the project."""

    unique_id: str
    name: str  # schema.identifier
    path: str  # the model file, relative to the project
    raw_code: str
    time_window_ms: int | None
    buffer_limit: int | None
    unique_key: tuple[str, ...] | None
    watermark: WatermarkSetting | None
    shuffle_partitions: int | None
    small_batch_rows: int | None
    max_batch_rows: int | None


def is_dynamic_table(node: Mapping[str, Any]) -> bool:
    return node.get("resource_type") == "model" and (node.get("config") or {}).get("materialized") == MATERIALIZED


def read_model(node: Mapping[str, Any], project_dir: Path) -> DynamicTable:
    """The typed config of a model node; raises the first thing that is wrong with it."""
    return _Reader(node, project_dir).read()


class _Reader:
    def __init__(self, node: Mapping[str, Any], project_dir: Path) -> None:
        self.node = node
        self.project = project_dir
        self.file = str(node.get("original_file_path") or node.get("path") or "")
        self.raw = str(node.get("raw_code") or node.get("raw_sql") or "")
        self.config: Mapping[str, Any] = node.get("config") or {}

    def read(self) -> DynamicTable:
        if self.node.get("language", "sql") != "sql":
            raise MODEL_LANGUAGE.error(f"{self.node['name']} is a Python model.", at=Location(self.file))
        for key in self.config:
            if key not in OWN_KEYS and key not in _DBT_KEYS:
                raise MODEL_KEY_UNKNOWN.error(f"config key '{key}' is unknown.", at=self.at(key), hint=_nearest(key))
            if key in _NOT_FOLLOWED and self.config[key]:
                raise MODEL_NOT_FOLLOWED.error(f"a dynamic table does not follow '{key}'.", at=self.at(key))
        if (self.config.get("contract") or {}).get("enforced"):
            raise MODEL_NOT_FOLLOWED.error("a dynamic table does not enforce a contract yet.", at=self.at("contract"))
        if (self.config.get("file_format") or "delta") != "delta":
            raise MODEL_NOT_FOLLOWED.error("a dynamic table is a Delta table.", at=self.at("file_format"))
        value = self.config.get("watermark")
        return DynamicTable(
            unique_id=str(self.node["unique_id"]),
            name=relation_of(self.node),
            path=self.file,
            raw_code=self.raw,
            time_window_ms=self._time_window(),
            buffer_limit=self._count("buffer_limit", least=1),
            unique_key=self._unique_key(),
            watermark=None if value is None else read_watermark(value, None, self._watermark_at, MODEL_KEY_UNKNOWN),
            shuffle_partitions=self._count("shuffle_partitions", least=1),
            small_batch_rows=self._count("small_batch_rows", least=0),
            max_batch_rows=self._count("max_batch_rows", least=1),
        )

    def _time_window(self) -> int | None:
        value = self.config.get("time_window")
        if value is None:
            return None
        length = milliseconds(value)
        if length is None or length < 1:
            raise self._wrong("time_window", value, "Write it as '500 ms', '1 second', '2 minutes' or in milliseconds.")
        return length

    def _count(self, key: str, *, least: int) -> int | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(key, value, f"It is a whole number, {least} or more.")
        return int(value)

    def _unique_key(self) -> tuple[str, ...] | None:
        value = self.config.get("unique_key")
        if value is None or value == []:
            return None
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) and key.strip() for key in keys):
            raise self._wrong("unique_key", value, "It is the name of a column, or a list of them.")
        return tuple(key.strip() for key in keys)

    def _wrong(self, key: str, value: object, hint: str) -> PenstockError:
        return MODEL_VALUE_INVALID.error(f"'{key}' cannot be {said(value)}.", at=self.at(key), hint=hint)

    def _watermark_at(self, *_: str) -> Location:
        return self.at("watermark")

    def at(self, key: str) -> Location:
        """Where the key is written: in the model file, its YAML file or dbt_project.yml."""
        line = _line_of_key(self.raw, key)
        if line is not None:
            return Location(self.file, line)
        patch = str(self.node.get("patch_path") or "").split("://")[-1]
        if patch:
            where = Positions.read(self.project / patch, patch)
            path = ("models", Named(str(self.node["name"])), "config", key)
            if where.has(*path):
                return where.at(*path)
        found = _in_project_file(self.project / "dbt_project.yml", key)
        return found or Location(self.file, 1)


def _line_of_key(raw: str, key: str) -> int | None:
    """The line of `key=` or `'key':` inside a config(...) call."""
    written = re.compile(rf"(?<![\w'\"-])(?:{re.escape(key)}\s*=(?!=)|['\"]{re.escape(key)}['\"]\s*:)")
    for call in re.finditer(r"\bconfig\s*\(", raw):
        match = written.search(raw, call.end(), _end_of_call(raw, call.end()))
        if match is not None:
            return raw.count("\n", 0, match.start()) + 1
    return None


def _end_of_call(raw: str, start: int) -> int:
    depth, quote = 1, ""
    for index in range(start, len(raw)):
        sign = raw[index]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0:
                return index
    return len(raw)


def _in_project_file(file: Path, key: str) -> Location | None:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for number, line in enumerate(lines, start=1):
        if re.match(rf"\s*\+?['\"]?\+?{re.escape(key)}['\"]?\s*:", line):
            return Location(file.name, number)
    return None


def _nearest(key: str) -> str:
    hint = did_you_mean(key, OWN_KEYS | _DBT_KEYS)
    return hint if hint.startswith("Did") else f"Own keys of a dynamic table: {', '.join(sorted(OWN_KEYS))}."
