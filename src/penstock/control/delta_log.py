"""How many rows of a Delta table a stream has not read yet, from the table's commit files.

Rules
- An offset {reservoirVersion: V, index: I} means: every commit below V is read, and of commit V the first I + 1 files
  (none when I is negative). With isStartingVersion, V is the table's first snapshot: all files up to V, oldest first.
- Rows that a rewrite (OPTIMIZE) only moved are not new.
- Commit files are probed by number, not listed: a caught-up stream costs one look for a file that is not there.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.checkpoint.offsets import Offset
from penstock.control import behind
from penstock.control.behind import Lag

_KEPT = 20_000  # commits in memory


@dataclass(frozen=True)
class Commit:
    """What a commit added: rows of each new file, in order."""

    added: tuple[int | None, ...]  # None: the writer kept no statistics
    at: float | None  # epoch seconds


def parse_commit(text: str) -> Commit:
    """One commit file."""
    added: list[int | None] = []
    at: float | None = None
    for line in text.splitlines():
        action = json.loads(line)
        if "add" in action and action["add"].get("dataChange", True):
            added.append(_rows(action["add"]))
        elif "commitInfo" in action and "timestamp" in action["commitInfo"]:
            at = action["commitInfo"]["timestamp"] / 1000
    return Commit(tuple(added), at)


def _rows(add: dict[str, Any]) -> int | None:
    stats = add.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    return int(rows) if rows is not None else None


def newest_version(table: Path) -> int:
    """The newest commit of a table; -1 when there is no table."""
    found = (int(file.stem) for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())
    return max(found, default=-1)


def has_changes_after(table: Path, offset: Offset | None, until: int | None = None) -> bool:
    """Whether a table has rows, or changes of rows, that a stream at this offset has not read, up to a version."""
    log = table / "_delta_log"
    if offset is not None and offset.get("isStartingVersion"):
        return True  # it reads the rows that were there when it began
    version = 0 if offset is None else int(offset["reservoirVersion"])
    read = 0 if offset is None else max(int(offset.get("index", -1)) + 1, 0)
    if not _file(log, version).exists():
        return _checkpointed(log) >= version  # its commits are gone
    while (until is None or version <= until) and (file := _file(log, version)).exists():
        if _changes(file.read_text(encoding="utf-8")) > read:
            return True
        version, read = version + 1, 0
    return False


def _changes(text: str) -> int:
    """How many files of a commit a stream reads: those of its change feed, or else those that came and went."""
    actions = [json.loads(line) for line in text.splitlines()]
    fed = sum("cdc" in action for action in actions)
    files = [action.get("add") or action.get("remove") or {} for action in actions]
    return fed or sum(bool(each and each.get("dataChange", True)) for each in files)


class DeltaLog:
    """Reads tables' commits, each once."""

    def __init__(self) -> None:
        self._commits: OrderedDict[tuple[Path, int], tuple[int, Commit]] = OrderedDict()  # with the time of the file

    def lag(self, table: Path, offset: Offset | None, now: float) -> Lag:
        """What of the table is unread after `offset`; everything when it is None."""
        log = table / "_delta_log"
        if not log.is_dir():
            return behind.NONE  # no table yet, so no rows
        first, last_partial, skip = _start(offset)
        if not _file(log, first).exists():
            return behind.UNKNOWN if _checkpointed(log) >= first else behind.NONE
        rows: int | None = 0
        oldest: float | None = None
        for version, commit in self._from(log, first):
            read = min(skip, len(commit.added)) if version <= last_partial else 0
            skip -= read
            new = commit.added[read:]
            if not new:
                continue
            oldest = commit.at if oldest is None else oldest
            rows = None if rows is None or None in new else rows + sum(n for n in new if n is not None)
        if rows == 0:
            return behind.NONE
        return Lag(rows, behind.age([oldest], now))

    def _from(self, log: Path, first: int) -> Iterator[tuple[int, Commit]]:
        version = first
        while (commit := self._commit(log, version)) is not None:
            yield version, commit
            version += 1

    def _commit(self, log: Path, version: int) -> Commit | None:
        file = _file(log, version)
        try:
            at = file.stat().st_mtime_ns
            known, found = self._commits.get((log, version), (None, None))
            if found is None or known != at:  # of a table that was dropped and made anew
                found = parse_commit(file.read_text(encoding="utf-8"))
                self._commits[(log, version)] = (at, found)
        except FileNotFoundError:
            return None
        while len(self._commits) > _KEPT:
            self._commits.popitem(last=False)
        return found


def _file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _start(offset: Offset | None) -> tuple[int, int, int]:
    """First commit to look at, the last one of which files may be read already, and how many files those are."""
    if offset is None:
        return 0, -1, 0
    version, index = int(offset["reservoirVersion"]), int(offset.get("index", -1))
    files = max(index + 1, 0)
    return (0 if offset.get("isStartingVersion") and files else version), version, files


def _checkpointed(log: Path) -> int:
    """The newest commit that a checkpoint of the log covers, and whose file may be gone; -1 when there is none."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return -1
