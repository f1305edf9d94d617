"""Engine and supervisor are killed during a rebuild and around its takeover; in the end the table is what a batch would
compute."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest

from penstock import processes
from penstock.compiler.spec import TableStreamInput, Trigger
from penstock.control import up
from penstock.control.supervisor import read_running
from penstock.paths import beside
from penstock.store import RebuildPhase, StreamState


def kill_engine(platform: Any) -> None:
    engine = platform.endpoint()
    os.killpg(engine.pid, signal.SIGKILL)
    platform.until(lambda: not processes.alive(engine.pid, engine.started_at), "its end")


def kill_supervisor(platform: Any) -> None:
    """Another one adopts the engine."""
    supervisor, engine = read_running(platform.paths), platform.endpoint()
    os.kill(supervisor.pid, signal.SIGKILL)
    platform.until(lambda: not processes.alive(supervisor.pid, supervisor.started_at), "its end")
    up.ensure_up(platform.paths, platform.settings)
    assert platform.endpoint().pid == engine.pid


KILLS = (
    (kill_engine, {RebuildPhase.CATCHING_UP}),
    (kill_supervisor, {RebuildPhase.SETTLING, RebuildPhase.STANDING}),
    (kill_engine, {RebuildPhase.TAKING_OVER}),
)


@pytest.mark.timeout(600)
def test_a_rebuild_comes_to_its_end_across_kills_of_engine_and_supervisor(
    platform: Any, topic: Any, produce: Any, make_spec: Any
) -> None:
    # Given: a count by key, a table of rows and a sum of these that run, and rows that flow in.
    clicks = topic(2, name="killed")
    sent: list[tuple[str, int]] = []
    done = threading.Event()

    def send(count: int, timestamp: int = 0) -> None:
        rows = [(f"k{n % 5}", n) for n in range(len(sent), len(sent) + count)]
        produce(clicks, [(k, {"k": k, "v": v}) for k, v in rows], timestamp=timestamp)
        sent.extend(rows)

    def flow() -> None:
        while not done.wait(1.0):
            send(1)

    send(160, int((time.time() - 3600) * 1000))  # of an hour ago: a rebuild is far behind until it has read them all
    counts = make_spec("counts", clicks, "select k, count(*) as n from input group by k", keys=("k",), stateful=True)
    rows = make_spec("rows", clicks, "select part, pos, v from input")
    sums = make_spec("sums", clicks, "select part, sum(v) as s from read group by part", keys=("part",), stateful=True)
    sums = sums.model_copy(update={"inputs": (TableStreamInput(view="read", relation=rows.name),)})
    for spec in (counts, rows, sums):
        platform.deploy(spec)
    for spec in (counts, rows, sums):
        platform.until(lambda spec=spec: platform.store.actual(spec.name).batch_id is not None, "a batch", 120)

    # When: all are rebuilt, and the engine is killed while they catch up, and while rows and their sum take over; the
    # supervisor is in between.
    total = counts.model_copy(
        update={"sql": "select k, sum(v) as total from input group by k", "trigger": Trigger(max_batch_rows=20)}
    )
    doubled = rows.model_copy(
        update={"sql": "select part, pos, 2 * v as w from input", "trigger": Trigger(max_batch_rows=20)}
    )
    summed = sums.model_copy(update={"sql": "select part, sum(w) as s, count(*) as n from read group by part"})
    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        for spec in (total, doubled, summed):  # the one that is watched comes last
            assert platform.deploy(spec, full_refresh=True, together={doubled.name, summed.name}).beside
        for kill, phases in KILLS:
            assert _reaches(platform, summed.name, phases), f"the rebuild was too quick to be caught {phases}"
            kill(platform)
        for spec in (total, doubled, summed):
            platform.until(
                lambda spec=spec: platform.store.desired(spec.name).generation == 2
                and platform.store.rebuild(spec.name) is None,
                f"the takeover of {spec.name}", 180,
                lambda spec=spec: (platform.store.rebuild(spec.name), platform.store.actual(beside(spec.name))),
            )  # fmt: skip
    finally:
        done.set()
        flowing.join()

    # Then: each table is what the new definition makes of the topic.
    for spec in (total, doubled, summed):
        platform.state(spec.name, StreamState.RUNNING)
    totals: Counter[str] = Counter()
    for k, v in sent:
        totals[k] += v
    platform.until(
        lambda: dict(platform.sql(f"select k, total from {total.name}")) == totals, "the totals", 90,
        lambda: (platform.sql(f"select * from {total.name}"), totals, platform.store.actual(total.name)),
    )  # fmt: skip
    platform.until(lambda: platform.sql(f"select count(*) from {rows.name}") == [(len(sent),)], "every row", 90)
    found = platform.sql(f"select part, pos, w from {rows.name}")
    assert len({row[:2] for row in found}) == len(found)
    assert sorted(row[2] for row in found) == sorted(2 * v for _, v in sent)
    want = [(sum(row[2] for row in found), len(found))]
    totalled = f"select cast(sum(s) as bigint), cast(sum(n) as bigint) from {sums.name}"
    platform.until(lambda: platform.sql(totalled) == want, "the sums", 90, lambda: platform.sql(totalled))


def _reaches(platform: Any, stream: str, phases: set[RebuildPhase]) -> bool:
    """Wait for one of the phases of a rebuild; False when it is past them."""
    order = list(RebuildPhase)

    def look() -> str | None:
        found = platform.store.rebuild(stream)
        if found is None or order.index(found.phase) > max(map(order.index, phases)):
            return "past"
        if found.phase not in phases:
            return None
        if found.phase is RebuildPhase.CATCHING_UP and platform.store.actual(beside(stream)).batch_id is None:
            return None  # it shall have state of its own when it is killed
        return "there"

    return bool(platform.until(look, f"{phases}", 180, lambda: platform.store.rebuild(stream)) == "there")
