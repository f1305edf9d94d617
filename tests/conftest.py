"""Fixtures of the whole pytest run: one broker and one engine, started when the first test asks for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from halves import pytest_runtestloop as pytest_runtestloop
from plain_tables import plain_rows

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec, Trigger
from penstock.control import up
from penstock.control.deploy import Deployment, deploy
from penstock.control.streams import drop_stream
from penstock.dev import broker as broker_service
from penstock.dev import registry as registry_service
from penstock.dev.broker import Broker
from penstock.dev.registry import RegistryService
from penstock.engine import polling
from penstock.engine.process import Endpoint, read_endpoint
from penstock.kafka.admin import client_config, create_topics
from penstock.paths import ProjectPaths
from penstock.project.profile import EngineSettings, KafkaSettings, RuntimeSettings
from penstock.store import Actual, Store, StreamState


def pytest_sessionstart() -> None:
    """A run that is told to end (CI's time is up) ends its services, too."""
    # The JVMs of a run live for minutes: quick compilation does more for them than thorough compilation.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # A secret that sources can refer to by name; the engine looks it up in its own environment.
    os.environ.setdefault(SECRET_VARIABLE, f"top-secret-{uuid.uuid4().hex}")
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=143))
    # A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


SECRET_VARIABLE = "TEST_KAFKA_PASSWORD"
# Streams that have nothing to do look forty times a second, which costs a fifth of a core.
CALM = {polling.CONF: "100ms"}
_DEAR = 0.1  # seconds that a look takes
MakeTopic = Callable[..., str]
Produce = Callable[..., int]


@pytest.fixture(scope="session")
def broker_paths(tmp_path_factory: pytest.TempPathFactory) -> ProjectPaths:
    """The project directory that the run's broker belongs to."""
    return ProjectPaths(tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="session")
def broker(broker_paths: ProjectPaths) -> Iterator[Broker]:
    """A real Kafka broker for all tests of the run; ended with it, whatever happened."""
    try:
        started = broker_service.start(broker_paths)
        _keep_old_messages(started.bootstrap)
        yield started
    finally:
        broker_service.stop(broker_paths)


