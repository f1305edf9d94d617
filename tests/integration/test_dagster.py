"""The code location on a real engine and broker, driven with Dagster's own API. (In a browser: e2e/test_ui.py.)"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    build_sensor_context,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster_shared.serdes import serialize_value

from penstock.control.supervisor import read_running
from penstock.dagster import penstock_definitions
from penstock.dagster.budget import run_events
from penstock.kafka.admin import create_topics
from penstock.store import StreamState, Wanted

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

SECRET_VARIABLE = "TEST_KAFKA_PASSWORD"
pytestmark = pytest.mark.timeout(600)

PROJECT = """\
name: dagster_test
profile: dagster_test
model-paths: [{schema}/models]
macro-paths: [{schema}/macros]
target-path: {schema}/target
flags: {{send_anonymous_usage_stats: false}}
models: {{+schema: {schema}}}
"""
PROFILES = "dagster_test: {target: dev, outputs: {dev: {type: penstock, schema: default, kafka: {embedded: true}}}}\n"
SCHEMA_MACRO = (
    "{% macro generate_schema_name(custom_schema_name, node) %}{{ custom_schema_name or target.schema }}{% endmacro %}"
)
MODELS = {
    "macros/schema.sql": SCHEMA_MACRO,
    "models/shop.yml": """\
sources:
  - name: web
    tables:
      - name: clicks
        config:
          meta:
            stream:
              type: kafka
              topic: {topic}
              value: {{format: json}}
              kafka.client.rack: {{env_var: TEST_KAFKA_PASSWORD}} # any option may be a secret; this broker needs none
        columns: [{{name: item_id, data_type: string, data_tests: [not_null]}}, {{name: price, data_type: double}}]
  - name: depot
    schema: {schema}
    tables:
      - name: stock
        config: {{meta: {{stream: {{kind: table, topic: {topic}-stock, primary_key: id}}}}}}
        columns:
          - {{name: id, data_type: string, config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: place, data_type: string, data_tests: [not_null]}}
          - {{name: number, data_type: int}}
models:
  - name: clicked
    columns: [{{name: item_id, data_tests: [not_null]}}]
