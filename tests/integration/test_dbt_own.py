"""What dbt itself gives for batch, on streams: unit tests, data tests, build, retry, docs, state, defer and clone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dbt.adapters.factory import reset_adapters
from dbt.cli.main import dbtRunner

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]

PROJECT = """\
name: own
profile: own
model-paths: [{schema}/models]
seed-paths: [{schema}/seeds]
macro-paths: [{schema}/macros]
test-paths: [{schema}/tests]
flags: {{send_anonymous_usage_stats: false}}
"""
PROFILES = """\
own:
  target: prod
  outputs:
    prod: {{type: penstock, schema: {schema}, threads: 2, kafka: {{embedded: true}}}}
    dev: {{type: penstock, schema: {schema}_dev, threads: 2, kafka: {{embedded: true}}}}
    copy: {{type: penstock, schema: {schema}_copy, threads: 2, kafka: {{embedded: true}}}}
"""


@dataclass(frozen=True)
class Ran:
    """A dbt command that has ended."""

    ok: bool
    statuses: dict[str, str]  # in the order of the run
    messages: dict[str, str]
    problem: str


@dataclass(frozen=True)
class DbtProject:
    """A dbt project in the directory of the run's engine, with schemas of its own."""

    root: Path
    schema: str

    def write(self, path: str, text: str) -> None:
        file = self.root / self.schema / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def dbt(self, *args: str) -> Ran:
        where = ("--project-dir", str(self.root), "--profiles-dir", str(self.root), "--target-path", str(self.target))
        ended = dbtRunner().invoke([*args, *where, "--log-path", str(self.target / "logs"), "--quiet"])
        reset_adapters()
        results = list(getattr(ended.result, "results", None) or ())
        return Ran(
            ended.success,
            {each.node.name: str(each.status) for each in results},
            {each.node.name: str(each.message) for each in results},
            f"{ended.exception} {[(each.node.name, each.message) for each in results]}",
        )

    @property
    def target(self) -> Path:
        return self.root / self.schema / "target"

    def artefact(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.target / name).read_text()))


