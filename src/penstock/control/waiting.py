"""Waiting for a condition, with a deadline and a word to the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

Tell = Callable[[str], None]
POLL = 0.05


def silent(_message: str) -> None:
    """Tell nobody."""


def wait_for(
    condition: Callable[[], T | None], timeout: float, *, tell: Tell = silent, message: str = "", poll: float = POLL
) -> T | None:
    """The condition's first value that is not None; None at the deadline. What is waited for is told after a second."""
    begun = time.monotonic()
    told = False
    while True:
        found = condition()
        if found is not None:
            return found
        waited = time.monotonic() - begun
        if waited >= timeout:
            return None
        if message and not told and waited >= 1.0:
            tell(message)
            told = True
        time.sleep(min(poll, max(0.0, timeout - waited)))
