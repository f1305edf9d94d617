"""Topics in tests as somebody else reads them: committed messages alone, by confluent-kafka's own client."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.kafka.admin import client_config

Decode = Callable[[bytes | None], Any]


class Read(NamedTuple):
    """A message."""

    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int


def read_topic(
    bootstrap: str, topic: str, key: Decode = lambda raw: raw, value: Decode = lambda raw: raw
) -> list[Read]:
    """All messages that the topic holds now, in the order of their partitions."""
    consumer = Consumer(
        client_config(bootstrap)
        | {
            "group.id": f"test-{uuid.uuid4().hex}", "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20,
        }
    )  # fmt: skip
    try:
        found = consumer.list_topics(topic, timeout=10).topics[topic]
        left = set(found.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        messages = []
        while left:
            message = consumer.poll(10)
            assert message is not None, "the broker does not answer"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
            else:
                messages.append(
                    Read(key(message.key()), value(message.value()), message.partition(), message.offset(),
                         message.timestamp()[1])
                )  # fmt: skip
        return sorted(messages, key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()


def latest(messages: list[Read]) -> dict[Any, Any]:
    """What a reader of an upsert topic ends with: the last value of each key that has not been taken back."""
    found = {each.key: each.value for each in messages}
    return {key: value for key, value in found.items() if value is not None}
