"""Topics that are written: making them, and producers whose errors a user understands.

Rules
- A topic is made when it is missing, with as many partitions and replicas as the broker makes unless told otherwise; a
  topic of changed rows is compacted. One that is there is taken as it is.
- Keys go to the partitions that Java's producers put them in.
- A batch is in the topic as a whole or not at all: its transaction also commits, for a group of its own, the number of
  the batch as an offset. That is read back when a producer takes over, after the one before was fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import PenstockError
from penstock.errors.catalogue import BROKER_UNREACHABLE, LEASE_LOST, PUBLISH_FAILED
from penstock.kafka.admin import TIMEOUT, Options, client_config, topics

log = logging.getLogger(__name__)

Message = tuple[bytes | None, bytes | None]  # key and value; without a value a tombstone
_PATIENCE = 60.0  # seconds for the broker to take a batch, or to answer
_TRANSACTION_MS = 300_000
_FENCED = (
    KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,
)  # fmt: skip


def ensure_topic(
    bootstrap: str, topic: str, options: Options, *, partitions: int | None = None, compacted: bool = False
) -> bool:
    """Make the topic if it is missing; True when it was made now."""
    if topic in topics(bootstrap, options):
        return False
    config = {"cleanup.policy": "compact"} if compacted else {}
    wanted = NewTopic(topic, num_partitions=partitions or -1, replication_factor=-1, config=config)
    admin = AdminClient(client_config(bootstrap, options))  # by a name: it ends with its last reference
    made = admin.create_topics([wanted], operation_timeout=TIMEOUT)
    try:
        made[topic].result(timeout=2 * TIMEOUT)
    except KafkaException as cause:
        if cause.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False  # somebody else was quicker
        raise PUBLISH_FAILED.error(f"topic '{topic}' cannot be made: {cause.args[0].str()}.") from cause
    return True


class TopicProducer:
    """Sends batches of messages to one topic, each at least once."""

    def __init__(self, bootstrap: str, topic: str, options: Options, more: Mapping[str, Any] | None = None) -> None:
        self.topic = topic
        self._error: KafkaError | None = None
        self._client = Producer(
            client_config(bootstrap, options)
            | {
                "enable.idempotence": True,
                "linger.ms": 5,
                "partitioner": "murmur2_random",  # as Java's producers do it
                "delivery.timeout.ms": int(_PATIENCE * 1000),
            }
            | dict(more or {})
        )

    def send(self, messages: Iterable[Message], batch_id: int) -> int:
        """Send a batch and wait until the broker has all of it; how many messages that were."""
        sent = self._produce(messages)
        if self._client.flush(_PATIENCE) and self._error is None:
            raise PUBLISH_FAILED.error(f"topic '{self.topic}': the broker does not take the messages in time.")
        self._check()
        return sent

    def close(self) -> None:
        self._client.purge()
        self._client.flush(1.0)

    def _produce(self, messages: Iterable[Message]) -> int:
        self._error = None
        sent = 0
        for key, value in messages:
            while True:
                try:
                    self._client.produce(self.topic, value=value, key=key, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._client.poll(0.1)  # the queue is full: wait for room
                    self._check()
                except KafkaException as cause:
                    raise self._failed(cause.args[0]) from cause
            sent += 1
            if sent % 1000 == 0:
                self._client.poll(0)
                self._check()
        return sent

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None and self._error is None:
            self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._failed(self._error)

    def _failed(self, error: KafkaError) -> PenstockError:
        if error.code() in _FENCED:
            return LEASE_LOST.error(f"topic '{self.topic}': a newer engine publishes to it now.")
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return BROKER_UNREACHABLE.error(f"topic '{self.topic}' cannot be written: {error.str()}.")
        return PUBLISH_FAILED.error(f"topic '{self.topic}': {error.str()}.")


class TransactionalProducer(TopicProducer):
    """Sends each batch exactly once, as `read_committed` consumers see it."""

    def __init__(self, bootstrap: str, topic: str, options: Options, name: str) -> None:
        more = {"transactional.id": name, "transaction.timeout.ms": _TRANSACTION_MS}
        super().__init__(bootstrap, topic, options, more)
        self._group = Consumer(client_config(bootstrap, options) | {"group.id": name, "enable.auto.commit": False})

    def fence(self) -> int | None:
        """Shut out whoever sent under this name before, and finish or undo what it left; the newest batch that is in
        the topic, -1 before the first and None if the broker knows of none."""
        self._call(self._client.init_transactions, _PATIENCE)
        try:
            (found,) = self._group.committed([TopicPartition(self.topic, 0)], timeout=_PATIENCE)
        except KafkaException as cause:
            raise self._failed(cause.args[0]) from cause
        return None if found.offset == OFFSET_INVALID else int(found.offset) - 1

    def confirm(self, batch_id: int) -> None:
        """Have the broker keep the number for its whole time again."""
        self.send((), batch_id)

    def send(self, messages: Iterable[Message], batch_id: int) -> int:
        self._call(self._client.begin_transaction)
        try:
            sent = self._produce(messages)
            mark = [TopicPartition(self.topic, 0, batch_id + 1)]
            self._call(self._client.send_offsets_to_transaction, mark, self._group.consumer_group_metadata(), _PATIENCE)
            self._call(self._client.commit_transaction, _PATIENCE)
        except BaseException:
            self._undo()
            raise
        self._check()
        return sent

    def close(self) -> None:
        super().close()
        self._group.close()

    def _undo(self) -> None:
        """What is not undone here is when the next producer of this name begins."""
        try:
            self._client.abort_transaction(TIMEOUT)
        except KafkaException as problem:
            log.warning("topic %s: a transaction could not be undone: %s", self.topic, problem)

    def _call(self, function: Any, *arguments: Any) -> None:
        for left in reversed(range(3)):
            try:
                function(*arguments)
                return
            except KafkaException as cause:
                error = cause.args[0]
                if not (error.retriable() and left):
                    raise self._failed(self._error or error) from cause
