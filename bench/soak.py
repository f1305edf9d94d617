"""`python -m bench.soak --minutes 60`: streams run while their engine, supervisor and broker are killed.

Rules
- The moments and the victims are random with a seed, which is printed: the same seed kills in the same order.
- What a service manager would do is done here: a killed supervisor or broker is started again by `ensure_up`. A killed
  engine is the supervisor's business alone.
- The topic is the truth. In the end every table must equal a batch computation over it; memory and the store must have
  stayed below their limits all the time. The exit code is 0 only then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable

from bench.engine import engine_memory
from bench.report import machine, note, table
from bench.site import SCHEMA, Site, site, until
from penstock import processes
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec, TableStreamInput
from penstock.control import up
from penstock.control.deploy import deploy
from penstock.control.supervisor import read_running
from penstock.dev import broker
from penstock.engine.process import read_endpoint
from penstock.kafka.admin import client_config, end_offsets
from penstock.store import Store

MEMORY_LIMIT = 2000  # MB resident, driver and JVM together: a heap of 1 GB and what is around it
STORE_LIMIT = 64  # MB
PARTITIONS = 3
_COLUMNS = (
    Column(name="k", type="string", origin="value.k"),
    Column(name="v", type="bigint", origin="value.v"),
    Column(name="part", type="int", origin="partition"),
    Column(name="pos", type="bigint", origin="offset"),
)


@dataclass
class Record:
    """What was seen while it ran."""

    kills: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def specs(topic: str) -> list[StreamSpec]:
    """Rows by small commits, rows by Spark's writer, a count by upsert, and a stream on a table."""
    clicks = KafkaInput(view="input", relation="soak_raw.input", topic=topic, columns=_COLUMNS)
    rows = "select part, pos, k, v from input"
    count = "select k, count(*) as n, sum(v) as total from input group by k"
    small = _spec("small", rows, clicks)
    return [
        small,
        _spec("large", rows, clicks).model_copy(update={"small_batch_rows": 0}),
        _spec("counts", count, clicks, keys=("k",)),
        _spec("chained", count, TableStreamInput(view="input", relation=small.output.relation), keys=("k",)),
    ]


def _spec(name: str, sql: str, source: KafkaInput | TableStreamInput, keys: tuple[str, ...] = ()) -> StreamSpec:
    return StreamSpec(
        name=f"{SCHEMA}.{name}",
        unique_id=f"model.soak.{name}",
        path=f"models/{name}.sql",
        sql=sql,
        stateful=bool(keys),
        inputs=(source,),
        output=Output(relation=f"{SCHEMA}.{name}", mode=OutputMode.UPSERT if keys else OutputMode.APPEND, keys=keys),
    )


def soak(minutes: float, seed: int, rate: int, pause: tuple[float, float]) -> Record:
    """Run, kill, compare; what was seen."""
    chance = random.Random(seed)
    record = Record()
    with site() as place:
        topic = place.topic("soak", PARTITIONS)
        store = Store.open(place.paths.store)
        streams = specs(topic)
        for spec in streams:
            deploy(store, place.paths, spec)
        done = threading.Event()
        threads = [
            threading.Thread(target=_flow, args=(place.bootstrap, topic, rate, seed, done, record)),
            threading.Thread(target=_watch, args=(place, done, record)),
        ]
        for thread in threads:
            thread.start()
        try:
            _kill_around(place, chance, time.monotonic() + minutes * 60, pause, record)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        note("no more kills; waiting until everything is read")
        _compare(place, topic, record)
        restarts = {spec.name: store.actual(spec.name).restarts for spec in streams}
        note(f"restarts: {restarts}")
        store.close()
    return record