""",
    "models/clicked.sql": "{{{{ config(materialized='dynamic_table', max_lag='30 seconds') }}}}\n"
    "select item_id, price * 2 as twice from {{{{ source('web', 'clicks') }}}}",
    "models/items.sql": "{{{{ config(materialized='table') }}}}\nselect distinct item_id from {{{{ ref('clicked') }}}}",
}


class Location:
    """A project with its code location, and runs of it."""

    def __init__(self, platform: Platform, schema: str, topic: str) -> None:
        self.platform, self.schema, self.root = platform, schema, platform.paths.project
        (self.root / "dbt_project.yml").write_text(PROJECT.format(schema=schema))
        (self.root / "profiles.yml").write_text(PROFILES)
        for path, text in MODELS.items():
            self.write(path, text if path.startswith("macros") else text.format(topic=topic, schema=schema))
        self.stream = f"{schema}.clicked"
        self.instance = DagsterInstance.ephemeral()

    def write(self, path: str, text: str) -> None:
        file = self.root / self.schema / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def defs(self) -> Definitions:
        return penstock_definitions(self.root)

    def materialise(self, *names: str) -> ExecuteInProcessResult:
        job = self.defs.resolve_implicit_global_asset_job_def()
        keys = [self.key(name) for name in names]
        return job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False)

    def key(self, name: str) -> AssetKey:
        return AssetKey([self.schema, name])

    def run(self, job: str, **config: Any) -> ExecuteInProcessResult:
        return self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance, run_config={"ops": {f"{job}_op": {"config": config}}}, raise_on_error=False
        )

    def tick(self, name: str) -> Any:
        """One look of a sensor."""
        context = build_sensor_context(instance=self.instance, definitions=self.defs)
        return self.defs.resolve_sensor_def(name).evaluate_tick(context)


def said(result: ExecuteInProcessResult) -> str:
    """What a person reads of a failed run."""
    events = [event for event in result.all_events if event.is_step_failure]
    data = events[0].step_failure_data
    assert data.user_failure_data is not None, data.error
    return str(data.user_failure_data.description)


@pytest.fixture
def location(platform: Platform, schema: str, topic: MakeTopic, produce: Produce) -> Location:
    platform.endpoint()
    name = topic()
    produce(name, [{"item_id": f"i{n}", "price": n} for n in range(50)])
    create_topics(platform.bootstrap, {f"{name}-stock": 1})
    produce(f"{name}-stock", [("a", {"place": "left", "number": 1}), ("b", {"number": 2})])
    made = Location(platform, schema, name)
    made.produce = lambda count: produce(name, [{"item_id": "x", "price": n} for n in range(count)])  # type: ignore[attr-defined]
    return made


def test_materialising_deploys_and_ends_with_what_became_of_it(location: Location) -> None:
    result = location.materialise("clicked", "items")
    assert result.success
    made = result.asset_materializations_for_node("dbt_dagster_test")
    facts = {each.asset_key.path[-1]: {k: v.value for k, v in each.metadata.items()} for each in made}
    clicked = facts["clicked"]
    assert (clicked["verdict"], clicked["generation"], clicked["state"]) == ("NEW", 1, "running")
    assert clicked["first_batch"] == "committed"
    assert clicked["total_rows_out"] == 50
    assert clicked["lag_rows"] in (0, 50), "measured a second before or after the first batch"
    assert clicked["checkpoint"].startswith("g1-")
    assert "item_id" in Path(clicked["compiled_job"]).read_text()
    assert clicked["spark_ui"].startswith("http://127.0.0.1:")
    lineage = clicked["dagster/column_lineage"].deps_by_column
    assert [(dep.asset_key, dep.column_name) for dep in lineage["twice"]] == [(AssetKey(["web", "clicks"]), "price")]
    assert [column.name for column in clicked["dagster/column_schema"].columns] == ["item_id", "twice"]
    assert "dagster/row_count" in facts["items"], (
        "dbt does not wait for rows: how many there are is the stream's matter"
    )
    checks = {(each.asset_key.path[-1], each.check_name): each for each in result.get_asset_check_evaluations()}
    assert checks["clicked", "health"].passed
    assert checks["clicked", "lag"].passed
    assert checks["clicked", "not_null_clicked_item_id"].passed
    assert checks["clicks", "source_not_null_web_clicks_item_id"].passed, "dbt tests a source before what reads it"
    written = location.instance.all_logs(result.run_id)
    assert len(written) <= run_events(len(made) + len(checks)), "events of a run have a bound"

    # No secret is in what Dagster keeps and shows; the stream was given it by the name of a variable.
    secret = os.environ[SECRET_VARIABLE]
    assert secret
    compiled = Path(clicked["compiled_job"]).read_text()
    assert SECRET_VARIABLE in compiled
    shown = [serialize_value(entry) for entry in written] + [compiled, str(result.all_events)]
    for name in ("penstock_health", "penstock_lag"):
        told = location.tick(name).asset_events
        assert told
        shown += [str(each) for each in told]
    assert not any(secret in text for text in shown)

    again = location.materialise("clicked").asset_materializations_for_node("dbt_dagster_test")
    assert again[0].metadata["verdict"].value == "NO-OP"
    left = [each for each in (location.root / location.schema / "target").iterdir() if each.name.startswith("dbt_")]
    assert left == [], "a good run leaves no directory of its own"


def test_a_source_table_is_deployed_tested_and_not_stopped_from_dagster(location: Location) -> None:
    done = location.run("penstock_deploy", select="source:depot.stock")
    assert done.success, said(done)
    made = [event.materialization for event in done.all_events if event.event_type_value == "ASSET_MATERIALIZATION"]
    assert [each.asset_key for each in made] == [AssetKey(["depot", "stock"])]
    facts = {name: value.value for name, value in made[0].metadata.items()}
    assert (facts["verdict"], facts["generation"], facts["state"]) == ("NEW", 1, "running")
    assert len(location.platform.sql(f"select * from {location.schema}.stock")) == 2
    assert said(location.run("penstock_stop", select="source:depot.stock")).startswith("PEN-3022")
    assert location.platform.store.desired(f"{location.schema}.stock").wanted is Wanted.RUNNING

    # The hourly tests: of models, of sources that models read, and of those that none reads; a failure is kept.
    assert location.run("penstock_deploy", select="clicked").success
    job = location.defs.resolve_job_def("penstock_data_tests")
    tested = job.execute_in_process(instance=location.instance, raise_on_error=False)
    results = {each.check_name: each.passed for each in tested.get_asset_check_evaluations()}
    assert results == {
        "not_null_clicked_item_id": True,
        "source_not_null_web_clicks_item_id": True,
        "source_not_null_depot_stock_place": False,
    }
    assert not tested.success
    key = AssetCheckKey(AssetKey(["depot", "stock"]), "source_not_null_depot_stock_place")
    record = location.instance.get_latest_asset_check_evaluation_record(key)
    assert record is not None
    assert record.status is AssetCheckExecutionRecordStatus.FAILED
    assert len(location.instance.all_logs(tested.run_id)) <= run_events(len(results))


def test_wrong_input_fails_with_the_products_words(location: Location) -> None:

    location.write(
        "models/broken.sql",
        "{{ config(materialized='dynamic_table', refresh_mode='incremental') }}\n"
        "select item_id from {{ source('web', 'clicks') }} order by 1",
    )
    words = said(location.materialise("broken"))
    assert "PEN-1305" in words
    assert "models/broken.sql" in words
    (location.root / location.schema / "models/broken.sql").unlink()
    words = said(location.run("penstock_deploy", select="clickd"))
    assert words.startswith("PEN-5006 'clickd' selects no model of this project. Did you mean 'clicked'?")
    assert "PEN-5006 The selection is empty" in said(location.run("penstock_restart", select=" "))


def test_jobs_deploy_stop_start_restart_and_refresh_a_selection(location: Location) -> None:
    store = location.platform.store
    assert location.run("penstock_deploy", select="clicked").success
    location.platform.state(location.stream, StreamState.RUNNING)
    assert location.run("penstock_stop", select="clicked").success
    assert store.actual(location.stream).state is StreamState.STOPPED
    assert store.desired(location.stream).wanted is Wanted.STOPPED
    stopped = [
        each for each in location.tick("penstock_health").asset_events if each.asset_key == location.key("clicked")
    ]
    assert [(each.passed, each.description) for each in stopped] == [(True, "stopped on purpose")]
    assert location.run("penstock_start", select=location.stream).success
    before = store.actual(location.stream).started_at or 0
    assert location.run("penstock_restart", select="+items").success
    assert (store.actual(location.stream).started_at or 0) > before
    refreshed = location.run("penstock_full_refresh", select="clicked")
    assert refreshed.success
    location.platform.until(lambda: store.desired(location.stream).generation == 2, "the new generation", 120)
    built = [event for event in refreshed.all_events if event.event_type_value == "ASSET_MATERIALIZATION"]
    assert built[0].materialization.metadata["verdict"].value == "REBUILD"


@pytest.mark.deep
def test_with_engine_and_supervisor_killed_dagster_alone_brings_the_streams_back(location: Location) -> None:
    platform = location.platform
    assert location.materialise("clicked").success
    assert location.tick("penstock_restart").run_requests == [], "the supervisor looks after them"
    supervisor, engine = read_running(platform.paths), platform.endpoint()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    os.kill(engine.pid, signal.SIGKILL)
    platform.until(lambda: read_running(platform.paths) is None, "the supervisor's end")
    location.produce(30)  # type: ignore[attr-defined]

    red = {each.asset_key.path[-1]: each for each in location.tick("penstock_health").asset_events}
    assert not red["supervisor"].passed
    assert not red["engine"].passed
    assert not red["clicked"].passed
    platform.until(lambda: _lag_is_told(location, 30), "the lag of a dead stream, without a supervisor", 90)

    asked = location.tick("penstock_restart").run_requests
    mine = [
        each for each in asked if location.stream in each.run_config["ops"]["penstock_recover_op"]["config"]["streams"]
    ]
    assert len(mine) == 1
    result = location.defs.resolve_job_def("penstock_recover").execute_in_process(
        instance=location.instance, run_config=mine[0].run_config, raise_on_error=False
    )
    assert result.success, said(result)
    platform.state(location.stream, StreamState.RUNNING)
    platform.until(lambda: platform.store.actual(location.stream).total_rows_out >= 80, "the rows that waited")
    assert location.tick("penstock_restart").run_requests == []
    green = {each.asset_key.path[-1]: each for each in location.tick("penstock_health").asset_events}
    assert green["supervisor"].passed
    assert green["clicked"].passed, green["clicked"].description


def _lag_is_told(location: Location, rows: int) -> bool:
    events = [each for each in location.tick("penstock_lag").asset_events if each.asset_key == location.key("clicked")]
    return any(each.metadata.get("lag_rows") and each.metadata["lag_rows"].value == rows for each in events)


def test_a_stuck_stream_counts_as_failed_and_comes_back(location: Location) -> None:
    platform: Platform = location.platform
    assert location.run("penstock_deploy", select="clicked").success
    before = platform.state(location.stream, StreamState.RUNNING)
    platform.until(lambda: platform.store.actual(location.stream).batch_id is not None, "the first batch")

    def asked() -> list[Any]:
        # Its record, as that of a query that hangs for a quarter of an hour; the supervisor measures every second.
        now = time.time()
        old = {"started_at": now - 900, "last_batch_at": now - 900}
        platform.store.report(location.stream, lag_rows=500, lag_seconds=900.0, lag_at=now, **old)
        return [each for each in location.tick("penstock_restart").run_requests if location.stream in each.run_key]

    request = platform.until(asked, "the sensor's request")[0]
    config = request.run_config["ops"]["penstock_recover_op"]["config"]
    assert (config["streams"], config["stuck"]) == ([location.stream], True)
    assert config["reason"] == "stuck: no batch for 15 min while 500 rows wait"
    recovered = location.defs.resolve_job_def("penstock_recover").execute_in_process(
        instance=location.instance, run_config=request.run_config, raise_on_error=False
    )
    assert recovered.success, said(recovered)
    found = platform.state(location.stream, StreamState.RUNNING)
    assert (found.started_at or 0) > (before.started_at or 0)
    assert found.error_code == "PEN-4020"
    assert found.failures == before.failures + 1
    assert found.restarts == before.restarts + 1
    location.produce(30)  # type: ignore[attr-defined]
    platform.until(lambda: platform.store.actual(location.stream).total_rows_out >= 80, "the rows that came later")
    broker: Callable[[], Any] = lambda: next((part for part in platform.store.parts() if part.ok), None)  # noqa: E731
    assert platform.until(broker, "the broker's check").kind == "broker"
