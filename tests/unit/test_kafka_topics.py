"""What is said of a topic's configuration and partitions, without a broker."""

from __future__ import annotations

import pytest

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
