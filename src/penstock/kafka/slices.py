"""A slice of a topic read into memory, and messages written with all that belongs to them.

Rules
- A slice is fixed before it is read: from where and up to where in each partition. Messages that come later are not in.
- Nothing is committed anywhere: reading leaves no trace at the broker.
- Messages of a partition keep their order; those of several are brought together by their times.
"""

from __future__ import annotations

import heapq
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.errors.catalogue import BROKER_UNREACHABLE
from penstock.kafka.admin import Options, client_config, translated

TIMEOUT = 10.0


@dataclass(frozen=True)
class Message:
    """A message as Kafka has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int = 0  # as Kafka numbers them: of its creation; 1: of its arrival; -1: none


def read(
    bootstrap: str,
    partitions: Mapping[str, Sequence[int]],
    options: Options,
    *,
    begin: int | None,
    end: int | None,
    limit: int,
) -> list[Message]:
    """The first `limit` messages from time `begin` on and before time `end` (milliseconds; None: from end to end)."""
    consumer = Consumer(
        client_config(bootstrap, options)
        | {
            "group.id": f"penstock-record-{uuid.uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    parts = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
    try:
        bounds = {part: _bounds(consumer, part, begin, end) for part in parts}
        found = {part: list(_messages(consumer, part, *bounds[part], limit)) for part in parts}
    except KafkaException as problem:
        raise translated(bootstrap, next(iter(partitions)), problem) from problem
    finally:
        consumer.close()
    merged = heapq.merge(*found.values(), key=lambda each: (each.timestamp, each.topic, each.partition))
    return [message for message, _ in zip(merged, range(limit), strict=False)]


def _bounds(consumer: Any, part: tuple[str, int], begin: int | None, end: int | None) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(TopicPartition(*part), timeout=TIMEOUT)

    def at(milliseconds: int | None, otherwise: int) -> int:
        if milliseconds is None:
            return int(otherwise)
        answer = consumer.offsets_for_times([TopicPartition(*part, milliseconds)], timeout=TIMEOUT)[0].offset
        return int(high) if answer in (OFFSET_END, -1) else int(answer)

    return at(begin, low), at(end, high)


def _messages(consumer: Any, part: tuple[str, int], begin: int, end: int, limit: int) -> Iterator[Message]:
    if begin >= end:
        return
    consumer.assign([TopicPartition(*part, begin)])
    count, deadline = 0, time.monotonic() + TIMEOUT
    while count < limit:
        message = consumer.poll(1.0)
        if message is None:
            if time.monotonic() > deadline:
                raise BROKER_UNREACHABLE.error(f"Topic '{part[0]}' could not be read: the broker does not answer.")
            continue
        deadline = time.monotonic() + TIMEOUT
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                break
            raise KafkaException(message.error())
        if message.offset() >= end:  # offsets may have gaps
            break
        count += 1
        yield Message(
            part[0],
            part[1],
            message.offset(),
            max(message.timestamp()[1], 0),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )
        if message.offset() + 1 >= end:
            break
    consumer.unassign()


def write(bootstrap: str, messages: Iterable[Message], options: Options) -> int:
    """Write the messages with their keys, headers, times and partitions; how many there were."""
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(client_config(bootstrap, options) | {"enable.idempotence": True, "linger.ms": 5})
    count, topic = 0, ""
    for each in messages:
        count, topic = count + 1, each.topic
        place = {"partition": each.partition} if each.partition >= 0 else {}
        while True:
            try:
                producer.produce(
                    each.topic, key=each.key, value=each.value, headers=list(each.headers), timestamp=each.timestamp,
                    on_delivery=told, **place,
                )  # fmt: skip
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    left = producer.flush(3 * TIMEOUT)
    if failed:
        raise translated(bootstrap, topic, KafkaException(failed[0]))
    if left:
        raise BROKER_UNREACHABLE.error(f"The broker at {bootstrap} did not take {left} of {count} messages.")
    return count