@pytest.fixture
def project(platform: Platform, schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DbtProject]:
    """An empty dbt project on the engine of the run."""
    for name in [name for name in os.environ if name.startswith("DBT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(platform.paths.project)
    root = platform.paths.project
    (root / "dbt_project.yml").write_text(PROJECT.format(schema=schema))
    (root / "profiles.yml").write_text(PROFILES.format(schema=schema))
    yield DbtProject(root, schema)
    for want in platform.store.all_desired():
        if want.stream.startswith(f"{schema}_dev."):
            from penstock.control.streams import drop_stream

            drop_stream(platform.store, want.stream)


# -- unit tests -------------------------------------------------------------------------------------------------------
NOWHERE = """\
sources:
  - name: shop
    tables:
      - name: clicks
        config: {meta: {stream: {topic: nobody-made-this, bootstrap.servers: "127.0.0.1:1", value: {format: json}}}}
        columns:
          - {name: user_id, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: item_id, data_type: string}
          - {name: price, data_type: "decimal(9,2)"}
          - {name: clicked_at, data_type: timestamp}
          - {name: day, data_type: date}
          - {name: page, data_type: "struct<url: string, tags: array<string>>"}
"""
CLEAN = """\
{{ config(materialized='dynamic_table') }}
select item_id, price, clicked_at, day, page.url as url, size(page.tags) as tags
from {{ source('shop', 'clicks') }}
where item_id is not null
"""
PER_MINUTE = """\
{{ config(materialized='dynamic_table') }}
select i.name, c.window.start as minute_start, c.clicks, c.total
from (
    select item_id, window(clicked_at, '1 minute') as window, count(*) as clicks, sum(price) as total
    from {{ ref('clean') }} group by item_id, window(clicked_at, '1 minute')
) as c
join {{ ref('items') }} as i on i.item_id = c.item_id
"""
UNIT_TESTS = """\
unit_tests:
  - name: clicks_without_an_item_are_left_out
    model: clean
    given:
      - input: source('shop', 'clicks')
        rows:
          - {item_id: a, price: 1.5, clicked_at: 2026-01-01 10:00:01, day: 2026-01-31, page: {url: /a, tags: [x, "'"]}}
          - {item_id: null, price: 9}
    expect:
      rows:
        - {item_id: a, price: 1.50, clicked_at: 2026-01-01 10:00:01, day: 2026-01-31, url: /a, tags: 2}
  - name: clicks_are_counted_by_the_minute
    model: per_minute
    given:
      - input: ref('clean')
        rows:
          - {item_id: a, price: 1.5, clicked_at: "2026-01-01 10:00:01"}
          - {item_id: a, price: 2, clicked_at: "2026-01-01 10:00:59"}
          - {item_id: a, price: 4, clicked_at: "2026-01-01 10:01:00"}
      - input: ref('items')
        format: csv
        rows: |
          item_id,name
          a,Anvil
    expect:
      rows:
        - {name: Anvil, minute_start: "2026-01-01 10:00:00", clicks: 2, total: 3.5}
        - {name: Anvil, minute_start: "2026-01-01 10:01:00", clicks: 1, total: 4}
  - name: nothing_comes_of_nothing
    model: per_minute
    given:
      - {input: ref('clean'), rows: []}
      - {input: ref('items'), rows: []}
    expect: {rows: []}
  - name: this_expectation_is_wrong
    model: per_minute
    given:
      - input: ref('clean')
        rows: [{item_id: a, price: 1.5, clicked_at: "2026-01-01 10:00:01"}]
      - input: ref('items')
        format: sql
        rows: select 'a' as item_id, 'Anvil' as name
    expect:
      rows: [{name: Anvil, clicks: 7}]
  - name: a_column_that_the_source_does_not_have
    model: clean
    given: [{input: "source('shop', 'clicks')", rows: [{itm_id: a}]}]
    expect: {rows: []}
  - name: an_input_whose_query_is_wrong
    model: of_broken
    given: [{input: ref('broken'), rows: [{item_id: a}]}]
    expect: {rows: []}
"""


def test_unit_tests_run_without_a_broker_a_topic_a_table_or_a_stream(project: DbtProject, platform: Platform) -> None:
    project.write("models/source.yml", NOWHERE)
    project.write("models/clean.sql", CLEAN)
    project.write("models/per_minute.sql", PER_MINUTE)
    project.write(
        "models/broken.sql",
        "{{ config(materialized='dynamic_table') }}\nselect itm_id as item_id from {{ source('shop', 'clicks') }}",
    )
    project.write(
        "models/of_broken.sql", "{{ config(materialized='dynamic_table') }}\nselect item_id from {{ ref('broken') }}"
    )
    project.write("models/unit_tests.yml", UNIT_TESTS)
    project.write("seeds/items.csv", "item_id,name\na,Anvil\nb,Bell\n")
    ran = project.dbt("test", "--select", "test_type:unit")
    assert ran.statuses == {
        "clicks_without_an_item_are_left_out": "pass",
        "clicks_are_counted_by_the_minute": "pass",
        "nothing_comes_of_nothing": "pass",
        "this_expectation_is_wrong": "fail",
        "a_column_that_the_source_does_not_have": "error",
        "an_input_whose_query_is_wrong": "error",
    }, ran.problem
    assert "7" in ran.messages["this_expectation_is_wrong"], "the difference is shown"
    assert "Invalid column name: 'itm_id'" in ran.messages["a_column_that_the_source_does_not_have"]
    broken = ran.messages["an_input_whose_query_is_wrong"]
    assert "PEN-1350" in broken
    assert "`itm_id` cannot be resolved" in broken
    assert not [want for want in platform.store.all_desired() if want.stream.startswith(project.schema)]


# -- build, data tests, retry, docs, defer, clone ---------------------------------------------------------------------
SHOP = """\
sources:
  - name: "{schema}"
    tables:
      - name: clicks
        config:
          meta: {{stream: {{topic: {clicks}, value: {{format: json}}}}}}
          freshness: {{warn_after: {{count: 1, period: hour}}}}
        columns:
          - {{name: user_id, data_type: string, config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: item_id, data_type: string}}
          - {{name: price, data_type: double}}
      - name: users
        config: {{meta: {{stream: {{kind: table, topic: {users}, primary_key: user_id}}}}}}
        columns:
          - {{name: user_id, data_type: string, config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: name, data_type: string}}
"""
SCHEMA = """\
models:
  - name: clicks_clean
    columns:
      - {name: item_id, data_tests: [not_null]}
  - name: per_item
    columns: [{name: item_id, data_tests: [unique]}]
exposures:
  - name: dashboard
    type: dashboard
    owner: {email: shop@example.com}
    depends_on: [ref('report')]
"""
PRICES = "{{ config(store_failures=true) }} select item_id, price from {{ ref('clicks_clean') }} where price > 5"
SELECTS = {
    "clicks_clean": "{{ config(materialized='dynamic_table') }}\n"
    "select c.item_id, c.price, u.name from {{ source(target.schema, 'clicks') }} as c\n"
    "left join {{ source(target.schema, 'users') }} as u on u.user_id = c.user_id",
    "per_item": "{{ config(materialized='dynamic_table') }}\n"
    "select item_id, count(*) as clicks from {{ ref('clicks_clean') }} group by item_id",
    "report": "select i.name, p.clicks from {{ ref('per_item') }} as p join {{ ref('items') }} as i using (item_id)",
}


@pytest.fixture
def shop(project: DbtProject, topic: MakeTopic, produce: Produce) -> DbtProject:
    """A topic, a source table, two dynamic tables, a seed, a view, tests and an exposure."""
    clicks, users = topic(name="clicks"), topic(name="users")
    produce(users, [("u1", {"name": "Ann"})])
    produce(clicks, [("u1", {"item_id": "a", "price": 1.5}), ("u1", {"item_id": "b", "price": 9.0})])
    project.write("models/source.yml", SHOP.format(schema=project.schema, clicks=clicks, users=users))
    project.write("models/schema.yml", SCHEMA)
    project.write("tests/prices_are_known.sql", PRICES)
    for name, sql in SELECTS.items():
        # The sources are in the schema of production, for every target.
        project.write(f"models/{name}.sql", sql.replace("target.schema", f"'{project.schema}'"))
    project.write("seeds/items.csv", "item_id,name\na,Anvil\nb,Bell\n")
    return project


def test_build_tests_retry_docs_defer_and_clone(shop: DbtProject, platform: Platform, tmp_path: Path) -> None:
    schema = shop.schema
    # Built in the order of the graph; data tests run on the live tables.
    built = shop.dbt("build", "--exclude", "prices_are_known")
    assert built.ok, built.problem
    order = list(built.statuses)
    assert order.index("clicks_clean") < order.index("not_null_clicks_clean_item_id") < order.index("per_item")
    assert order.index("per_item") < order.index("unique_per_item_item_id") < order.index("report")
    rows = f"select name, clicks from {schema}.report order by name"
    platform.until(lambda: platform.sql(rows) == [("Anvil", 1), ("Bell", 1)], "the report", 60)

    # A test that fails keeps the rows that break it, and ends what comes after it; retry goes on there.
    failed = shop.dbt("build", "--select", "clicks_clean+")
    assert failed.statuses["prices_are_known"] == "fail", failed.problem
    assert failed.statuses["per_item"] == failed.statuses["report"] == "skipped"
    stored = [each for each in shop.artefact("run_results.json")["results"] if "prices_are_known" in each["unique_id"]]
    assert platform.sql(f"select * from {stored[0]['relation_name']}") == [("b", 9.0)]
    shop.write("tests/prices_are_known.sql", PRICES.replace("> 5", "> 10"))
    again = shop.dbt("retry")
    assert again.ok, again.problem
    assert set(again.statuses) == {"prices_are_known", "per_item", "unique_per_item_item_id", "report", "dashboard"}
    assert "NO-OP" in again.messages["per_item"]
    chosen = shop.dbt("test", "--select", "per_item")
    assert list(chosen.statuses.items()) == [("unique_per_item_item_id", "pass")]

    # The catalog has the streams, with their keys and how their rows change.
    assert shop.dbt("docs", "generate").ok
    catalog = shop.artefact("catalog.json")
    facts = {
        name: (entry["metadata"]["type"], {key: stat["value"] for key, stat in entry["stats"].items()})
        for name, entry in {**catalog["nodes"], **catalog["sources"]}.items()
    }
    per_item = facts["model.own.per_item"]
    assert per_item[0] == "dynamic table"
    assert per_item[1].items() >= {"rows": "replaced by their key", "key": "item_id", "refresh": "incremental"}.items()
    assert facts["model.own.clicks_clean"][1]["rows"] == "appended"
    assert facts["model.own.clicks_clean"][1]["reads"] == f"{schema}.clicks, {schema}.users"
    assert facts[f"source.own.{schema}.clicks"][0] == "source stream"
    assert facts[f"source.own.{schema}.users"][0] == "source table"
    assert facts[f"source.own.{schema}.users"][1]["key"] == "user_id"
    assert facts["model.own.report"][0] == "view"
    assert shop.artefact("manifest.json")["exposures"]["exposure.own.dashboard"]["depends_on"]["nodes"] == [
        "model.own.report"
    ]
    fresh = shop.dbt("source", "freshness")
    assert fresh.statuses == {"clicks": "pass"}, fresh.problem

    # Another target reads what production has deployed.
    state = tmp_path / "state"
    shutil.copytree(shop.target, state)
    deferred = shop.dbt("run", "--select", "per_item", "--target", "dev", "--defer", "--state", str(state))
    assert deferred.ok, deferred.problem
    spec = json.loads(platform.store.desired(f"{schema}_dev.per_item").spec_json)
    assert [each["relation"] for each in spec["inputs"]] == [f"{schema}.clicks_clean"]
    mine = f"select item_id, clicks from {schema}_dev.per_item order by item_id"
    platform.until(lambda: platform.sql(mine) == [("a", 1), ("b", 1)], "rows of the deferred", 60)

    # A clone is a plain table with the rows of now; a stream's own table is not replaced by one.
    cloned = shop.dbt("clone", "--target", "copy", "--state", str(state))
    assert cloned.ok, cloned.problem
    copied = f"select item_id, clicks from {schema}_copy.per_item order by item_id"
    assert platform.sql(copied) == [("a", 1), ("b", 1)]
    assert platform.store.find_desired(f"{schema}_copy.per_item") is None
    assert platform.sql(f"select count(*) from {schema}_copy.report") == [(2,)]
    refused = shop.dbt("clone", "--select", "per_item", "--target", "dev", "--state", str(state), "--full-refresh")
    assert "PEN-1351" in refused.messages["per_item"], refused.problem
