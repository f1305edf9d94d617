"""When Dagster asks for a restart: a table of worlds in, requests out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from dagster import DagsterInstance, Definitions
from worlds import NOW, STREAM, healthy, limits_of, with_actual, with_wanted

from penstock.control.world import Liveness, World
from penstock.dagster.budget import DAY, TRIES, restarts_per_day
from penstock.dagster.checks import build_checks
from penstock.dagster.findings import restarts_finding
from penstock.dagster.project import Project
from penstock.dagster.restarting import AT_ONCE, GRACE, PROJECT, Answer, Attempt, restarts
from penstock.dagster.sensors import evaluation, restart_tick
from penstock.dagster.translator import part_specs
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings
from penstock.store import Store, StreamState, Wanted

UP, OFF, LOST = Liveness.UP, Liveness.OFF, Liveness.LOST
HEALTHY = healthy()
DEAD = replace(HEALTHY, supervisor=LOST, engine=LOST, supervisor_until=NOW - 8)
STUCK = with_actual(HEALTHY, lag_rows=500, lag_seconds=900.0, last_batch_at=NOW - 800)


def _look(world: World, memory: Mapping[str, Attempt] | None = None) -> Answer:
    return restarts(world, memory or {}, limits_of)


NOTHING_TO_DO = {
    "all is well": HEALTHY,
    "nothing is deployed": replace(HEALTHY, desired=(), actual={}),
    "the project was taken down on purpose": replace(HEALTHY, supervisor=OFF, engine=OFF),
    "the project was taken down after the engine died": replace(HEALTHY, supervisor=OFF, engine=LOST),
    "the only stream was stopped on purpose and all is dead": with_wanted(DEAD, wanted=Wanted.STOPPED),
    "the only stream is quarantined and all is dead": with_actual(DEAD, state=StreamState.QUARANTINED),
    "the engine died under a supervisor": replace(HEALTHY, engine=LOST),
    "a failure waits for its time": with_actual(HEALTHY, state=StreamState.FAILED, retry_at=NOW + 30, failures=1),
    "a step was only just due": with_actual(HEALTHY, state=StreamState.PENDING),
    "it waits for a rebuild": replace(
        with_actual(HEALTHY, state=StreamState.STOPPED, updated_at=NOW - 9000), waiting={STREAM: ["shop.up"]}
    ),
    "it stands still for a takeover": replace(
        with_actual(HEALTHY, state=StreamState.STOPPED, updated_at=NOW - 9000), standing=frozenset([STREAM])
    ),
    "a stuck stream was stopped on purpose": with_wanted(STUCK, wanted=Wanted.STOPPED),
}


@pytest.mark.parametrize("case", NOTHING_TO_DO)
def test_no_run_is_asked_for_when(case: str) -> None:
    answer = _look(NOTHING_TO_DO[case])
    assert answer.requests == ()
    assert answer.skip, "a tick without a run says why"


def test_without_supervisor_and_engine_one_run_is_asked_for_all_streams_that_shall_run() -> None:
    world = replace(healthy("a.runs", "a.stopped", "a.bad"), supervisor=LOST, engine=LOST, supervisor_until=NOW - 8)
    world = with_wanted(world, "a.stopped", wanted=Wanted.STOPPED)
    world = with_actual(world, "a.bad", state=StreamState.QUARANTINED)
    answer = _look(world)
    assert [(each.streams, each.stuck) for each in answer.requests] == [(("a.runs",), False)]
    assert answer.requests[0].key == f"penstock-restart:{PROJECT}:s4:{int(NOW - 8)}:try1"
    assert "supervisor and engine are gone" in answer.requests[0].reason


def test_a_dead_supervisor_alone_is_brought_back_though_streams_run() -> None:
    answer = _look(replace(HEALTHY, supervisor=LOST))
    assert len(answer.requests) == 1
    assert answer.requests[0].reason == "the supervisor is gone"


def test_one_failure_makes_one_request_and_the_next_waits_longer_each_time_until_it_gives_up() -> None:
    memory: Mapping[str, Attempt] = {}
    asked, gave_up = [], []
    for second in range(0, 4 * 3600, 15):
        answer = restarts(replace(DEAD, at=NOW + second), memory, limits_of)
        memory = answer.memory
        asked += [(second, each.key) for each in answer.requests]
        gave_up += [second for _ in answer.gave_up]
    assert [key.rpartition(":")[2] for _, key in asked] == [f"try{n}" for n in range(1, TRIES.quarantine_after + 1)]
    waits = [later - sooner for (sooner, _), (later, _) in pairwise(asked)]
    assert waits == sorted(waits)
    assert waits[0] >= 45
    assert len(gave_up) == 1, "giving up is told once"
    assert gave_up[0] > asked[-1][0], "and after the last try had its time"


def test_a_supervisor_that_dies_again_and_again_does_not_make_a_storm() -> None:
    memory: Mapping[str, Attempt] = {}
    asked = []
    for n in range(240):  # an hour; it lives for 15 s each time
        world = DEAD if n % 2 == 0 else HEALTHY
        world = replace(world, at=NOW + 15 * n, supervisor_token=4 + n // 2, supervisor_until=NOW + 15 * n)
        answer = restarts(world, memory, limits_of)
        memory = answer.memory
        asked += [each.key for each in answer.requests]
    assert len(asked) == len(set(asked)) <= TRIES.quarantine_after


def test_when_all_was_well_for_a_while_the_count_begins_anew() -> None:
    memory = _look(DEAD).memory
    assert memory[PROJECT].tries == 1
    soon = restarts(replace(HEALTHY, at=NOW + 60), memory, limits_of)
    assert PROJECT in soon.memory
    late = restarts(replace(HEALTHY, at=NOW + TRIES.healthy_after), soon.memory, limits_of)
    assert late.memory == {}


def test_a_stuck_stream_is_restarted_once_for_each_time_that_it_gets_stuck() -> None:
    first = _look(STUCK)
    assert [(each.streams, each.stuck) for each in first.requests] == [((STREAM,), True)]
    assert first.requests[0].key == f"penstock-restart:{STREAM}:g3:stuck:{int(NOW - 1000)}:b50:try1"
    assert "no batch for" in first.requests[0].reason
    again = restarts(replace(STUCK, at=NOW + 15), first.memory, limits_of)
    assert again.requests == ()


def test_a_step_that_the_supervisor_does_not_take_is_asked_for_after_the_grace() -> None:
    waiting = with_actual(HEALTHY, state=StreamState.PENDING, failures=1)
    first = _look(waiting)
    assert first.requests == ()
    due = restarts(replace(waiting, at=NOW + GRACE), first.memory, limits_of)
    assert [each.streams for each in due.requests] == [(STREAM,)]
    assert ":g3:pending:f1:" in due.requests[0].key


def test_whatever_happens_in_a_day_one_subject_is_not_restarted_more_often_than_stated() -> None:
    """Down until Dagster gives up, well for just as long as it takes to begin anew, and down again."""
    memory: Mapping[str, Attempt] = {}
    asked, well_until = 0, 0.0
    for second in range(0, int(DAY), 15):
        world = replace(HEALTHY if second < well_until else DEAD, at=NOW + second, supervisor_until=NOW + well_until)
        answer = restarts(world, memory, limits_of)
        memory = answer.memory
        asked += len(answer.requests)
        if memory and memory[PROJECT].tries == TRIES.quarantine_after and second >= well_until:
            well_until = second + TRIES.healthy_after + 15
    assert asked <= restarts_per_day()
    assert asked > restarts_per_day() / 3, "a bound that is far away says nothing"


def test_the_check_of_restarts_is_green_at_the_first_look_red_when_dagster_gives_up_and_told_in_time(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.__dict__["manifest"] = {"nodes": {}, "sources": {}}
    cursor, told = None, []
    for second in range(0, 2 * 3600, 15):
        result = restart_tick(replace(DEAD if second else HEALTHY, at=NOW + second), cursor, project)
        cursor = result.cursor
        told += [(second, each.passed, each.description) for each in result.asset_events]
    assert told[0] == (0, True, "nothing was given up")
    red = [each for each in told if not each[1]]
    assert red[0][2] == "gave up restarting project: it did not help"
    assert [each[0] for each in red[1:]] == [red[0][0] + 3600], "and again as the hour's roll-up"
    assert len(told) <= 4


def test_executing_the_check_of_restarts_by_hand_does_not_make_it_green(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    save_settings(paths, RuntimeSettings(target="dev", schema="shop"))
    Store.open(paths.store)
    project = Project(tmp_path)
    project.__dict__["manifest"] = {"nodes": {}, "sources": {}}
    defs = Definitions(assets=part_specs(), asset_checks=[build_checks(project, {})])
    job = defs.resolve_implicit_global_asset_job_def()
    with DagsterInstance.ephemeral() as instance:
        for names, passed in (([], True), (["shop.clicks"], False)):
            event = evaluation(restarts_finding(names), {})
            assert event is not None
            instance.report_runless_asset_event(event)
            result = job.execute_in_process(instance=instance)
            found = {(e.asset_key.path[-1], e.check_name): e.passed for e in result.get_asset_check_evaluations()}
            assert found["supervisor", "restarts"] is passed
            assert found["registry", "health"], "not in use"


def test_many_stuck_streams_come_a_few_at_a_time() -> None:
    names = [f"a.t{n}" for n in range(12)]
    world = healthy(*names)
    for name in names:
        world = with_actual(world, name, lag_rows=5, lag_seconds=900.0, last_batch_at=NOW - 800)
    first = _look(world)
    assert len(first.requests) == AT_ONCE
    second = restarts(replace(world, at=NOW + 15), first.memory, limits_of)
    assert {each.streams for each in first.requests}.isdisjoint(each.streams for each in second.requests)
