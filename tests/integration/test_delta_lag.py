"""Stopped streams: how far they are behind, on topics and on tables, and how they go on."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import processes
from penstock.compiler.spec import StreamSpec, TableStreamInput
from penstock.control.streams import start_stream, stop_stream
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"k": f"k{n % 3}", "v": n} for n in range(count)]


def number(platform: Platform, sql: str) -> int:
    return int(platform.sql(sql)[0][0] or 0)


def lag(platform: Platform, stream: str, want: int) -> float:
    """The lag in seconds as soon as the lag in rows is the wanted one."""

    def there() -> Any:
        found = platform.store.actual(stream)
        return found if found.lag_rows == want else None

    found = platform.until(there, f"{stream} to lag {want} rows", 60, lambda: platform.store.actual(stream))
    return float(found.lag_seconds)


def grows(platform: Platform, stream: str, above: float) -> None:
    platform.until(
        lambda: (platform.store.actual(stream).lag_seconds or 0) > above, f"the lag of {stream} to pass {above:.1f} s"
    )


def test_the_lag_of_a_stopped_stream_on_a_table_is_what_the_table_has_more(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a table with rows of several commits, and a stream that began with its snapshot.
    name = topic(2)
    table = make_spec("table", name, "select k, v, part, pos from input")
    platform.deploy(table)
    platform.state(table.name, StreamState.RUNNING)
    for total in (10, 20, 30):
        produce(name, rows(10))
        platform.until(
            lambda total=total: number(platform, f"select count(*) from {table.name}") == total, "a commit", 90
        )
    base: StreamSpec = make_spec(
        "reader", "unused", "select k, count(*) as n from fresh group by k", keys=("k",), stateful=True
    )
    reader = base.model_copy(update={"inputs": (TableStreamInput(view="fresh", relation=table.output.relation),)})
    platform.deploy(reader)
    total = f"select sum(n) from {reader.name}"
    platform.until(lambda: number(platform, total) == 30, "the snapshot to be read", 90)
    assert lag(platform, reader.name, 0) == 0

    # When: it is stopped and the table grows, in two commits or more, and is rewritten.
    stop_stream(platform.store, reader.name)
    begun = time.time()
    produce(name, rows(7))
    assert lag(platform, reader.name, 7) <= time.time() - begun + 1
    produce(name, rows(5))
    lag(platform, reader.name, 12)
    grows(platform, reader.name, 2.0)
    platform.sql(f"optimize {table.name}")
    produce(name, rows(1))

    # Then: the lag counts what is new and not what was only moved; and it is gone after a start.
    lag(platform, reader.name, 13)
    assert number(platform, total) == 30
    start_stream(platform.store, reader.name)
    platform.until(lambda: number(platform, total) == 43, "all rows, once", 90, lambda: number(platform, total))
    assert lag(platform, reader.name, 0) == 0


@pytest.mark.deep
def test_a_stopped_stream_stays_stopped_across_an_engine_and_then_goes_on_without_loss(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2)
    stopped = make_spec("stopped", name, "select part, pos, v from input")
    other = make_spec("other", name, "select part, pos, v from input", small_batch_rows=0)
    count = {spec.name: f"select count(*) from {spec.name}" for spec in (stopped, other)}
    for spec in (stopped, other):
        platform.deploy(spec)
    produce(name, rows(20))
    for spec in (stopped, other):
        platform.until(lambda spec=spec: number(platform, count[spec.name]) == 20, f"20 rows in {spec.name}", 90)

    # When: one is stopped, and the engine is asked to end and comes again.
    stop_stream(platform.store, stopped.name)
    produce(name, rows(15))
    assert lag(platform, stopped.name, 15) > 0
    engine = platform.endpoint()
    os.kill(engine.pid, signal.SIGTERM)
    platform.until(lambda: not processes.alive(engine.pid, engine.started_at), "the engine's end", 90)
    produce(name, rows(5))
    lag(platform, stopped.name, 20)
    assert platform.endpoint().pid != engine.pid

    # Then: the other one goes on by itself, this one waits, with a lag that is known all the time.
    platform.until(lambda: number(platform, count[other.name]) == 40, "40 rows in the other", 120)
    found = platform.store.actual(stopped.name)
    assert (found.state, found.lag_rows) == (StreamState.STOPPED, 20)
    assert number(platform, count[stopped.name]) == 20
    grows(platform, stopped.name, found.lag_seconds or 0)
    start_stream(platform.store, stopped.name)
    platform.until(lambda: number(platform, count[stopped.name]) == 40, "40 rows", 90)
    assert lag(platform, stopped.name, 0) == 0
    for spec in (stopped, other):
        assert number(platform, f"select count(distinct part, pos) from {spec.name}") == 40
        assert number(platform, count[spec.name]) == 40
