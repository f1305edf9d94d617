"""The record that makes a batch fail, found by trying parts of the batch. Pure but for `failed_ranges`, which reads the
checkpoint.

Rules
- What failed is the newest batch that Spark planned and did not commit; what it read is in the offset log.
- Halves are tried until one record is left; it is at fault only if it fails all by itself. So a failure that comes of
  several records together, or that has passed, is nobody's fault.
- The first record at fault is found, in the order of partitions and offsets; there may be more behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from penstock.checkpoint.offsets import Offset, by_relation, committed_batch, initial, parse_offset_log
from penstock.compiler.spec import Input, KafkaInput

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Range:
    """Some messages of a partition: from `begin` up to, and without, `end`."""

    relation: str
    topic: str
    partition: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        return max(self.end - self.begin, 0)

    def __str__(self) -> str:
        return f"topic '{self.topic}', partition {self.partition}, offset {self.begin}"


def failed_ranges(checkpoint: Path, inputs: Sequence[Input]) -> tuple[int, list[Range]] | None:
    """The number of the batch that failed and what it read; None when the checkpoint does not say, or names a table."""
    try:
        planned = max(
            (int(each.name) for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()), default=-1
        )
        if planned < 0 or planned == committed_batch(checkpoint):
            return None
        ends = _offsets(checkpoint, planned, inputs)
        starts = _offsets(checkpoint, planned - 1, inputs) if planned else initial(checkpoint, inputs)
    except (FileNotFoundError, ValueError):
        return None
    if any(each.kind == "table_stream" for each in inputs):
        return None  # its rows have no offset to name
    return planned, ranges(starts, ends)


def _offsets(checkpoint: Path, batch: int, inputs: Sequence[Input]) -> dict[str, Offset]:
    topics = [each for each in inputs if isinstance(each, KafkaInput)]
    return by_relation(parse_offset_log((checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")), topics)


def ranges(starts: Mapping[str, Offset], ends: Mapping[str, Offset]) -> list[Range]:
    """What lies between two offsets of each input; a partition that is new began at 0."""
    return sorted(
        Range(relation, topic, int(partition), int(starts.get(relation, {}).get(topic, {}).get(partition, 0)), int(end))
        for relation, topics in ends.items()
        for topic, partitions in topics.items()
        for partition, end in partitions.items()
    )


def culprit(
    found: Sequence[Range], probe: Callable[[Sequence[Range]], T | None], may_go_on: Callable[[], bool]
) -> tuple[Range, T] | None:
    """The first record that fails by itself, with what `probe` says of it; None when there is none, or time is up.

    `probe` runs a part of the batch, and says what is wrong with it or None.
    """
    suspect = [each for each in found if each.count]
    if not suspect or probe(suspect) is None:
        return None
    while sum(each.count for each in suspect) > 1:
        if not may_go_on():
            return None
        first, second = halves(suspect)
        suspect = first if probe(first) is not None else second
    problem = probe(suspect)
    return None if problem is None else (suspect[0], problem)


def halves(whole: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """Two parts of about the same number of messages, in their order."""
    left = sum(each.count for each in whole) // 2
    first: list[Range] = []
    second: list[Range] = []
    for each in whole:
        cut = each.begin + min(left, each.count)
        left -= cut - each.begin
        parts = (replace(each, end=cut), replace(each, begin=cut))
        first += [parts[0]] if parts[0].count else []
        second += [parts[1]] if parts[1].count else []
    return first, second


def bounds(whole: Sequence[Range], part: Sequence[Range]) -> tuple[dict[str, Offset], dict[str, Offset]]:
    """Where to begin and end in each partition of `whole` to read `part` alone, by input and topic."""
    chosen = {(each.relation, each.topic, each.partition): each for each in part}
    froms: dict[str, Offset] = {}
    untils: dict[str, Offset] = {}
    for each in whole:
        at = chosen.get((each.relation, each.topic, each.partition)) or replace(each, end=each.begin)
        froms.setdefault(each.relation, {}).setdefault(each.topic, {})[each.partition] = at.begin
        untils.setdefault(each.relation, {}).setdefault(each.topic, {})[each.partition] = at.end
    return froms, untils
