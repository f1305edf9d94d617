"""What the client says of a partition's end, and what that means."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import PenstockError
from penstock.errors.catalogue import OFFSETS_LOST
from penstock.kafka import tail as tail_module
from penstock.kafka.tail import Tail


def end(offset: int) -> Any:
    """What the client gives in the place of a message when it has come to the end."""
    mark = MagicMock(partition=lambda: 0, offset=lambda: offset)
    mark.error.return_value.code.return_value = KafkaError._PARTITION_EOF
    return mark


def message(offset: int) -> Any:
    return MagicMock(
        partition=lambda: 0, offset=lambda: offset, error=lambda: None, timestamp=lambda: (1, 1000), key=lambda: None,
        value=lambda: b"{}", headers=lambda: None,
    )  # fmt: skip


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    made = MagicMock()
    monkeypatch.setattr(tail_module, "Consumer", lambda _: made)
    return made


def test_an_end_that_was_noticed_before_more_came_is_no_loss(client: MagicMock) -> None:
    client.poll.side_effect = [end(4), message(4), message(5)]
    client.get_watermark_offsets.return_value = (0, 6)
    assert [each.offset for each in Tail("b:1", "t", (), {}).between({0: 4}, {0: 6})] == [4, 5]
    assert client.get_watermark_offsets.call_args.kwargs["cached"] is False


def test_an_end_that_the_broker_confirms_is_a_loss(client: MagicMock) -> None:
    client.poll.side_effect = [end(4)]
    client.get_watermark_offsets.return_value = (0, 4)
    with pytest.raises(PenstockError) as found:
        Tail("b:1", "t", (), {}).between({0: 4}, {0: 6})
    assert found.value.kind is OFFSETS_LOST
    assert "ends at 4, not at 6" in str(found.value)


def test_a_broker_that_does_not_say_where_it_ends_is_waited_for(client: MagicMock) -> None:
    client.poll.side_effect = [end(4), message(4)]
    client.get_watermark_offsets.side_effect = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert [each.offset for each in Tail("b:1", "t", (), {}).between({0: 4}, {0: 5})] == [4]
