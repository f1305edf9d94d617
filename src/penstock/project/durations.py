"""Lengths of time as people write them: '500 ms', '1 second', '2 minutes', or an integer of milliseconds."""

from __future__ import annotations

import re

_UNITS = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000,
    "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def milliseconds(value: object) -> int | None:
    """The length in whole milliseconds, or None if it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if not isinstance(value, str):
        return None
    match = _FORM.fullmatch(value)
    if match is None or match.group(2).lower() not in _UNITS:
        return None
    length = float(match.group(1)) * _UNITS[match.group(2).lower()]
    return int(length) if length == int(length) else None


def interval(length: int) -> str:
    """A length as Spark's interval text, in the largest unit that fits: 600000 -> '10 minutes'."""
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if length and length % size == 0:
            count = length // size
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{length} milliseconds"
