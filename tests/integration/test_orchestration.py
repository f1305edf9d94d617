"""The code location: it loads on a fresh checkout, starts nothing, and shows what dbt knows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckKey, AssetKey, DagsterInstance, Definitions, build_sensor_context
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import serialize_value

from penstock.compiler import quarantine_of
from penstock.compiler.spec import Output, OutputMode, StreamSpec, TableStreamInput
from penstock.dagster import PenstockTranslator, penstock_definitions
from penstock.dagster.budget import RESULTS
from penstock.dagster.dbt_sensor import build_dbt_sensor
from penstock.dagster.project import Project
from penstock.dagster.selecting import selected
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths
from penstock.store import Store

ROOT = Path(__file__).parents[2]

_LIST = """
from orchestration.definitions import defs

graph = defs.resolve_asset_graph()
for key in sorted(graph.get_all_asset_keys(), key=str):
    parents = sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
    print(key.to_user_string(), "<-", ",".join(parents))
"""
SHOP = {
    "dbt_project.yml": "name: shop\nprofile: shop\nflags: {send_anonymous_usage_stats: false}\n",
    "profiles.yml": "shop: {target: dev, outputs: {dev: {type: penstock, schema: shop, kafka: {embedded: true}}}}\n",
    "models/shop.yml": """\
groups:
  - name: web
    owner: {name: Web team, email: web@example.com}
sources:
  - name: site
    tables:
      - name: clicks
        description: One message per click.
        config:
          meta:
            stream:
              type: kafka
              topic: clicks
              value: {format: json}
              security.protocol: SASL_PLAINTEXT
              sasl.mechanism: PLAIN
              sasl.username: shop
              sasl.password: {env_var: SHOP_PASSWORD}
        columns: [{name: item_id, data_type: string, description: The item., data_tests: [not_null]}]
      - name: items
        config: {meta: {stream: {kind: table, topic: items, primary_key: [id]}}}
        columns:
          - {name: id, data_type: string, data_tests: [unique], config: {meta: {stream: {from: key}}}}
models:
  - name: clicked
    description: Clicks.
    config: {group: web, tags: [live], max_lag: 90 seconds}
    columns: [{name: item_id, description: The item that was clicked., data_tests: [not_null]}]
  - name: per_item
    config: {meta: {dagster: {automation_condition: eager}}}
exposures:
  - name: dashboard
    type: dashboard
    url: https://example.com/dashboard
    owner: {name: Ann Example, email: ann@example.com}
    depends_on: [ref('per_item')]
