"""Sources as views over their topics, against a real broker and engine: what is shown, and what is read for it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from source_files import column, compiled, entries, table

from penstock.cli.query import fetch
from penstock.compiler import compile_source
from penstock.compiler.spec import KafkaInput
from penstock.control.sources import drop_source, register, register_sources
from penstock.dev import broker as broker_service
from penstock.engine import client
from penstock.engine.process import read_endpoint
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config, create_topics
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)
UTC = dt.timezone.utc
MakeEntry = Callable[..., dict[str, Any]]


@pytest.fixture
def entry(schema: str, tmp_path: Path) -> MakeEntry:
    """`entry(settings, *columns, name="clicks")`: a source of the manifest in the test's own schema."""

    def make(stream: str, *columns: str, name: str = "clicks") -> dict[str, Any]:
        found = entries(table(stream, *columns), tmp_path)[0]
        return found | {"schema": f"{schema}_src", "identifier": name}

    return make


@pytest.fixture
def source(platform: Platform, entry: MakeEntry, tmp_path: Path) -> Iterator[Callable[..., KafkaInput]]:
    """The same, registered; dropped in the end."""
    made: list[str] = []

    def make(stream: str, *columns: str, name: str = "clicks") -> KafkaInput:
        found = compile_source(entry(stream, *columns, name=name), project_dir=tmp_path)
        platform.endpoint()
        register(platform.store, found)
        made.append(found.relation)
        return found

    yield make
    platform.endpoint()
    for relation in made:
        drop_source(platform.store, relation)


# -- MatrixOne's example ----------------------------------------------------------------------------------------------
def test_a_json_source_is_read_directly_and_through_a_dynamic_table(
    platform: Platform,
    schema: str,
    source: Callable[..., KafkaInput],
    topic: MakeTopic,
    produce: Produce,
    tmp_path: Path,
) -> None:
    name = topic(1, name="test")
    produce(
        name,
        [{"name": "ada", "age": 36}, None, "", "not json", {"age": "y"}, {"name": "bob", "age": "old"}],
    )
    columns = (column("name", "varchar(100)"), column("age", "int"))
    stream = source(f"{{type: kafka, topic: {name}, value: {{format: json}}}}", *columns, name="test_stream").relation
    spec = compiled(
        table(f"{{topic: {name}}}", *columns), tmp_path, name=f"{schema}.testtable", sql="select name from shop.clicks"
    )
    platform.deploy(spec)

    rows = platform.sql(f"select name, age, _offset from {stream} order by _offset")
    assert rows == [
        ("ada", 36, 0),
        (None, None, 1),
        (None, None, 2),
        (None, None, 3),
        (None, None, 4),
        ("bob", None, 5),
    ]
    look = lambda: sorted(platform.sql(f"select name from {schema}.testtable"))  # noqa: E731
    platform.until(lambda: look() == [("ada",), ("bob",)], "two rows", 120, look)


# -- what a view shows ------------------------------------------------------------------------------------------------
def test_limit_offset_and_the_place_in_the_topic_for_any_client(
    platform: Platform, source: Callable[..., KafkaInput], topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2)
    for partition in (0, 1):
        produce(name, [(f"k{n}", {"n": n}) for n in range(20)], partition=partition, headers={"trace": "t1"})
    made = source(
        f"{{topic: {name}, start: latest, watermark: {{column: at, delay: 1 minute}}}}",
        column("n", "int"),
        column("id", "string", **{"from": "key"}),
        column("at", "timestamp", **{"from": "timestamp"}),
        column("trace", "string", **{"from": "header(trace)"}),
        column("twice", "bigint", expr="n * 2"),
        column("_offset", "string", expr="'mine'"),
    )
    described = [row[:2] for row in platform.sql(f"describe {made.relation}")]
    assert described == [
        ("n", "int"), ("id", "string"), ("at", "timestamp"), ("trace", "string"), ("twice", "bigint"),
        ("_offset", "string"), ("_partition", "int"), ("_timestamp", "timestamp"),
    ]  # fmt: skip
    few = platform.sql(f"select * from {made.relation} limit 3 offset 2")
    assert [row[:2] for row in few] == [(2, "k2"), (3, "k3"), (4, "k4")]
    assert few[0][3:7] == ("t1", 4, "mine", 0)
    assert few[0][2] == few[0][7]
    assert abs(few[0][7].astimezone(UTC) - dt.datetime.now(UTC)) < dt.timedelta(minutes=10)
    assert platform.sql(f"select count(*), count(distinct _partition) from {made.relation}") == [(40, 2)]
    produce(name, [{"n": 99}], partition=1)
    assert platform.sql(f"select n from {made.relation} where n > 50") == [(99,)]


