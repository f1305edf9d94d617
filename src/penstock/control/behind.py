"""How far behind: the arithmetic of lag. Pure.

Rules
- Lag in rows is what the input has and the stream has not committed; lag in seconds is the age of the oldest such row.
- Nothing unread is 0 rows and 0 seconds. What cannot be known is None, never 0.
- A stream with several inputs is as many rows behind as all of them together, and as late as the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lag:
    """How far a stream, or one of its inputs, is behind."""

    rows: int | None
    seconds: float | None


NONE = Lag(0, 0.0)
UNKNOWN = Lag(None, None)


def total(parts: Iterable[Lag]) -> Lag:
    """The lag of a stream from the lags of its inputs."""
    known = list(parts)
    rows = [lag.rows for lag in known]
    seconds = [lag.seconds for lag in known]
    return Lag(
        None if None in rows else sum(row for row in rows if row is not None),
        None if None in seconds else max((s for s in seconds if s is not None), default=0.0),
    )


def start(starting: str | Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """What counts as read before the first batch: everything up to where the stream will start.

    In offsets, as in Spark, -1 is the latest and -2 the earliest; a partition that is not in the result starts there.
    """
    if isinstance(starting, str):
        return dict(end) if starting == "latest" else {}
    return {partition: end.get(partition, 0) if at == -1 else at for partition, at in starting.items() if at != -2}


def unread(
    committed: Mapping[int, int], begin: Mapping[int, int], end: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Per partition with something unread: the first unread offset and how many follow.

    A partition that was never read counts from its beginning; messages that retention removed can no longer be read.
    """
    found = {}
    for partition, high in end.items():
        start = max(committed.get(partition, begin.get(partition, 0)), begin.get(partition, 0))
        if high > start:
            found[partition] = (start, high - start)
    return found


def age(timestamps: Iterable[float | None], now: float) -> float | None:
    """The age of the oldest; None when one of them is unknown."""
    known = list(timestamps)
    if not known or None in known:
        return None
    return max(0.0, now - min(t for t in known if t is not None))
