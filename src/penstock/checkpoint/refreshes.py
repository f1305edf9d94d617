"""What a full refresh has read, in files of the form that Spark gives its own checkpoints.

Rules
- offsets/N is written before refresh N computes: the end of each topic and the version of each table it reads.
  commits/N is written when it is in the table. Which refresh is in the table, the table's own log says.
- A refresh that did not come to its end is done again under its number, with offsets of its own: an overwritten
  offsets/N can only belong to a refresh that is not in the table.
- After the version and a line of metadata comes one line per topic source and one per dynamic table, so that whoever
  reads a stream's offsets (`checkpoint.offsets`) reads these as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.checkpoint.files import write_whole

_KEPT = 20

Offsets = dict[str, dict[int, int]]  # topic -> partition -> offset


@dataclass(frozen=True)
class TableVersion:
    """A Delta table as a refresh read it."""

    id: str  # a table that was dropped and made again has another one
    version: int


@dataclass(frozen=True)
class Inputs:
    """What a refresh reads."""

    definition: str  # of the query
    ends: Mapping[str, Offsets] = field(default_factory=dict)  # source -> up to where
    starts: Mapping[str, Offsets] = field(default_factory=dict)  # source -> from where, if that was fixed once
    tables: Mapping[str, TableVersion] = field(default_factory=dict)  # path of the table
    clusters: Mapping[str, str] = field(default_factory=dict)  # source -> the Kafka cluster that its offsets are of


def write_inputs(checkpoint: Path, number: int, inputs: Inputs, followed: Sequence[str]) -> None:
    """Write offsets/N; `followed` are the paths of the dynamic tables among the inputs, in the order of the spec."""
    metadata = {
        "batchTimestampMs": int(time.time() * 1000),
        "definition": inputs.definition,
        "starts": inputs.starts,
        "sources": list(inputs.ends),
        "clusters": dict(inputs.clusters),
        "tables": {path: [each.id, each.version] for path, each in inputs.tables.items()},
    }
    lines: list[Any] = [metadata, *inputs.ends.values()]
    read = [inputs.tables[path] for path in followed]
    lines += [{"reservoirId": each.id, "reservoirVersion": each.version + 1, "index": -1} for each in read]
    _write(checkpoint / "offsets" / str(number), "\n".join(["v1", *(json.dumps(line) for line in lines)]))


def read_inputs(checkpoint: Path, number: int) -> Inputs | None:
    """What refresh N read; None when that is not known."""
    try:
        _, metadata, *lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return None
    told = json.loads(metadata)
    return Inputs(
        definition=str(told["definition"]),
        ends={name: _numbered(json.loads(line)) for name, line in zip(told["sources"], lines, strict=False)},
        starts={name: _numbered(offsets) for name, offsets in told["starts"].items()},
        tables={path: TableVersion(str(key), int(version)) for path, (key, version) in told["tables"].items()},
        clusters=told.get("clusters", {}),  # not of those before it was asked
    )


def write_commit(checkpoint: Path, number: int) -> None:
    """Write commits/N and forget what is long past."""
    _write(checkpoint / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            if file.name.isdigit() and int(file.name) <= number - _KEPT:
                file.unlink(missing_ok=True)


def _numbered(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: {int(number): at for number, at in parts.items()} for topic, parts in offsets.items()}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
