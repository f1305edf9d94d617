"""A history that is loaded in large batches, and the stream that goes on from there: one checkpoint, no seam."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from model_files import Project

from penstock.checkpoint import backfill
from penstock.compiler.spec import FromTimestamp, StreamSpec, Trigger
from penstock.control.streams import start_stream, stop_stream
from penstock.store import Progress, StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

HISTORY = 6000


def with_backfill(spec: StreamSpec, since: datetime) -> StreamSpec:
    (source,) = spec.inputs
    changes = {"backfill": True, "starting": FromTimestamp(timestamp=since)}
    return spec.model_copy(update={"inputs": (source.model_copy(update=changes),)})


def test_a_history_is_loaded_in_few_large_batches_and_goes_on_live_without_a_seam(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: messages of a time before, which are not wanted, and a history of which a live batch takes 200.
    name = topic(2, name="history")
    produce(name, [{"k": "too old", "v": n} for n in range(50)])
    time.sleep(0.05)  # the broker's clock is in milliseconds: what follows is of a later one
    since = datetime.now(timezone.utc)
    time.sleep(0.05)
    produce(name, [{"k": f"k{n % 5}", "v": n} for n in range(HISTORY)])
    live = Trigger(max_batch_rows=200)
    rows = with_backfill(make_spec("rows", name, "select part, pos, v from input", trigger=live), since)
    stopped = with_backfill(make_spec("stopped", name, "select part, pos, v from input", trigger=live), since)
    sums = "select k, count(*) as n, sum(v) as total from input group by k"
    counts = with_backfill(make_spec("counts", name, sums, keys=("k",), stateful=True, trigger=live), since)

    # When: they are deployed; one is stopped in the middle of its history, and started again.
    made = {spec.name: platform.deploy(spec) for spec in (stopped, rows, counts)}
    checkpoints = {spec: platform.paths.checkpoint(spec, each.checkpoint) for spec, each in made.items()}

    def read(spec: StreamSpec) -> int:
        return sum(batch.rows_in for batch in platform.store.progress(spec.name, 1000))

    def live_batches(spec: StreamSpec) -> list[Progress]:
        return [batch for batch in platform.store.progress(spec.name, 1000) if batch.writer != "spark"]

    platform.until(lambda: read(stopped) > 0, "its first batch", 60, lambda: platform.store.actual(stopped.name))
    stop_stream(platform.store, stopped.name)
    in_the_middle = not backfill.is_over(checkpoints[stopped.name])
    start_stream(platform.store, stopped.name)

    # Then: the history came in few batches of Spark's writer, though a live batch has 200 messages.
    for spec in (rows, counts, stopped):
        platform.until(
            lambda spec=spec: backfill.is_over(checkpoints[spec.name]), f"the history of {spec.name}", 90,
            lambda spec=spec: platform.store.actual(spec.name),
        )  # fmt: skip
        platform.state(spec.name, StreamState.RUNNING)
        # A batch that a stop abandoned comes again, and is skipped when its rows are in.
        history = [
            batch
            for batch in platform.store.progress(spec.name, 1000)
            if batch.rows_in and (spec is not stopped or batch.writer != "skipped")
        ]
        assert len(history) <= HISTORY // 2000 + 2, [batch.rows_in for batch in history]
        assert {batch.writer for batch in history} == {"spark"}
    assert in_the_middle, "the stop came too late for this test"

    # And: what comes after it is read by the live settings, and every message is there once.
    produce(name, [{"k": "live", "v": HISTORY + n} for n in range(500)])
    total = HISTORY + 500
    for spec in (rows, counts, stopped):
        platform.until(
            lambda spec=spec: read(spec) >= total, f"the live rows of {spec.name}", 60, lambda spec=spec: read(spec)
        )
        assert read(spec) == total or spec is stopped, "no message was read twice"
        platform.until(lambda spec=spec: live_batches(spec), f"live batches of {spec.name}")
        assert all(batch.rows_in <= 200 for batch in live_batches(spec))
        assert platform.store.actual(spec.name).restarts == 0, "going on live is no failure"
    for spec in (rows, stopped):
        platform.until(
            lambda spec=spec: platform.sql(f"select count(*) >= {total} from {spec.name}") == [(True,)], "all rows"
        )
        found = platform.sql(f"select part, pos, v from {spec.name}")
        assert len({row[:2] for row in found}) == len(found)
        assert sorted(row[2] for row in found) == list(range(total))
    want = [(f"k{n}", HISTORY // 5, sum(range(n, HISTORY, 5))) for n in range(5)]
    want.append(("live", 500, sum(range(HISTORY, total))))
    assert sorted(platform.sql(f"select k, n, total from {counts.name}")) == want

    # And: a stream that is past its history goes on live when it is started again.
    stop_stream(platform.store, rows.name)
    produce(name, [{"k": "late", "v": total + n} for n in range(300)])
    start_stream(platform.store, rows.name)
    platform.until(lambda: read(rows) == total + 300, "what came meanwhile", 60, lambda: read(rows))
    assert platform.store.progress(rows.name, 1)[0].rows_in <= 200
    assert since < datetime.now(timezone.utc) - timedelta(seconds=1)


def test_a_history_whose_partitions_are_of_different_age_has_no_late_rows(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: partitions a day apart, and a history of which a batch of ten times the model's has a quarter.
    events, began = topic(2, name="skewed"), datetime(2026, 3, 1, tzinfo=timezone.utc)
    project = Project(schema)
    project.source(
        "events", events, {"v": "bigint", "at": "timestamp from timestamp"}, {"column": "at", "delay": "1 minute"},
        start={"from": "earliest", "backfill": "batch"},
    )  # fmt: skip

    project.source(
        "live", events, {"v": "bigint", "at": "timestamp from timestamp"}, {"column": "at", "delay": "1 minute"}
    )

    def send(hour: int, count: int) -> None:
        at = began + timedelta(hours=hour)
        rows = [{"v": n} for n in range(count)]
        produce(events, rows, partition=hour // 24 % 2, timestamp=int(at.timestamp() * 1000))

    hours = [*range(4), *range(24, 28)]
    for hour in hours:
        send(hour, 100)
    per_hour = "select window.start as hour, count(*) as n from {events} group by window(at, '1 hour')"
    project.model("counts", per_hour, max_batch_rows=20)
    project.model("finals", per_hour, max_batch_rows=20, emit="final")
    project.model("strict", per_hour.replace("events", "live"), max_batch_rows=200)
    project.model("firsts", "select v, at from {events}", max_batch_rows=20, deduplicate_by=["v", "at"])
    specs = project.specs()
    for spec in specs.values():
        platform.deploy(spec)

    # Then: no hour lacks a row. The watermark is a minute before the last one, and the last two are not over yet: they
    # are final when there is something newer.
    def become(name: str, want: list[tuple[datetime, int]]) -> None:
        hour = {"firsts": "at"}.get(name, "hour")
        n = {"firsts": "count(*)"}.get(name, "sum(n)")
        query = f"select unix_timestamp({hour}), {n} from {schema}.{name} group by 1 order by 1"
        rows = [(int(hour.timestamp()), count) for hour, count in want]
        look = lambda: (platform.sql(query), rows, platform.store.actual(f"{schema}.{name}"))  # noqa: E731
        platform.until(lambda: platform.sql(query) == rows, f"the hours of {name}", 90, look)

    history = [(began + timedelta(hours=hour), 100) for hour in hours]
    for name, want in (("counts", history), ("finals", history[:-2]), ("firsts", history)):
        become(name, want)
    # Without a backfill it does, and that is told.
    strict = f"{schema}.strict: rows are left out because they are older than the watermark"
    platform.until(lambda: strict in (platform.paths.logs / "engine.log").read_text(), strict)
    send(48, 5)
    become("counts", [*history, (began + timedelta(hours=48), 5)])
    become("finals", history)
    for spec in specs.values():
        assert platform.store.actual(spec.name).restarts == 0, "going on live is no failure"
