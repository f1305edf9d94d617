"""The generator: clicks into a topic, at a rate that holds.

Rules
- The n-th message is due at start + n/rate, so a pause is made up for and nothing drifts.
- Everything handed to the client is flushed before `run` returns; the number returned is what the broker confirmed.
- A message that was not delivered is an error, not a smaller number.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.dev.clicks import Clicks, Message
from penstock.errors.catalogue import BROKER_UNREACHABLE
from penstock.kafka.admin import Options, check_topic, client_config

_FLUSH_TIMEOUT = 60.0
_DELIVERY_TIMEOUT_MS = 30_000
_STOP_CHECK = 256  # messages between two looks at `stop` when nothing else makes a pause


def run(
    bootstrap: str,
    topic: str,
    *,
    rate: float | None,
    seed: int | None,
    count: int | None = None,
    users: int = 2000,
    dirty: float = 0.0,
    start_time: float | None = None,
    stop: threading.Event | None = None,
    options: Options | None = None,
) -> int:
    """Send clicks until `count` is reached or `stop` is set; the number delivered.

    `rate` is messages per second, None as fast as it goes. `seed` None gives new clicks at each run; a number gives the
    same ids again. With `start_time` (epoch seconds) the clicks' own times begin there and advance by 1/rate.
    """
    if rate is not None and rate <= 0:
        raise ValueError("the rate must be above 0")
    halt = stop or threading.Event()
    check_topic(bootstrap, topic, options)
    ledger = _Ledger()
    producer = Producer(_config(client_config(bootstrap, options), ledger, fast=rate is None))
    clock = _Clock(start_time, 1.0 / rate if rate else 0.001)
    clicks = Clicks(seed=seed, users=users, clock=clock.now, dirty=dirty)
    began = time.monotonic()
    sent = 0
    while (count is None or sent < count) and not ledger.failure:
        if rate is None:
            if sent % _STOP_CHECK == 0 and halt.is_set():
                break
        else:
            due = began + sent / rate
            ahead = due - time.monotonic()
            producer.poll(0)
            if halt.wait(ahead) if ahead > 0 else halt.is_set():
                break
        _send(producer, topic, clicks.next())
        sent += 1
    left = producer.flush(_FLUSH_TIMEOUT)
    if ledger.failure or left:
        said = ledger.failure or f"{left} messages were not confirmed in {_FLUSH_TIMEOUT:.0f} s"
        raise BROKER_UNREACHABLE.error(f"Clicks could not be delivered to '{topic}' at {bootstrap}: {said}.")
    return sent


class _Clock:
    """The clicks' own time: the real one, or one that begins where it was told and goes in equal steps."""

    def __init__(self, start: float | None, step: float) -> None:
        self._start, self._step, self._n = start, step, 0

    def now(self) -> float:
        if self._start is None:
            return time.time()
        self._n += 1
        return self._start + (self._n - 1) * self._step


class _Ledger:
    """The first delivery that failed. Successes need no callback: after a flush, no failure means all delivered."""

    def __init__(self) -> None:
        self.failure: str | None = None

    def failed(self, error: KafkaError | None, message: Any) -> None:
        del message
        if error is not None and self.failure is None:
            self.failure = error.str()


def _config(client: dict[str, Any], ledger: _Ledger, *, fast: bool) -> dict[str, Any]:
    return client | {
        "enable.idempotence": True,  # a retry neither doubles nor reorders a message
        "delivery.report.only.error": True,
        "on_delivery": ledger.failed,
        "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
        "linger.ms": 50 if fast else 5,
        "compression.type": "lz4" if fast else "none",
        "queue.buffering.max.messages": 500_000,
    }


def _send(producer: Any, topic: str, message: Message) -> None:
    while True:
        try:
            producer.produce(
                topic, value=message.value, key=message.key, headers=[("trace_id", message.trace_id.encode())]
            )
            return
        except BufferError:
            producer.poll(0.1)  # the queue is full: serve deliveries until there is room
        except KafkaException as cause:
            raise BROKER_UNREACHABLE.error(f"A click could not be sent to '{topic}': {cause}.") from cause
