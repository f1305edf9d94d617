"""`penstock explain`: how a table is kept, and why so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_files import Project
from typer.testing import CliRunner

from penstock.cli import explain_model
from penstock.cli.explain_model import explained
from penstock.cli.main import app
from penstock.compiler import compile_project
from penstock.paths import ProjectPaths
from penstock.store import Store

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "fixtures" / "manifest.json").read_text())
SPECS = {spec.name: spec for spec in compile_project(MANIFEST, project_dir=HERE / "fixtures" / "shop")}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    monkeypatch.setattr(explain_model, "read_manifest", lambda _: MANIFEST)
    return tmp_path


def explain(project: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words, "--project-dir", str(project)])
    return result.exit_code, " ".join(result.output.split())


def test_a_full_refresh_names_the_operator_its_line_and_what_it_costs(project: Path) -> None:
    code, told = explain(project, "top_items")
    assert code == 0
    assert "full (refresh_mode: auto)" in told
    assert "ORDER BY cannot be kept up to date by a stream" in told
    assert "(models/top_items.sql:6)" in told
    assert "when an input changed, at most once in 5" in told
    assert "shop.clicks: topic 'clicks', all that it holds" in told
    assert "shop.views_per_minute: as it stands" in told
    assert "warning every refresh reads topic 'clicks'" in told


def test_an_incremental_table_names_its_key_its_state_and_how_inputs_are_read(project: Path) -> None:
    _, told = explain(project, "shop.regulars")
    assert "incremental (refresh_mode: auto)" in told
    assert "replaced by user_id; one that no longer passes the filter is deleted" in told
    assert "a row for each key" in told
    assert "shop.views_per_minute: its changes" in explain(project, "busy_minutes")[1]


def test_whether_a_table_shares_its_reading_is_told_and_why_not(project: Path) -> None:
    shared = "reading shared with other tables that read the topic in the same way"
    assert shared in explain(project, "clicks_clean")[1]
    assert "reading alone: it keeps state." in explain(project, "clicks_by_category")[1]
    assert "reading alone: it is computed anew" in explain(project, "top_items")[1]


def test_when_a_table_is_written_is_what_its_inputs_allow() -> None:
    shop = Project("shop")
    shop.source("clicks", "clicks", {"k": "string"})
    shop.model("rows", "select k from {clicks}")
    kept = {
        "topic": "select k from {clicks}",
        "table": "select k from {rows}",
        "both": "select k from {clicks} union all select k from {rows}",
        "full": "select k from {clicks} order by k",
    }
    for name, sql in kept.items():
        shop.model(name, "-- {{{{ config(buffer_limit=100) }}}}\n" + sql, buffer_limit=100)
    shop.model("each", "select k from {rows}")
    by_key = {"buffer_limit": 50, "time_window": "1 minute", "unique_key": "k"}
    for name in ("table", "both"):
        shop.model(f"{name}_by_key", "-- {{{{ config(buffer_limit=50) }}}}\n" + kept[name], **by_key)
    found = {name: explained(spec) for name, spec in shop.specs().items()}
    assert {name: found[name]["when"] for name in found if name != "full"} == {
        "topic": "when 100 messages wait, or after 1 s",
        "table": "every 1 s",
        "both": "every 1 s; of a topic when 100 messages wait, or after 1 s",
        "each": "every 1 s",
        "rows": "at once",
        # In order, a file at each look.
        "table_by_key": "every 200 ms",
        "both_by_key": "every 200 ms; of a topic when 50 messages wait, or after 1 min",
    }
    warned = {name: [each for each in found[name]["warnings"] if "buffer_limit" in each] for name in found}
    counts, cure = "'buffer_limit' counts messages, and no topic is read here.", "Cure: use 'time_window'."
    assert warned == {
        "topic": [],
        "table": [f"models/table.sql:1: {counts} {cure}"],
        "both": [],
        "full": [f"models/full.sql:1: 'buffer_limit' has no effect on a table that is refreshed in full. {cure}"],
        "table_by_key": [
            f"models/table_by_key.sql:1: {counts} Cure: leave it out; rows by key are taken in order, as they come."
        ],
        "both_by_key": [],
        **{name: [] for name in ("each", "rows")},
    }


def test_json_has_the_same_facts(project: Path) -> None:
    result = CliRunner().invoke(app, ["explain", "top_items", "-o", "json", "--project-dir", str(project)])
    found = json.loads(result.stdout)
    assert (found["refresh"], found["keys"], len(found["warnings"])) == ("full", [], 1)


def test_what_spark_said_at_the_deployment_of_the_same_query_counts(project: Path) -> None:
    spec = SPECS["shop.regulars"]
    full = spec.as_full("Spark refuses it as a stream: no.")
    store = Store.open(ProjectPaths(project).store)
    store.deploy(spec.name, full.to_json(), full.hash, verdict="NEW", new_checkpoint=True)
    store.close()
    assert "full (refresh_mode: auto) why Spark refuses it as a stream: no." in explain(project, "regulars")[1]
    other = spec.model_copy(update={"sql": spec.sql.replace("sum(price)", "max(price)"), "follow": None})
    assert explained(other, full)["refresh"] == "incremental"


def test_a_model_that_is_not_there_is_an_error_with_the_nearest_one(project: Path) -> None:
    code, told = explain(project, "top_itms")
    assert code == 2
    assert "Did you mean 'top_items'?" in told