def test_a_pattern_and_some_partitions_are_shown(
    platform: Platform, source: Callable[..., KafkaInput], topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2, name="some")
    for partition in (0, 1):
        produce(name, [f"line {partition}"], partition=partition)
    text = "value: {format: string}"
    one = source(f"{{topic: {name}, partitions: [1], {text}}}", column("line", "string"), name="one")
    assert platform.sql(f"select line, _partition from {one.relation}") == [("line 1", 1)]
    every = source(f"{{topic_pattern: '{name[:-2]}.*', {text}}}", column("line", "string"), name="every")
    assert sorted(platform.sql(f"select line from {every.relation}")) == [("line 0",), ("line 1",)]


# -- deploying --------------------------------------------------------------------------------------------------------
def test_an_unchanged_source_asks_nobody_and_a_changed_one_is_made_anew(
    platform: Platform, entry: MakeEntry, topic: MakeTopic, produce: Produce, tmp_path: Path, schema: str
) -> None:
    name = topic(1)
    produce(name, [{"a": 1, "b": 2}])
    platform.endpoint()
    first = entry(f"{{topic: {name}}}", column("a", "int"))
    relation = f"{schema}_src.clicks"
    assert register_sources(platform.store, [first], tmp_path).changed == (relation,)
    last = platform.store.submit("stop", "nobody")
    again = register_sources(platform.store, [first, {**first, "config": {}, "meta": {}, "source_meta": {}}], tmp_path)
    assert (again.changed, again.failed) == ((), {})
    later = entry(f"{{topic: {name}, start: latest}}", column("a", "int"))
    assert register_sources(platform.store, [later], tmp_path).changed == ()
    assert platform.store.submit("stop", "nobody") == last + 1  # nothing was asked of the engine in between
    changed = entry(f"{{topic: {name}}}", column("a", "int"), column("b", "int"))
    wrong = entry("{topic: x, formatt: json}", column("a", "int"), name="wrong")
    done = register_sources(platform.store, [wrong, changed], tmp_path)
    assert done.changed == (relation,)
    assert {each: problem.code for each, problem in done.failed.items()} == {f"{schema}_src.wrong": "PEN-1201"}
    assert platform.sql(f"select a, b from {relation}") == [(1, 2)]
    drop_source(platform.store, relation)
    assert platform.sql(f"show tables in {schema}_src") == []
    assert relation not in platform.store.sources()


def test_a_table_of_the_same_name_is_left_alone(
    platform: Platform, entry: MakeEntry, topic: MakeTopic, schema: str, tmp_path: Path
) -> None:
    platform.sql(f"create schema {schema}_src")
    platform.sql(f"create table {schema}_src.clicks using delta as select 7 as a")
    made = compile_source(entry(f"{{topic: {topic(1)}}}", column("a", "int")), project_dir=tmp_path)
    with pytest.raises(PenstockError) as caught:
        register(platform.store, made)
    assert caught.value.code == "PEN-4007"
    assert platform.sql(f"select a from {schema}_src.clicks") == [(7,)]
    assert made.relation not in platform.store.sources()


