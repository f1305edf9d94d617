"""Beginning, end and age of topics, asked every second.

Rules
- One client for each broker and set of options, kept open: a look costs a round trip, not a connection.
- Every call has a short deadline; a broker that does not answer makes the lag unknown, nothing more.
- The time of a message is asked once while it stays the oldest unread one.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors.catalogue import BROKER_UNREACHABLE, TOPIC_MISSING
from penstock.kafka.admin import client_config
from penstock.kafka.security import Value

TIMEOUT = 3.0
_PARTITIONS_KEPT = 30.0  # seconds until a topic's partitions are counted again
_NAMES_KEPT = 10.0  # and until new topics are looked for
_LEADERLESS = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_AGAIN = 0.05

Options = tuple[tuple[str, Value], ...]  # secrets are references, and stay so here
_Topic = tuple[str, Options, str]


class TopicWatch:
    """Answers about topics. For one thread; `close` ends its clients.

    A broker that did not answer within `timeout` is not asked again for `spare` seconds.
    """

    def __init__(self, timeout: float = TIMEOUT, spare: float = 0.0) -> None:
        self._timeout = timeout
        self._spare = spare
        self._silent: dict[str, float] = {}
        self._clients: dict[tuple[str, Options], Any] = {}
        self._partitions: dict[_Topic, tuple[float, int]] = {}
        self._names: dict[tuple[str, Options], tuple[float, list[str]]] = {}
        self._times: dict[tuple[_Topic, int], tuple[int, float | None]] = {}

    def watermarks(self, bootstrap: str, topic: str, options: Options) -> tuple[dict[int, int], dict[int, int]]:
        """Per partition, the oldest offset that is there and the one that the next message will get."""
        begin, end = {}, {}
        try:
            client = self._client(bootstrap, options)
            for number in range(self._count(client, (bootstrap, options, topic))):
                begin[number], end[number] = self._ends(client, TopicPartition(topic, number))
        except KafkaException as problem:
            raise self._named(bootstrap, topic, problem) from problem
        return begin, end

    def _ends(self, client: Any, place: TopicPartition) -> tuple[int, int]:
        """The two ends of a partition. While it has no leader, as for a moment in a new topic, it is asked again."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                found: tuple[int, int] = client.get_watermark_offsets(place, timeout=self._timeout)
                return found
            except KafkaException as problem:
                if problem.args[0].code() not in _LEADERLESS or time.monotonic() >= deadline:
                    raise
            time.sleep(_AGAIN)

    def time_of(self, bootstrap: str, topic: str, options: Options, partition: int, offset: int) -> float | None:
        """Epoch seconds of the message at the offset; None when it carries no time or does not come in time."""
        key = ((bootstrap, options, topic), partition)
        known = self._times.get(key)
        if known is not None and known[0] == offset:
            return known[1]
        try:
            client = self._client(bootstrap, options)
            client.assign([TopicPartition(topic, partition, offset)])
            message = client.poll(self._timeout)
            client.unassign()
        except KafkaException as problem:
            raise self._named(bootstrap, topic, problem) from problem
        if message is None or message.error():
            return None
        kind, milliseconds = message.timestamp()
        found = None if kind == 0 else milliseconds / 1000
        self._times[key] = (offset, found)
        return found

    def offsets_at(
        self, bootstrap: str, topic: str, options: Options, milliseconds: int, partitions: tuple[int, ...]
    ) -> dict[int, int]:
        """Per partition, the offset of the first message of that time or later; the end when there is none."""
        client = self._client(bootstrap, options)
        asked = [TopicPartition(topic, number, milliseconds) for number in partitions]
        try:
            found = {each.partition: each.offset for each in client.offsets_for_times(asked, timeout=self._timeout)}
        except KafkaException as problem:
            raise self._named(bootstrap, topic, problem) from problem
        if any(offset < 0 for offset in found.values()):
            _, end = self.watermarks(bootstrap, topic, options)
            found = {number: offset if offset >= 0 else end[number] for number, offset in found.items()}
        return found

    def names(self, bootstrap: str, options: Options) -> list[str]:
        """All topics, looked up again from time to time."""
        known = self._names.get((bootstrap, options))
        if known is not None and time.monotonic() - known[0] < _NAMES_KEPT:
            return known[1]
        try:
            found = list(self._client(bootstrap, options).list_topics(timeout=self._timeout).topics)
        except KafkaException as problem:
            raise self._named(bootstrap, "", problem) from problem
        self._names[(bootstrap, options)] = (time.monotonic(), found)
        return found

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, bootstrap: str, options: Options) -> Any:
        if self._silent.get(bootstrap, 0.0) > time.monotonic():
            raise BROKER_UNREACHABLE.error(f"No Kafka broker answers at {bootstrap}.")
        found = self._clients.get((bootstrap, options))
        if found is None:
            found = Consumer(
                client_config(bootstrap, dict(options))
                | {
                    "group.id": f"penstock-lag-{uuid.uuid4().hex[:12]}",  # assigned by hand, never committed
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 20,
                    "queued.max.messages.kbytes": 64,
                    "fetch.message.max.bytes": 65536,
                }
            )
            self._clients[(bootstrap, options)] = found
        return found

    def _count(self, client: Any, topic: _Topic) -> int:
        known = self._partitions.get(topic)
        if known is not None and time.monotonic() - known[0] < _PARTITIONS_KEPT:
            return known[1]
        found = client.list_topics(topic[2], timeout=self._timeout).topics[topic[2]]
        if found.error is not None:
            raise KafkaException(found.error)
        self._partitions[topic] = (time.monotonic(), len(found.partitions))
        return len(found.partitions)

    def _named(self, bootstrap: str, topic: str, problem: KafkaException) -> Exception:
        error = problem.args[0]
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            return TOPIC_MISSING.error(f"The broker at {bootstrap} has no topic '{topic}'.")
        if self._spare:
            self._silent[bootstrap] = time.monotonic() + self._spare
        return BROKER_UNREACHABLE.error(f"No Kafka broker answers at {bootstrap} ({error.str()}).")
