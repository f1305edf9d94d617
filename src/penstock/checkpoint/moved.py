"""A checkpoint whose stream goes on with other tables, which hold the same rows.

Rules
- Where a stream stands in a Delta table is written as the table's id and a version. In the place of each table that was
  read to its end comes the other one, with the version from which on it is read.
- Every batch that the checkpoint remembers is changed: Spark looks at the newest and at the one before it.
- Doing it again changes nothing: the ids of before are not found any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoint.files import write_whole

_HEAD = 2  # lines before the sources: the version of the log, and what Spark notes of the batch


@dataclass(frozen=True)
class Place:
    """Where a table is read from."""

    table_id: str
    version: int  # the first that is not read yet


def move(checkpoint: Path, places: Mapping[str, Place]) -> int:
    """Change the places in tables (by id) of a checkpoint; how many batches that were."""
    changed = 0
    for file in sorted((checkpoint / "offsets").glob("*")):
        if not file.name.isdigit():
            continue
        text = file.read_text(encoding="utf-8")
        found = moved(text, places)
        if found != text:
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Spark reads files without a checksum
            write_whole(file, found)
            changed += 1
    return changed


def moved(text: str, places: Mapping[str, Place]) -> str:
    """The offsets of a batch with other places in tables. Pure."""
    lines = text.split("\n")
    return "\n".join([*lines[:_HEAD], *(_line(line, places) for line in lines[_HEAD:])])


def _line(line: str, places: Mapping[str, Place]) -> str:
    if "reservoirId" not in line:
        return line
    offset = json.loads(line)
    place = places.get(offset["reservoirId"])
    if place is None:
        return line
    at = {"reservoirId": place.table_id, "reservoirVersion": place.version, "index": -1, "isStartingVersion": False}
    return json.dumps(offset | at, separators=(",", ":"))