""",
    "models/live/clicked.sql": "{{ config(materialized='dynamic_table') }}\n"
    "select item_id from {{ source('site', 'clicks') }}",
    "models/per_item.sql": "{{ config(materialized='table') }}\n"
    "select item_id, count(*) as n from {{ ref('clicked') }} group by item_id",
}


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_every_model_and_source_of_the_demo_is_an_asset_with_its_upstreams(tmp_path: Path) -> None:
    for name in ("models", "sources", "seeds", "profiles", "orchestration", "tests/data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dbt_project.yml", tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", _LIST], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stderr
    assets = dict(line.split(" <- ") for line in found.stdout.splitlines() if " <- " in line)
    assert assets["clicks_clean"] == "products,shop/clicks"
    assert assets["also_viewed"] == "co_views"
    assert assets["recommendations"] == "also_viewed,products"
    assert not (tmp_path / ".penstock").exists(), "loading must start nothing"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    _write(root, SHOP)
    return root


@pytest.fixture(scope="module")
def defs(shop: Path) -> Definitions:
    return penstock_definitions(shop)


@pytest.fixture(scope="module")
def graph(defs: Definitions) -> AssetGraph:
    return defs.resolve_asset_graph()


def test_sources_models_exposures_and_the_platform_are_assets(graph: AssetGraph) -> None:
    kinds = {key.to_user_string(): graph.get(key).tags.get("penstock/kind") for key in graph.get_all_asset_keys()}
    assert kinds == {
        "site/clicks": "source_stream", "site/items": "source_table", "clicked": "dynamic_table", "per_item": "model",
        "exposures/dashboard": "exposure", "penstock/supervisor": "part", "penstock/engine": "part",
        "penstock/broker": "part", "penstock/registry": "part",
    }  # fmt: skip
    external = {key.to_user_string() for key in graph.external_asset_keys}
    assert external == set(kinds) - {"clicked", "per_item"}
    assert graph.get(AssetKey(["exposures", "dashboard"])).parent_keys == {AssetKey("per_item")}


def test_groups_owners_tags_and_columns_come_from_dbt(graph: AssetGraph) -> None:
    clicked = graph.get(AssetKey("clicked"))
    assert (clicked.group_name, list(clicked.owners)) == ("web", ["web@example.com"])
    assert "live" in clicked.tags
    assert clicked.kinds == {"dbt", "spark", "delta"}
    column = clicked.metadata["dagster/column_schema"].columns[0]
    assert (column.name, column.description) == ("item_id", "The item that was clicked.")
    source = graph.get(AssetKey(["site", "clicks"]))
    assert source.description is not None
    assert source.description.startswith("One message per click.")
    assert (source.group_name, source.metadata["penstock/topic"].value) == ("site", "clicks")
    assert list(graph.get(AssetKey(["exposures", "dashboard"])).owners) == ["ann@example.com"]


def test_a_deployed_stream_without_a_model_is_shown_too(shop: Path, tmp_path: Path) -> None:
    root = tmp_path / "strays"
    shutil.copytree(shop, root)
    read = TableStreamInput(view="input", relation="shop.clicked")
    spec = StreamSpec(
        name="shop.left", unique_id="model.shop.left", path="models/left.sql", sql="select * from input",
        stateful=False, inputs=(read,), output=Output(relation="shop.left", mode=OutputMode.APPEND),
    )  # fmt: skip
    store = Store.open(ProjectPaths(root).store)
    store.deploy(spec.name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
    graph = penstock_definitions(root).resolve_asset_graph()
    left = graph.get(AssetKey(["shop", "left"]))
    assert left.parent_keys == {AssetKey("clicked")}
    assert {key.name for key in graph.get_check_keys_for_assets({left.key})} == {"health", "lag"}


def test_the_quarantine_of_a_source_is_shown_beside_it(shop: Path, tmp_path: Path) -> None:
    root = tmp_path / "bad"
    shutil.copytree(shop, root)
    source = json.loads((root / "target/manifest.json").read_text())["sources"]["source.shop.site.clicks"]
    spec = quarantine_of(source, project_dir=root)
    Store.open(ProjectPaths(root).store).deploy(
        spec.name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True
    )
    found = penstock_definitions(root).resolve_asset_graph().get(AssetKey(["site", "clicks__quarantine"]))
    assert (found.tags["penstock/kind"], found.group_name) == ("quarantine", "site")
    assert found.parent_keys == {AssetKey(["site", "clicks"])}
    assert found.description == "The records of site/clicks that could not be decoded."


def test_a_selection_may_name_source_tables_and_streams_and_nothing_that_cannot_be_deployed(
    defs: Definitions, shop: Path
) -> None:
    project = Project.find(shop)
    items = selected(project, "source:site.items")
    assert (items.models, items.source_tables) == ((), ("source.shop.site.items",))
    by_name = selected(project, "shop.clicked site.items")
    assert by_name.models == ("model.shop.clicked",)
    assert by_name.words == ("clicked", "source:site.items"), "dbt does not know the names of streams"
    everything = selected(project, "*")
    assert set(everything.models) == {"model.shop.clicked", "model.shop.per_item"}
    assert everything.source_tables == ("source.shop.site.items",)
    with pytest.raises(PenstockError, match=r"PEN-5006 'source:site\.clicks' selects no model"):
        selected(project, "source:site.clicks")
    with pytest.raises(PenstockError, match=r"PEN-5006 .* Did you mean 'source:site\.items'\?"):
        selected(project, "source:site.itms")


def test_no_secret_is_in_anything_that_the_web_ui_is_given(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "top-secret-1")
    monkeypatch.setenv("PENSTOCK_ALERT_WEBHOOK", "http://127.0.0.1:9/top-secret-2")
    defs = penstock_definitions(shop)
    assert "penstock_alerts" in {each.name for each in defs.get_repository_def().sensor_defs}
    shown = serialize_value(RepositorySnap.from_def(defs.get_repository_def()))
    assert "One message per click." in shown
    assert "top-secret" not in shown
    assert "SHOP_PASSWORD" not in shown, "not even where it is kept"


def test_every_stream_has_its_checks_beside_dbts_tests(graph: AssetGraph) -> None:
    clicked = {key.name for key in graph.get_check_keys_for_assets({AssetKey("clicked")})}
    assert clicked == {"health", "lag", "not_null_clicked_item_id"}
    table = {key.name for key in graph.get_check_keys_for_assets({AssetKey(["site", "items"])})}
    assert table == {"health", "lag", "source_unique_site_items_id"}, "a source table is kept by a stream, too"
    source = {key.name for key in graph.get_check_keys_for_assets({AssetKey(["site", "clicks"])})}
    assert source == {"source_not_null_site_clicks_item_id"}
    supervisor = {key.name for key in graph.get_check_keys_for_assets({AssetKey(["penstock", "supervisor"])})}
    assert supervisor == {"health", "restarts"}


def test_jobs_sensors_and_schedules_are_there_and_run_by_themselves(defs: Definitions) -> None:
    jobs = {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    assert jobs == {
        "penstock_deploy", "penstock_full_refresh", "penstock_start", "penstock_stop", "penstock_restart",
        "penstock_recover", "penstock_data_tests", "penstock_purge",
    }  # fmt: skip
    repository = defs.get_repository_def()
    assert {each.name: each.default_status.value for each in repository.sensor_defs} == dict.fromkeys(
        ("penstock_health", "penstock_lag", "penstock_restart", "penstock_dbt", "penstock_automation"), "RUNNING"
    )
    schedules = {each.job_name: each.cron_schedule for each in repository.schedule_defs}
    assert schedules == {"penstock_data_tests": "0 * * * *", "penstock_purge": "17 3 * * *"}
    layer = defs.resolve_job_def("penstock_data_tests").asset_layer
    tested = {key for each in layer.data for key in each.assets_def.check_keys}
    assert {key.name for key in tested} == {
        "not_null_clicked_item_id", "source_not_null_site_clicks_item_id", "source_unique_site_items_id",
    }, "also of sources, and of those that no model reads"  # fmt: skip


def test_an_ordinary_model_can_follow_a_dynamic_table(graph: AssetGraph) -> None:
    assert graph.get(AssetKey("per_item")).automation_condition is not None
    assert graph.get(AssetKey("clicked")).automation_condition is None


def test_a_wrong_automation_condition_is_named(shop: Path, tmp_path: Path) -> None:
    root = tmp_path / "wrong"
    shutil.copytree(shop, root, ignore=shutil.ignore_patterns("target"))
    file = root / "models/shop.yml"
    file.write_text(file.read_text().replace("automation_condition: eager", "automation_condition: egaer"))
    with pytest.raises(PenstockError, match=r"PEN-5006 .*automation_condition 'egaer' is unknown"):
        penstock_definitions(root)


def test_a_directory_without_a_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="PEN-5001"):
        penstock_definitions(tmp_path)


def test_sensors_of_a_project_that_never_ran_say_so_and_make_nothing(defs: Definitions, shop: Path) -> None:
    for name in ("penstock_health", "penstock_lag", "penstock_restart"):
        result = defs.resolve_sensor_def(name).evaluate_tick(build_sensor_context())
        assert result.skip_message == "Nothing is deployed yet."
        assert not result.run_requests
    assert not (shop / ".penstock").exists()


def test_what_dbt_did_in_a_terminal_is_told_once(defs: Definitions, shop: Path) -> None:
    def result(unique_id: str, status: str, **more: Any) -> dict[str, Any]:
        return {"unique_id": unique_id, "status": status, "execution_time": 1.5, "message": "OK", **more}

    manifest = json.loads((shop / "target/manifest.json").read_text())
    tests = {each.split(".")[2]: each for each in manifest["nodes"] if each.startswith("test.")}
    results = {
        "metadata": {"invocation_id": "abc"},
        "results": [
            result("model.shop.per_item", "success"),
            result("model.shop.clicked", "success"),
            result("model.shop.gone", "success"),
            result(tests["not_null_clicked_item_id"], "fail", failures=3),
            result(tests["source_unique_site_items_id"], "pass", failures=0),
            result(tests["source_not_null_site_clicks_item_id"], "fail", failures=1),
        ],
    }
    (shop / "target/run_results.json").write_text(json.dumps(results))
    sensor = defs.resolve_sensor_def("penstock_dbt")
    told = sensor.evaluate_tick(build_sensor_context())
    assert [each.asset_key for each in told.asset_events] == [
        AssetKey("per_item"), AssetKey("clicked"), AssetKey(["site", "items"]), AssetKey(["site", "clicks"]),
    ]  # fmt: skip
    assert [each.passed for each in told.asset_events[1:]] == [False, True, False]
    check = told.asset_events[1]
    assert (check.asset_check_key, check.passed) == (
        AssetCheckKey(AssetKey("clicked"), "not_null_clicked_item_id"),
        False,
    )
    again = sensor.evaluate_tick(build_sensor_context(cursor=told.cursor))
    assert again.asset_events == []


def test_dbt_that_runs_all_the_time_is_told_within_its_budget(shop: Path) -> None:
    clock = [1_000_000.0]
    project = Project.find(shop)
    sensor = build_dbt_sensor(project, PenstockTranslator(), {}, lambda: clock[0])
    told, cursor = 0, None
    for run in range(int(86_400 / 60)):
        clock[0] += 60
        result = {"unique_id": "model.shop.per_item", "status": "success", "execution_time": 1.0, "message": "OK"}
        (shop / "target/run_results.json").write_text(
            json.dumps({"metadata": {"invocation_id": str(run)}, "results": [result]})
        )
        found = sensor.evaluate_tick(build_sensor_context(cursor=cursor))
        cursor = found.cursor or cursor
        told += len(found.asset_events)
    assert 90 <= told <= RESULTS.per_day()


COMPONENT = "type: penstock.dagster.PenstockComponent\nattributes:\n  project_dir: ../../../shop\n  max_lag: 60\n"


@pytest.fixture
def components(shop: Path, tmp_path: Path) -> Path:
    """A Dagster project whose one component is a file of YAML, which names the project as seen from its folder."""
    shutil.copytree(shop, tmp_path / "shop")
    _write(tmp_path, {"location/defs/streams/defs.yaml": COMPONENT})
    return tmp_path / "location"


def test_the_same_is_there_as_a_component_in_yaml(components: Path) -> None:
    from dagster.components import load_from_defs_folder

    (components / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "location"\n'
    )
    (components / "__init__.py").write_text("")
    (components / "defs/__init__.py").write_text("")
    sys.path.insert(0, str(components.parent))
    try:
        defs = load_from_defs_folder(path_within_project=components)
    finally:
        sys.path.remove(str(components.parent))
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert {"clicked", "per_item", "site/clicks", "penstock/engine"} <= keys


def test_a_model_that_follows_runs_when_the_stream_tells_of_new_rows(defs: Definitions) -> None:
    from dagster import AssetMaterialization, evaluate_automation_conditions

    with DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(AssetMaterialization(AssetKey("clicked")))
        instance.report_runless_asset_event(AssetMaterialization(AssetKey("per_item")))
        first = evaluate_automation_conditions(defs=defs, instance=instance)
        quiet = evaluate_automation_conditions(defs=defs, instance=instance, cursor=first.cursor)
        assert quiet.total_requested == 0
        instance.report_runless_asset_event(AssetMaterialization(AssetKey("clicked"), metadata={"new_rows": 5}))
        told = evaluate_automation_conditions(defs=defs, instance=instance, cursor=quiet.cursor)
        assert told.get_num_requested(AssetKey("per_item")) == 1
