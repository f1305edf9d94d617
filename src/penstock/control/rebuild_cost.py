"""What a rebuild would read, and what it could not read again.

Rules
- A rebuild begins where the source's `start` says now; messages that retention removed meanwhile cannot be read again.
- Lost is what the deployed stream has read and the rebuild would not: from where the stream began (its checkpoint says
  it) up to where the rebuild would begin. So is what it read beyond the topic's end: the topic was made anew.
- Of a topic that is on another Kafka cluster nobody knows whether it has what was read: offsets are not compared.
- A stream that has read nothing loses nothing. What a broker does not tell is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.checkpoint.clusters import Cluster, read_from
from penstock.checkpoint.offsets import Offset, committed, initial
from penstock.compiler.spec import FromTimestamp, Input, KafkaInput, StreamSpec, TableStreamInput
from penstock.control import behind
from penstock.control.clusters import NOTHING_THERE, Asked, is_other
from penstock.control.inputs import Access, access
from penstock.control.lag import Topics, table_path
from penstock.control.table_facts import table_facts
from penstock.errors import PenstockError
from penstock.kafka.admin import matching
from penstock.kafka.topics import retention
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings
from penstock.store import Desired

_COMPACTED = "the latest message of each key"


@dataclass(frozen=True)
class InputCost:
    """What a rebuild reads of one input."""

    relation: str
    start: str  # earliest | latest | a time | offsets | first row
    messages: int | None
    lost: int | None  # read by the deployed stream, and out of the rebuild's reach
    note: str | None = None

    @property
    def covered(self) -> bool | None:
        return None if self.lost is None else self.lost == 0


@dataclass(frozen=True)
class RebuildCost:
    """What a rebuild reads."""

    inputs: tuple[InputCost, ...]

    @property
    def messages(self) -> int | None:
        known = [each.messages for each in self.inputs]
        return None if None in known else sum(each for each in known if each is not None)

    @property
    def lost(self) -> int | None:
        """Messages that are known to be lost; None when that is unknown and no loss is known."""
        known = sum(each.lost for each in self.inputs if each.lost is not None)
        return None if not known and any(each.lost is None for each in self.inputs) else known

    def words(self) -> str:
        """For people, on one line."""
        return "; ".join(_words(each) for each in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        inputs = [asdict(each) | {"covered": each.covered} for each in self.inputs]
        return {"messages": self.messages, "lost": self.lost, "inputs": inputs}


def _words(cost: InputCost) -> str:
    unit = "rows" if cost.start == "first row" else "messages"
    reads = f"an unknown number of {unit}" if cost.messages is None else f"{cost.messages:,} {unit}"
    text = f"reads {reads} of {cost.relation} from {cost.start}"
    if cost.lost:
        text += f"; {cost.lost:,} that were read before are out of reach"
    if cost.note:
        text += f" ({cost.note})"
    return text


class CostMeter:
    """Asks brokers and tables what rebuilds would read; keeps its clients."""

    def __init__(self, paths: ProjectPaths, kafka: KafkaSettings, topics: Topics, asked: Asked) -> None:
        self._paths = paths
        self._kafka = kafka
        self._topics = topics
        self._asked = asked

    def measure(self, spec: StreamSpec, old: Desired) -> RebuildCost:
        """What building `spec` anew reads, and what of the deployed stream's rows that leaves out."""
        checkpoint = self._paths.checkpoint(old.stream, old.checkpoint_id)
        inputs = [item for item in spec.inputs if isinstance(item, KafkaInput)]
        began, read = initial(checkpoint, inputs), committed(checkpoint, inputs)
        clusters = read_from(checkpoint)
        found = []
        for item in spec.inputs:
            if isinstance(item, KafkaInput):
                found.append(self._topic(item, began.get(item.relation), read.get(item.relation), clusters))
            elif isinstance(item, TableStreamInput):
                found.append(self._table(item))
        return RebuildCost(tuple(found))

    def _table(self, item: TableStreamInput) -> InputCost:
        facts = table_facts(table_path(self._paths, item.relation))
        return InputCost(item.relation, "first row", facts.rows if facts else 0, 0)

    def _topic(
        self, item: KafkaInput, began: Offset | None, read: Offset | None, clusters: Mapping[str, Cluster]
    ) -> InputCost:
        start = _start(item)
        try:
            broker = access(item, self._kafka, self._paths)
            options = tuple(sorted(broker.options.items()))
            names = [str(item.topic)]
            if item.topic_pattern is not None:
                names = matching(item.topic_pattern, self._topics.names(broker.bootstrap, options))
            messages = lost = 0
            for name in names:
                begin, end = self._range(item, name, broker, options)
                messages += sum(end[number] - at for number, at in begin.items())
                lost += _lost(_partitions(began, name), _partitions(read, name), begin, end)
            if is_other(item, clusters, self._kafka, self._paths, self._asked):
                return InputCost(item.relation, start, messages, None, NOTHING_THERE)
            note = self._compacted(broker, names)
        except PenstockError as problem:
            return InputCost(item.relation, start, None, None, problem.message)
        return InputCost(item.relation, start, messages, None if note and not lost else lost, note)

    def _range(
        self, item: KafkaInput, topic: str, broker: Access, options: Any
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Per partition, where a rebuild would begin, and the end."""
        first, end = self._topics.watermarks(broker.bootstrap, topic, options)
        if item.partitions:
            first, end = ({p: at for p, at in each.items() if p in item.partitions} for each in (first, end))
        if isinstance(item.starting, FromTimestamp):
            at = self._topics.offsets_at(broker.bootstrap, topic, options, item.starting.milliseconds, tuple(end))
        else:
            how = item.starting if isinstance(item.starting, str) else dict(item.starting.offsets)
            at = behind.start(how, end)
        return {number: min(max(at.get(number, low), low), end[number]) for number, low in first.items()}, end

    def _compacted(self, broker: Access, topics: Sequence[str]) -> str | None:
        kept = retention(broker.bootstrap, topics, broker.options)
        return (
            "of a compacted topic only the latest message of each key is left"
            if any(words.startswith(_COMPACTED) for words in kept.values())
            else None
        )


def _lost(began: Mapping[int, int], read: Mapping[int, int], begin: Mapping[int, int], end: Mapping[int, int]) -> int:
    """Offsets that were read, from where the stream began, and that lie before where the rebuild would begin or beyond
    the end of the topic."""
    lost = 0
    for number, upto in read.items():
        if number in begin:
            start = began.get(number, 0)
            lost += max(0, min(begin[number], upto) - start) + max(0, upto - max(end[number], start))
    return lost


def _partitions(offset: Offset | None, topic: str) -> dict[int, int]:
    return {int(number): int(at) for number, at in ((offset or {}).get(topic) or {}).items()}


def _start(item: Input) -> str:
    if not isinstance(item, KafkaInput) or isinstance(item.starting, str):
        return str(getattr(item, "starting", "first row"))
    if isinstance(item.starting, FromTimestamp):
        return item.starting.timestamp.isoformat()
    return "the offsets that are set"
