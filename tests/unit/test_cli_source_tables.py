"""Source tables on the command line: what is shown of them, and what is refused. A real store; no broker, no engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from penstock.cli import dbt, run_sources
from penstock.cli.main import app
from penstock.cli.output import Ui
from penstock.cli.session import Session
from penstock.compiler import StreamSpec, compile_model, compile_source_table
from penstock.control.source_tables import readers
from penstock.paths import ProjectPaths
from penstock.store import Store, StreamState, Wanted

FIXTURES = Path(__file__).parent / "fixtures"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text())
PROFILES = (
    "shop: {target: dev, outputs: {dev: {type: penstock, schema: shop, kafka: {bootstrap.servers: '127.0.0.1:1'}}}}"
)
USERS, JOINED = "shop.users", "shop.clicks_of_users"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectPaths:
    """The fixture project with a manifest that is newer than its files; a call of dbt fails the test."""
    for name in ("DBT_PROFILES_DIR", "DBT_PROJECT_DIR", "DBT_TARGET_PATH", "PENSTOCK_KAFKA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(dbt, "run", lambda *_args, **_options: pytest.fail("dbt was called"))
    shutil.copytree(FIXTURES / "shop", tmp_path, dirs_exist_ok=True)
    (tmp_path / "profiles.yml").write_text(PROFILES)
    (tmp_path / "target").mkdir()
    shutil.copyfile(FIXTURES / "manifest.json", tmp_path / "target" / "manifest.json")
    return ProjectPaths(tmp_path)


def specs(project: Path) -> list[StreamSpec]:
    source = MANIFEST["sources"]["source.shop.shop.users"]
    return [
        compile_source_table(source, project_dir=project),
        compile_model(MANIFEST, "model.shop.clicks_of_users", project_dir=project),
    ]


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    """The source table shop.users, and a stream that joins it."""
    store = Store.open(paths.store)
    for spec in specs(paths.project):
        store.deploy(spec.name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
        store.report(spec.name, state=StreamState.RUNNING)
    return store


def invoke(paths: ProjectPaths, *args: str) -> Result:
    return CliRunner().invoke(app, [*args, "--project-dir", str(paths.project)])


def found(paths: ProjectPaths, *args: str, code: int = 0) -> Any:
    result = invoke(paths, *args, "--output", "json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


# -- shown ------------------------------------------------------------------------------------------------------------
def test_a_source_table_is_listed_as_a_source_as_a_table_and_with_its_query(paths: ProjectPaths, store: Store) -> None:
    sources = {row["name"]: row for row in found(paths, "list", "sources")["sources"]}
    users = sources[USERS]
    assert (users["kind"], users["read_only"], users["primary_key"]) == ("source table", True, ["country", "user_id"])
    assert (users["query"], users["read_by"]) == (USERS, [JOINED])
    assert (sources["shop.clicks"]["kind"], sources["shop.clicks"]["query"]) == ("source stream", None)
    tables = {row["name"]: row for row in found(paths, "list", "tables")["tables"]}
    assert (tables[USERS]["kind"], tables[USERS]["read_only"], tables[USERS]["state"]) == (
        "source table", True, "running",
    )  # fmt: skip
    assert tables[JOINED]["kind"] == "dynamic table"
    queries = {row["name"]: row for row in found(paths, "list", "queries")["queries"]}
    assert (queries[USERS]["kind"], queries[USERS]["read_only"], queries[USERS]["writes"]) == (
        "source table", True, USERS,
    )  # fmt: skip
    assert queries[USERS]["read_by"] == [JOINED]
    assert "source table" in invoke(paths, "list", "queries").stdout
    assert "table (country, user_id)" in invoke(paths, "list", "sources").stdout


def test_a_source_table_that_is_not_deployed_is_listed_as_such(paths: ProjectPaths) -> None:
    tables = {row["name"]: row for row in found(paths, "list", "tables")["tables"]}
    assert (tables[USERS]["kind"], tables[USERS]["state"]) == ("source table", "not deployed")


def test_describe_shows_the_source_and_the_query_behind_it(paths: ProjectPaths, store: Store) -> None:
    write_deltalake(str(paths.warehouse / "penstock__shop.db" / "users"), pa.table({"user_id": [1, 2]}))
    users = found(paths, "describe", "users", code=4)  # the broker does not answer; the rest is there
    assert (users["kind"], users["read_only"], users["topic"], users["state"]) == (
        "source table", True, "users", "running",
    )  # fmt: skip
    assert (users["query"]["stream"], users["table"]["rows"]) == (USERS, 2)
    assert [each["stream"] for each in users["read_by"]] == [JOINED]
    assert [each["origin"] for each in users["columns"]] == ["key.id", "key.country", "value.name", "value.tags"]
    shown = invoke(paths, "describe", USERS).stdout
    assert "source table, read-only" in shown
    assert "country, user_id" in shown
    assert f"{USERS}, generation 1, running" in shown


def test_describe_of_a_source_table_that_is_not_deployed_says_what_deploys_it(paths: ProjectPaths) -> None:
    assert "not deployed: 'penstock run' deploys it" in invoke(paths, "describe", USERS).stdout


def test_describe_of_a_source_table_that_left_the_project_still_says_what_it_is(
    paths: ProjectPaths, store: Store
) -> None:
    file = paths.project / "target" / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["sources"]["source.shop.shop.users"]
    file.write_text(json.dumps(manifest))
    gone = found(paths, "describe", USERS)
    assert (gone["kind"], gone["read_only"], gone["stream"]) == ("source table", True, USERS)


def test_the_query_behind_a_source_table_does_not_count_as_a_reader_of_it(paths: ProjectPaths, store: Store) -> None:
    assert readers(store, USERS) == (JOINED,)
    assert readers(store, "SHOP.CLICKS") == (JOINED,)


# -- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sql",
    [
        "insert into shop.users values (1)",
        "insert into users values (1)",
        "update SHOP.USERS set name = 'x'",
        "delete from shop.clicks",
        "merge into shop.clicks t using x s on t.a = s.a when matched then delete",
        "truncate table shop.clicks",
        "create or replace view shop.users as select 1",
        "insert into penstock__shop.users values (1)",
    ],
)
def test_a_query_that_writes_into_a_source_is_refused(paths: ProjectPaths, sql: str) -> None:
    result = invoke(paths, "query", sql)
    assert result.exit_code == 2
    assert "PEN-3020" in result.stderr
    assert "insertion into source stream/table is not allowed" in result.stderr
    assert "Send messages to the topic" in result.stderr


def test_a_source_table_is_not_dropped_with_sql(paths: ProjectPaths) -> None:
    result = invoke(paths, "query", "drop view shop.users")
    assert "PEN-3020" in result.stderr
    assert "penstock drop shop.users" in result.stderr


def test_a_query_that_writes_elsewhere_goes_to_the_engine(paths: ProjectPaths) -> None:
    result = invoke(paths, "query", "insert into shop.other values (1)")
    assert "PEN-4002" in result.stderr, "the engine, which is not running, was asked"


def test_the_query_behind_a_source_table_is_not_stopped(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "stop", "users", "clicks_of_users", "--timeout", "0")
    assert result.exit_code == 2
    assert "PEN-3022" in result.stderr
    assert "penstock drop shop.users" in result.stderr
    assert store.desired(JOINED).wanted is Wanted.RUNNING, "nothing was stopped"


def test_stop_all_leaves_source_tables_running_and_says_so(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "stop", "--all", "--timeout", "0")
    assert result.exit_code == 0
    assert "Left running" in result.stderr
    assert store.desired(JOINED).wanted is Wanted.STOPPED
    assert store.desired(USERS).wanted is Wanted.RUNNING


def test_a_source_table_that_is_read_is_not_dropped(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "drop", "users", "--yes")
    assert result.exit_code == 5
    assert f"PEN-3023 Source table '{USERS}' is read by {JOINED}." in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", ["shop.users", "clicks"])
def test_a_topic_is_never_deleted(paths: ProjectPaths, store: Store, name: str) -> None:
    result = invoke(paths, "drop", name, "--delete-topic", "--yes")
    assert result.exit_code == 2
    assert "PEN-3021" in result.stderr
    assert "the project does not own it" in result.stderr


def test_a_dynamic_table_has_no_topic_to_delete(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "drop", JOINED, "--delete-topic", "--yes")
    assert "PEN-5006" in result.stderr
    assert store.find_desired(JOINED) is not None


# -- a run ------------------------------------------------------------------------------------------------------------
def answer(source: str, verdict: str, *changes: str, restarts: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"source": source, "kind": "stream", "verdict": verdict, "generation": None, "changes": list(changes),
            "restarts": list(restarts)}  # fmt: skip


def test_a_run_tells_of_each_source_once_with_all_that_its_readers_say() -> None:
    results = [
        {"adapter_response": {"sources": [answer("shop.b", "NO-OP"), answer("shop.a", "NO-OP")]}},
        {"adapter_response": {"sources": [answer("shop.a", "CHANGED", "topic x -> y", restarts=("shop.m",))]}},
        {"adapter_response": {"sources": [answer("shop.a", "CHANGED", "topic x -> y", restarts=("shop.n",))]}},
        {"adapter_response": {}},
    ]
    one, other = run_sources.found(results)
    assert (one["source"], one["verdict"], one["changes"]) == ("shop.a", "CHANGED", ["topic x -> y"])
    assert one["restarts"] == ["shop.m", "shop.n"]
    assert (other["source"], other["verdict"]) == ("shop.b", "NO-OP")


@pytest.mark.parametrize(
    ("args", "selected"), [(["-s", "x"], True), (["--exclude=x"], True), (["--full-refresh"], False), ([], False)]
)
def test_a_run_of_the_whole_project_is_one_without_selection(args: list[str], selected: bool) -> None:
    assert run_sources.is_selection(args) is selected


def test_a_run_of_the_whole_project_finds_unchanged_source_tables_without_broker_or_engine(
    paths: ProjectPaths, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(args: list[str], **_options: object) -> tuple[int, str]:
        shutil.copyfile(FIXTURES / "manifest.json", paths.project / "target" / "manifest.json")
        return 0, ""

    monkeypatch.setattr(dbt, "run", runs)
    (users,) = found(paths, "run")["sources"]
    assert (users["source"], users["kind"], users["verdict"]) == (USERS, "table", "NO-OP")
    assert "UNCHANGED" in invoke(paths, "run").stdout
    assert found(paths, "run", "--select", "x")["sources"] == []


def test_readers_that_were_not_part_of_a_run_are_named_when_they_read_the_source_as_before(
    paths: ProjectPaths, store: Store
) -> None:
    spec = specs(paths.project)[1]
    (clicks, *others) = spec.inputs
    changed = spec.model_copy(
        update={"name": "shop.new", "inputs": (clicks.model_copy(update={"value_format": "csv"}), *others)}
    )
    store.deploy("shop.new", changed.to_json(), changed.hash, verdict="RESTART", new_checkpoint=False)
    session = Session(Ui(), paths.project)
    said = [answer("shop.clicks", "CHANGED", "value format", restarts=("shop.new",)), answer("shop.lines", "NO-OP")]
    clicks_row, lines_row = run_sources.with_left_behind(session, said)
    assert clicks_row["left_behind"] == [JOINED]
    assert lines_row["left_behind"] == []
    said = [answer("shop.clicks", "CHANGED", "value format", restarts=("shop.new", JOINED))]
    assert run_sources.with_left_behind(session, said)[0]["left_behind"] == []
