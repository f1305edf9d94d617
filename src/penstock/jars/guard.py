"""One process at a time: a lock on a file that the system releases when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL = 0.05


@contextmanager
def exclusive(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock file for the block; TimeoutError when somebody else keeps it longer than `timeout` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{path} is held by another process") from None
                time.sleep(_POLL)
        yield
