"""How often a table is maintained, and for how long what is old is kept.

Rules
- The profile says it for every table of the target, a model for its own; a model that says half of it takes the other
  half from the profile.
- Nothing is kept for less than an hour: a query that began before then may still read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from penstock.project.durations import milliseconds

EVERY_MS = 3_600_000
KEEP_MS = 86_400_000
_LEAST = {"every": (60_000, "a minute"), "keep": (3_600_000, "an hour")}
KEYS = tuple(_LEAST)


def _length(name: str, value: object) -> int:
    found = milliseconds(value)
    least, shown = _LEAST[name]
    if found is None:
        raise ValueError("write it as '30 minutes', '1 hour' or '7 days'")
    if found < least:
        raise ValueError(f"it is at least {shown}")
    return found


Every = Annotated[int, BeforeValidator(lambda value: _length("every", value))]
Keep = Annotated[int, BeforeValidator(lambda value: _length("keep", value))]


class MaintenanceSettings(BaseModel):
    """Of all tables, in milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: Every = EVERY_MS
    keep: Keep = KEEP_MS


class OwnMaintenance(BaseModel):
    """Of one table; None: as the profile says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: Every | None = None
    keep: Keep | None = None

    def within(self, others: MaintenanceSettings) -> MaintenanceSettings:
        return MaintenanceSettings(every=self.every or others.every, keep=self.keep or others.keep)


def read_maintenance(value: object) -> OwnMaintenance | str:
    """What a model says, or what is wrong with it."""
    if not isinstance(value, Mapping):
        return "Write it as {every: '1 hour', keep: '7 days'}."
    for key in value:
        if key not in KEYS:
            return f"It has no '{key}'; it has {' and '.join(KEYS)}."
    try:
        return OwnMaintenance.model_validate({key: each for key, each in value.items() if each is not None})
    except ValidationError as problem:
        first = problem.errors()[0]
        return f"'{first['loc'][0]}': {first['msg'].removeprefix('Value error, ')}."
