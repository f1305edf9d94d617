"""How patient the supervisor is, and how long it waits between two tries.

Rules
- A wait doubles with each failure in a row, from `base` up to `cap`.
- The jitter comes from a hash of who waits: the same question has the same answer, streams that fell together do not
  get up together, and no wait is shorter than the one before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SHORTEST = 0.75  # of a full wait, what the jitter leaves at least


@dataclass(frozen=True)
class Policy:
    """The numbers behind the decisions; all times in seconds."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    quarantine_after: int = 5  # failures in a row
    healthy_after: float = 60.0  # of running, with batches, forgets the failures
    start_timeout: float = 120.0  # a stream that says "starting" is asked again
    stop_timeout: float = 60.0
    command_timeout: float = 120.0  # a command that the engine never answered is asked again
    engine_start_timeout: float = 120.0
    engine_healthy_after: float = 60.0
    engine_silence: float = 60.0  # a live engine whose lease nobody renews is frozen

    def delay(self, name: str, failures: int) -> float:
        """The wait after this many failures in a row; never shorter than after fewer, never above the cap."""
        full = min(self.base * self.factor ** min(max(failures, 1) - 1, 64), self.cap)
        return full * (1 - (1 - SHORTEST) * _fraction(name))


def _fraction(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
