"""When rows became readable, from a Delta table's log: the same for every writer, and nothing is disturbed.

Rules
- A row is readable from the moment its commit has its final name. Renaming or linking a file sets its change time
  (ctime), so the log tells this afterwards and nobody has to poll while the streams run.
- The Kafka timestamp of a row is its column `at`; of a row that is replaced by key, that of its newest message.
- Where rows are replaced, a file that was written anew for other rows of it tells nothing new: the first commit with a
  timestamp counts. Of rows that are appended each counts, also those of one millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

_MICROS = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Commit:
    """One version of the table that added rows."""

    at: float  # epoch seconds at which it became readable
    rows: int
    files: tuple[Path, ...]


def commits(table: Path, *, since: float = 0.0) -> Iterator[Commit]:
    """The commits with rows that became readable after `since`, oldest first."""
    for log in sorted((table / "_delta_log").glob("*.json")):
        at = log.stat().st_ctime
        if at < since or not log.stem.isdigit():
            continue
        files = []
        rows = 0
        for line in log.read_text(encoding="utf-8").splitlines():
            add = json.loads(line).get("add")
            if add and add.get("dataChange", True):
                files.append(table / unquote(add["path"]))
                rows += int(json.loads(add.get("stats") or "{}").get("numRecords", 0))
        if files:
            yield Commit(at, rows, tuple(files))


def latencies(table: Path, *, sent_from: float, sent_to: float, replaced: bool = False) -> list[float]:
    """Milliseconds from the message's timestamp to the row being readable, for messages of a stretch of time."""
    found: list[float] = []
    before: set[float] = set()
    for commit in commits(table, since=sent_from):
        sent = [each for file in commit.files for each in _sent(file) if sent_from <= each <= sent_to]
        found.extend((commit.at - each) * 1000 for each in sent if each not in before)
        before.update(sent if replaced else ())
    return found


def _sent(file: Path) -> list[float]:
    stamps = pq.read_table(file, columns=["at"]).column("at")
    return [micros / 1e6 for micros in stamps.cast(_MICROS).cast(pa.int64()).to_pylist()]


def total_rows(table: Path) -> int:
    return sum(commit.rows for commit in commits(table))


def last_commit(table: Path) -> float:
    return max(commit.at for commit in commits(table))
