"""Dagster's sensors: they read the store, ask the pure part what follows, and hand it to Dagster.

Rules
- No run is needed to tell health and lag; runs are asked for by the restart sensor alone.
- A sensor that cannot read the store says so in its tick and tries again; it never fails the daemon.
- A deployed stream without an asset (its model is gone from the project) is told of in the health of the supervisor.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DefaultSensorStatus,
    JobDefinition,
    RunConfig,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from penstock.control.health import Severity
from penstock.control.lag_once import measure_stale
from penstock.control.world import World, read_world
from penstock.dagster import findings as f
from penstock.dagster.alerts import Alert, Send, alerts_of
from penstock.dagster.findings import Finding
from penstock.dagster.jobs import Recover
from penstock.dagster.memory import Cursor
from penstock.dagster.project import Project
from penstock.dagster.restarting import Attempt, restarts
from penstock.dagster.telling import Point, Seen, Told, Update, changed, plotted
from penstock.dagster.translator import part_key
from penstock.errors import PenstockError
from penstock.errors.catalogue import ALERT_REFUSED

HEALTH_EVERY = 10
LAG_EVERY = 30
RESTART_EVERY = 15
ALERTS_EVERY = 10
NOTHING = "Nothing is deployed yet."

_log = logging.getLogger(__name__)
_told = Cursor(Told)
_seen = Cursor(Seen)
_attempts = Cursor(Attempt)

Keys = Mapping[str, AssetKey]
LiveTests = Mapping[str, AssetCheckKey]  # stream -> the check of the test that it keeps
Evaluated = SensorResult | SkipReason


def build_sensors(
    project: Project, keys: Keys, recover: JobDefinition, send: Send | None, live: LiveTests | None = None
) -> list[SensorDefinition]:
    """The sensors of a code location; that of alerts when there is somebody to tell."""

    def a_sensor(name: str, every: int, about: str, **more: Any) -> Callable[..., SensorDefinition]:
        return sensor(
            name=name,
            minimum_interval_seconds=every,
            description=about,
            default_status=DefaultSensorStatus.RUNNING,
            **more,
        )

    @a_sensor("penstock_health", HEALTH_EVERY, "The state of every stream, engine, supervisor and broker as checks.")
    def health(context: SensorEvaluationContext) -> Evaluated:
        return _looked(project, lambda world: health_tick(world, context.cursor, project, keys, live or {}))

    @a_sensor("penstock_lag", LAG_EVERY, "Lag against its limit, numbers for the plots, and news of tables.")
    def lag(context: SensorEvaluationContext) -> Evaluated:
        return _looked(project, lambda world: lag_tick(_measured(project, world), context.cursor, project, keys))

    @a_sensor(
        "penstock_restart",
        RESTART_EVERY,
        "Brings back what is wanted and does not run, when nobody else does.",
        job=recover,
    )
    def restart(context: SensorEvaluationContext) -> Evaluated:
        return _looked(project, lambda world: restart_tick(world, context.cursor, project))

    made: list[SensorDefinition] = [health, lag, restart]
    if send is not None:

        @a_sensor("penstock_alerts", ALERTS_EVERY, "Tells changes of state to the webhook of PENSTOCK_ALERT_WEBHOOK.")
        def alerts(context: SensorEvaluationContext) -> Evaluated:
            def look(world: World) -> Evaluated:
                return alert_tick(world, context.cursor, project, send, given_up_last(context.instance))

            return _looked(project, look)

        made.append(alerts)
    return made


def _looked(project: Project, act: Callable[[World], Evaluated]) -> Evaluated:
    try:
        store = project.store()
        return SkipReason(NOTHING) if store is None else act(read_world(store))
    except PenstockError as problem:
        return SkipReason(str(problem))


def _measured(project: Project, world: World) -> World:
    """The world with lags that are known, also while there is no supervisor to measure them."""
    store = project.store()
    if store is None or not measure_stale(project.paths, store, world, project.settings().kafka):
        return world
    return replace(world, actual=store.all_actual())


# -- the ticks --------------------------------------------------------------------------------------------------------
def health_tick(
    world: World, cursor: str | None, project: Project, keys: Keys, live: LiveTests | None = None
) -> Evaluated:
    """Checks of health, and of data tests that streams keep, that are due."""
    tests = live or {}
    found = [_with_strays(each, world, {*keys, *tests}) for each in f.health_findings(world, project.limits_of)]
    found += f.live_findings(world, project.limits_of, tests)
    tell, memory = changed(found, _told.read(cursor), world.at)
    return SensorResult(
        asset_events=[check for each in tell if (check := evaluation(each, keys, tests)) is not None],
        cursor=_told.write(memory),
    )


def lag_tick(world: World, cursor: str | None, project: Project, keys: Keys) -> Evaluated:
    """Checks of lag, numbers and news that are due."""
    told_text, _, seen_text = (cursor or "").partition("\n")
    checks, told = changed(f.lag_findings(world, project.limits_of), _told.read(told_text), world.at)
    points, seen = plotted(world, _seen.read(seen_text))
    events: list[Any] = [check for each in checks if (check := evaluation(each, keys)) is not None]
    events += [event for each in points if (event := news(each, keys)) is not None]
    return SensorResult(asset_events=events, cursor=f"{_told.write(told)}\n{_seen.write(seen)}")


def restart_tick(world: World, cursor: str | None, project: Project) -> Evaluated:
    """Runs that are asked for, and whether Dagster gave up."""
    attempts_text, _, told_text = (cursor or "").partition("\n")
    answer = restarts(world, _attempts.read(attempts_text), project.limits_of)
    finding = f.restarts_finding([subject for subject, each in answer.memory.items() if each.told])
    before = _told.read(told_text)
    if answer.gave_up:  # on something more: that is a change, too
        before = {key: replace(told, state="") for key, told in before.items()}
    tell, told = changed([finding], before, world.at)
    events = [check for each in tell if (check := evaluation(each, {})) is not None]
    after = f"{_attempts.write(answer.memory)}\n{_told.write(told)}"
    requests = [
        RunRequest(
            run_key=each.key,
            run_config=RunConfig(
                ops={"penstock_recover_op": Recover(streams=list(each.streams), reason=each.reason, stuck=each.stuck)}
            ),
            tags={"penstock/reason": each.reason[:200], "penstock/streams": str(len(each.streams))},
        )
        for each in answer.requests
    ]
    if requests or events:
        return SensorResult(run_requests=requests, asset_events=events, cursor=after)
    return SensorResult(skip_reason=answer.skip or None, cursor=after)


def alert_tick(
    world: World, cursor: str | None, project: Project, send: Send, given_up: Finding | None = None
) -> Evaluated:
    """State changes, sent; what could not be sent is tried again in the next look, what was refused is not."""
    found = [*f.health_findings(world, project.limits_of), *f.lag_findings(world, project.limits_of)]
    found += [given_up] if given_up is not None else []
    before = _told.read(cursor)
    tell, memory = changed(found, before, world.at, roll_up=None)
    alerts: list[Alert] = alerts_of(tell, {key: told.state for key, told in before.items()}, world.at)
    said = None if alerts else "No change of state."
    if alerts:
        try:
            send(alerts)  # raises PenstockError, and with it the cursor stays as it was
        except PenstockError as problem:
            if problem.kind is not ALERT_REFUSED:
                raise
            said = str(problem)
            _log.warning(said)
    return SensorResult(cursor=_told.write(memory), skip_reason=said)


def given_up_last(instance: DagsterInstance) -> Finding | None:
    """What was told last of `restarts`, as Dagster has it; None before the restart sensor's first look."""
    key = AssetCheckKey(part_key(f.SUPERVISOR), f.RESTARTS)
    # The newest may be without a result: that of a run that is only just looking.
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    results = (record.evaluation for record in records)
    found = next((each for each in results if isinstance(each, AssetCheckEvaluation)), None)
    if found is None:
        return None
    state, said = f.restarts_finding([] if found.passed else ["it"]), found.description or ""
    return replace(state, verdict=replace(state.verdict, summary=said or state.verdict.summary))


