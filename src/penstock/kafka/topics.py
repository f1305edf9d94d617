"""What a topic holds: offsets, times, how much came lately, and how long messages are kept.

Rules
- All partitions are asked in one request for each question; no message is read.
- The latest time is the largest that a message of the partition carries, which need not be the last message's.
- Every call has a deadline and ends in a value or in an error of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from penstock.errors.catalogue import BROKER_UNREACHABLE
from penstock.kafka.admin import TIMEOUT, Options, client_config, translated

RECENT = 60.0  # seconds that a rate is counted over

_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"), (1, "millisecond"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


@dataclass(frozen=True)
class Partition:
    """A partition as it stands."""

    topic: str
    number: int
    begin: int  # the oldest offset that is still there
    end: int  # the offset that the next message gets
    latest_at: float | None  # epoch seconds of the latest message; None when there is none
    recent: int  # offsets given within the last minute

    @property
    def messages(self) -> int:
        """Offsets between begin and end; fewer messages are there when the topic is compacted."""
        return self.end - self.begin


def partitions(
    bootstrap: str, read: Mapping[str, Sequence[int]], options: Options | None = None, *, now: float
) -> list[Partition]:
    """Every partition of `read` (topic -> partitions), in order."""
    admin = AdminClient(client_config(bootstrap, options))
    begin = _offsets(admin, bootstrap, read, OffsetSpec.earliest())
    end = _offsets(admin, bootstrap, read, OffsetSpec.latest())
    latest = _offsets(admin, bootstrap, read, OffsetSpec.max_timestamp())
    since = _offsets(admin, bootstrap, read, OffsetSpec.for_timestamp(int((now - RECENT) * 1000)))
    return [
        Partition(
            topic=topic,
            number=number,
            begin=begin[topic, number].offset,
            end=end[topic, number].offset,
            latest_at=_seconds(latest[topic, number]),
            recent=_after(since[topic, number].offset, end[topic, number].offset),
        )
        for topic, number in begin
    ]


def latest_at(bootstrap: str, read: Mapping[str, Sequence[int]], options: Options | None = None) -> float | None:
    """Epoch seconds of the latest message in any of the partitions; None when all of them are empty."""
    found = _offsets(AdminClient(client_config(bootstrap, options)), bootstrap, read, OffsetSpec.max_timestamp())
    return max((at for each in found.values() if (at := _seconds(each)) is not None), default=None)


def retention(bootstrap: str, topics: Iterable[str], options: Options | None = None) -> dict[str, str]:
    """How long each topic keeps its messages, in words; reading a topic does not imply the right to know that."""
    admin = AdminClient(client_config(bootstrap, options))
    asked = {ConfigResource(ResourceType.TOPIC, topic): topic for topic in topics}
    found = {}
    for resource, future in admin.describe_configs(list(asked), request_timeout=TIMEOUT).items():
        topic = asked[resource]
        try:
            config = future.result(timeout=2 * TIMEOUT)
        except KafkaException as cause:
            if cause.args[0].code() not in _NOT_ALLOWED:
                raise translated(bootstrap, topic, cause) from cause
            found[topic] = "not told to this user"
        else:
            found[topic] = retention_words({name: str(entry.value) for name, entry in config.items()})
    return found


def retention_words(config: Mapping[str, str]) -> str:
    """`7 days`, `1 hour or 1 GiB a partition`, `the latest message of each key`."""
    policies = {policy.strip() for policy in config.get("cleanup.policy", "delete").split(",")}
    limits = []
    if "delete" in policies:
        milliseconds, size = int(config.get("retention.ms", "-1")), int(config.get("retention.bytes", "-1"))
        limits += [_quantity(milliseconds, _UNITS)] if milliseconds >= 0 else []
        limits += [f"{_quantity(size, _SIZES)} a partition"] if size >= 0 else []
    kept = " or ".join(limits)
    if "compact" in policies:
        return f"the latest message of each key{f', for {kept}' if kept else ''}"
    return kept or "forever"


def _quantity(value: int, units: Sequence[tuple[int, str]]) -> str:
    """In the largest unit that leaves no rest."""
    size, unit = next(((size, unit) for size, unit in units if value >= size and value % size == 0), units[-1])
    number = value // size
    return f"{number} {unit}{'s' if units is _UNITS and number != 1 else ''}"


def _offsets(
    admin: Any, bootstrap: str, read: Mapping[str, Sequence[int]], question: Any
) -> dict[tuple[str, int], Any]:
    asked = {TopicPartition(topic, number): question for topic, numbers in read.items() for number in numbers}
    if not asked:
        return {}
    try:
        pending = admin.list_offsets(asked, request_timeout=TIMEOUT)
    except KafkaException as cause:
        raise translated(bootstrap, next(iter(read)), cause) from cause
    found = {(part.topic, part.partition): _answer(future, bootstrap, part.topic) for part, future in pending.items()}
    return dict(sorted(found.items()))


def _answer(future: Any, bootstrap: str, topic: str) -> Any:
    try:
        return future.result(timeout=2 * TIMEOUT)
    except KafkaException as cause:
        raise translated(bootstrap, topic, cause) from cause
    except FutureTimeout:
        raise BROKER_UNREACHABLE.error(f"The broker at {bootstrap} does not answer.") from None


def _seconds(found: Any) -> float | None:
    return found.timestamp / 1000 if found.offset >= 0 and found.timestamp >= 0 else None


def _after(offset: int, end: int) -> int:
    """How many offsets were given from `offset` on; a negative one is no offset: nothing is that young."""
    return max(end - offset, 0) if offset >= 0 else 0
