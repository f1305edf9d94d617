"""Draining full topics by the commercials queries and those of Nexmark: compiled streams beside hand-written ones.

Rules
- The same SQL on both sides. By hand it is a PySpark job: `from_json`, a watermark, `writeStream` into Delta where rows
  are appended, `foreachBatch` with MERGE where they are replaced.
- Timed from the first file of the checkpoint until all messages were read and written.
- Of a query that a stream cannot keep, the first full refresh is timed beside a batch job that computes all by hand and
  overwrites the table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import Producer
from tests.unit import nexmark
from tests.unit.model_files import Project

from bench.report import median, note, table
from bench.site import Handwritten, Site, site, until
from penstock.compiler.spec import StreamSpec
from penstock.control.deploy import deploy
from penstock.control.streams import drop_stream
from penstock.kafka.admin import client_config
from penstock.store import Store

SCHEMA = "bench"
COMMERCIAL = {"brand": "string", "duration": "int", "rating": "int", "at": "timestamp"}
DELAY = "10 minutes"
COMMERCIALS = {
    "per brand": (
        """
        select brand, count(*) as seen, avg(duration) as duration, avg(rating) as rating
        from {commercials} group by brand
        """,
        False,
    ),
    "windows": (
        """
        select window.start as starts, brand, count(*) as seen from {commercials}
        group by window(at, '5 seconds'), brand having count(*) > 3
        """,
        False,
    ),
}
NEXMARK = {name: (sql, full) for name, (sql, _, full) in nexmark.QUERIES.items()}
QUICK = ("per brand", "windows", "q0", "q1", "q2", "q3")


@dataclass(frozen=True)
class Query:
    """A query, with the topics that it reads."""

    name: str
    sql: str
    full: bool
    spec: StreamSpec
    messages: int


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print rows/s of each query, compiled and hand-written."""
    rows, rounds = rows or (50_000 if quick else 300_000), rounds or (1 if quick else 3)
    found: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    modes: dict[str, str] = {}
    with site() as place, ExitStack() as stack:
        topics = _filled(place, rows)
        rival = Handwritten(place)
        stack.callback(rival.close)
        store = Store.open(place.paths.store)
        stack.callback(store.close)
        for number in range(-1, rounds):  # the first is for warming up
            for query in _queries(topics, QUICK if quick else (*COMMERCIALS, *NEXMARK)):
                speed = _ours(place, store, query)
                modes[query.name] = "full" if query.full else "incremental"
                by_hand = _by_hand(rival, query, topics)
                if number >= 0:
                    found.setdefault(query.name, []).append(speed)
                    theirs.setdefault(query.name, []).append(by_hand)
                    note(f"round {number + 1}, {query.name}: {speed:,.0f} rows/s, by hand {by_hand:,.0f}")
    table(
        f"Draining {rows:,} messages a topic, rows/s, median of {rounds} rounds",
        ["query", "refresh", "Penstock", "by hand", "ratio"],
        [_line(name, speeds, theirs[name], modes[name]) for name, speeds in found.items()],
    )


def _line(name: str, ours: list[float], theirs: list[float], mode: str) -> list[str]:
    ratio = median(ours) / median(theirs)
    return [name, mode, f"{median(ours):,.0f}", f"{median(theirs):,.0f}", f"{ratio:.2f}x"]


@dataclass(frozen=True)
class Topic:
    """A full topic of JSON."""

    name: str
    columns: dict[str, str]
    time: str  # the column of event time
    messages: int


def _filled(place: Site, rows: int) -> dict[str, Topic]:
    made = {"commercials": Topic(place.topic("commercials"), COMMERCIAL, "at", rows)}
    producer = Producer(client_config(place.bootstrap) | {"linger.ms": 50, "queue.buffering.max.messages": 500_000})
    _send(producer, ((made["commercials"].name, each["brand"], each) for each in _commercials(rows)))
    names = {kind: place.topic(kind) for kind in nexmark.COLUMNS}
    counts = dict.fromkeys(names, 0)

    def all_events() -> Iterator[tuple[str, str, dict[str, Any]]]:
        for kind, row in nexmark.events(rows):
            counts[kind] += 1
            yield names[kind], str(row["auction"] if kind == "bid" else row["id"]), row

    _send(producer, all_events())
    for kind, columns in nexmark.COLUMNS.items():
        made[kind] = Topic(names[kind], columns, "date_time", counts[kind])
    note(f"{rows:,} commercials and {sum(counts.values()):,} events of auctions are in their topics")
    return made


def _commercials(rows: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(5)
    for number in range(rows):
        at = datetime(2026, 1, 1) + timedelta(milliseconds=10 * number)
        yield {
            "brand": chance.choice(("Acme", "Globex")), "duration": chance.choice((30, 45, 60)),
            "rating": chance.randint(1, 5), "at": at,
        }  # fmt: skip


def _send(producer: Producer, messages: Iterator[tuple[str, str, dict[str, Any]]]) -> None:
    for topic, key, row in messages:
        value = json.dumps(
            {name: each.isoformat() if isinstance(each, datetime) else each for name, each in row.items()}
        )
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all messages")


def _queries(topics: dict[str, Topic], names: tuple[str, ...]) -> Iterator[Query]:
    project = Project(SCHEMA)
    for name, topic in topics.items():
        project.source(name, topic.name, topic.columns, {"column": topic.time, "delay": DELAY})
    queries = {**COMMERCIALS, **NEXMARK}
    for name in names:
        project.model(name.replace(" ", "_"), queries[name][0])
    specs = project.specs()
    for name in names:
        sql, full = queries[name]
        read = sum(topic.messages for each, topic in topics.items() if f"{{{each}}}" in sql)
        yield Query(name, sql, full, specs[name.replace(" ", "_")], read)


def _ours(place: Site, store: Store, query: Query) -> float:
    deploy(store, place.paths, query.spec)
    name = query.spec.name
    begun = lambda: list((place.paths.checkpoints / name).glob("*/*"))  # noqa: E731
    until(begun, f"the checkpoint of {name}")
    began = min(file.stat().st_mtime for file in begun())
    until(lambda: _read(store, name) >= query.messages, f"{name} to drain", timeout=900, every=0.1)
    ended = max(each.at for each in store.progress(name, limit=500))
    drop_stream(store, name)
    return query.messages / (ended - began)


def _read(store: Store, name: str) -> int:
    return sum(each.rows_in for each in store.progress(name, limit=500))


def _by_hand(rival: Handwritten, query: Query, topics: dict[str, Topic]) -> float:
    views = {
        name: {"topic": topic.name, "columns": topic.columns, "time": topic.time, "delay": DELAY}
        for name, topic in topics.items()
        if f"{{{name}}}" in query.sql
    }
    sql = query.sql.format(**{name: name for name in views})
    return query.messages / rival.drain(views, sql, list(query.spec.output.keys), full=query.full)
