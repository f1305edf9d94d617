"""What a stream has read, from Spark's checkpoint. Pure but for `committed`, which reads two files.

Rules
- A batch is read when commits/N exists; what it read up to is in offsets/N.
- offsets/N is: the version `v1`, a line of metadata, then one line of JSON per source, `-` for a source without offset.
- A Kafka offset names its topics and is recognised by them. Delta's offsets name only the id of a table
  (`table_ids`): the order of sources is Spark's, not that of the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.compiler.spec import Input, KafkaInput, TableStreamInput

Offset = dict[str, Any]


def parse_offset_log(text: str) -> list[Offset | None]:
    """The offsets of one batch, one per source; ValueError when the text is no offset log of version 1."""
    lines = text.strip("\n").split("\n")
    if lines[0].strip() != "v1":
        raise ValueError(f"offset log of unknown version {lines[0][:20]!r}")
    return [None if line.strip() == "-" else _offset(line) for line in lines[2:] if line.strip()]


def _offset(line: str) -> Offset:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"an offset is an object, not {line[:40]!r}")  # noqa: TRY004 -- the text is wrong, not a type
    return value


def by_relation(
    offsets: Sequence[Offset | None], inputs: Sequence[Input], tables: Mapping[str, str] | None = None
) -> dict[str, Offset]:
    """Which input each offset belongs to. `tables` (id -> relation) has to be told when there are several."""
    found: dict[str, Offset] = {}
    for item in inputs:
        if isinstance(item, KafkaInput):
            matches = [offset for offset in offsets if offset and all(item.reads(topic) for topic in offset)]
            if matches:
                found[item.relation] = matches[0]
    streamed = {item.relation for item in inputs if isinstance(item, TableStreamInput)}
    for table, offset in _in_tables(offsets).items():
        relation = next(iter(streamed)) if len(streamed) == 1 else (tables or {}).get(table)
        if relation in streamed:
            found[relation] = offset
    return found


def newest_committed(commits: Sequence[str]) -> int | None:
    """The highest batch among the names of a commits directory."""
    numbers = [int(name) for name in commits if name.isdigit()]
    return max(numbers, default=None)


def committed_batch(checkpoint: Path) -> int | None:
    """The newest batch that the checkpoint calls done; None before the first."""
    try:
        return newest_committed([entry.name for entry in (checkpoint / "commits").iterdir()])
    except FileNotFoundError:
        return None


def committed(
    checkpoint: Path, inputs: Sequence[Input], tables: Mapping[str, str] | None = None, *, written: int = -1
) -> dict[str, Offset]:
    """The offsets of the newest committed batch; empty before the first.

    `written` is the newest batch that is in the table: it may be one that the checkpoint does not call done yet.
    """
    return by_relation(_newest(checkpoint, written), inputs, tables)


def committed_in_tables(checkpoint: Path) -> dict[str, Offset]:
    """Where the newest committed batch stands in Delta tables, by their ids."""
    return _in_tables(_newest(checkpoint))


def _in_tables(offsets: Sequence[Offset | None]) -> dict[str, Offset]:
    """Offsets by the ids of their tables; of a table that is read twice, the place that is further behind."""
    found: dict[str, Offset] = {}
    for offset in offsets:
        if offset is not None and "reservoirVersion" in offset:
            table = str(offset.get("reservoirId", ""))
            found[table] = min(found.get(table, offset), offset, key=place)
    return found


def place(offset: Offset) -> tuple[bool, int, int]:
    """Where an offset of a table stands, to be compared: in the table as it was at first, or after it."""
    return not offset.get("isStartingVersion"), int(offset["reservoirVersion"]), int(offset.get("index", -1))


def _newest(checkpoint: Path, written: int = -1) -> list[Offset | None]:
    try:
        batch = max(-1 if (done := committed_batch(checkpoint)) is None else done, written)
        if batch < 0:
            return []
        return parse_offset_log((checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []


def initial(checkpoint: Path, inputs: Sequence[Input]) -> dict[str, Offset]:
    """Where the stream began in each topic, as Spark wrote it down at its first look; empty before that."""
    found = list(_begins(checkpoint).values())
    return by_relation(found, [item for item in inputs if isinstance(item, KafkaInput)])


def _begins(checkpoint: Path) -> dict[int, Offset | None]:
    """Where the stream began, by the position of the source; of topics alone."""
    found: dict[int, Offset | None] = {}
    for file in (checkpoint / "sources").glob("*/0"):
        text = file.read_text(encoding="utf-8")
        if "{" in text:  # a zero byte and `v1` come before it
            found[int(file.parent.name)] = normalised(text[text.index("{") :])
    return dict(sorted(found.items()))


def normalised(value: Any) -> Offset | None:
    """An offset as it is kept in the store: an object, or the same as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def kafka_rows(checkpoint: Path, batch_id: int) -> int | None:
    """How many messages a batch reads, from the offsets before and after it; None when a source is no topic."""
    try:
        ends = parse_offset_log((checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8"))
        if batch_id > 0:
            text = (checkpoint / "offsets" / str(batch_id - 1)).read_text(encoding="utf-8")
            starts = dict(enumerate(parse_offset_log(text)))
        else:
            starts = _begins(checkpoint)
    except FileNotFoundError:
        return None
    rows = 0
    for position, end in enumerate(ends):
        start = starts.get(position)
        if end is None:
            continue
        if start is None or not all(isinstance(partitions, dict) for partitions in end.values()):
            return None
        for topic, partitions in end.items():
            before = start.get(topic, {})
            rows += sum(offset - before.get(partition, 0) for partition, offset in partitions.items())
    return rows
