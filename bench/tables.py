"""Many dynamic tables on one engine: lag, CPU and memory by their number, at a steady rate of messages in all.

Rules
- All tables read one topic and take a share of its rows each, so the rows that are written do not grow with the tables.
- The lag of a row is the time from its message's timestamp to its commit in the table, as in `bench.latency`.
- CPU is what engine and JVM took of one core while rows counted; memory is what both held at the end.
- "each alone" is Penstock without shared reading (decision 13), in an engine of its own, for a few numbers of tables.
- The rival runs the same queries, hand-written, in one application: as few as it can keep up with.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.commits import latencies
from bench.feed import Steady
from bench.report import note, percentile, table
from bench.site import Handwritten, Penstock, Site, site, until
from penstock.engine.process import read_endpoint
from penstock.engine.streams import SHARING_CONF

RATE = 100
NUMBERS, QUICK = (1, 10, 50, 100), (1, 10)
RIVALS, QUICK_RIVALS = (1, 5, 10), (1,)
_ALONE = "Penstock, each alone"


@dataclass(frozen=True)
class Load:
    """What a number of tables cost."""

    name: str
    tables: int
    lags: list[float]
    cpu: float  # cores
    memory: float  # MB

    def line(self) -> list[str]:
        p50, p95 = (percentile(self.lags, share) / 1000 for share in (0.5, 0.95))
        cost = [f"{self.cpu:.2f}", f"{self.cpu / self.tables:.3f}", f"{self.memory:,.0f}"]
        return [self.name, str(self.tables), f"{p50:.2f} s", f"{p95:.2f} s", *cost]


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print lag, CPU and memory by the number of tables."""
    rate, numbers, rivals = rows or RATE, QUICK if quick else NUMBERS, QUICK_RIVALS if quick else RIVALS
    warm, counted = (10.0, 15.0) if quick else (20.0, 40.0)
    found: list[Load] = []
    for name, conf, some in (("Penstock", {}, numbers), (_ALONE, {SHARING_CONF: "0"}, rivals)):
        with ExitStack() as stack:
            place = stack.enter_context(site(spark_conf=conf))
            for number in some:
                found.append(_ours(name, place, number, rate, warm, counted))
                note(" | ".join(found[-1].line()))
    with ExitStack() as stack:
        place = stack.enter_context(site(engine=False))
        rival = Handwritten(place)
        stack.callback(rival.close)
        for number in rivals:
            found.append(_theirs(rival, place, number, rate, warm, counted))
            note(" | ".join(found[-1].line()))
    table(
        f"Tables on one application, {rate} messages a second in all",
        ["what", "tables", "p50 lag", "p95 lag", "cores", "cores a table", "MB"],
        [each.line() for each in found],
    )


def _ours(name: str, place: Site, number: int, rate: int, warm: float, counted: float) -> Load:
    topic = place.topic("many")
    tables = [Penstock(place, f"t{number}_{each}") for each in range(number)]
    for at, each in enumerate(tables):
        each.start(topic, where=_share(at, number))
    endpoint = read_endpoint(place.paths)
    assert endpoint is not None
    try:
        return _measured(name, [each.table for each in tables], endpoint.pid, place, topic, rate, warm, counted)
    finally:
        for each in tables:
            each.drop()
            each.close()


def _theirs(rival: Handwritten, place: Site, number: int, rate: int, warm: float, counted: float) -> Load:
    topic = place.topic("many")
    rival.start(topic, conditions=[_share(at, number) for at in range(number)])
    try:
        return _measured("hand-written", rival.tables, rival.pid, place, topic, rate, warm, counted)
    finally:
        rival.pause()


def _share(at: int, number: int) -> str:
    return f"pmod(hash(event_id), {number}) = {at}"


def _measured(
    name: str, tables: list[Path], pid: int, place: Site, topic: str, rate: int, warm: float, counted: float
) -> Load:
    with Steady(place.bootstrap, topic, rate):
        until(lambda: all((each / "_delta_log").is_dir() for each in tables), "the first commits", timeout=300)
        time.sleep(warm)  # a stretch of running is what is wanted here, no condition
        before, begun = cpu_of(pid), time.time()
        time.sleep(counted)
        after, ended = cpu_of(pid), time.time()
        memory = _memory_of(pid)
        late = {"sent_from": ended, "sent_to": ended + 3600}
        until(lambda: all(latencies(each, **late) for each in tables), "the last rows", timeout=300, every=2)
    lags = [lag for each in tables for lag in latencies(each, sent_from=begun, sent_to=ended)]
    return Load(name, len(tables), lags, (after - before) / (ended - begun), memory)


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all below it, so far."""
    total = 0.0
    for each in _family(pid):
        with suppress(psutil.NoSuchProcess):  # Hadoop starts processes that live for milliseconds
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _memory_of(pid: int) -> float:
    total = 0.0
    for each in _family(pid):
        with suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total / 2**20
