"""Whether a stream has read the history that it began with, as a file of its checkpoint.

Rules
- The mark is set when the history was read to its end, and never taken away: a stream that is stopped or killed before
  reads the rest as history, one that was past it goes on live.
- Spark does not look at files that it does not know.
"""

from __future__ import annotations

from pathlib import Path

_MARK = "penstock-history-read"


def is_over(checkpoint: Path) -> bool:
    return (checkpoint / _MARK).exists()


def mark_over(checkpoint: Path) -> None:
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / _MARK).touch()
