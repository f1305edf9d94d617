"""dbt on a real engine and a real broker: what a dbt user expects of an adapter, and what a dynamic table adds."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm
from published_messages import read_topic

from dbt.adapters.penstock.errors import QueryError
from dbt.adapters.penstock.session import open_session
from penstock.compiler import StreamSpec, Verdict, compile_model, plan_change
from penstock.control.streams import restart_stream

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(900)

PROJECT = """\
name: adapter_test
profile: adapter_test
model-paths: [{schema}/models]
seed-paths: [{schema}/seeds]
snapshot-paths: [{schema}/snapshots]
macro-paths: [{schema}/macros]
test-paths: [{schema}/tests]
function-paths: [{schema}/functions]
flags: {{send_anonymous_usage_stats: false}}
models: {{+schema: {schema}}}
seeds: {{+schema: {schema}}}
snapshots: {{+schema: {schema}}}
data_tests: {{+schema: {schema}}}
functions: {{+schema: {schema}}}
"""
PROFILES = "adapter_test: {target: dev, outputs: {dev: {type: penstock, schema: default, kafka: {embedded: true}}}}\n"
SCHEMA_MACRO = (
    "{% macro generate_schema_name(custom_schema_name, node) %}{{ custom_schema_name or target.schema }}{% endmacro %}"
)
SOURCE = """\
sources:
  - name: shop
    tables:
      - name: clicks
        config: {{meta: {{stream: {{type: kafka, topic: {topic}, value: {{format: json}}}}}}}}
        columns:
          - {{name: item_id, data_type: string}}
          - {{name: price, data_type: double}}
      - name: nowhere
        config: {{meta: {{stream: {{type: kafka, topic: no-such-topic, value: {{format: json}}}}}}}}
        columns:
          - {{name: item_id, data_type: string}}
"""
CONTRACT = """\
models:
  - name: promised
    config: {contract: {enforced: true}}
    constraints: [{type: check, name: positive, expression: price > 0}]
    columns:
      - {name: item_id, data_type: string, constraints: [{type: not_null}]}
      - {name: price, data_type: double}