# -- what flows --------------------------------------------------------------------------------------------------------
def _flow(bootstrap: str, topic: str, rate: int, seed: int, done: threading.Event, record: Record) -> None:
    """Messages at a steady rate; the client keeps them while the broker is away."""
    chance = random.Random(seed + 1)
    producer = Producer(
        client_config(bootstrap) | {"enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 5}
    )
    while not done.wait(0.1):
        for _ in range(max(rate // 10, 1)):
            key = f"item-{int(chance.paretovariate(1.2)) % 40}"
            producer.produce(topic, json.dumps({"k": key, "v": chance.randrange(100)}).encode(), key.encode())
        producer.poll(0)
    if left := producer.flush(120):
        record.problems.append(f"{left} messages never reached the broker")


def _watch(place: Site, done: threading.Event, record: Record) -> None:
    while not done.wait(2.0):
        record.memory.append(engine_memory(place.paths).get("engine", 0.0))
        files = place.paths.home.glob(f"{place.paths.store.name}*")
        record.store.append(sum(file.stat().st_size for file in files if file.exists()) / 1e6)


# -- what is killed ----------------------------------------------------------------------------------------------------
def _kill_around(
    place: Site, chance: random.Random, deadline: float, pause: tuple[float, float], record: Record
) -> None:
    victims: dict[str, Callable[[Site], bool]] = {
        "driver": _kill_driver,
        "engine": _kill_engine,
        "supervisor": _kill_supervisor,
        "broker": _kill_broker,
    }
    while time.monotonic() < deadline:
        time.sleep(min(chance.uniform(*pause), max(deadline - time.monotonic(), 0)))  # the moment is the input here
        victim = chance.choice(list(victims))
        if victims[victim](place):
            record.kills[victim] += 1
            note(f"killed the {victim}")
        if victim in ("supervisor", "broker"):
            time.sleep(chance.uniform(0.5, 5.0))
            up.ensure_up(place.paths, place.settings, timeout=240)


def _kill_driver(place: Site) -> bool:
    endpoint = read_endpoint(place.paths)
    return endpoint is not None and _killed(endpoint.pid, endpoint.started_at, whole=False)


def _kill_engine(place: Site) -> bool:
    endpoint = read_endpoint(place.paths)
    return endpoint is not None and _killed(endpoint.pid, endpoint.started_at, whole=True)


def _kill_supervisor(place: Site) -> bool:
    running = read_running(place.paths)
    return running is not None and _killed(running.pid, running.started_at, whole=False)


def _kill_broker(place: Site) -> bool:
    running = broker.status(place.paths)
    return running is not None and _killed(running.pid, running.started_at, whole=False)


def _killed(pid: int, started: float, *, whole: bool) -> bool:
    if not processes.alive(pid, started):
        return False
    (os.killpg if whole else os.kill)(pid, signal.SIGKILL)
    until(lambda: not processes.alive(pid, started), "the end of a killed process")
    return True


# -- what must be so ---------------------------------------------------------------------------------------------------
def _compare(place: Site, topic: str, record: Record) -> None:
    truth = _topic_rows(place.bootstrap, topic)
    wanted = sorted(truth)
    counts: Counter[str] = Counter(k for _, _, k, _ in truth)
    totals: Counter[str] = Counter()
    for _, _, k, v in truth:
        totals[k] += v
    counted = sorted((k, counts[k], totals[k]) for k in counts)
    note(f"{len(truth):,} messages are in the topic")
    expected: dict[str, tuple[tuple[str, ...], list[tuple[object, ...]]]] = {
        "small": (("part", "pos", "k", "v"), [*wanted]),
        "large": (("part", "pos", "k", "v"), [*wanted]),
        "counts": (("k", "n", "total"), [*counted]),
        "chained": (("k", "n", "total"), [*counted]),
    }
    for name, (columns, rows) in expected.items():
        try:
            until(_Same(place, name, columns, rows), f"table {name}", timeout=300, every=2)
            note(f"table {name} equals the topic")
        except TimeoutError:
            record.problems.append(f"table {name} differs: {_difference(_rows(place, name, columns), rows)}")


@dataclass(frozen=True)
class _Same:
    """Does a table hold just these rows?"""

    place: Site
    name: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    def __call__(self) -> bool:
        return _rows(self.place, self.name, self.columns) == self.rows


def _rows(place: Site, name: str, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    found = DeltaTable(str(place.paths.warehouse / f"{SCHEMA}.db" / name)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(found.column(column).to_pylist() for column in columns), strict=True))


def _difference(found: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    there, should = Counter(found), Counter(wanted)
    return f"{sum((should - there).values())} rows missing, {sum((there - should).values())} too many"


def _topic_rows(bootstrap: str, topic: str) -> list[tuple[int, int, str, int]]:
    """Partition, offset, key and value of every message."""
    ends = end_offsets(bootstrap, topic)
    consumer = Consumer(client_config(bootstrap) | {"group.id": "soak", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    rows: list[tuple[int, int, str, int]] = []
    deadline = time.monotonic() + 300
    while len(rows) < sum(ends.values()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"read {len(rows)} of {sum(ends.values())} messages of the topic")
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error() is None:
                value = json.loads(message.value())
                rows.append((message.partition(), message.offset(), value["k"], value["v"]))
    consumer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--rate", type=int, default=300, help="messages a second")
    parser.add_argument("--pause", type=float, nargs=2, default=(10, 60), help="seconds between kills, from and to")
    parser.add_argument("--quick", action="store_true", help="one minute, kills every 10 to 20 s")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(machine())
    note(f"seed {arguments.seed}")
    minutes, pause = (1.0, (10.0, 20.0)) if arguments.quick else (arguments.minutes, tuple(arguments.pause))
    record = soak(minutes, arguments.seed, arguments.rate, (pause[0], pause[1]))
    if max(record.memory, default=0) > MEMORY_LIMIT:
        record.problems.append(f"the engine had {max(record.memory):.0f} MB, more than {MEMORY_LIMIT}")
    if max(record.store, default=0) > STORE_LIMIT:
        record.problems.append(f"the store had {max(record.store):.1f} MB, more than {STORE_LIMIT}")
    table(
        f"Soak of {minutes:g} minutes, seed {arguments.seed}",
        ["what", "figure"],
        [
            ["kills", ", ".join(f"{count} {name}" for name, count in sorted(record.kills.items())) or "none"],
            ["engine's memory, highest", f"{max(record.memory, default=0):.0f} MB"],
            ["store, highest", f"{max(record.store, default=0):.1f} MB"],
            ["problems", "; ".join(record.problems) or "none"],
        ],
    )
    sys.exit(1 if record.problems else 0)


if __name__ == "__main__":
    main()