# -- what is read -----------------------------------------------------------------------------------------------------
@dataclass
class Relay:
    """Hands on every byte between a client and the broker's door behind it, and counts what the broker sent."""

    door: int
    sent: int = 0
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.door))
                threading.Thread(target=self._hand_on, args=(client, broker, False), daemon=True).start()
                threading.Thread(target=self._hand_on, args=(broker, client, True), daemon=True).start()

    def _hand_on(self, origin: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError), origin, target:
            while data := origin.recv(65536):
                self.sent += len(data) if counted else 0
                target.sendall(data)


def test_a_limit_reads_only_what_it_needs(
    platform: Platform, source: Callable[..., KafkaInput], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = ProjectPaths(tmp_path_factory.mktemp("counted"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        door = int(probe.getsockname()[1])
    relay = Relay(door)
    relay.start()
    # A door that tells its clients to come back through the relay: every byte that is read passes it.
    more = {
        "listeners": f"COUNTED://127.0.0.1:{door}",
        "advertised.listeners": f"COUNTED://127.0.0.1:{relay.port}",
        "listener.security.protocol.map": "COUNTED:PLAINTEXT",
    }
    try:
        started = broker_service.start(paths, timeout=180, more=more)
        create_topics(started.bootstrap, {"many": 2})
        producer = Producer(
            client_config(started.bootstrap) | {"linger.ms": 20, "queue.buffering.max.messages": 300_000}
        )
        padding = "x" * 100
        for number in range(200_000):
            producer.produce("many", json.dumps({"n": number, "padding": padding}), partition=number % 2)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        made = source(
            f"{{topic: many, bootstrap.servers: '127.0.0.1:{relay.port}'}}",
            column("n", "int"),
            column("padding", "string"),
        )
        relay.sent = 0
        assert len(platform.sql(f"select * from {made.relation} limit 10 offset 5")) == 10
        few = relay.sent
        relay.sent = 0
        assert platform.sql(f"select count(*), sum(n) from {made.relation}") == [(200_000, 199_999 * 100_000)]
        everything = relay.sent
    finally:
        broker_service.stop(paths)
    assert everything > 20_000_000
    assert few < 1_200_000, f"{few:,} of {everything:,} bytes for ten rows"


def test_a_broker_that_does_not_answer_and_a_missing_topic_are_told_soon(
    platform: Platform, source: Callable[..., KafkaInput]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    nobody = source(f"{{topic: t, bootstrap.servers: '127.0.0.1:{port}'}}", column("a", "int"), name="nobody")
    nowhere = source("{topic: no-such-topic}", column("a", "int"), name="nowhere")
    session = client.connect(platform.endpoint().url)
    try:
        for made, code in ((nowhere, "PEN-2002"), (nobody, "PEN-2001")):
            began = time.monotonic()
            with pytest.raises(PenstockError) as caught:
                fetch(session, f"select * from {made.relation}", 10)
            assert caught.value.code == code
            assert time.monotonic() - began < 60
    finally:
        session.stop()


# -- the life of the engine and of the broker -------------------------------------------------------------------------
def test_views_outlive_the_engine_and_follow_the_broker(
    platform: Platform, source: Callable[..., KafkaInput], topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    produce(name, [{"a": 1}])
    made = source(f"{{topic: {name}}}", column("a", "int"))
    before = platform.endpoint()
    os.kill(before.pid, signal.SIGKILL)
    platform.until(lambda: (now := read_endpoint(platform.paths)) and now.pid != before.pid, "a new engine", 180)
    assert platform.sql(f"select a from {made.relation}") == [(1,)]

    file = platform.paths.kafka / "broker.json"
    state = json.loads(file.read_text())
    relay = Relay(int(state["bootstrap"].rpartition(":")[2]))
    relay.start()
    file.write_text(json.dumps(state | {"bootstrap": f"127.0.0.1:{relay.port}"}))
    try:

        def through_the_new_address() -> bool:
            return platform.sql(f"select a from {made.relation}") == [(1,)] and relay.sent > 0

        platform.until(through_the_new_address, "a read through the new address", 30)
    finally:
        file.write_text(json.dumps(state))
        relay.listener.close()
