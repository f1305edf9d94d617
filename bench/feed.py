"""Messages for the measurements: clicks as JSON, sent at a steady rate or all at once."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType

from confluent_kafka import Producer

from penstock.kafka.admin import client_config

_PAGES = ("/", "/search", "/item", "/cart", "/checkout")
_TYPES = ("view", "view", "view", "add_to_cart", "purchase")


def click(number: int) -> tuple[bytes, bytes]:
    """Key and value of one click; the same number gives the same click."""
    value = {
        "event_id": f"e-{number:012d}",
        "session_id": f"s-{number // 7:010d}",
        "item_id": f"item-{number * 7919 % 997:04d}",
        "event_type": _TYPES[number % 5],
        "page": f"{_PAGES[number % 5]}?ref={number % 1009}",
        "clicked_at": f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "price": round(number % 10_000 / 100, 2),
    }
    return f"u-{number * 104729 % 9973:05d}".encode(), json.dumps(value).encode()


def preload(bootstrap: str, topic: str, rows: int, *, first: int = 0) -> None:
    """Put rows into the topic and wait until the broker has all of them."""
    producer = Producer(
        client_config(bootstrap) | {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}
    )
    for number in range(first, first + rows):
        key, value = click(number)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"the broker did not take all rows of {topic}")


class Steady:
    """`rate` messages a second, evenly spread, from a thread of its own, as long as the block runs."""

    _TICK = 0.01

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._topic = topic
        self._rate = rate
        self._producer = Producer(client_config(bootstrap) | {"linger.ms": 0})
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def __enter__(self) -> Steady:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._producer.flush(30)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._done.wait(self._TICK):
            due = int((time.monotonic() - began) * self._rate)
            while self.sent < due:
                key, value = click(self.sent)
                self._producer.produce(self._topic, value, key)
                self.sent += 1
            self._producer.poll(0)
