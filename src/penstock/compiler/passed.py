"""Which records of a source a stream has passed without making rows of them. Pure.

Rules
- A generation of a stream decoded the records from where it began up to where the next one did, as its spec said.
- What the newest generation reads, it reads as the source is declared now: nothing of that is missing.
- A generation that decoded as the newest does has missed nothing, either.
- With `null`, a partly bad record became a row; of the other choices it became none. `fail` passed no such record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.compiler.quality import BAD, PARTLY
from penstock.compiler.quarantine import same_definition
from penstock.compiler.spec import KafkaInput
from penstock.compiler.sqltext import text

Offsets = Mapping[str, Mapping[str, int]]  # topic -> partition -> offset


@dataclass(frozen=True)
class Reading:
    """A generation of a stream: how it decoded a source, and where it began."""

    source: KafkaInput
    began: Offsets


@dataclass(frozen=True)
class Passed:
    """Records that were passed: of these qualities, as the source was declared then, and at these places."""

    source: KafkaInput
    qualities: tuple[str, ...]
    places: str  # a condition on topic, partition and offset


def passed(readings: Sequence[Reading]) -> list[Passed]:
    """What the generations of a stream, oldest first, have passed that the newest would not."""
    found = []
    for now, later in pairwise(readings):
        missed = () if same_definition(now.source, readings[-1].source) else _missed(now.source)
        if missed:
            found.append(Passed(now.source, missed, between(now.began, later.began)))
    return found


def between(begin: Offsets, end: Offsets) -> str:
    """A condition on topic, partition and offset: not before the one, before the other."""
    parts = []
    for topic, partitions in sorted(end.items()):
        for partition, upto in sorted(partitions.items(), key=lambda each: int(each[0])):
            first = int((begin.get(topic) or {}).get(partition, 0))
            if upto > first:
                parts.append(
                    f"(topic = {text(topic)} and `partition` = {int(partition)}"
                    f" and `offset` >= {first} and `offset` < {int(upto)})"
                )
    return " or ".join(parts) or "false"


def _missed(source: KafkaInput) -> tuple[str, ...]:
    return {"null": (BAD,), "fail": ()}.get(source.on_bad_record, (BAD, PARTLY))