def _keep_old_messages(bootstrap: str) -> None:
    """Tests send messages of long ago, which the broker would delete when it looks for such next."""
    admin = AdminClient(client_config(bootstrap))
    (node,) = admin.list_topics(timeout=30).brokers
    for_ever = ConfigEntry("log.retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node), incremental_configs=[for_ever])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(timeout=30)


@pytest.fixture(scope="session")
def registry(broker_paths: ProjectPaths) -> Iterator[RegistryService]:
    """A real schema registry for all tests of the run, in the project of the broker and the engine."""
    try:
        yield registry_service.start(broker_paths)
    finally:
        registry_service.stop(broker_paths)


@dataclass(frozen=True)
class Platform:
    """Broker, supervisor and engine of the run, and what tests do with them."""

    paths: ProjectPaths
    store: Store
    settings: RuntimeSettings
    bootstrap: str
    sessions: dict[str, Any] = field(default_factory=dict)  # by the address of their engine
    past_spark: dict[str, bool] = field(default_factory=dict)  # of the look that is being taken

    def endpoint(self, timeout: float = 120) -> Endpoint:
        """The engine that runs now, waited for when it is being started again."""
        return self.until(lambda: read_endpoint(self.paths), "an engine", timeout)

    def deploy(self, spec: StreamSpec, *, full_refresh: bool = False, together: Collection[str] = ()) -> Deployment:
        """As `dbt run` does it."""
        self.endpoint()
        return deploy(self.store, self.paths, spec, full_refresh=full_refresh, together=together)

    def state(self, stream: str, *states: StreamState, timeout: float = 90) -> Actual:
        """The stream's record once it is in one of the states."""

        def there() -> Actual | None:
            found = self.store.actual(stream)
            return found if found.state in states else None

        return self.until(there, f"{stream} to be {' or '.join(states)}", timeout, lambda: self.store.actual(stream))

    def until(
        self, look: Callable[[], Any], what: str, timeout: float = 60, last: Callable[[], Any] | None = None
    ) -> Any:
        """What `look` finds, as soon as it finds something.

        A look at a table that has changed costs Spark a second or more, which the streams that it waits for then lack.
        So looks read plain tables past Spark, and what is found is looked up in Spark once more. Other looks that are
        dear are taken again when a table has changed, and else from time to time.
        """
        deadline = time.monotonic() + timeout
        by_spark = time.monotonic() + 10
        while True:
            commits, began = self._commits(), time.monotonic()
            self.past_spark.update(allowed=began < by_spark, taken=False)
            found = look()
            self.past_spark["allowed"] = False
            if found and self.past_spark["taken"]:
                found = look()
            if found:
                return found
            now = time.monotonic()
            if now > deadline:
                pytest.fail(f"waited {timeout} s for {what}; last: {last() if last else found}")
            if began >= by_spark:
                by_spark = now + 10
            time.sleep(0.2)
            again = min(now + 2 if now - began > _DEAR else now, deadline)
            while time.monotonic() < again and self._commits() == commits:
                time.sleep(0.1)

    def _commits(self) -> set[tuple[str, int]]:
        """What changes with every commit to a table."""
        found = set()
        for each in self.paths.warehouse.glob("*/*/_delta_log"):
            with contextlib.suppress(FileNotFoundError):  # a table that was dropped since
                found.add((str(each), each.stat().st_mtime_ns))
        return found

    def forget_sessions(self) -> None:
        while self.sessions:
            self.sessions.popitem()[1].client.close()  # else each asks its engine at the end of the run, for minutes

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query, over Spark Connect as every user's; in one session of each engine, for a look that is taken
        again and again would mostly make sessions.
        """
        from pyspark.sql.connect.session import SparkSession

        if self.past_spark.get("allowed") and (found := plain_rows(self.paths.warehouse, query)) is not None:
            self.past_spark["taken"] = True
            return found
        url = self.endpoint().url
        if url not in self.sessions:
            self.forget_sessions()  # of an engine that is gone
            self.sessions[url] = SparkSession.builder.remote(url).create()
        return [tuple(row) for row in self.sessions[url].sql(query).collect()]


@pytest.fixture(scope="session")
def platform(broker_paths: ProjectPaths, broker: Broker) -> Iterator[Platform]:
    """A running engine under its supervisor, for all tests of the run."""
    settings = RuntimeSettings(
        target="dev", schema="default", kafka=KafkaSettings(embedded=True), engine=EngineSettings(spark_conf=CALM)
    )
    yield from _running(broker_paths, settings, broker)


@pytest.fixture(scope="session")
def sharing_platform(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Platform]:
    """An engine on which two streams are enough to share the reading of their topic."""
    settings = RuntimeSettings(
        target="dev", schema="default", kafka=KafkaSettings(bootstrap=broker.bootstrap),
        engine=EngineSettings(spark_conf=CALM | {"spark.penstock.shared_reading": "2"}),
    )  # fmt: skip
    yield from _running(ProjectPaths(tmp_path_factory.mktemp("sharing")), settings, broker)


def _running(paths: ProjectPaths, settings: RuntimeSettings, broker: Broker) -> Iterator[Platform]:
    try:
        up.ensure_up(paths, settings, timeout=240)
        made = Platform(paths, Store.open(paths.store), settings, broker.bootstrap)
        yield made
        made.forget_sessions()
    finally:
        up.down(paths, keep_broker=True, keep_registry=True)


@pytest.fixture
def schema(platform: Platform) -> Iterator[str]:
    """A schema that no other test has; the streams in it are dropped in the end."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    platform.endpoint()
    for want in platform.store.all_desired():
        if want.stream.startswith(f"{name}."):
            drop_stream(platform.store, want.stream)


MakeSpec = Callable[..., StreamSpec]


@pytest.fixture
def make_spec(schema: str) -> MakeSpec:
    """`make_spec("clean", topic, sql)`: a spec over a topic of JSON `{"k": …, "v": …}` with key and offset columns."""

    def make(
        name: str,
        topic: str,
        sql: str,
        *,
        keys: tuple[str, ...] | None = None,
        stateful: bool = False,
        small_batch_rows: int = 20_000,
        trigger: Trigger | None = None,
    ) -> StreamSpec:
        columns = (
            Column(name="key", type="string", origin="key"),
            Column(name="k", type="string", origin="value.k"),
            Column(name="v", type="bigint", origin="value.v"),
            Column(name="part", type="int", origin="partition"),
            Column(name="pos", type="bigint", origin="offset"),
            Column(name="at", type="timestamp", origin="timestamp"),
        )
        return StreamSpec(
            name=f"{schema}.{name}",
            unique_id=f"model.test.{name}",
            path=f"models/{name}.sql",
            sql=sql,
            stateful=stateful,
            inputs=(KafkaInput(view="input", relation=f"{schema}_raw.input", topic=topic, columns=columns),),
            output=Output(
                relation=f"{schema}.{name}",
                mode=OutputMode.APPEND if keys is None else OutputMode.UPSERT,
                keys=keys or (),
            ),
            trigger=trigger or Trigger(),
            small_batch_rows=small_batch_rows,
        )

    return make


@pytest.fixture
def topic(broker: Broker) -> MakeTopic:
    """`topic(partitions=1, name="clicks")` creates a topic that no other test has; its name."""

    def make(partitions: int = 1, *, name: str = "topic") -> str:
        unique = f"{name}-{uuid.uuid4().hex[:10]}"
        create_topics(broker.bootstrap, {unique: partitions})
        return unique

    return make


@pytest.fixture
def produce(broker: Broker) -> Produce:
    """`produce(topic, records)` sends values (a mapping becomes JSON) and waits until the broker has them; how many.

    A record may also be `(key, value)`; `headers`, `partition` and `timestamp` (in milliseconds; 0: now) are the same
    for all records of a call.
    """
    producer = Producer(client_config(broker.bootstrap) | {"enable.idempotence": True, "linger.ms": 5})

    def send(
        topic: str,
        records: Iterable[Any],
        *,
        headers: Mapping[str, str] | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> int:
        failures: list[str] = []
        sent = 0
        for record in records:
            key, value = record if isinstance(record, tuple) else (None, record)
            producer.produce(
                topic,
                value=_encoded(value),
                key=_encoded(key),
                partition=partition,
                timestamp=timestamp,
                headers=[(name, text.encode()) for name, text in (headers or {}).items()],
                on_delivery=lambda error, _: failures.append(error.str()) if error else None,
            )
            producer.poll(0)
            sent += 1
        left = producer.flush(30)
        assert not failures, failures[0]
        assert left == 0, f"{left} records were not confirmed"
        return sent

    return send


@pytest.fixture
def project_paths(tmp_path: Path) -> ProjectPaths:
    """An empty project directory of the test's own."""
    return ProjectPaths(tmp_path)


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
