"""The setting `watermark: {column, delay}`, of a source or of a dynamic table's own output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import Kind, Location, PenstockError, did_you_mean
from penstock.errors.catalogue import WATERMARK_INVALID
from penstock.project.durations import interval, milliseconds
from penstock.project.settings import WatermarkSettings
from penstock.project.sparktypes import SparkType


@dataclass(frozen=True)
class WatermarkSetting:
    """Event-time column and how late rows may come, as Spark's interval text."""

    column: str
    delay: str


def read_watermark(
    value: object, types: Mapping[str, SparkType] | None, at: Callable[..., Location], unknown_key: Kind
) -> WatermarkSetting:
    """The setting {column, delay}; `types` are the columns it may name, None when they are not known yet."""
    if not isinstance(value, Mapping):
        raise WATERMARK_INVALID.error(f"'watermark' must be a mapping, not {said(value)}.", at=at())
    for key in value:
        if key not in WatermarkSettings.model_fields:
            raise unknown_key.error(
                f"setting 'watermark.{key}' is unknown.",
                at=at(str(key)),
                hint=did_you_mean(str(key), WatermarkSettings.model_fields),
            )
    column, length = value.get("column"), milliseconds(value.get("delay"))
    if not isinstance(column, str) or not column:
        raise WATERMARK_INVALID.error("the watermark names no column.", at=at("column"))
    if length is None or isinstance(value.get("delay"), int):
        problem = "has no delay" if value.get("delay") is None else f"has the delay {said(value.get('delay'))}"
        raise WATERMARK_INVALID.error(f"the watermark on '{column}' {problem}.", at=at("delay"))
    if types is not None:
        known = {name.lower(): name for name in types}
        if column.lower() not in known:
            raise no_column(column, types, at("column"))
        column = known[column.lower()]
        if not types[column].is_timestamp:
            raise WATERMARK_INVALID.error(
                f"the watermark's column '{column}' is {types[column].ddl.lower()}, not a timestamp.", at=at("column")
            )
    return WatermarkSetting(column, interval(length))


def no_column(column: str, names: Iterable[str], at: Location) -> PenstockError:
    """PEN-1209 for a column that is not among those of the rows."""
    return WATERMARK_INVALID.error(
        f"the watermark's column '{column}' does not exist.", at=at, hint=did_you_mean(column, names)
    )


def said(value: object) -> str:
    """A value as an error message names it."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"'{value}'"
