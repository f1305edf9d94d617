"""The lag of Kafka inputs against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from penstock.dev.broker import Broker
from penstock.errors import PenstockError
from penstock.kafka.topic_watch import TopicWatch

FAR = "127.0.0.1:1"  # nobody listens there


@pytest.fixture
def watch() -> Iterator[TopicWatch]:
    made = TopicWatch()
    yield made
    made.close()


def test_the_ends_of_a_topic_move_with_its_messages(
    broker: Broker, topic: Callable[..., str], produce: Callable[..., int], watch: TopicWatch
) -> None:
    name = topic(2)
    assert watch.watermarks(broker.bootstrap, name, ()) == ({0: 0, 1: 0}, {0: 0, 1: 0})
    produce(name, ["a", "b", "c"], partition=1)
    assert watch.watermarks(broker.bootstrap, name, ()) == ({0: 0, 1: 0}, {0: 0, 1: 3})


def test_the_time_of_a_message_is_the_time_it_was_sent(
    broker: Broker, topic: Callable[..., str], produce: Callable[..., int], watch: TopicWatch
) -> None:
    name = topic(1)
    produce(name, ["a"])
    between = time.time()
    produce(name, ["b"])
    first = watch.time_of(broker.bootstrap, name, (), 0, 0)
    second = watch.time_of(broker.bootstrap, name, (), 0, 1)
    assert first is not None
    assert second is not None
    assert first <= between + 0.001 <= second + 0.002
    assert abs(first - between) < 10


def test_looking_again_and_again_is_cheap(
    broker: Broker, topic: Callable[..., str], produce: Callable[..., int], watch: TopicWatch
) -> None:
    name = topic(2)
    produce(name, [str(n) for n in range(100)], partition=0)
    watch.watermarks(broker.bootstrap, name, ())
    begun = time.monotonic()
    for offset in range(10):
        watch.watermarks(broker.bootstrap, name, ())
        assert watch.time_of(broker.bootstrap, name, (), 0, offset) is not None
    assert time.monotonic() - begun < 5.0


def test_a_missing_topic_and_a_missing_broker_are_named(broker: Broker, watch: TopicWatch) -> None:
    with pytest.raises(PenstockError, match="PEN-2002"):
        watch.watermarks(broker.bootstrap, "no-such-topic", ())
    begun = time.monotonic()
    with pytest.raises(PenstockError, match="PEN-2001"):
        watch.watermarks(FAR, "clicks", ())
    assert time.monotonic() - begun < 10