# -- into Dagster's words ---------------------------------------------------------------------------------------------
def evaluation(finding: Finding, keys: Keys, live: LiveTests | None = None) -> AssetCheckEvaluation | None:
    """A finding as the result of an asset check; None when there is no such asset."""
    key = part_key(finding.subject) if finding.is_part else keys.get(finding.subject)
    name = finding.check
    if finding.check == f.LIVE:
        test = (live or {}).get(finding.subject)
        key, name = (test.asset_key, test.name) if test is not None else (None, "")
    if key is None:
        return None
    verdict = finding.verdict
    return AssetCheckEvaluation(
        asset_key=key,
        check_name=name,
        passed=verdict.severity is Severity.OK,
        severity=AssetCheckSeverity.ERROR if verdict.severity is Severity.ERROR else AssetCheckSeverity.WARN,
        description=verdict.summary,
        metadata=described(finding),
    )


def described(finding: Finding) -> dict[str, Any]:
    """What the page of a check shows beside its result."""
    verdict = finding.verdict
    shown: dict[str, Any] = {"state": verdict.state.value, "summary": verdict.summary, **finding.facts, **verdict.facts}
    if verdict.advice:
        shown["what_to_do"] = verdict.advice
    return shown


def news(event: Point | Update, keys: Keys) -> AssetObservation | AssetMaterialization | None:
    """Numbers as an observation; new rows as a materialisation, which other assets can follow."""
    key = keys.get(event.stream)
    if key is None:
        return None
    if isinstance(event, Point):
        return AssetObservation(asset_key=key, metadata=dict(event.facts))
    return AssetMaterialization(
        asset_key=key, description=f"{event.rows:,} new rows by the stream", metadata=dict(event.facts)
    )


def _with_strays(finding: Finding, world: World, keys: Collection[str]) -> Finding:
    strays = [want.stream for want in world.desired if want.stream not in keys]
    if not strays or not finding.is_part or finding.subject != f.SUPERVISOR:
        return finding
    return replace(finding, facts={**finding.facts, "streams_without_a_model": ", ".join(strays)[:500]})
