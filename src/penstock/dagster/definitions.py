"""A whole code location of one import: `defs = penstock_definitions("path/to/project")`.

Rules
- Everything of a project is here: assets, checks, jobs, schedules, sensors, resources. Users merge it with their own
  (`Definitions.merge`).
- Loading starts nothing and asks nobody but dbt's parser, and the store if there is one.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    AutomationConditionSensorDefinition,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
)
from dagster_dbt import DbtCliResource, dbt_assets

from penstock.control.health import DEFAULT_LIMITS, Limits
from penstock.control.world import Liveness, read_world
from penstock.dagster import alerts
from penstock.dagster.checks import build_checks
from penstock.dagster.dbt_sensor import build_dbt_sensor
from penstock.dagster.deploying import Deployment
from penstock.dagster.jobs import RESTART_SENSOR_JOB, TAGS, build_jobs, told
from penstock.dagster.project import Project, dbt_command
from penstock.dagster.purge import KEEP_DAYS, build_purge
from penstock.dagster.sensors import build_sensors
from penstock.dagster.source_tables import tested_too_early
from penstock.dagster.source_tests import UNIQUE_ID, build_source_tests, unread_source_tests
from penstock.dagster.translator import (
    PenstockTranslator,
    exposure_specs,
    part_specs,
    published_specs,
    source_specs,
    stray_specs,
    stream_keys,
)

DATA_TESTS = "0 * * * *"
DATA_TESTS_JOB = "penstock_data_tests"


def penstock_definitions(
    project_dir: Path | str,
    *,
    profiles_dir: Path | str | None = None,
    target: str | None = None,
    max_lag: float = DEFAULT_LIMITS.max_lag_seconds,
    data_tests: str | None = DATA_TESTS,
    keep_days: float | None = KEEP_DAYS,
    alert: alerts.Send | None = None,
    translator: PenstockTranslator | None = None,
) -> Definitions:
    """The code location of a project.

    `max_lag` is the limit in seconds of models that set none; `data_tests` a cron line for dbt's tests over the live
    tables, or None; `keep_days` is how long Dagster keeps what sensors told and what jobs ran, None for ever; `alert`
    is called with state changes, in place of the webhook that PENSTOCK_ALERT_WEBHOOK names.
    """
    project = Project.find(project_dir, profiles_dir, target, Limits(max_lag_seconds=max_lag))
    names = translator or PenstockTranslator()
    dbt = DbtCliResource(project_dir=project.dbt, dbt_executable=dbt_command()[0])
    models = _models(project, names)
    keys = stream_keys(project, names)
    checks = build_checks(project, keys)
    jobs = build_jobs(project, names, dbt)
    recover = next(job for job in jobs if job.name == RESTART_SENSOR_JOB)
    unread = unread_source_tests(project, names, set(models.check_keys))
    tests = {str(spec.metadata[UNIQUE_ID]): spec.key for spec in [*models.check_specs, *unread]}
    live = {stream: tests[test] for stream, test in project.live_tests.items() if test in tests}
    sensors: list[Any] = list(build_sensors(project, keys, recover, alert or alerts.from_environment(), live))
    schedules = []
    all_checks = [checks, build_source_tests(project, names, dbt, unread)] if unread else [checks]
    sensors.append(build_dbt_sensor(project, names, tests))
    if tests and data_tests:
        job = define_asset_job(
            DATA_TESTS_JOB,
            selection=AssetSelection.checks(*tests.values()),
            description="dbt's tests over the live tables.",
            tags=TAGS,
            executor_def=in_process_executor,
        )
        schedules.append(
            ScheduleDefinition(
                job=job,
                cron_schedule=data_tests,
                default_status=DefaultScheduleStatus.RUNNING,
                should_execute=lambda _context: _is_up(project),  # dbt would start a project that was taken down
            )
        )
    assets: list[AssetsDefinition | AssetSpec] = [
        models,
        *source_specs(project, names),
        *exposure_specs(project, names),
        *published_specs(project, names),
        *stray_specs(project, names),
        *part_specs(),
    ]
    if keep_days is not None:
        schedules.append(build_purge(keep_days, [*(each.name for each in jobs), DATA_TESTS_JOB], _keys(assets)))
    following = [spec.key for spec in models.specs if spec.automation_condition is not None]
    if following:
        sensors.append(
            AutomationConditionSensorDefinition(
                "penstock_automation",
                target=AssetSelection.assets(*following),
                default_status=DefaultSensorStatus.RUNNING,
                description="Runs models whose automation_condition says so.",
            )
        )
    return Definitions(
        assets=assets,
        asset_checks=all_checks,
        jobs=jobs,
        schedules=schedules,
        sensors=sensors,
        resources={"dbt": dbt},
        executor=in_process_executor,  # dbt is a process of its own; one more for each step only costs time
    )


def _models(project: Project, translator: PenstockTranslator) -> AssetsDefinition:
    built = [each for each in project.manifest["nodes"] if each.startswith(("model.", "seed.", "snapshot."))]
    keys = {each: translator.get_asset_spec(project.manifest, each, project.dbt).key for each in built}

    @dbt_assets(
        manifest=project.manifest,
        project=project.dbt,
        dagster_dbt_translator=translator,
        name="dbt_" + str(project.manifest["metadata"].get("project_name") or "project"),
        op_tags=TAGS,
    )
    def models(context: AssetExecutionContext, dbt: DbtCliResource) -> Iterator[Any]:
        with told(context):
            deployment = Deployment(project, translator, context)
            names = [unique_id for unique_id, key in keys.items() if key in context.selected_asset_keys]
            for event in deployment.source_tables(tested_too_early(project, names), full_refresh=False):
                context.log_event(event)
            yield from deployment.events(dbt, ["build"], assets=True)

    return models


def _keys(assets: list[AssetsDefinition | AssetSpec]) -> list[AssetKey]:
    return [key for each in assets for key in (each.keys if isinstance(each, AssetsDefinition) else [each.key])]


def _is_up(project: Project) -> bool:
    store = project.store()
    return store is not None and read_world(store).engine is Liveness.UP
