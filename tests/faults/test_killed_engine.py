"""The engine is killed while rows flow; the tables must equal a batch computation over the whole topic."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from typing import Any

import psutil
import pytest

from penstock import processes
from penstock.compiler.spec import StreamSpec, TableStreamInput
from penstock.control.streams import start_stream, stop_stream
from penstock.store import StreamState

KILLS = ("driver", "session", "jvm")
PER_SECOND = 300


@pytest.mark.timeout(600)
def test_no_row_is_lost_and_none_comes_twice_across_kills_of_the_engine(
    platform: Any, topic: Any, produce: Any, make_spec: Any
) -> None:
    # Given: two writers of rows (small commits and Spark's own), a count kept by upsert, and a stream on a table.
    seed = int(os.environ.get("PENSTOCK_FAULT_SEED", "20"))
    chance = random.Random(seed)
    clicks = topic(3, name="faults")
    specs = {
        "small": make_spec("small", clicks, "select part, pos, k, v from input"),
        "large": make_spec("large", clicks, "select part, pos, k, v from input", small_batch_rows=0),
        "counts": make_spec(
            "counts",
            clicks,
            "select k, count(*) as n, sum(v) as total from input group by k",
            keys=("k",),
            stateful=True,
        ),
    }
    specs["chained"] = _chained(make_spec, specs["small"])
    for spec in specs.values():
        platform.deploy(spec)
    for spec in specs.values():
        platform.state(spec.name, StreamState.RUNNING)

    # When: rows flow, and at seeded moments the engine is killed: the driver, the whole session, the JVM alone.
    done = threading.Event()
    sent: list[tuple[str, int]] = []
    flow = threading.Thread(target=_flow, args=(produce, clicks, chance.randrange(1 << 30), done, sent))
    flow.start()
    try:
        for what in KILLS:
            engine = platform.endpoint()
            for spec in specs.values():
                platform.state(spec.name, StreamState.RUNNING)
            _await_batch(platform, specs["small"].name)
            time.sleep(chance.uniform(0.0, 1.5))  # not a wait for anything: the moment of the kill is the input here
            _kill(engine.pid, what)
            platform.until(lambda pid=engine.pid, at=engine.started_at: not processes.alive(pid, at), "its end")
    finally:
        done.set()
        flow.join()
    assert len(sent) > 500, "the test must have had rows in flight"
    platform.state(specs["small"].name, StreamState.RUNNING)
    _await_batch(platform, specs["small"].name)
    last = [("item-last", n) for n in range(20)]
    produce(clicks, [(k, {"k": k, "v": v}) for k, v in last])
    sent.extend(last)

    # Then: everything is read, and every table says what the topic says.
    counts = Counter(k for k, _ in sent)
    totals: Counter[str] = Counter()
    for k, v in sent:
        totals[k] += v
    want_counts = sorted((k, counts[k], totals[k]) for k in counts)
    want_chained = sorted((k, counts[k]) for k in counts)
    name = {key: spec.name for key, spec in specs.items()}

    def settled() -> bool:
        rows = platform.sql(
            f"select (select count(*) from {name['small']}), (select count(*) from {name['large']}), "
            f"(select sum(n) from {name['counts']}), (select sum(n) from {name['chained']})"
        )[0]
        return all(count == len(sent) for count in rows)

    def seen() -> Any:
        return {key: platform.store.actual(spec.name) for key, spec in specs.items()}

    platform.until(settled, f"{len(sent)} rows everywhere (seed {seed})", 180, seen)
    for writer in ("small", "large"):
        rows = platform.sql(f"select part, pos, k, v from {name[writer]}")
        assert len({row[:2] for row in rows}) == len(rows) == len(sent), f"{writer}: a row is there twice"
        assert sorted(row[2:] for row in rows) == sorted(sent), f"{writer}: other rows than were sent"
    assert sorted(platform.sql(f"select k, n, total from {name['counts']}")) == want_counts
    assert sorted(platform.sql(f"select k, n from {name['chained']}")) == want_chained

    # And: both ways of writing were used, and the restarts were counted.
    assert {batch.writer for batch in platform.store.progress(name["small"])} & {"direct"}
    assert {batch.writer for batch in platform.store.progress(name["large"])} & {"spark"}
    assert all(platform.store.actual(stream).restarts >= len(KILLS) for stream in name.values())


@pytest.mark.timeout(600)
def test_streams_that_share_a_reading_lose_and_double_nothing_across_kills_of_the_engine(
    platform: Any, topic: Any, produce: Any, make_spec: Any
) -> None:
    # Given: streams of several kinds on one topic, which they read together; each takes rows of its own.
    seed = int(os.environ.get("PENSTOCK_FAULT_SEED", "21"))
    chance = random.Random(seed)
    clicks = topic(2, name="shared-faults")
    shares = [make_spec(f"share{n}", clicks, f"select part, pos, k, v from input where v % 3 = {n}") for n in range(3)]
    latest = make_spec("latest", clicks, "select part, pos, k, v from input", keys=("part",))
    specs = [*shares, latest]
    for spec in specs:
        platform.deploy(spec)

    def together() -> bool:
        """Whether the engine that runs now reads for all of them at once."""
        text = (platform.paths.logs / "engine.log").read_text(encoding="utf-8", errors="replace")
        of_this = text.rpartition(f"fencing token {platform.endpoint().engine_token}")[2]
        return all(f"{each.name} reads topic '{clicks}' with others" in of_this for each in specs)

    # When: rows flow, and the engine is killed while they are read for all.
    done = threading.Event()
    sent: list[tuple[str, int]] = []
    flow = threading.Thread(target=_flow, args=(produce, clicks, chance.randrange(1 << 30), done, sent))
    flow.start()
    try:
        for what in ("driver", "session"):
            engine = platform.endpoint()
            platform.until(together, "a shared reading", 180)
            for spec in specs:
                _await_batch(platform, spec.name)
            time.sleep(chance.uniform(0.0, 1.0))  # not a wait for anything: the moment of the kill is the input here
            _kill(engine.pid, what)
            platform.until(lambda pid=engine.pid, at=engine.started_at: not processes.alive(pid, at), "its end")
        platform.endpoint()
        platform.until(together, "a shared reading", 180)
    finally:
        done.set()
        flow.join()

    # Then: every table says what a batch computation over the topic says.
    def settled() -> bool:
        counts = ", ".join(f"(select count(*) from {each.name})" for each in shares)
        return sum(platform.sql(f"select {counts}")[0]) == len(sent)

    def seen() -> Any:
        return [platform.store.actual(each.name) for each in specs]

    platform.until(settled, f"{len(sent)} rows (seed {seed})", 180, seen)
    found = []
    for number, spec in enumerate(shares):
        rows = platform.sql(f"select part, pos, k, v from {spec.name}")
        assert len({row[:2] for row in rows}) == len(rows), f"{spec.name}: a row is there twice"
        assert all(row[3] % 3 == number for row in rows)
        found += rows
    assert len({row[:2] for row in found}) == len(sent)
    assert sorted(row[2:] for row in found) == sorted(sent), "other rows than were sent"
    last = {part: max(row for row in found if row[0] == part) for part in {row[0] for row in found}}
    platform.until(
        lambda: sorted(platform.sql(f"select part, pos, k, v from {latest.name}")) == sorted(last.values()),
        "the newest row of each partition", 60, seen,
    )  # fmt: skip


def test_a_stateful_stream_gets_over_a_kill_while_its_first_batch_was_planned(
    platform: Any, topic: Any, produce: Any, make_spec: Any
) -> None:
    # Given: a stream that has read nothing yet, with what a kill in the middle of its first write leaves.
    clicks = topic(1)
    spec = make_spec("first", clicks, "select k, count(*) as n from input group by k", keys=("k",), stateful=True)
    made = platform.deploy(spec)
    platform.state(spec.name, StreamState.RUNNING)
    stop_stream(platform.store, spec.name)
    checkpoint = platform.paths.checkpoint(spec.name, made.checkpoint)
    for folder in ("offsets", "commits", "state"):  # Spark may have planned a batch without rows already
        shutil.rmtree(checkpoint / folder, ignore_errors=True)
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.6f1c.tmp").write_text("v1")

    # When it is started again, then it reads from its beginning.
    start_stream(platform.store, spec.name)
    produce(clicks, [{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    platform.until(
        lambda: platform.sql(f"select k, n from {spec.name}") == [("a", 2)], "the count", 90,
        lambda: platform.store.actual(spec.name),
    )  # fmt: skip


def _await_batch(platform: Any, stream: str) -> None:
    """Until the stream has committed a batch since it was started."""

    def committed() -> bool:
        found = platform.store.actual(stream)
        return found.started_at is not None and (found.last_batch_at or 0.0) > found.started_at

    platform.until(committed, f"a batch of {stream}", 120, lambda: platform.store.actual(stream))


def _chained(make_spec: Any, upstream: StreamSpec) -> StreamSpec:
    spec: StreamSpec = make_spec(
        "chained", "unused", "select k, count(*) as n from upstream group by k", keys=("k",), stateful=True
    )
    return spec.model_copy(update={"inputs": (TableStreamInput(view="upstream", relation=upstream.output.relation),)})


def _flow(produce: Any, topic: str, seed: int, done: threading.Event, sent: list[tuple[str, int]]) -> None:
    chance = random.Random(seed)
    while not done.is_set():
        rows = [(f"item-{int(chance.paretovariate(1.2)) % 40}", chance.randrange(100)) for _ in range(PER_SECOND // 10)]
        produce(topic, [(k, {"k": k, "v": v}) for k, v in rows])
        sent.extend(rows)
        done.wait(0.1)


def _kill(pid: int, what: str) -> None:
    if what == "session":
        os.killpg(pid, signal.SIGKILL)  # driver and JVM in the same moment, as a machine that loses its power
    elif what == "driver":
        os.kill(pid, signal.SIGKILL)  # its JVM notices a moment later
    else:
        jvm = next(child for child in psutil.Process(pid).children(recursive=True) if child.name() == "java")
        jvm.kill()  # as the kernel does when memory is short; the driver must not live on without it
