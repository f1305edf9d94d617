"""The engine is killed while it publishes; committed messages must be those that one run without a kill would give."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import commercials
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from published_messages import latest
from schema_messages import avro_serializer
from source_files import compiled, entries

from penstock import processes
from penstock.control.locking import complete
from penstock.dev.registry import RegistryService
from penstock.paths import ProjectPaths
from penstock.store import StreamState

KILLS = 2
ROWS = "select part, pos, brand, duration, rating from shop.commercials"


@pytest.fixture
def project(tmp_path: Path, platform: Any, registry: RegistryService) -> Iterator[Path]:
    """A project of the test's own; it and the engine's know the run's registry."""
    files = [paths.registry / "registry.json" for paths in (ProjectPaths(tmp_path), platform.paths)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"url": registry.url}))
    yield tmp_path
    files[1].unlink()


@pytest.mark.timeout(600)
def test_every_row_of_the_commercials_example_is_published_once_across_kills_of_the_engine(
    project: Path, platform: Any, schema: str, topic: Any, produce: Any, registry: RegistryService
) -> None:
    # Given: commercials, and the metrics of a brand, that go to a table and a topic, and counts of windows, that go to
    # a topic alone; all exactly once, as registered Avro with the key in the message's.
    chance = random.Random(int(os.environ.get("PENSTOCK_FAULT_SEED", "7")))
    client = SchemaRegistryClient({"url": registry.url})
    source = topic(2, name="commercials")
    encode = avro_serializer(client, source, commercials.AVRO)
    sent: list[dict[str, Any]] = []

    def send(rows: list[dict[str, Any]]) -> None:
        produce(source, [(row["brand"], encode(row)) for row in rows])
        sent.extend(rows)

    send(commercials.RARE)
    text = commercials.source_file(source, "avro")
    complete(entries(text, project), project, dict)
    for name, sql, publish in (
        ("rows", ROWS, {"key": "brand"}),
        ("metrics", commercials.METRICS, {}),
        ("windowed", commercials.WINDOWED, {"table": False}),
    ):
        publish |= {"topic": f"{source}-{name}", "value": {"format": "avro"}}
        platform.deploy(compiled(text, project, name=f"{schema}.{name}", sql=sql, publish=publish))
    names = ("rows", "metrics", "windowed")

    # When: rows flow, and the engine is killed with all that it runs, in the middle of a batch or between two.
    done = threading.Event()

    def flow() -> None:
        brands = ["Acme", "Globex", "Initech"]
        while not done.is_set():
            send([{"brand": chance.choice(brands), "duration": chance.choice([30, 45, 60]),
                   "rating": chance.randint(1, 5)} for _ in range(20)])  # fmt: skip
            done.wait(0.1)

    def published(name: str) -> list[Any]:
        return commercials.read_avro(client, platform.bootstrap, f"{source}-{name}")

    def more(name: str, than: int) -> None:
        platform.until(
            lambda: len(published(name)) > than, f"messages of {name}", 120,
            lambda: platform.store.actual(f"{schema}.{name}"),
        )  # fmt: skip

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        for _ in range(KILLS):
            for name in names:
                platform.state(f"{schema}.{name}", StreamState.RUNNING)
                more(name, len(published(name)))
            engine = platform.endpoint()
            time.sleep(chance.uniform(0.0, 0.5))  # not a wait for anything: the moment of the kill is the input here
            os.killpg(engine.pid, signal.SIGKILL)
            platform.until(lambda e=engine: not processes.alive(e.pid, e.started_at), "its end")
    finally:
        done.set()
        thread.join()

    # Then: a reader of committed messages ends with what one computation over all of them gives.
    metrics, windowed = commercials.metrics(sent), commercials.windowed(platform.bootstrap, source)
    assert windowed
    assert not {row["brand"] for row in commercials.RARE} & {brand for brand, _ in windowed}

    def all_there() -> bool:
        return (
            len(published("rows")) == len(sent) == platform.sql(f"select count(*) from {schema}.rows")[0][0]
            and latest(published("metrics")) == metrics
            and latest(published("windowed")) == windowed
        )

    platform.until(
        all_there, f"{len(sent)} rows everywhere", 120,
        lambda: [(len(published(name)), platform.store.actual(f"{schema}.{name}")) for name in names],
    )  # fmt: skip

    # And: every row is published once, as the tables have it.
    rows = [each.value for each in published("rows")]
    assert len({(each["part"], each["pos"]) for each in rows}) == len(rows), "a row was published twice"
    values = sorted(tuple(row.values()) for row in sent)
    assert sorted((each["brand"], each["duration"], each["rating"]) for each in rows) == values
    assert sorted(platform.sql(f"select brand, duration, rating from {schema}.rows")) == values
    table = platform.sql(f"select brand, cnt, duration_mean, rating_mean from {schema}.metrics")
    assert sorted(table) == sorted(tuple(each.values()) for each in metrics.values())

    # And: a count is published once for each change of it, by the key of its row.
    for name in ("metrics", "windowed"):
        counts: dict[Any, list[int]] = {}
        for each in published(name):
            if each.value is None:  # a window that HAVING leaves out as yet
                continue
            own = tuple(each.value[column] for column in ("brand", "window_start") if column in each.value)
            assert each.key == (own if name == "windowed" else own[0])
            counts.setdefault(each.key, []).append(each.value["cnt"])
        assert all(a < b for each in counts.values() for a, b in pairwise(each)), f"a row of {name} came twice"
    assert all(platform.store.actual(f"{schema}.{name}").restarts >= KILLS for name in names)
