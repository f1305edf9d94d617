"""The primary key of a source table.

Rules
- A table has one, a stream has none. It names declared columns of simple types, in whatever case, each once.
- None of its columns comes from the value, not even through an expression: a message without a value deletes the row
  of its key, and must be able to say which.
- The columns that Penstock adds to a table have names of their own, which no declared column may have.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import Location, did_you_mean
from penstock.errors.catalogue import (
    PRIMARY_KEY_COLUMN,
    PRIMARY_KEY_MISSING,
    PRIMARY_KEY_OF_STREAM,
    PRIMARY_KEY_VALUE,
    SOURCE_TABLE_SETTING,
)
from penstock.project.columns import SourceColumn
from penstock.project.expressions import columns_of
from penstock.project.settings import StreamSettings

RESERVED = "_penstock_"  # how the names of added columns begin


def read_primary_key(
    settings: StreamSettings, columns: tuple[SourceColumn, ...], shown: str, at: Callable[..., Location]
) -> tuple[str, ...]:
    """The key's columns as they are declared; empty for a stream. `at` finds a setting in the file."""
    if settings.kind != "table":
        if settings.primary_key is not None:
            raise PRIMARY_KEY_OF_STREAM.error(f"source {shown} is a stream, with a primary key.", at=at("primary_key"))
        return ()
    if settings.primary_key is None:
        raise PRIMARY_KEY_MISSING.error(f"source table {shown} has no primary key.", at=at("kind"))
    reserved = next((column.name for column in columns if column.name.lower().startswith(RESERVED)), None)
    if reserved is not None:
        raise SOURCE_TABLE_SETTING.error(
            f"column '{reserved}' of {shown} has a name that Penstock uses itself.", at=at(), hint="Rename it."
        )
    key: list[str] = []
    for name in settings.primary_key:
        column = _column(name, columns, shown, at)
        if column.name in key:
            raise PRIMARY_KEY_COLUMN.error(
                f"'primary_key' of {shown} names column '{name}' twice.", at=at("primary_key"), hint="Remove one."
            )
        key.append(column.name)
    return tuple(key)


def _column(name: str, columns: tuple[SourceColumn, ...], shown: str, at: Callable[..., Location]) -> SourceColumn:
    known = {column.name.lower(): column for column in columns}
    column = known.get(name.lower())
    if column is None:
        raise PRIMARY_KEY_COLUMN.error(
            f"'primary_key' names '{name}', which is no column of {shown}.", at=at("primary_key"),
            hint=did_you_mean(name, [each.name for each in columns]),
        )  # fmt: skip
    if column.type.is_nested:
        raise PRIMARY_KEY_COLUMN.error(
            f"column '{column.name}' is {column.type.ddl.lower()} and cannot be part of a primary key.",
            at=at("primary_key"), hint="Use a column of a simple type.",
        )  # fmt: skip
    if _from_value(column, known):
        raise PRIMARY_KEY_VALUE.error(
            f"column '{column.name}' of the primary key of {shown} comes from the value.", at=at("primary_key")
        )
    return column


def _from_value(column: SourceColumn, known: dict[str, SourceColumn]) -> bool:
    if column.expr is None:
        return column.origin.partition(".")[0] == "value"
    names = columns_of(column.expr, {lower: each.name for lower, each in known.items()})
    return any(_from_value(known[name.lower()], known) for name in names)
