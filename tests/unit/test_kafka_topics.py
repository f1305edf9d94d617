"""What is said of a topic's configuration and partitions, without a broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.kafka.topic_watch import TopicWatch
from penstock.kafka.topics import Partition, retention_words

DAY = 86_400_000


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cleanup.policy": "delete", "retention.ms": str(7 * DAY), "retention.bytes": "-1"}, "7 days"),
        ({"cleanup.policy": "delete", "retention.ms": str(DAY), "retention.bytes": "-1"}, "1 day"),
        ({"retention.ms": "5400000"}, "90 minutes"),
        ({"retention.ms": "1500"}, "1500 milliseconds"),
        ({"retention.ms": "0"}, "0 milliseconds"),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, "forever"),
        ({"retention.ms": "3600000", "retention.bytes": str(1 << 30)}, "1 hour or 1 GiB a partition"),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, "1000 bytes a partition"),
        ({"cleanup.policy": "compact", "retention.ms": str(DAY)}, "the latest message of each key"),
        ({"cleanup.policy": "compact, delete", "retention.ms": str(DAY)}, "the latest message of each key, for 1 day"),
    ],
)
def test_retention_is_told_in_words(config: dict[str, str], words: str) -> None:
    assert retention_words(config) == words


def test_the_messages_of_a_partition_are_those_that_retention_left() -> None:
    assert Partition("clicks", 0, begin=40, end=100, latest_at=1.0, recent=3).messages == 60


class Leaderless:
    """A client whose broker finds a leader for the partition at the third question."""

    def __init__(self, code: int) -> None:
        self.code, self.asked = code, 0

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        self.asked += 1
        if self.asked < 3:
            raise KafkaException(KafkaError(self.code))
        return 0, 7


def test_a_partition_without_a_leader_is_asked_again_and_other_errors_are_not() -> None:
    place, watch = TopicPartition("clicks", 0), TopicWatch()
    moving = Leaderless(KafkaError.NOT_LEADER_FOR_PARTITION)
    assert watch._ends(moving, place) == (0, 7)
    assert moving.asked == 3
    refused = Leaderless(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        watch._ends(refused, place)
    assert refused.asked == 1