"""


@dataclass(frozen=True)
class Ran:
    """A dbt command that has ended."""

    code: int
    text: str
    results: dict[str, dict[str, Any]]  # by name of the node

    def response(self, name: str) -> dict[str, Any]:
        return dict(self.results[name]["adapter_response"])

    def message(self, name: str) -> str:
        return str(self.results[name]["message"])


@dataclass(frozen=True)
class DbtProject:
    """A dbt project in the directory of the run's engine, with a schema of its own."""

    root: Path
    schema: str

    def write(self, path: str, text: str) -> None:
        file = self.root / self.schema / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(self, *args: str, target: str = "target") -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DBT_")}
        return subprocess.Popen(
            [
                warm("dbt"),
                "--no-use-colors",
                *args,
                "--target-path",
                str(self.target(target)),
            ],
            cwd=self.root,
            env=environment | {"DO_NOT_TRACK": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def dbt(self, *args: str) -> Ran:
        return self.ended(self.start(*args))

    def ended(self, process: subprocess.Popen[str], target: str = "target") -> Ran:
        text, _ = process.communicate(timeout=600)
        results = self.target(target) / "run_results.json"
        found = json.loads(results.read_text())["results"] if results.exists() else []
        return Ran(process.returncode, text, {entry["unique_id"].split(".")[2]: entry for entry in found})

    def target(self, name: str = "target") -> Path:
        return self.root / self.schema / name


@pytest.fixture
def project(platform: Platform, schema: str) -> DbtProject:
    """An empty dbt project on the engine of the run."""
    root = platform.paths.project
    (root / "dbt_project.yml").write_text(PROJECT.format(schema=schema))
    (root / "profiles.yml").write_text(PROFILES)
    made = DbtProject(root, schema)
    made.write("macros/schema.sql", SCHEMA_MACRO)
    return made


@pytest.fixture
def clicks(project: DbtProject, topic: MakeTopic, produce: Produce) -> str:
    """A source with three clicks on two items."""
    name = topic(name="clicks")
    produce(name, [{"item_id": "a", "price": 1.5}, {"item_id": "b", "price": 2}, {"item_id": "a", "price": 1.5}])
    project.write("models/source.yml", SOURCE.format(topic=name))
    return name


def test_seeds_tables_views_incrementals_snapshots_and_tests_are_built_on_delta(
    project: DbtProject, platform: Platform
) -> None:
    project.write("seeds/items.csv", 'item_id,name,price\na1,"It\'s \\ a, ""thing""",10.50\na2,Two,\n')
    project.write(
        "models/priced.sql",
        "{{ config(materialized='table', persist_docs={'relation': true, 'columns': true}) }}\n"
        "select item_id, name, cast(name as int) as bad_cast from {{ ref('items') }}",
    )
    project.write("models/shown.sql", "select * from {{ ref('priced') }}")
    project.write(
        "models/counted.sql",
        "{{ config(materialized='incremental', unique_key='item_id') }}\n"
        "select item_id, {{ var('n', 1) }} as n from {{ ref('items') }}",
    )
    project.write(
        "snapshots/kept.sql",
        "{% snapshot kept %}{{ config(strategy='check', unique_key='item_id', check_cols=['n']) }}"
        "select * from {{ ref('counted') }}{% endsnapshot %}",
    )
    project.write(
        "models/schema.yml",
        'models:\n  - name: priced\n    description: "What it\'s for"\n    columns:\n'
        "      - {name: item_id, description: the key, data_tests: [unique, not_null]}\n",
    )
    for number in (1, 2):
        ran = project.dbt("build", "--vars", f"{{n: {number}}}")
        assert ran.code == 0, ran.text

    schema = project.schema
    assert platform.sql(f"select * from {schema}.items order by item_id") == [
        ("a1", 'It\'s \\ a, "thing"', 10.5),
        ("a2", "Two", None),
    ]
    assert platform.sql(f"select bad_cast from {schema}.shown where item_id = 'a2'") == [(None,)]
    assert sorted(platform.sql(f"select item_id, n from {schema}.counted")) == [("a1", 2), ("a2", 2)]
    assert platform.sql(f"select count(*), count(dbt_valid_to) from {schema}.kept") == [(4, 2)]
    tables = {row[1] for row in platform.sql(f"show tables in {schema}")}
    assert tables == {"items", "priced", "shown", "counted", "kept"}

    assert project.dbt("docs", "generate").code == 0
    catalog = json.loads((project.target() / "catalog.json").read_text())["nodes"]
    priced = catalog["model.adapter_test.priced"]
    assert (priced["metadata"]["type"], priced["metadata"]["comment"]) == ("table", "What it's for")
    assert priced["columns"]["item_id"] == {"name": "item_id", "index": 1, "type": "string", "comment": "the key"}
    assert catalog["model.adapter_test.shown"]["metadata"]["type"] == "view"


def test_a_failed_query_shows_the_sentence_of_spark_alone(project: DbtProject) -> None:
    project.write("models/broken.sql", "{{ config(materialized='table') }} select nope from (select 1 as a)")
    ran = project.dbt("run")
    assert ran.code == 1
    assert "UNRESOLVED_COLUMN" in ran.message("broken")
    assert "JVM stacktrace" not in ran.text
    assert "\tat " not in ran.text


def test_a_hook_that_only_selects_fails_when_it_fails(project: DbtProject) -> None:
    project.write(
        "models/hooked.sql",
        "{{ config(materialized='table', post_hook='select assert_true(a > 1) from {{ this }}') }} select 1 as a",
    )
    assert project.dbt("run").code == 1


def test_a_dynamic_table_is_deployed_once_and_made_anew_on_full_refresh(
    project: DbtProject, platform: Platform, clicks: str
) -> None:
    schema = project.schema
    project.write(
        "models/views.sql",
        "{{ config(materialized='dynamic_table', tags=['live'], persist_docs={'relation': true, 'columns': true},\n"
        "    grants={'select': ['somebody']},\n"
        "    pre_hook='create table if not exists default.{{ this.schema }}_hooks (w string) using delta',\n"
        "    post_hook=\"insert into default.{{ this.schema }}_hooks values ('post')\") }}\n"
        "select item_id, count(*) as views from {{ source('shop', 'clicks') }}\n"
        "where item_id <> '{{ var('without', 'none') }}' group by item_id",
    )
    project.write(
        "models/published.sql",
        "{{ config(materialized='dynamic_table', tags=['live'], persist_docs={'relation': true},\n"
        f"    publish={{'topic': '{clicks}-out', 'key': 'item_id', 'table': false}}) }}}}\n"
        "select item_id, price from {{ source('shop', 'clicks') }}",
    )
    project.write(
        "models/schema.yml",
        "models:\n  - name: published\n    description: In a topic alone\n"
        "  - name: views\n    description: Views of an item\n    columns:\n"
        '      - {name: views, description: "how often it\'s seen"}\n',
    )
    first = project.dbt("run", "--select", "tag:live")
    assert first.code == 0, first.text
    response = first.response("views")
    assert (response["stream"], response["generation"], response["verdict"]) == (f"{schema}.views", 1, "NEW")
    assert response["checkpoint"] == platform.store.desired(f"{schema}.views").checkpoint_id
    assert "NEW generation 1" in first.text
    said = " ".join(first.text.split()).replace("`", "")
    assert f"grants of {schema}.views are not applied: the catalog of the engine has no users." in said
    assert (project.target() / "penstock" / f"{schema}.views" / "job.py").exists()
    platform.until(
        lambda: sorted(platform.sql(f"select item_id, views from {schema}.views")) == [("a", 2), ("b", 1)], "rows"
    )
    described = {row[0]: row[1:] for row in platform.sql(f"describe extended {schema}.views")}
    assert described["views"] == ("bigint", "how often it's seen")
    assert described["Comment"][0] == "Views of an item"
    assert platform.sql(f"select w from default.{schema}_hooks") == [("post",)]
    assert first.message("published") == "NEW generation 1"

    def published() -> list[str]:
        return sorted(each.key.decode() for each in read_topic(platform.bootstrap, f"{clicks}-out"))

    platform.until(lambda: published() == ["a", "a", "b"], "messages", 60, published)
    assert not platform.sql(f"show tables in {schema} like 'published'")

    again = project.dbt("run")
    assert again.message("views") == again.message("published") == "NO-OP generation 1"
    assert again.response("views")["changed"] is False

    with_table = (project.root / schema / "models/published.sql").read_text().replace("'table': false", "'table': true")
    project.write("models/published.sql", with_table)
    anew = project.dbt("run", "--full-refresh", "--vars", "{without: b}")
    assert anew.code == 0, anew.text
    assert anew.message("views") == "REBUILD generation 2 beside the running one"
    assert anew.response("views")["checkpoint"] != response["checkpoint"]
    platform.until(lambda: platform.sql(f"select item_id, views from {schema}.views") == [("a", 2)], "rows")
    described = {row[0]: row[1:] for row in platform.sql(f"describe extended {schema}.views")}
    assert described["views"] == ("bigint", "how often it's seen"), "comments outlive a rebuild"
    assert described["Comment"][0] == "Views of an item"
    platform.until(lambda: platform.sql(f"select count(*) from {schema}.published") == [(3,)], "its table")


def test_a_function_of_the_project_is_called_by_streams_and_by_queries(
    project: DbtProject, platform: Platform, clicks: str
) -> None:
    project.write("functions/doubled.sql", "price * 2")
    project.write(
        "functions/functions.yml",
        "functions:\n  - name: doubled\n    arguments: [{name: price, data_type: double}]\n"
        "    returns: {data_type: double}\n",
    )
    project.write(
        "models/doubles.sql",
        "{{ config(materialized='dynamic_table') }}\n"
        "select item_id, sum({{ function('doubled') }}(price)) as total from {{ source('shop', 'clicks') }} group by 1",
    )
    built = project.dbt("build", "--select", "+doubles")
    assert built.code == 0, built.text
    (total,) = platform.sql(f"select sum({project.schema}.doubled(price)) from values (1.5D), (2.0D) as t(price)")[0]
    assert total == 7.0
    rows = f"select count(*), min(total) > 0 from {project.schema}.doubles"
    platform.until(lambda: platform.sql(rows) == [(2, True)], "the doubled totals", 60, lambda: platform.sql(rows))


PRICED = (
    "functions:\n"
    "  - {name: times, arguments: [{name: price, data_type: double}], returns: {data_type: double}}\n"
    "  - {name: priced, arguments: [{name: price, data_type: double}], returns: {data_type: double}}\n"
)


def test_a_stream_runs_with_the_functions_of_the_project_and_not_with_those_of_the_catalog(
    project: DbtProject, platform: Platform, clicks: str, produce: Produce
) -> None:
    schema, store = project.schema, platform.store
    project.write("functions/times.sql", "price * {{ var('times', 2) }}")
    project.write("functions/priced.sql", "{{ function('times') }}(price)")
    project.write("functions/functions.yml", PRICED)
    project.write(
        "models/inner.sql",
        "{{ config(materialized='ephemeral') }}\n"
        "select item_id, {{ function('priced') }}(price) as price from {{ source('shop', 'clicks') }}",
    )
    dynamic = "{{ config(materialized='dynamic_table') }}\n"
    project.write("models/rows.sql", f"{dynamic}select item_id, price from {{{{ ref('inner') }}}}")
    project.write(
        "models/sums.sql", f"{dynamic}select item_id, sum(price) as total from {{{{ ref('inner') }}}} group by 1"
    )
    totals, rows = f"select item_id, total from {schema}.sums order by 1", f"select price from {schema}.rows order by 1"

    # Models alone: nobody has built the functions.
    ran = project.dbt("run")
    assert ran.code == 0, ran.text
    platform.until(lambda: platform.sql(totals) == [("a", 6.0), ("b", 4.0)], "totals", 60, lambda: platform.sql(totals))
    platform.until(lambda: platform.sql(rows) == [(3.0,), (3.0,), (4.0,)], "rows")
    built = project.dbt("build")
    assert built.code == 0, built.text
    assert built.message("rows") == built.message("sums") == "NO-OP generation 1"
    assert platform.sql(f"select {schema}.priced(1.5D)") == [(3.0,)]

    # Offline the same is found, with what dbt compiles.
    for times, verdict in ((2, Verdict.NO_OP), (10, Verdict.REBUILD)):
        asked = project.dbt("compile", "--no-introspect", "--no-populate-cache", "--vars", f"{{times: {times}}}")
        assert asked.code == 0, asked.text
        manifest = json.loads((project.target() / "manifest.json").read_text())
        spec = compile_model(manifest, "model.adapter_test.sums", project_dir=project.root)
        assert plan_change(StreamSpec.from_json(store.desired(f"{schema}.sums").spec_json), spec).verdict is verdict

    # The text of both functions is as it was. The catalog has the new body when the stream with state is refused.
    changed = project.dbt("build", "--vars", "{times: 10}")
    platform.forget_sessions()  # a session knows the body that a function had when it called it first
    assert platform.sql(f"select {schema}.priced(1.5D)") == [(15.0,)]
    assert changed.message("rows") == "RESTART generation 2"
    assert f"PEN-3005 {schema}/models/sums.sql" in changed.text
    assert f"function {schema}.times changed" in " ".join(changed.text.split())
    run_id = store.actual(f"{schema}.sums").run_id
    for stream in ("rows", "sums"):
        restart_stream(store, f"{schema}.{stream}")
    platform.until(lambda: store.actual(f"{schema}.sums").run_id not in (None, run_id), "the restart")
    produce(clicks, [{"item_id": "a", "price": 1}])
    wanted = [("a", 8.0), ("b", 4.0)]
    platform.until(lambda: platform.sql(totals) == wanted, "no new body on old state", 60, lambda: platform.sql(totals))
    platform.until(lambda: platform.sql(rows) == [(3.0,), (3.0,), (4.0,), (10.0,)], "the new body")

    # The other way round: a run without the functions takes up what the project has, and the next build knows it.
    ran = project.dbt("run", "--vars", "{times: 3}", "--select", "rows")
    assert ran.message("rows") == "RESTART generation 3"
    built = project.dbt("build", "--vars", "{times: 3}", "--exclude", "sums")
    assert built.message("rows") == "NO-OP generation 3"
    produce(clicks, [{"item_id": "b", "price": 10}])
    platform.until(lambda: (30.0,) in platform.sql(rows), "the body of the run", 60, lambda: platform.sql(rows))

    project.write("functions/times.sql", "no_such_thing(price)")
    broken = project.dbt("run", "--select", "rows")
    assert "PEN-1312" in broken.text
    assert f"{schema}.times: " in " ".join(broken.text.split())
    assert store.desired(f"{schema}.rows").generation == 3


def test_empty_makes_the_table_and_starts_nothing(project: DbtProject, platform: Platform, clicks: str) -> None:
    schema = project.schema
    project.write(
        "models/clean.sql",
        "{{ config(materialized='dynamic_table') }} select item_id, price from {{ source('shop', 'clicks') }}",
    )
    ran = project.dbt("run", "--empty")
    assert ran.code == 0, ran.text
    assert platform.store.find_desired(f"{schema}.clean") is None
    assert platform.sql(f"select * from {schema}.clean") == []
    assert [row[:2] for row in platform.sql(f"describe {schema}.clean")] == [("item_id", "string"), ("price", "double")]

    assert project.dbt("run").message("clean") == "NEW generation 1"
    platform.until(lambda: platform.sql(f"select count(*) from {schema}.clean") == [(3,)], "rows")


def test_every_mistake_is_one_line_with_the_file_and_line_of_the_model(
    project: DbtProject, platform: Platform, clicks: str, produce: Produce
) -> None:
    schema = project.schema
    head = "{{ config(materialized='dynamic_table') }}\n"
    project.write("models/misspelt.sql", head.replace(") }}", ",\n time_windw='1 s') }}") + "select 1 as a")
    project.write("models/syntax.sql", head + "select item_id\nfrm {{ source('shop', 'clicks') }}")
    project.write("models/missing.sql", head + "select item_id from {{ source('shop', 'nowhere') }}")
    project.write("models/promised.sql", head + "select item_id, price from {{ source('shop', 'clicks') }}")
    project.write(
        "models/schema.yml",
        "models:\n  - name: promised\n    config: {contract: {enforced: true}}\n    columns:\n"
        "      - {name: item_id, data_type: string}\n      - {name: price, data_type: int}\n",
    )
    project.write("models/taken.sql", head + "select item_id from {{ source('shop', 'clicks') }}")
    platform.sql(f"create schema if not exists {schema}")
    platform.sql(f"create table {schema}.taken (item_id string) using delta")
    ran = project.dbt("run")
    assert ran.code == 1
    for name, line in {
        "misspelt": f"PEN-1301 {schema}/models/misspelt.sql:2: config key 'time_windw' is unknown.",
        "syntax": f"PEN-1303 {schema}/models/syntax.sql:3: ",
        "missing": "PEN-2002 ",
        "promised": f"PEN-1320 {schema}/models/promised.sql: the query does not keep the contract: column price is ",
        "taken": f"PEN-4007 {schema}/models/taken.sql: {schema}.taken is a table that this stream did not make.",
    }.items():
        shown = ran.message(name).splitlines()
        assert len(shown) == 2, shown
        assert shown[1].strip().startswith(line)
        assert platform.store.find_desired(f"{schema}.{name}") is None
    assert "Traceback" not in ran.text

    # Mended, they run; a contract that is kept has its constraints in the table, and they stop a row that breaks them.
    project.write("models/schema.yml", CONTRACT)
    mended = project.dbt("run", "--select", "taken", "promised", "--full-refresh")
    assert mended.message("taken") == mended.message("promised") == "NEW generation 1", mended.text
    stream = f"{schema}.promised"
    rows = lambda: sorted(platform.sql(f"select item_id, price from {stream}"))  # noqa: E731
    kept = [("a", 1.5), ("a", 1.5), ("b", 2.0)]
    platform.until(lambda: rows() == kept, "the rows that keep the contract", 60, rows)
    found = dict(platform.sql(f"show tblproperties {stream}"))
    constraints = {name: found.get(f"delta.constraints.{name}") for name in ("item_id_not_null", "positive")}
    assert constraints == {"item_id_not_null": "`item_id` is not null", "positive": "price > 0"}
    produce(clicks, [{"price": -1}])
    told = lambda: platform.store.actual(stream).error or ""  # noqa: E731
    place, name = f"topic '{clicks}', partition 0, offset 3", f"PEN-1321 {schema}/models/promised.sql"
    broken = "its row does not hold item_id_not_null (`item_id` is not null) and positive (price > 0)."
    platform.until(lambda: f"{stream}: {place}: {broken}" in told(), "the record and the constraints", 90, told)
    assert told().startswith(name)
    assert rows() == kept


def test_a_table_that_a_stream_writes_is_not_replaced_by_another_kind_of_model(
    project: DbtProject, platform: Platform, clicks: str
) -> None:
    sql = "select item_id from {{ source('shop', 'clicks') }}"
    project.write("models/clean.sql", "{{ config(materialized='dynamic_table') }}\n" + sql)
    assert project.dbt("run").code == 0
    project.write("models/clean.sql", "{{ config(materialized='table') }}\nselect 1 as item_id")
    ran = project.dbt("run")
    assert ran.code == 1
    assert f"{project.schema}.clean is the table of a stream; the model is a table now." in ran.message("clean")


def test_two_runs_at_once_deploy_once(project: DbtProject, platform: Platform, clicks: str) -> None:
    project.write(
        "models/clean.sql",
        "{{ config(materialized='dynamic_table') }}\nselect item_id from {{ source('shop', 'clicks') }}",
    )
    running = {name: project.start("run", target=name) for name in ("one", "two")}
    ended = {name: project.ended(process, name) for name, process in running.items()}
    assert {ran.code for ran in ended.values()} == {0}, [ran.text for ran in ended.values()]
    assert sorted(ran.message("clean") for ran in ended.values()) == ["NEW generation 1", "NO-OP generation 1"]


def test_show_and_run_operation_reach_the_engine(project: DbtProject, platform: Platform) -> None:
    project.write(
        "macros/make.sql",
        "{% macro make() %}{% do run_query('create schema if not exists ' ~ var('s')) %}{% endmacro %}",
    )
    assert project.dbt("run-operation", "make", "--vars", f"{{s: {project.schema}}}").code == 0
    assert (project.schema,) in platform.sql("show databases")
    shown = project.dbt(
        "show", "--inline", "select map('a', 1) as m, array(1, 2) as l, x'00ff' as b", "--output", "json"
    )
    assert shown.code == 0, shown.text
    assert '"m": "{\\"a\\": 1}"' in shown.text
    assert '"b": "00ff"' in shown.text


def test_a_cancelled_statement_ends_in_the_engine(platform: Platform) -> None:
    session = open_session(platform.endpoint().url)
    failures: list[str] = []

    def run() -> None:
        try:
            session.cursor().execute("create or replace temporary view nothing as select 1")
            cursor = session.cursor()
            cursor.execute("select sum(sqrt(a.id * b.id)) from range(100000000) a cross join range(100000) b")
            cursor.fetchall()
        except QueryError as error:
            failures.append(str(error))

    worker = threading.Thread(target=run)
    worker.start()
    try:
        while worker.is_alive():  # until the statement has arrived and can be interrupted
            session.cancel()
            worker.join(timeout=0.2)
    finally:
        session.close()
    assert "OPERATION_CANCELED" in failures[0]
