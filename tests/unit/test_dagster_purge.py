"""What is old is deleted from Dagster's records: what sensors told and what jobs ran, and nothing else."""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    JobDefinition,
    OpExecutionContext,
    RunConfig,
    RunsFilter,
    job,
    op,
)
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.runs.schema import RunsTable
from sqlalchemy import func, select, update

from penstock.dagster.purge import JOB, Purge, build_purge, purge

OURS, OTHER = AssetKey(["shop", "clicked"]), AssetKey("somebody_elses")
LONG_AGO = datetime.now(timezone.utc) - timedelta(days=40)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """With files, as `penstock ui` has it."""
    with DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def _tell(instance: DagsterInstance, key: AssetKey, count: int) -> None:
    for number in range(count):
        instance.report_runless_asset_event(AssetObservation(key, metadata={"lag_rows": number}))
        instance.report_runless_asset_event(AssetMaterialization(key, metadata={"new_rows": number}))
        for name in ("health", "lag"):
            instance.report_runless_asset_event(
                AssetCheckEvaluation(asset_key=key, check_name=name, passed=True, metadata={"number": number})
            )


def _age(instance: DagsterInstance) -> None:
    """All that there is now happened long ago."""
    storage: Any = instance.event_log_storage
    when = LONG_AGO.replace(tzinfo=None)
    for connect in (storage.index_connection, lambda: storage.run_connection(RUNLESS_RUN_ID)):
        with connect() as connection:
            connection.execute(update(SqlEventLogStorageTable).values(timestamp=when))
            connection.execute(update(AssetCheckExecutionsTable).values(evaluation_event_timestamp=when))
    runs: Any = instance.run_storage
    with runs.connect() as connection:
        connection.execute(update(RunsTable).values(create_timestamp=when))


def _rows(instance: DagsterInstance) -> tuple[int, int, int]:
    """Events outside of runs in the index and in their own file, and results of checks."""
    storage: Any = instance.event_log_storage
    events = select(func.count()).select_from(SqlEventLogStorageTable)
    events = events.where(SqlEventLogStorageTable.c.run_id == RUNLESS_RUN_ID)
    with storage.index_connection() as connection:
        index = connection.execute(events).scalar()
        checks = connection.execute(select(func.count()).select_from(AssetCheckExecutionsTable)).scalar()
    with storage.run_connection(RUNLESS_RUN_ID) as connection:
        return int(index), int(connection.execute(events).scalar()), int(checks)


def _purge(instance: DagsterInstance, **more: Any) -> Any:
    before = datetime.now(timezone.utc) - timedelta(days=30)
    return purge(instance, before, ["penstock_recover"], [OURS], **more)


def test_what_sensors_told_long_ago_is_deleted_but_for_the_newest_and_what_is_not_ours(
    instance: DagsterInstance,
) -> None:
    _tell(instance, OURS, 10)
    _tell(instance, OTHER, 10)
    _age(instance)
    _tell(instance, OURS, 2)
    assert _rows(instance) == (88, 88, 44)
    assert _purge(instance).events == 40
    assert _rows(instance) == (48, 48, 24), "of ours, the 2 of today; of the others all"
    assert _purge(instance).events == 0
    record = instance.get_latest_asset_check_evaluation_record(AssetCheckKey(OURS, "health"))
    assert record is not None
    assert record.evaluation is not None
    assert len(instance.fetch_observations(OTHER, limit=100).records) == 10


def test_the_newest_is_kept_however_old_it_is(instance: DagsterInstance) -> None:
    _tell(instance, OURS, 10)
    _age(instance)
    _purge(instance)
    assert _rows(instance)[2] == 2, "the last result of each check"
    assert len(instance.fetch_observations(OURS, limit=100).records) == 1
    last = instance.get_latest_materialization_event(OURS)
    assert last is not None
    assert last.asset_materialization is not None
    assert last.asset_materialization.metadata["new_rows"].value == 9


def _job(name: str, key: AssetKey | None = None) -> JobDefinition:
    @op(name=f"{name}_op")
    def run(context: OpExecutionContext) -> None:
        if key is not None:
            context.log_event(AssetMaterialization(key))

    @job(name=name)
    def made() -> None:
        run()

    return made


def test_old_runs_of_these_jobs_are_deleted_and_others_stay(instance: DagsterInstance) -> None:
    mine, others = _job("penstock_recover"), _job("somebodys_job")
    ids = [mine.execute_in_process(instance=instance).run_id for _ in range(3)]
    theirs = others.execute_in_process(instance=instance).run_id
    holding = _job("penstock_recover", OURS).execute_in_process(instance=instance).run_id
    _age(instance)
    new = mine.execute_in_process(instance=instance).run_id
    assert _purge(instance).runs == 3
    assert {run.run_id for run in instance.get_runs()} == {theirs, holding, new}, "one holds the last materialisation"
    assert instance.all_logs(ids[0]) == []
    assert instance.get_latest_materialization_event(OURS) is not None


def test_the_job_does_it_once_a_day_and_says_how_much(instance: DagsterInstance) -> None:
    _tell(instance, OURS, 5)
    _job("penstock_recover").execute_in_process(instance=instance)
    _age(instance)
    schedule = build_purge(30, ["penstock_recover"], [OURS])
    assert schedule.cron_schedule == "17 3 * * *"
    made = schedule.job
    assert isinstance(made, JobDefinition)
    begun = time.monotonic()
    result = made.execute_in_process(
        instance=instance, run_config=RunConfig(ops={f"{JOB}_op": Purge(keep_days=30)}), raise_on_error=False
    )
    assert result.success
    assert time.monotonic() - begun < 30
    said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any(text.startswith("Deleted 1 runs") for text in said), said
    assert any(text.startswith("Deleted 16 events") for text in said), said
    assert instance.get_runs(RunsFilter(job_name="penstock_recover")) == []
