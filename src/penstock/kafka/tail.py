"""The end of a topic, read on and on by one client.

Rules
- It reads on from where the caller says. The client goes elsewhere only when that is not where it stands, so reading on
  costs neither a connection nor a question.
- Messages of a partition keep their order, and none between two offsets is left out: where the broker has lost some, or
  the topic was made anew, OFFSETS_LOST ends it.
- Open transactions are read as well, as Spark reads them unless it is told otherwise. The marks that they leave in a
  partition are no messages, but one stands behind them when they were passed.
- Partitions that a topic gets are found within seconds. A broker that does not answer is waited for, and after a
  minute it is called unreachable.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors.catalogue import AUTH_REFUSED, BROKER_UNREACHABLE, OFFSETS_LOST, TOPIC_MISSING
from penstock.kafka.admin import Options, client_config
from penstock.kafka.slices import Message

log = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds that a broker may be silent
_LOOK_EVERY = 10.0  # seconds between two looks at the partitions
_ANSWER = 3.0
_LINGER = 0.01  # seconds in which what comes right after a message comes with it
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_LOST = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
_REFUSED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION)

Position = Mapping[int, int]


class Tail:
    """Messages of some partitions of a topic, or of all. For one thread."""

    def __init__(self, bootstrap: str, topic: str, chosen: tuple[int, ...], options: Options) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._chosen = chosen
        self._client: Any = Consumer(
            client_config(bootstrap, options)
            | {
                "group.id": f"penstock-shared-{uuid.uuid4().hex[:12]}",  # assigned by hand, never committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 16384,
            }
        )
        self._at: dict[int, int] = {}
        self._partitions: frozenset[int] = frozenset()
        self._looked = -_LOOK_EVERY
        self._answered = time.monotonic()
        self.fetched = 0  # messages, in all

    def close(self) -> None:
        self._client.close()

    def partitions(self) -> frozenset[int]:
        """The partitions that are read, as they were a few seconds ago."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return self._partitions
        try:
            found = self._client.list_topics(self._topic, timeout=_ANSWER).topics[self._topic]
            if found.error is not None:
                raise KafkaException(found.error)
        except KafkaException as problem:
            if problem.args[0].code() in _GONE:
                raise TOPIC_MISSING.error(f"The broker at {self._bootstrap} has no topic '{self._topic}'.") from problem
            if now - self._answered > PATIENCE:
                raise BROKER_UNREACHABLE.error(f"No Kafka broker answers at {self._bootstrap}.") from problem
            return self._partitions
        self._looked = self._answered = time.monotonic()
        self._partitions = frozenset(found.partitions) & (frozenset(self._chosen) or frozenset(found.partitions))
        return self._partitions

    def more(self, at: Position, most: int, timeout: float) -> tuple[list[Message], dict[int, int]]:
        """What there is from these offsets on, as soon as there is something; and where one stands behind it."""
        self._go(at)
        first = self._client.poll(timeout)
        found = []
        if first is not None:
            found = self._taken([first, *self._client.consume(max(most - 1, 1), timeout=_LINGER)])
        return found, dict(self._at)

    def between(self, begin: Position, end: Position) -> list[Message]:
        """All messages between these offsets; offsets may have gaps."""
        left = {number: until for number, until in end.items() if until > begin.get(number, 0)}
        if not left:
            return []
        try:
            self._go({number: begin.get(number, 0) for number in left})
            return sorted(self._until(left), key=lambda each: (each.partition, each.offset))
        finally:
            self._at = {}  # what was read beyond the end is read again, by whoever goes on from there

    def _until(self, left: dict[int, int]) -> list[Message]:
        found: list[Message] = []
        heard = time.monotonic()
        while left:
            message = self._client.poll(1.0)
            if message is None:
                if time.monotonic() - heard > PATIENCE:
                    raise BROKER_UNREACHABLE.error(f"No Kafka broker answers at {self._bootstrap}.")
                continue
            heard = time.monotonic()
            found += [each for each in self._taken([message]) if each.offset < left.get(each.partition, 0)]
            number = int(message.partition())
            is_end = message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF
            if self._at.get(number, 0) >= left.get(number, 0):
                left.pop(number, None)
            elif is_end and number in left:
                self._look_for_end(number, left[number])
        return found

    def _look_for_end(self, number: int, wanted: int) -> None:
        """Ask the broker where a partition ends: what the client said of it may be older than what came behind it."""
        partition = TopicPartition(self._topic, number)
        try:
            _, end = self._client.get_watermark_offsets(partition, timeout=_ANSWER, cached=False)
        except KafkaException as problem:
            log.info("topic '%s': %s", self._topic, problem)
            return  # a broker that does not answer is waited for
        if end < wanted:
            raise self._lost(f"partition {number} ends at {end}, not at {wanted}")

    def _go(self, at: Position) -> None:
        if dict(at) == self._at:
            return
        self._client.assign([TopicPartition(self._topic, number, offset) for number, offset in sorted(at.items())])
        self._at = dict(at)

    def _taken(self, messages: list[Any]) -> list[Message]:
        found = []
        for each in messages:
            error = each.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                number = int(each.partition())
                self._at[number] = max(self._at.get(number, 0), int(each.offset()))
                continue
            if error is not None:
                self._judge(error)
                continue
            message = Message(
                self._topic, int(each.partition()), int(each.offset()), int(each.timestamp()[1]), each.key(),
                each.value(), tuple(each.headers() or ()), int(each.timestamp()[0]) - 1,
            )  # fmt: skip
            self._at[message.partition] = message.offset + 1
            found.append(message)
        if found:
            self._answered = time.monotonic()
            self.fetched += len(found)
        return found

    def _judge(self, error: Any) -> None:
        """What the client says in the place of a message; what it gets over by itself is passed over."""
        if error.code() in _LOST:
            raise self._lost(error.str())
        if error.code() in _GONE:
            raise TOPIC_MISSING.error(f"The broker at {self._bootstrap} has no topic '{self._topic}'.")
        if error.code() in _REFUSED:
            raise AUTH_REFUSED.error(
                f"The broker at {self._bootstrap} lets nobody read topic '{self._topic}' like this."
            )
        if error.fatal():
            raise BROKER_UNREACHABLE.error(f"Topic '{self._topic}' at {self._bootstrap}: {error.str()}.")
        log.info("topic '%s': %s", self._topic, error.str())

    def _lost(self, why: str) -> Exception:
        return OFFSETS_LOST.error(f"topic '{self._topic}': messages that were not read yet are gone ({why}).")
