"""What a model's author expects of every row, and what becomes of rows that are otherwise.

Rules
- A condition that is null for a row is not held by it.
- Without a name an expectation is called by its condition; no two have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

ON_VIOLATION = ("warn", "drop", "fail")
KEYS = ("name", "expect", "on_violation")
_FORM = "Write a list of {expect: 'price >= 0', on_violation: warn}."


class Expectation(BaseModel):
    """A condition on every row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    expect: str
    on_violation: Literal["warn", "drop", "fail"] = "warn"  # rows are counted; left out, too; the stream stops


def read_expectations(value: object) -> tuple[Expectation, ...] | str:
    """What a model says, or what is wrong with it."""
    if not isinstance(value, list):
        return _FORM
    found: dict[str, Expectation] = {}
    for each in value:
        one = _read_one(each)
        if isinstance(one, str):
            return one
        if one.name in found:
            return f"Two of them are called '{one.name}'; give each a name of its own."
        found[one.name] = one
    return tuple(found.values())


def _read_one(value: Any) -> Expectation | str:
    if not isinstance(value, Mapping):
        return _FORM
    for key in value:
        if key not in KEYS:
            return f"It has no '{key}'; it has {', '.join(KEYS)}."
    condition = value.get("expect")
    if not isinstance(condition, str) or not condition.strip():
        return "'expect' is a condition in SQL: 'price >= 0'."
    action = value.get("on_violation") or "warn"
    if action not in ON_VIOLATION:
        return f"'on_violation' is one of {', '.join(ON_VIOLATION)}."
    condition = " ".join(condition.split())
    name = str(value.get("name") or condition)[:120]
    return Expectation(name=name, expect=condition, on_violation=cast(Literal["warn", "drop", "fail"], action))
