"""Deleting what is old from Dagster's own records: runs of these jobs, and what sensors told.

Rules
- Only what this code location made is touched: runs of its jobs and of its automation, events of its assets. Runs that
  people started on assets stay.
- The newest is kept, however old: a run that holds the last materialisation or the last result of a check, the last
  event of each kind of an asset, the last result of each check.
- Runs are deleted by Dagster's API. It has none for events outside of runs, which is what sensors tell: these are
  deleted from the tables of its SQL storage (SQLite, Postgres, MySQL); another storage keeps them, and the run says so.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    Config,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    EventLogEntry,
    OpExecutionContext,
    RunConfig,
    RunsFilter,
    ScheduleDefinition,
    in_process_executor,
    job,
    op,
)
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster_shared.serdes import deserialize_value
from pydantic import Field

from penstock.dagster.jobs import TAGS

JOB = "penstock_purge"
AUTOMATION = "penstock_automation"
KEEP_DAYS = 30.0
WHEN = "17 3 * * *"
MOST = 5_000  # runs of one kind that are deleted in one run of the purge, so that it ends in time
AT_ONCE = 1_000  # results of checks that are read at once
_NEWS = [DagsterEventType.ASSET_MATERIALIZATION.value, DagsterEventType.ASSET_OBSERVATION.value]
_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


class Purge(Config):
    """What is old."""

    keep_days: float = Field(default=KEEP_DAYS, ge=1, description="What is older is deleted.")


@dataclass(frozen=True)
class Purged:
    """How much was deleted."""

    runs: int
    events: int | None  # None: the storage has no tables of SQL


def build_purge(keep_days: float, jobs: Sequence[str], assets: Sequence[AssetKey]) -> ScheduleDefinition:
    """A job that deletes what is old, once a day."""

    @op(name=f"{JOB}_op")
    def run(context: OpExecutionContext, config: Purge) -> None:
        before = datetime.now(timezone.utc) - timedelta(days=config.keep_days)
        done = purge(context.instance, before, [*jobs, JOB], assets)
        context.log.info(f"Deleted {done.runs} runs that began before {before:%Y-%m-%d %H:%M} UTC.")
        if done.events is None:
            context.log.warning("What sensors told is kept: Dagster's storage is not one with SQL.")
        else:
            context.log.info(f"Deleted {done.events} events that sensors told before that.")

    @job(name=JOB, description="Deletes old runs and events of this project.", tags=TAGS,
         executor_def=in_process_executor)  # fmt: skip
    def made() -> None:
        run()

    return ScheduleDefinition(
        job=made,
        cron_schedule=WHEN,
        run_config=RunConfig(ops={f"{JOB}_op": Purge(keep_days=keep_days)}),
        default_status=DefaultScheduleStatus.RUNNING,
    )


def purge(instance: DagsterInstance, before: datetime, jobs: Sequence[str], assets: Sequence[AssetKey]) -> Purged:
    """Delete what began before a time; how much that was."""
    kept = _holding_the_newest(instance, assets)
    filters = [RunsFilter(job_name=name, statuses=_ENDED, created_before=before) for name in jobs]
    filters.append(RunsFilter(tags={"dagster/sensor_name": AUTOMATION}, statuses=_ENDED, created_before=before))
    runs = sum(_delete_runs(instance, each, kept) for each in filters)
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return Purged(runs, None)
    names = [key.to_string() for key in assets]
    return Purged(runs, _delete_told(storage, before, names))


def _holding_the_newest(instance: DagsterInstance, assets: Sequence[AssetKey]) -> set[str]:
    """The runs whose events are the last of an asset or of one of its checks."""
    found = set()
    for record in instance.get_asset_records(assets):
        last = record.asset_entry
        found |= {last.last_run_id, last.last_materialization_record and last.last_materialization_record.run_id}
    storage = instance.event_log_storage
    if isinstance(storage, SqlEventLogStorage):
        names = [key.to_string() for key in assets]
        with storage.index_connection() as connection:
            table = AssetCheckExecutionsTable
            query = sa.select(table.c.run_id).where(table.c.id.in_(_newest_results(connection, names)))
            found |= {row[0] for row in connection.execute(query)}
    return {each for each in found if each}


def _delete_runs(instance: DagsterInstance, chosen: RunsFilter, kept: set[str]) -> int:
    old = [run_id for run_id in instance.get_run_ids(chosen) if run_id not in kept]
    doomed = old[-MOST:]  # the oldest
    for run_id in doomed:
        instance.delete_run(run_id)
    return len(doomed)


def _delete_told(storage: SqlEventLogStorage, before: datetime, names: Sequence[str]) -> int:
    # Dagster keeps times in UTC without a zone. Its SQLite storage has events outside of runs twice: in a file of
    # their own, and in the index, where assets are looked up; elsewhere both are one table.
    when = before.astimezone(timezone.utc).replace(tzinfo=None)
    results = AssetCheckExecutionsTable
    with storage.index_connection() as connection:
        newest = _newest_results(connection, names)
        query = sa.select(results.c.evaluation_event_storage_id).where(results.c.id.in_(newest))
        kept = {row[0] for row in connection.execute(query)}
        deleted = _delete_events(connection, when, names, tags=True) + _delete_checks(connection, when, names, kept)
        old = sa.and_(results.c.asset_key.in_(names), results.c.evaluation_event_timestamp < when)
        connection.execute(results.delete().where(old, results.c.id.not_in(newest)))
    with storage.run_connection(RUNLESS_RUN_ID) as connection:
        _delete_events(connection, when, names, tags=False)
        _delete_checks(connection, when, names, kept)
    return deleted


def _delete_events(connection: Any, when: datetime, names: Sequence[str], *, tags: bool) -> int:
    """Numbers and news of assets."""
    table = SqlEventLogStorageTable
    ours = sa.and_(
        table.c.run_id == RUNLESS_RUN_ID, table.c.dagster_event_type.in_(_NEWS), table.c.asset_key.in_(names)
    )
    newest = sa.select(sa.func.max(table.c.id)).where(ours).group_by(table.c.asset_key, table.c.dagster_event_type)
    kept = [row[0] for row in connection.execute(newest)]  # read first: MySQL does not take it within the deletion
    old = sa.and_(ours, table.c.timestamp < when, table.c.id.not_in(kept))
    if tags:
        doomed = sa.select(table.c.id).where(old)
        connection.execute(AssetEventTagsTable.delete().where(AssetEventTagsTable.c.event_id.in_(doomed)))
    return int(connection.execute(table.delete().where(old)).rowcount)


def _delete_checks(connection: Any, when: datetime, names: Sequence[str], kept: set[int]) -> int:
    """Results of checks: which asset they are of, their text alone says."""
    table, ours = SqlEventLogStorageTable, set(names)
    deleted, last = 0, 0
    while True:
        found = connection.execute(
            sa.select(table.c.id, table.c.event)
            .where(
                table.c.run_id == RUNLESS_RUN_ID,
                table.c.dagster_event_type == DagsterEventType.ASSET_CHECK_EVALUATION.value,
                table.c.timestamp < when,
                table.c.id > last,
            )
            .order_by(table.c.id)
            .limit(AT_ONCE)
        ).fetchall()
        if not found:
            return deleted
        last = found[-1][0]
        doomed = [number for number, event in found if number not in kept and _asset_of(event) in ours]
        connection.execute(table.delete().where(table.c.id.in_(doomed)))
        deleted += len(doomed)


def _asset_of(event: str) -> str | None:
    told = deserialize_value(event, EventLogEntry).dagster_event
    data = told.event_specific_data if told else None
    return data.asset_key.to_string() if isinstance(data, AssetCheckEvaluation) else None


def _newest_results(connection: Any, names: Sequence[str]) -> list[int]:
    table = AssetCheckExecutionsTable
    query = sa.select(sa.func.max(table.c.id)).where(table.c.asset_key.in_(names))
    return [row[0] for row in connection.execute(query.group_by(table.c.asset_key, table.c.check_name))]
