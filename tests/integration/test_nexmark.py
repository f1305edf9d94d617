"""Nexmark's queries q0 to q8 as models of one project, equal to what DuckDB computes of the same events in one batch.

People, auctions and bids of an auction house, in three topics. The SQL is this product's own; q4 to q7 need a full
refresh (aggregates of aggregates, a window function, a join of a stream with an aggregate), and say so.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from confluent_kafka import Producer
from model_files import Project
from nexmark import COLUMNS, QUERIES, events

from penstock.control.streams import drop_stream
from penstock.dev.broker import Broker
from penstock.kafka.admin import client_config, create_topics

if TYPE_CHECKING:
    from tests.conftest import Platform
else:
    Platform = Any

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]


def computed(sent: list[tuple[str, dict[str, Any]]], name: str) -> list[tuple[Any, ...]]:
    """The query's rows, by DuckDB."""
    model, other, _ = QUERIES[name]
    connection = duckdb.connect()
    for table, columns in COLUMNS.items():
        types = ", ".join(f"{column} {kind.replace('string', 'varchar')}" for column, kind in columns.items())
        connection.execute(f"create table {table} ({types})")
        rows = [[row[column] for column in columns] for kind, row in sent if kind == table]
        if rows:
            connection.executemany(f"insert into {table} values ({', '.join('?' * len(columns))})", rows)
    return connection.execute((other or model).format(**{table: table for table in COLUMNS})).fetchall()


def comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows), key=repr)


class House:
    """The project with all its streams deployed."""

    def __init__(self, platform: Platform, broker: Broker) -> None:
        self.platform = platform
        self.schema = f"nexmark_{uuid.uuid4().hex[:8]}"
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._producer = Producer(client_config(broker.bootstrap) | {"enable.idempotence": True})
        self.project = Project(self.schema)
        create_topics(broker.bootstrap, {f"{self.schema}-{table}": 2 for table in COLUMNS})
        for table, columns in COLUMNS.items():
            watermark = {"column": "date_time", "delay": "10 minutes"}
            self.project.source(table, f"{self.schema}-{table}", columns, watermark)
        for name, (sql, _, _) in QUERIES.items():
            self.project.model(name, sql)
        self.specs = self.project.specs()

    def send(self, some: list[tuple[str, dict[str, Any]]]) -> None:
        for table, row in some:
            key = str(row["auction"] if table == "bid" else row["id"])
            value = {name: v.isoformat() if isinstance(v, datetime) else v for name, v in row.items()}
            self._producer.produce(f"{self.schema}-{table}", json.dumps(value), key)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self.sent += some

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return comparable(self.platform.sql(f"select * from {self.schema}.{name}"))


@pytest.fixture(scope="module")
def house(platform: Platform, broker: Broker) -> Iterator[House]:
    """A part of the events before the streams start, the others in two portions while they run."""
    made = House(platform, broker)
    every = list(events())
    made.send(every[:1000])
    try:
        for spec in made.specs.values():
            platform.deploy(spec)
        for portion in (every[1000:1900], every[1900:]):
            platform.until(
                lambda: len(made.rows("q0")) == len([1 for t, _ in made.sent if t == "bid"]), "the bids", 120
            )
            made.send(portion)
        yield made
    finally:
        for name in made.specs:
            if platform.store.find_desired(f"{made.schema}.{name}"):
                drop_stream(platform.store, f"{made.schema}.{name}")


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_nexmark_equals_its_batch_computation(house: House, name: str) -> None:
    want = comparable(computed(house.sent, name))
    assert want
    house.platform.until(
        lambda: house.rows(name) == want, f"the rows of {name}", 120,
        lambda: (len(house.rows(name)), len(want), house.rows(name)[:3], want[:3],
                 house.platform.store.actual(f"{house.schema}.{name}").error),
    )  # fmt: skip


def test_those_that_need_a_full_refresh_say_so(house: House) -> None:
    deployed = {name: house.platform.store.desired(spec.name).spec_json for name, spec in house.specs.items()}
    full = {name for name, text in deployed.items() if '"mode": "replace"' in text or '"mode":"replace"' in text}
    assert full == {name for name, (_, _, is_full) in QUERIES.items() if is_full}
    assert "an aggregate over an aggregate" in str(house.specs["q4"].reason)
    assert "a window function (OVER)" in str(house.specs["q6"].reason)
    assert "a join of a stream with an aggregate" in str(house.specs["q7"].reason)
    assert "no bound in time" in house.specs["q3"].warnings[0]
