"""The config of a dynamic table, typed and validated.

Rules
- Own keys and every standard key of a dbt model are allowed, from config(...), a YAML file or dbt_project.yml alike;
  anything else is an error with the nearest right name, because a misspelt key would be ignored without a word.
- The line of a key is that of the model file if the key is written there, else of the YAML file that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import (
    COLUMN_TYPE,
    MODEL_KEY_UNKNOWN,
    MODEL_LANGUAGE,
    MODEL_NOT_FOLLOWED,
    MODEL_VALUE_INVALID,
)
from penstock.project.durations import milliseconds
from penstock.project.expectations import Expectation, read_expectations
from penstock.project.maintenance import OwnMaintenance, read_maintenance
from penstock.project.model_settings import EMITS, MODES, ON_SCHEMA_CHANGE, OWN, REFRESH_MODES, OnSchemaChange, keys
from penstock.project.positions import Named, Positions
from penstock.project.publish import PublishSetting, read_publish
from penstock.project.settings import ON_BAD_RECORD
from penstock.project.source import relation_of
from penstock.project.sparktypes import KNOWN, TypeSyntaxError, parse_type
from penstock.project.watermark import WatermarkSetting, read_watermark, said

MATERIALIZED = "dynamic_table"
OWN_KEYS = frozenset(keys(OWN))
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

# Likewise, if somebody wrote them: dbt fills some in by itself. `event_time` it heeds where the table is read.
_NOT_FOLLOWED_IF_WRITTEN = frozenset({"lookback", "begin", "batch_size", "concurrent_batches"})

# Own keys that not every query heeds.
_MAY_IDLE = ("buffer_limit", "watermark")


@dataclass(frozen=True)
class DynamicTable:
    """A dynamic table of the project."""

    unique_id: str
    name: str  # schema.identifier
    path: str  # the model file, relative to the project
    raw_code: str
    time_window_ms: int | None
    buffer_limit: int | None
    target_lag_ms: int | None  # in place of the two above
    refresh_mode: Literal["auto", "incremental", "full"]
    emit: Literal["changes", "final"] | None
    deduplicate_by: tuple[str, ...]
    unique_key: tuple[str, ...] | None
    watermark: WatermarkSetting | None
    shuffle_partitions: int | None
    small_batch_rows: int | None
    max_batch_rows: int | None
    max_lag_ms: int | None = None  # for those who watch; the stream itself does not know it
    contract: tuple[tuple[str, str], ...] = ()  # name and type of each column, when a contract is enforced
    checks: tuple[tuple[str, str], ...] = ()  # constraints: name and expression
    on_schema_change: OnSchemaChange = "fail"
    on_bad_record: str | None = None  # None: as each source says
    maintenance: OwnMaintenance | None = None  # None: as the profile says
    expectations: tuple[Expectation, ...] = ()
    publish: PublishSetting | None = None
    mode: Literal["micro_batch", "real_time"] = "micro_batch"
    own: Mapping[str, Location] = field(default_factory=dict)  # where the model itself sets what may have no effect


def is_dynamic_table(node: Mapping[str, Any]) -> bool:
    return node.get("resource_type") == "model" and (node.get("config") or {}).get("materialized") == MATERIALIZED


def on_change(node: Mapping[str, Any]) -> str:
    """What to do when a change needs a rebuild: apply, continue or fail, which holds unless the project says otherwise.

    dbt fills in `apply` for every model, so only a value that somebody wrote counts: an accident is not a confirmation.
    """
    if "on_configuration_change" not in (node.get("unrendered_config") or {}):
        return "fail"
    value = (node.get("config") or {}).get("on_configuration_change")
    return str(getattr(value, "value", value) or "fail")


def own_full_refresh(node: Mapping[str, Any]) -> bool | None:
    """The model's own `full_refresh`; None when it says nothing."""
    own = (node.get("config") or {}).get("full_refresh")
    return None if own is None else bool(own)


def is_refreshed(own: bool | None, *, run: bool) -> bool:
    """Whether a run with or without --full-refresh computes it anew: what the model says wins over the run, as in dbt's
    `should_full_refresh`."""
    return run if own is None else own


