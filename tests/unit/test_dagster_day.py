"""The sensors with Dagster's own API, over a day of state changes with a clock that is set."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterEventType, DagsterInstance, build_sensor_context, job, op
from dagster._core.event_api import EventRecordsFilter
from sqlalchemy import insert
from worlds import NOW, batch, healthy, running, wanted, with_actual, with_wanted

from penstock.control.world import Liveness, World, read_world
from penstock.dagster import sensors
from penstock.dagster.budget import events_per_day
from penstock.dagster.project import Project
from penstock.dagster.sensors import build_sensors, health_tick, lag_tick
from penstock.store import Store, StreamState, Wanted, schema

HOUR = 3600
NAMES = tuple(f"shop.table_{n}" for n in range(10))
KEYS = {name: AssetKey(name.split(".")) for name in NAMES}
TICK = 120


@op
def penstock_recover_op() -> None: ...


@job
def recover() -> None:
    penstock_recover_op()


def the_day(second: int) -> World:
    """What happens: rows all day, an idle table, a flapping one, a stop, a dead engine, a dead machine, a stuck one."""
    now = NOW + second
    world = healthy(*NAMES, at=now, supervisor_until=now + 10)
    for name in NAMES:
        rows = 0 if name == NAMES[1] else second * 3
        world = with_actual(
            world, name, batch_id=second // 10, total_rows_in=rows, total_rows_out=rows, lag_rows=second % 7 and 5,
            lag_seconds=float(second % 7), lag_at=now, last_batch_at=now - 1,
        )  # fmt: skip
    world = with_actual(world, NAMES[1], batch_id=3, lag_rows=0, lag_seconds=0.0)
    if (second // TICK) % 2:
        world = with_actual(world, NAMES[2], state=StreamState.FAILED, retry_at=now + 30, error="boom")
    if 2 * HOUR <= second < 3 * HOUR:
        world = with_wanted(world, NAMES[3], wanted=Wanted.STOPPED)
        world = with_actual(world, NAMES[3], state=StreamState.STOPPED)
    if 5 * HOUR <= second < 5 * HOUR + 120:
        world = replace(world, engine=Liveness.LOST)
    if 8 * HOUR <= second < 8 * HOUR + 240:
        world = replace(world, engine=Liveness.LOST, supervisor=Liveness.LOST, supervisor_until=NOW + 8 * HOUR)
    if 12 * HOUR <= second < 12 * HOUR + 600:
        since = NOW + 12 * HOUR - 400
        world = with_actual(
            world, NAMES[4], batch_id=1, last_batch_at=since, started_at=since, lag_rows=900, lag_seconds=700.0
        )
    return world


class Clock:
    second = 0


@pytest.fixture
def tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[Any]]]:
    """One look of every sensor at a second of the day; the run requests that follow."""
    project = Project(tmp_path)
    project.__dict__["manifest"] = {"nodes": {}, "sources": {}}
    monkeypatch.setattr(Project, "store", lambda _self: object())
    monkeypatch.setattr(sensors, "_measured", lambda _project, world: world)
    monkeypatch.setattr(sensors, "read_world", lambda _store: the_day(Clock.second))
    made = build_sensors(project, KEYS, recover, None)
    with DagsterInstance.ephemeral() as instance:
        cursors: dict[str, str | None] = {}

        def look(second: int) -> list[Any]:
            Clock.second = second
            asked = []
            for each in made:
                context = build_sensor_context(instance=instance, cursor=cursors.get(each.name), sensor_name=each.name)
                result = each.evaluate_tick(context)
                cursors[each.name] = result.cursor
                asked += result.run_requests or []
                for event in result.asset_events:
                    instance.report_runless_asset_event(event)
            return asked

        look.instance = instance  # type: ignore[attr-defined]
        yield look


def _count(instance: DagsterInstance, kind: DagsterEventType) -> list[Any]:
    found = instance.get_event_records(EventRecordsFilter(kind), limit=100_000)
    return [record.event_log_entry.dagster_event for record in found]


@pytest.mark.filterwarnings("ignore")  # of Dagster, about the call that reads all events at once
def test_a_day_of_changes_makes_a_bounded_number_of_events_and_the_right_runs(
    tick: Callable[[int], list[Any]],
) -> None:
    asked: list[tuple[int, Any]] = []
    for second in range(0, 24 * HOUR, TICK):
        if 15 * HOUR <= second < 16 * HOUR:
            continue  # Dagster itself is down for an hour
        asked += [(second, request) for request in tick(second)]
    instance: DagsterInstance = tick.instance  # type: ignore[attr-defined]

    checks = _count(instance, DagsterEventType.ASSET_CHECK_EVALUATION)
    points = _count(instance, DagsterEventType.ASSET_OBSERVATION)
    updates = _count(instance, DagsterEventType.ASSET_MATERIALIZATION)
    total = len(checks) + len(points) + len(updates)
    assert total <= events_per_day(len(NAMES), 4)

    by_check = Counter((e.event_specific_data.asset_key, e.event_specific_data.check_name) for e in checks)
    flapping = by_check[KEYS[NAMES[2]], "health"]
    assert flapping <= 108
    calm = by_check[KEYS[NAMES[5]], "health"]
    assert 24 <= calm <= 32, "the hours, and what happened to engine and machine"

    told = [e.event_specific_data for e in checks if e.event_specific_data.asset_key == KEYS[NAMES[3]]]
    assert any("stopped on purpose" in (each.description or "") and each.passed for each in told)
    stuck = [e.event_specific_data for e in checks if e.event_specific_data.asset_key == KEYS[NAMES[4]]]
    assert any("stuck: no batch" in (each.description or "") and not each.passed for each in stuck)
    engine = [
        e.event_specific_data for e in checks if e.event_specific_data.asset_key == AssetKey(["penstock", "engine"])
    ]
    assert {each.passed for each in engine} == {True, False}

    rows = [e.asset_observation_data.asset_observation.metadata for e in points]
    assert all(isinstance(each["lag_rows"].value, int) for each in rows), "numbers, so that the UI draws them"
    per_stream = Counter(e.asset_key for e in updates)
    assert per_stream[KEYS[NAMES[1]]] == 0, "an idle table has no news"
    assert 80 <= per_stream[KEYS[NAMES[0]]] <= 100

    keys = [request.run_key for _, request in asked]
    assert len(keys) == len(set(keys))
    project = [second for second, request in asked if ":project:" in request.run_key]
    assert project, "the dead machine"
    assert all(8 * HOUR <= second < 8 * HOUR + 240 for second in project)
    assert len(project) <= 3
    restarted = {request.run_key.split(":")[1] for _, request in asked} - {"project"}
    assert restarted == {NAMES[4]}, "the stuck one, and neither the stopped one nor the flapping one"


@pytest.mark.filterwarnings("ignore")
def test_after_an_hour_without_dagster_there_is_no_storm(tick: Callable[[int], list[Any]]) -> None:
    instance: DagsterInstance = tick.instance  # type: ignore[attr-defined]
    tick(0)
    tick(TICK)
    before = instance.get_event_records(EventRecordsFilter(DagsterEventType.ASSET_CHECK_EVALUATION), limit=10_000)
    assert tick(HOUR + 2 * TICK) == []
    after = instance.get_event_records(EventRecordsFilter(DagsterEventType.ASSET_CHECK_EVALUATION), limit=10_000)
    assert len(after) - len(before) <= 2 * len(NAMES) + 5


def test_a_look_at_two_hundred_streams_of_a_real_store_takes_less_than_two_seconds(tmp_path: Path) -> None:
    names = [f"shop.table_{number}" for number in range(200)]
    store = Store.open(tmp_path / "store.db")
    with store._write() as tx:  # all at once: how long writing takes is not the question
        tx.execute(insert(schema.desired), [asdict(wanted(name)) | {"wanted": "running"} for name in names])
        tx.execute(insert(schema.actual), [asdict(running(name)) | {"state": "running"} for name in names])
        tx.execute(insert(schema.progress), [asdict(batch(name)) for name in names])
    project = Project(tmp_path)
    project.__dict__["manifest"] = {"nodes": {}, "sources": {}}
    keys = {name: AssetKey(name.split(".")) for name in names}
    for tick in (health_tick, lag_tick):
        begun = time.process_time()  # of this process: a busy machine is not the sensor's fault
        result = tick(read_world(store), None, project, keys)
        assert time.process_time() - begun < 2
        assert len(result.asset_events) >= 200
