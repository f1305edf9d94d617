"""What an engine that was killed leaves in a checkpoint, and Spark does not get over.

Rules
- A stateful query wants the folders of its first batch empty. An engine that dies while it writes the very first
  offsets leaves a file that is not finished, and the query would be refused for ever.
- Where no batch was planned there is nothing to lose: offsets, commits and state are cleared. What the inputs noted
  (`sources/`: where a stream began to read) stays, so that it begins at the same place.
- Where a batch was planned, nothing is touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_OF_BATCHES = ("offsets", "commits", "state")


def sweep(checkpoint: Path) -> list[str]:
    """Clear what a first batch left that was never planned; the names of what was removed."""
    if any(file.name.isdigit() for file in _within(checkpoint / "offsets")):
        return []
    found = [entry for folder in _OF_BATCHES for entry in _within(checkpoint / folder)]
    for entry in found:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return sorted(str(entry.relative_to(checkpoint)) for entry in found)


def _within(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