def read_model(node: Mapping[str, Any], project_dir: Path) -> DynamicTable:
    """The typed config of a model node; raises the first thing that is wrong with it."""
    return _Reader(node, project_dir).read()


def checks_of(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Name and expression of each constraint that Delta can hold; keys and references are promises that it cannot."""
    found: dict[str, str] = {}
    for name, column in (node.get("columns") or {}).items():
        for constraint in column.get("constraints") or ():
            kind = _kind(constraint)
            if kind == "not_null":
                found[f"{name}_not_null"] = f"`{name}` is not null"
            elif kind == "check":
                found[_name(constraint, f"{name}_check", found)] = str(constraint.get("expression"))
    for constraint in node.get("constraints") or ():
        kind = _kind(constraint)
        if kind == "check":
            found[_name(constraint, "check", found)] = str(constraint.get("expression"))
        elif kind == "not_null":
            found.update({f"{name}_not_null": f"`{name}` is not null" for name in constraint.get("columns") or ()})
    return tuple(sorted(found.items()))


def _kind(constraint: Mapping[str, Any]) -> str:
    value = constraint.get("type")
    return str(getattr(value, "value", value))


def _name(constraint: Mapping[str, Any], default: str, taken: Mapping[str, str]) -> str:
    name = re.sub(r"[^a-z0-9_]", "_", str(constraint.get("name") or default).lower())
    number = 2
    candidate = name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


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
            written = key in _NOT_FOLLOWED_IF_WRITTEN and key in self._written
            if written or (key in _NOT_FOLLOWED and self.config[key]):
                raise MODEL_NOT_FOLLOWED.error(f"a dynamic table does not follow '{key}'.", at=self.at(key))
        if (self.config.get("file_format") or "delta") != "delta":
            raise MODEL_NOT_FOLLOWED.error("a dynamic table is a Delta table.", at=self.at("file_format"))
        value, published = self.config.get("watermark"), self.config.get("publish")
        return DynamicTable(
            unique_id=str(self.node["unique_id"]),
            name=relation_of(self.node),
            path=self.file,
            raw_code=self.raw,
            time_window_ms=self._length("time_window"),
            buffer_limit=self._count("buffer_limit", least=1),
            target_lag_ms=self._target_lag(),
            refresh_mode=cast(Literal["auto", "incremental", "full"], self._one_of("refresh_mode", REFRESH_MODES)),
            emit=cast(Literal["changes", "final"] | None, self._one_of("emit", (None, *EMITS))),
            deduplicate_by=self._names("deduplicate_by") or (),
            unique_key=self._names("unique_key"),
            watermark=None if value is None else read_watermark(value, None, self._watermark_at, MODEL_KEY_UNKNOWN),
            shuffle_partitions=self._count("shuffle_partitions", least=1),
            small_batch_rows=self._count("small_batch_rows", least=0),
            max_batch_rows=self._count("max_batch_rows", least=1),
            max_lag_ms=self._length("max_lag"),
            contract=self._contract(),
            checks=checks_of(self.node) if self._enforced else (),
            on_schema_change=self._on_schema_change(),
            on_bad_record=self._on_bad_record(),
            maintenance=self._maintenance(),
            expectations=self._expectations(),
            mode=cast(Literal["micro_batch", "real_time"], self._one_of("mode", MODES)),
            publish=None if published is None else read_publish(published, self.at("publish")),
            own={key: at for key in _MAY_IDLE if self.config.get(key) and (at := self._own(key)) is not None},
        )

    @property
    def _written(self) -> Mapping[str, Any]:
        """What the project says, as it is written there: nothing that dbt fills in."""
        return self.node.get("unrendered_config") or {}

    @property
    def _enforced(self) -> bool:
        return bool((self.config.get("contract") or {}).get("enforced"))

    def _contract(self) -> tuple[tuple[str, str], ...]:
        if not self._enforced:
            return ()
        columns: Mapping[str, Mapping[str, Any]] = self.node.get("columns") or {}
        found = []
        for name, column in columns.items():
            try:
                found.append((name, parse_type(str(column.get("data_type") or "")).ddl))
            except TypeSyntaxError as problem:
                raise COLUMN_TYPE.error(
                    f"data_type '{column.get('data_type')}' of column '{name}' is not a Spark SQL type: "
                    f"{problem.reason}.",
                    at=self.at("contract"),
                    hint=did_you_mean(problem.word, KNOWN),
                ) from None
        return tuple(found)

    def _on_schema_change(self) -> OnSchemaChange:
        """dbt fills in `ignore` for every model, so only a value that somebody wrote counts."""
        if "on_schema_change" not in self._written:
            return "fail"
        return cast(OnSchemaChange, self._one_of("on_schema_change", ON_SCHEMA_CHANGE))

    def _length(self, key: str) -> int | None:
        value = self.config.get(key)
        if value is None:
            return None
        length = milliseconds(value)
        if length is None or length < 1:
            raise self._wrong(key, value, "Write it as '500 ms', '1 second', '2 minutes' or in milliseconds.")
        return length

    def _maintenance(self) -> OwnMaintenance | None:
        value = self.config.get("maintenance")
        found = None if value is None else read_maintenance(value)
        if isinstance(found, str):
            raise self._wrong("maintenance", value, found)
        return found

    def _expectations(self) -> tuple[Expectation, ...]:
        value = self.config.get("expectations")
        found = () if value is None else read_expectations(value)
        if isinstance(found, str):
            raise self._wrong("expectations", value, found)
        return found

    def _on_bad_record(self) -> str | None:
        if "on_bad_record" not in self.config:
            return None
        value = self.config["on_bad_record"]
        if value is None:  # YAML's null
            return "null"
        if value not in ON_BAD_RECORD:
            raise self._wrong("on_bad_record", value, did_you_mean(str(value), ON_BAD_RECORD))
        return str(value)

    def _target_lag(self) -> int | None:
        """Beside time_window or buffer_limit, the one that the model itself sets counts: the other is a default."""
        length = self._length("target_lag")
        beside = [key for key in ("time_window", "buffer_limit") if self.config.get(key) is not None]
        if length is None or not beside:
            return length
        own = [_line_of_key(self.raw, key) is not None for key in ("target_lag", *beside)]
        if own[0] == any(own[1:]):
            raise MODEL_VALUE_INVALID.error(
                f"'target_lag' and '{beside[0]}' say the same thing twice.", at=self.at("target_lag"),
                hint="Keep one of them: target_lag stands for time_window and buffer_limit.",
            )  # fmt: skip
        return length if own[0] else None

    def _one_of(self, key: str, allowed: Sequence[str | None]) -> str | None:
        """One of the words; the first of them when the key is not set."""
        value = self.config.get(key)
        if value is None:
            return allowed[0]
        if value not in allowed:
            words = [word for word in allowed if word is not None]
            hint = did_you_mean(str(value), words)
            raise self._wrong(key, value, hint if hint.startswith("Did") else f"It is one of {', '.join(words)}.")
        return str(value)

    def _count(self, key: str, *, least: int) -> int | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(key, value, f"It is a whole number, {least} or more.")
        return int(value)

    def _names(self, key: str) -> tuple[str, ...] | None:
        value = self.config.get(key)
        if value is None or value == []:
            return None
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(each, str) and each.strip() for each in keys):
            raise self._wrong(key, value, "It is the name of a column, or a list of them.")
        return tuple(each.strip() for each in keys)

    def _wrong(self, key: str, value: object, hint: str) -> PenstockError:
        return MODEL_VALUE_INVALID.error(f"'{key}' cannot be {said(value)}.", at=self.at(key), hint=hint)

    def _watermark_at(self, *_: str) -> Location:
        return self.at("watermark")

    def at(self, key: str) -> Location:
        """Where the key is written: in the model file, its YAML file or dbt_project.yml."""
        found = self._own(key) or _in_project_file(self.project / "dbt_project.yml", key)
        return found or Location(self.file, 1)

    def _own(self, key: str) -> Location | None:
        """Where the model itself sets the key."""
        line = _line_of_key(self.raw, key)
        if line is not None:
            return Location(self.file, line)
        patch = str(self.node.get("patch_path") or "").split("://")[-1]
        if patch:
            where = Positions.read(self.project / patch, patch)
            path = ("models", Named(str(self.node["name"])), "config", key)
            if where.has(*path):
                return where.at(*path)
        return None


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
