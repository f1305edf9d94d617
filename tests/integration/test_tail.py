"""The end of a topic, read on by one client, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.dev.broker import Broker
from penstock.errors import PenstockError
from penstock.errors.catalogue import OFFSETS_LOST, TOPIC_MISSING
from penstock.kafka import tail as tail_module
from penstock.kafka.admin import client_config
from penstock.kafka.slices import Message
from penstock.kafka.tail import Tail

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Produce
else:
    MakeTopic = Produce = Any


@pytest.fixture
def read(broker: Broker) -> Iterator[Any]:
    opened: list[Tail] = []

    def make(topic: str, chosen: tuple[int, ...] = ()) -> Tail:
        opened.append(Tail(broker.bootstrap, topic, chosen, {}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def collect(tail: Tail, at: dict[int, int], count: int, until: dict[int, int] | None = None) -> list[Message]:
    """Read on until as many messages came, and one stands there."""
    found: list[Message] = []
    for _ in range(200):
        more, at = tail.more(at, 1000, 0.2)
        found += more
        if len(found) >= count and (until is None or at == until):
            return found
    pytest.fail(f"{len(found)} messages of {count}, at {at}, not {until}")


def test_messages_come_once_in_their_order_with_all_that_belongs_to_them(
    topic: MakeTopic, produce: Produce, read: Any
) -> None:
    name = topic(2)
    produce(name, [("a", {"n": n}) for n in range(3)], partition=0, headers={"trace": "t"}, timestamp=1234)
    produce(name, [(None, None), ("", b"")], partition=1)
    tail = read(name)
    assert tail.partitions() == {0, 1}
    found = collect(tail, {0: 0, 1: 0}, 5, {0: 3, 1: 2})
    of = {part: [each for each in found if each.partition == part] for part in (0, 1)}
    assert [each.offset for each in of[0]] == [0, 1, 2]
    assert [(each.key, each.value) for each in of[1]] == [(None, None), (b"", b"")]
    assert (of[0][0].headers, of[0][0].timestamp, of[0][0].timestamp_type) == ((("trace", b"t"),), 1234, 0)
    assert of[1][0].headers == ()
    produce(name, [{"n": 3}], partition=0)
    assert [each.offset for each in collect(tail, {0: 3, 1: 2}, 1)] == [3]
    assert tail.fetched == 6
    assert [(each.partition, each.offset) for each in tail.between({0: 1, 1: 1}, {0: 3, 1: 2})] == [
        (0, 1), (0, 2), (1, 1),
    ]  # fmt: skip
    assert read(name, (1,)).partitions() == {1}


def test_marks_of_transactions_are_passed_and_aborted_messages_read_as_spark_reads_them(
    broker: Broker, topic: MakeTopic, read: Any
) -> None:
    name = topic(1)
    producer = Producer(client_config(broker.bootstrap) | {"transactional.id": name})
    producer.init_transactions(30)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(2):
            producer.produce(name, str(number))
        producer.flush(30)
        ends(30)
    tail = read(name)
    found = collect(tail, {0: 0}, 4, {0: 6})
    assert [each.offset for each in found] == [0, 1, 3, 4]
    assert [each.offset for each in tail.between({0: 0}, {0: 6})] == [0, 1, 3, 4]
    assert [each.offset for each in tail.between({0: 1}, {0: 4})] == [1, 3]
    assert tail.between({0: 5}, {0: 6}) == []


def test_a_new_partition_is_found(
    broker: Broker, topic: MakeTopic, produce: Produce, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "_LOOK_EVERY", 0.0)
    name = topic(1)
    tail = read(name)
    assert tail.partitions() == {0}
    admin = AdminClient(client_config(broker.bootstrap))
    admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    for _ in range(100):
        if tail.partitions() == {0, 1}:
            break
        tail.more({0: 0}, 1, 0.1)
    assert tail.partitions() == {0, 1}
    produce(name, [{"n": 1}], partition=1)
    assert [each.partition for each in collect(tail, {0: 0, 1: 0}, 1)] == [1]


def test_what_the_topic_has_lost_is_not_passed_over(
    broker: Broker, topic: MakeTopic, produce: Produce, read: Any
) -> None:
    name = topic(1)
    produce(name, [{"n": n} for n in range(10)])
    admin = AdminClient(client_config(broker.bootstrap))
    for future in admin.delete_records([TopicPartition(name, 0, 6)]).values():
        future.result(30)
    tail = read(name)
    with pytest.raises(PenstockError) as found:
        tail.between({0: 2}, {0: 8})
    assert found.value.kind is OFFSETS_LOST
    with pytest.raises(PenstockError) as found:
        collect(tail, {0: 2}, 1)
    assert found.value.kind is OFFSETS_LOST
    with pytest.raises(PenstockError) as found:  # it ends before: the topic was made anew
        tail.between({0: 8}, {0: 12})
    assert found.value.kind is OFFSETS_LOST
    assert [each.offset for each in tail.between({0: 6}, {0: 8})] == [6, 7]


def test_a_topic_that_is_not_there_is_told(read: Any) -> None:
    with pytest.raises(PenstockError) as found:
        read("nobody-made-this").partitions()
    assert found.value.kind is TOPIC_MISSING
