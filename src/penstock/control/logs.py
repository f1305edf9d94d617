"""Log files of the background processes: their end, for an error's hint, and a bound on their size."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

LIMIT = 20 << 20  # bytes
_TAIL = 64 * 1024
_TELLING = re.compile(r"PEN-\d{4}|Exception|Error|ERROR|FATAL")


def last_words(log: Path, since: int = 0, lines: int = 2) -> str:
    """The most telling last line of a log, or its last lines; empty when there is nothing after `since`."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(since, end - _TAIL) if since <= end else max(0, end - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    written = [line.strip() for line in text.splitlines() if line.strip()]
    coded = [line for line in written if "PEN-" in line]
    telling = coded or [line for line in written if _TELLING.search(line)]
    return telling[-1][:500] if telling else " / ".join(written[-lines:])[:500]


def trim(log: Path, limit: int = LIMIT) -> bool:
    """Move a log that grew too long aside, one old one is kept; True when it did.

    The processes that write it keep it open for appending, so it is copied and emptied, not renamed.
    """
    if size(log) <= limit:
        return False
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
    return True


def size(log: Path) -> int:
    """How long the log is now; what comes later is after this."""
    return log.stat().st_size if log.exists() else 0
