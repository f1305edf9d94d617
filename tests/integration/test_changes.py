"""Changing a running project with dbt: the plan says what happens, `dbt run` does that, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm

from penstock.kafka.admin import client_config
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(900)

FILES = {
    "dbt_project.yml": """\
name: changes
profile: changes
model-paths: [{schema}/models]
macro-paths: [{schema}/macros]
flags: {{send_anonymous_usage_stats: false}}
""",
    "profiles.yml": """\
changes:
  target: dev
  outputs: {{dev: {{type: penstock, schema: {schema}, kafka: {{embedded: true}}}}}}
""",
    "{schema}/models/source.yml": """\
sources:
  - name: shop
    tables:
      - name: clicks
        config: {{meta: {{stream: {{type: kafka, topic: {topic}, value: {{format: json}}}}}}}}
        columns:
          - {{name: item_id, data_type: string}}
          - {{name: price, data_type: double}}
""",
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A dbt project in the directory of the run's engine."""

    root: Path
    schema: str

    def model(self, name: str, sql: str | None, **config: object) -> None:
        file = self.root / self.schema / "models" / f"{name}.sql"
        if sql is None:
            file.unlink()
            return
        settings = "".join(f", {key}={value!r}" for key, value in config.items())
        file.write_text(f"{{{{ config(materialized='dynamic_table'{settings}) }}}}\n{sql}\n")

    def penstock(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(
            [warm("penstock"), *args],
            cwd=self.root, env={k: v for k, v in os.environ.items() if not k.startswith("DBT_")},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def plan(self, *args: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self.penstock("plan", "--output", "json", *args))
        assert found["errors"] == []
        return {each["stream"].partition(".")[2]: each for each in found["streams"]}

    def run(self, *args: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self.penstock("run", "--output", "json", *args))
        return {each["stream"].partition(".")[2]: each for each in found["streams"]}


@pytest.fixture
def clicks(topic: MakeTopic, produce: Produce) -> str:
    name = topic(name="clicks")
    produce(name, [{"item_id": "a", "price": 1.5}, {"item_id": "b", "price": 2}, {"item_id": "a", "price": 1.5}])
    return name


@pytest.fixture
def project(platform: Platform, schema: str, clicks: str) -> Project:
    root = platform.paths.project
    for name, text in FILES.items():
        file = root / name.format(schema=schema)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(schema=schema, topic=clicks))
    return Project(root, schema)


CLEAN = "select item_id, price from {{ source('shop', 'clicks') }}"
TOTALS = "select item_id, count(*) as n from {{ source('shop', 'clicks') }} group by item_id"


def verdicts(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: each["verdict"] for name, each in found.items()}


def test_the_plan_says_what_a_run_does_and_a_run_does_what_the_plan_says(
    project: Project, platform: Platform, clicks: str, produce: Produce
) -> None:
    project.model("clean", CLEAN)
    project.model("totals", TOTALS)
    project.model("gone", CLEAN)

    def rows(table: str) -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select * from {project.schema}.{table}"))

    # Nothing is deployed: all is new. Deployed, all is as it should be.
    new = {"clean": "NEW", "totals": "NEW", "gone": "NEW"}
    assert verdicts(project.plan()) == verdicts(project.run()) == new
    platform.until(lambda: rows("totals") == [("a", 2), ("b", 1)] and len(rows("clean")) == 3, "the first rows", 90)
    assert set(verdicts(project.plan()).values()) == {"NO-OP"}

    # A setting, a changed filter, a changed aggregate, a deleted model: four verdicts, each with its reason.
    run_ids = {name: platform.store.actual(f"{project.schema}.{name}").run_id for name in ("clean", "totals")}
    project.model("clean", CLEAN, small_batch_rows=7)
    project.model("totals", TOTALS.replace("count(*) as n", "count(*) + 100 as n"))
    project.model("gone", None)
    planned = project.plan()
    assert verdicts(planned) == {"clean": "HOT", "totals": "REBUILD", "gone": "ORPHAN"}
    assert planned["totals"]["rebuild"]["messages"] == 3
    assert planned["totals"]["rebuild"]["inputs"][0]["covered"] is True
    assert "--full-refresh" in planned["totals"]["next_step"]
    markdown = project.penstock("plan", "--output", "markdown", "--select", "totals")
    assert "| **REBUILD** | the SQL of a stateful query changed" in markdown
    assert "ORPHAN" not in markdown, "with a selection, what is not selected is not spoken of"

    # Without a confirmation the rebuild is an error that says what it costs, and the stream goes on.
    refused = project.penstock("run", code=1)
    assert "PEN-3005" in refused
    assert "reads 3 messages of shop.clicks from earliest" in refused
    assert rows("totals") == [("a", 2), ("b", 1)]
    now = {name: platform.store.actual(f"{project.schema}.{name}").run_id for name in ("clean", "totals")}
    assert now == run_ids, "neither stream was restarted: one change was refused, the other needs none"

    # `continue` goes on with the deployed version, and says so.
    project.model("totals", TOTALS.replace("count(*) as n", "count(*) + 100 as n"), on_configuration_change="continue")
    intended = project.plan()
    assert "the deployed version goes on" in intended["totals"]["next_step"]
    kept = project.run("--prune")
    assert verdicts(intended) == verdicts(kept) == {"clean": "NO-OP", "totals": "REFUSED", "gone": "ORPHAN"}
    assert "goes on: on_configuration_change is 'continue'" in " ".join(kept["totals"]["reasons"])

    # --prune stopped the orphan and kept its rows.
    platform.state(f"{project.schema}.gone", StreamState.STOPPED)
    assert len(rows("gone")) == 3

    # Messages that were read and that retention removes cannot be read again: refused, unless it is confirmed.
    _delete_before(platform, clicks, 2)
    project.model("totals", TOTALS.replace("count(*) as n", "count(*) + 100 as n"))
    lossy = project.plan("--select", "totals")["totals"]
    assert (lossy["verdict"], lossy["rebuild"]["lost"], lossy["rebuild"]["messages"]) == ("REFUSED", 2, 1)
    project.model("totals", TOTALS.replace("count(*) as n", "count(*) + 100 as n"), on_configuration_change="apply")
    assert project.plan("--select", "totals")["totals"]["verdict"] == "REBUILD"
    assert verdicts(project.run("--select", "totals")) == {"totals": "REBUILD"}
    platform.until(lambda: rows("totals") == [("a", 101)], "the rows of what is left", 90, lambda: rows("totals"))


def test_a_model_of_another_name_leaves_an_orphan_that_is_stopped_then_dropped(
    project: Project, platform: Platform, clicks: str, produce: Produce
) -> None:
    # Given: two streams whose models get other names: one by its alias, one by its file.
    stream = {name: f"{project.schema}.{name}" for name in ("clean", "sold", "totals", "sums")}

    def rows(name: str) -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select * from {stream[name]}"))

    def checkpoint(name: str) -> Path:
        return platform.paths.checkpoint(stream[name], platform.store.desired(stream[name]).checkpoint_id)

    project.model("clean", CLEAN)
    project.model("totals", TOTALS)
    project.run()
    first = {"clean": [("a", 1.5), ("a", 1.5), ("b", 2.0)], "totals": [("a", 2), ("b", 1)]}
    platform.until(lambda: all(rows(name) == want for name, want in first.items()), "the first rows", 90)
    project.model("clean", CLEAN, alias="sold")
    project.model("totals", None)
    project.model("sums", TOTALS)

    # Then the plan lists them under their old names, with what to do.
    planned = project.plan()
    assert {name: each["verdict"] for name, each in planned.items()} == {
        "sold": "NEW", "sums": "NEW", "clean": "ORPHAN", "totals": "ORPHAN",
    }  # fmt: skip
    assert planned["clean"]["reasons"] == [f"its model writes {stream['sold']} now"]
    assert planned["totals"]["reasons"] == ["its model is no longer a dynamic table of the project"]
    assert "penstock run --prune" in planned["clean"]["next_step"]
    assert "penstock drop" in planned["clean"]["next_step"]

    # A run alone leaves them running; with --prune they are stopped, and keep their rows.
    project.run()
    for name in first:
        assert platform.store.actual(stream[name]).state is StreamState.RUNNING
    project.run("--prune")
    for name in first:
        platform.state(stream[name], StreamState.STOPPED)
    produce(clicks, [{"item_id": "b", "price": 2}])
    platform.until(lambda: rows("sums") == [("a", 2), ("b", 2)] and len(rows("sold")) == 4, "the new tables' rows", 90)
    for name, want in first.items():
        assert rows(name) == want

    # Dropped, table and checkpoint are gone, and the streams of the new names go on.
    for name in first:
        kept, table = checkpoint(name), platform.paths.warehouse / f"{project.schema}.db" / name
        assert kept.is_dir()
        assert table.is_dir()
        project.penstock("drop", stream[name], "--yes")
        assert not kept.parent.exists()
        assert not table.exists()
        assert platform.sql(f"show tables in {project.schema} like '{name}'") == []
        assert platform.store.find_desired(stream[name]) is None
    assert {name: each["verdict"] for name, each in project.plan().items()} == {"sold": "NO-OP", "sums": "NO-OP"}
    produce(clicks, [{"item_id": "b", "price": 2}])
    platform.until(lambda: rows("sums") == [("a", 2), ("b", 3)] and len(rows("sold")) == 5, "more rows", 90)


def test_a_chain_is_rebuilt_together_or_not_at_all(
    project: Project, platform: Platform, clicks: str, produce: Produce
) -> None:
    # Given: a table, and a count of its rows.
    cheap = f"{CLEAN} where price < 2"
    counts = "select item_id, count(*) as n from {{ ref('kept') }} group by item_id"
    project.model("kept", cheap)
    project.model("counts", counts)

    def rows() -> tuple[list[tuple[Any, ...]], ...]:
        return tuple(sorted(platform.sql(f"select * from {project.schema}.{table}")) for table in ("kept", "counts"))

    def become(*want: list[tuple[Any, ...]]) -> None:
        platform.until(lambda: rows() == want, f"the rows {want}", 120, rows)

    assert verdicts(project.run()) == {"kept": "NEW", "counts": "NEW"}
    first = [("a", 1.5), ("a", 1.5)], [("a", 2)]
    become(*first)

    # When: the table is to have another column, and its reader is not part of the run. Then: it is refused.
    project.model("kept", f"{CLEAN.replace('price', 'price, 1 as one')} where price < 10")
    alone = project.plan("--select", "kept", "--full-refresh")["kept"]
    assert (alone["verdict"], alone["confirmed"]) == ("REFUSED", True)
    assert alone["next_step"] == "rebuild its readers in the same run: --select kept+ --full-refresh"
    assert "counts would be left behind" in project.penstock("plan", "--output", "markdown", "--select", "kept")
    refused = project.penstock("run", "--select", "kept", "--full-refresh", code=1)
    assert "PEN-3008" in refused
    assert f"'{project.schema}.counts' would not be" in refused
    assert rows() == first

    # Nor does a reader in the same run help that nobody has confirmed.
    project.model(
        "kept", f"{CLEAN.replace('price', 'price, 1 as one')} where price < 10", on_configuration_change="apply"
    )
    assert verdicts(project.plan()) == {"kept": "REFUSED", "counts": "REBUILD"}
    assert "PEN-3008" in project.penstock("run", code=1)
    assert rows() == first

    # Then: with its reader it is rebuilt, and both have what the new definition gives, and what comes after.
    both = {"kept": "REBUILD", "counts": "REBUILD"}
    assert verdicts(project.plan("--select", "kept+", "--full-refresh")) == both
    assert verdicts(project.run("--select", "kept+", "--full-refresh")) == both
    become([("a", 1.5, 1), ("a", 1.5, 1), ("b", 2.0, 1)], [("a", 2), ("b", 1)])
    produce(clicks, [{"item_id": "b", "price": 3}])
    become([("a", 1.5, 1), ("a", 1.5, 1), ("b", 2.0, 1), ("b", 3.0, 1)], [("a", 2), ("b", 2)])
    assert set(verdicts(project.plan()).values()) == {"NO-OP"}


def _delete_before(platform: Platform, topic: str, offset: int) -> None:
    """What retention does, at once."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(platform.bootstrap))
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(timeout=30)
