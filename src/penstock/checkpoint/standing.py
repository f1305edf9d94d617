"""Where a stream of one topic stands, and its next batch, in the files that Spark keeps of it.

Rules
- offsets/N is written before batch N is read for good, commits/N when it is in the table: as Spark does it, so that a
  query of Spark's goes on where the engine's own loop stopped, and the other way round.
- A batch that is planned and not done is done again as it was planned: the same number, the same offsets.
- What Spark notes beside the offsets is carried on from batch to batch. A checkpoint without a batch that is done is
  Spark's to begin: where a stream starts is decided there.
- A file is whole or not there at all. Spark leaves a checksum beside each of its files, and reads files without one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.checkpoint.files import write_whole
from penstock.checkpoint.offsets import committed_batch, parse_offset_log

KEPT = 20  # batches, as the engine tells Spark

Position = Mapping[int, int]  # partition -> the offset of the next message


@dataclass(frozen=True)
class Standing:
    """What is done, and what was begun."""

    topic: str
    batch: int  # the newest that is done
    position: Position  # up to where it read
    planned: Position | None  # up to where batch + 1 reads, when it was begun
    notes: Mapping[str, Any]  # what Spark wrote beside the offsets
    commit: str  # what it wrote when the batch was done

    @property
    def next_batch(self) -> int:
        return self.batch + 1


def standing(checkpoint: Path) -> Standing | None:
    """Where the stream stands; None when the checkpoint has no batch that is done, or is not of one topic."""
    try:
        done = committed_batch(checkpoint)
        begun = max((int(each.name) for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()), default=-1)
        if done is None or begun not in (done, done + 1):
            return None
        topic, position, notes = _read(checkpoint, done)
        planned = None
        if begun > done:
            same, planned, notes = _read(checkpoint, begun)
            if same != topic:
                return None
        commit = (checkpoint / "commits" / str(done)).read_text(encoding="utf-8")
    except (FileNotFoundError, ValueError):
        return None
    return Standing(topic, done, position, planned, notes, commit)


def _read(checkpoint: Path, batch: int) -> tuple[str, dict[int, int], dict[str, Any]]:
    text = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")
    offsets = parse_offset_log(text)
    if len(offsets) != 1 or offsets[0] is None or len(offsets[0]) != 1:
        raise ValueError(f"batch {batch} is not of one topic")
    (topic, partitions), *_ = offsets[0].items()
    if not isinstance(partitions, dict):
        raise ValueError(f"batch {batch} has no offsets by partition")  # noqa: TRY004 -- the text is wrong, not a type
    notes = json.loads(text.split("\n")[1])
    return topic, {int(number): int(at) for number, at in partitions.items()}, notes


def plan(checkpoint: Path, before: Standing, until: Position) -> Standing:
    """Note that the next batch reads up to there."""
    notes = {**before.notes, "batchTimestampMs": int(time.time() * 1000)}
    offsets = {before.topic: {str(number): at for number, at in sorted(until.items())}}
    lines = ["v1", *(json.dumps(each, separators=(",", ":")) for each in (notes, offsets))]
    _write(checkpoint / "offsets" / str(before.next_batch), "\n".join(lines))
    return replace(before, planned=dict(until), notes=notes)


def finish(checkpoint: Path, before: Standing) -> Standing:
    """Note that the planned batch is done, and forget what is long past."""
    assert before.planned is not None
    number = before.next_batch
    _write(checkpoint / "commits" / str(number), before.commit)
    for folder in ("offsets", "commits"):
        old = number - KEPT
        for name in (str(old), f".{old}.crc"):
            (checkpoint / folder / name).unlink(missing_ok=True)
    return replace(before, batch=number, position=before.planned, planned=None)


def _write(file: Path, text: str) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of a file that was there before
    write_whole(file, text)
