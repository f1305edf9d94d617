"""`penstock list` and `penstock describe` on a real store and the fixture project; no broker, no engine, no dbt."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from penstock.cli import dbt
from penstock.cli.main import app
from penstock.cli.manifest import is_current
from penstock.compiler import compile_model
from penstock.control.table_facts import spark_type, table_facts
from penstock.paths import ProjectPaths
from penstock.store import Progress, Store, StreamState

FIXTURES = Path(__file__).parent / "fixtures"
CLEAN = "shop.clicks_clean"
PROFILES = (
    "shop: {target: dev, outputs: {dev: {type: penstock, schema: shop, kafka: {bootstrap.servers: '127.0.0.1:1'}}}}"
)


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


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    """Two deployed streams: clicks_clean reads the source shop.clicks, views_per_minute reads clicks_clean."""
    manifest = json.loads((FIXTURES / "manifest.json").read_text())
    store = Store.open(paths.store)
    for model in ("clicks_clean", "views_per_minute"):
        spec = compile_model(manifest, f"model.shop.{model}", project_dir=paths.project)
        store.deploy(spec.name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
    return store


def run(paths: ProjectPaths, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*args, "--project-dir", str(paths.project)])
    return result.exit_code, result.stdout, result.stderr


def found(paths: ProjectPaths, *args: str, code: int = 0) -> Any:
    exit_code, printed, _ = run(paths, *args, "--output", "json")
    assert exit_code == code, printed
    return json.loads(printed)


def make_table(paths: ProjectPaths) -> None:
    rows = pa.table({"item_id": ["a", "b", None], "views": [1, 2, 3], "tags": [["x"], [], None]})
    write_deltalake(str(paths.warehouse / "shop.db" / "clicks_clean"), rows)
    write_deltalake(str(paths.warehouse / "shop.db" / "clicks_clean"), rows, mode="append")


# -- list -------------------------------------------------------------------------------------------------------------
def test_sources_are_listed_with_topic_format_and_readers(paths: ProjectPaths, store: Store) -> None:
    rows = {row["name"]: row for row in found(paths, "list", "sources")["sources"]}
    assert list(rows) == ["shop.clicks", "shop.lines", "shop.orders", "shop.users"]
    clicks = rows["shop.clicks"]
    assert (clicks["kind"], clicks["read_only"], clicks["topic"]) == ("source stream", True, "clicks")
    assert (clicks["key"], clicks["value"], clicks["file"]) == ("string", "json", "sources/shop.yml")
    assert clicks["read_by"] == [CLEAN]
    assert rows["shop.lines"]["value"] == "string"
    assert rows["shop.orders"]["read_by"] == []


def test_a_wrong_source_is_listed_with_its_error_beside_the_others(paths: ProjectPaths) -> None:
    file = paths.project / "target" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["sources"]["source.shop.shop.orders"]["config"]["meta"]["stream"]["value"] = {"format": "jsonn"}
    file.write_text(json.dumps(manifest))
    rows = {row["name"]: row for row in found(paths, "list", "sources")["sources"]}
    assert rows["shop.orders"]["error"]["code"] == "PEN-1203"
    assert rows["shop.clicks"]["error"] is None
    assert "PEN-1203 'value': format 'jsonn' is unknown." in run(paths, "list", "sources")[1]


def test_tables_are_those_of_the_project_and_those_that_are_deployed(paths: ProjectPaths, store: Store) -> None:
    store.deploy("shop.removed", "{}", "abc", verdict="NEW", new_checkpoint=True)
    store.report(CLEAN, state=StreamState.RUNNING)
    rows = {row["name"]: row for row in found(paths, "list", "tables")["tables"]}
    assert (rows[CLEAN]["state"], rows[CLEAN]["generation"], rows[CLEAN]["mode"]) == ("running", 1, "append")
    assert rows[CLEAN]["inputs"] == ["shop.clicks"]
    assert rows["shop.views_per_minute"]["mode"] == "upsert"
    assert rows["shop.views_per_minute"]["key"]
    assert rows["shop.raw_lines"]["state"] == "not deployed"
    assert rows["shop.raw_lines"]["inputs"] == ["shop.lines"]
    assert rows["shop.removed"]["state"] == "pending"
    assert "shop.named_items" not in rows  # a view


def test_queries_say_what_they_read_and_write(paths: ProjectPaths, store: Store) -> None:
    store.report(CLEAN, state=StreamState.FAILED, error_code="PEN-2001", error="No broker answers.")
    rows = {row["name"]: row for row in found(paths, "list", "queries")["queries"]}
    assert list(rows) == [CLEAN, "shop.views_per_minute"]
    assert (rows[CLEAN]["reads"], rows[CLEAN]["writes"]) == (["shop.clicks"], CLEAN)
    assert (rows[CLEAN]["state"], rows[CLEAN]["error_code"]) == ("failed", "PEN-2001")
    line = next(line for line in run(paths, "list", "queries")[1].splitlines() if line.startswith(CLEAN))
    assert "PEN-2001 No broker answers." in line


def test_a_project_without_streams_says_so_and_stays_untouched(paths: ProjectPaths) -> None:
    assert run(paths, "list", "queries")[1] == "No streams are deployed. 'dbt run' deploys them.\n"
    assert found(paths, "list", "queries") == {"queries": []}
    assert not paths.home.exists()


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        (["list", "sources"], "list"),
        (["list", "--output", "json", "tables"], "list"),
        (["list", "sorces"], "list"),
        (["list", "--help"], "list"),
        (["list"], "ls"),
        (["list", "--select", "clicks_clean+"], "ls"),
        (["ls", "--select", "x"], "ls"),
    ],
)
def test_list_without_a_word_of_ours_is_dbt_s(typed: list[str], command: str) -> None:
    import typer

    group: Any = typer.main.get_command(app)
    name, _, rest = group.resolve_command(typer.Context(group), typed)
    assert (name, rest) == (command, typed[1:])


# -- describe ---------------------------------------------------------------------------------------------------------
def test_a_source_is_described_also_when_its_broker_is_down(paths: ProjectPaths, store: Store) -> None:
    source = found(paths, "describe", "shop.clicks", code=4)
    assert (source["kind"], source["read_only"]) == ("source stream", True)
    assert (source["topic"], source["partitions_read"], source["start"]) == ("clicks", "all", "earliest")
    assert source["watermark"] == {"column": "clicked_at", "delay": "10 minutes"}
    assert (source["key"], source["value"]) == ({"format": "string"}, {"format": "json"})
    columns = {column["name"]: (column["type"], column["origin"]) for column in source["columns"]}
    assert columns["price"] == ("DECIMAL(10,2)", "value.price")
    assert columns["trace"] == ("STRING", "header(trace_id)")
    assert [reader["stream"] for reader in source["read_by"]] == [CLEAN]
    assert source["last_error"]["code"] == "PEN-2001"
    assert source["messages"] is source["latest_message_at"] is source["rows_per_s"] is None


def test_the_page_of_a_source_has_its_columns_and_the_broker_s_error(paths: ProjectPaths, store: Store) -> None:
    code, printed, _ = run(paths, "describe", "clicks")
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert code == 4
    assert "kind source stream, read-only" in lines
    assert "watermark clicked_at, rows may be 10 minutes late" in lines
    assert "city STRING value.place.city" in lines
    assert f"{CLEAN} pending - -" in lines
    assert any(line.startswith("last error PEN-2001 No Kafka broker answers at 127.0.0.1:1") for line in lines)


def test_a_table_is_described_from_store_and_commit_log(paths: ProjectPaths, store: Store) -> None:
    make_table(paths)
    now = time.time()
    store.report(CLEAN, state=StreamState.RUNNING, started_at=now - 60, lag_rows=7, lag_seconds=1.0, lag_at=now)
    store.record_progress(Progress(CLEAN, 1, 9, now - 1, 200, 100, 50, "delta-rs"), engine_token=1)
    job = paths.job(CLEAN, 1)
    job.parent.mkdir(parents=True)
    job.write_text("")
    table = found(paths, "describe", CLEAN)
    assert (table["kind"], table["read_only"], table["file"]) == ("dynamic table", False, "models/clicks_clean.sql")
    assert (table["stream"], table["state"], table["generation"], table["mode"]) == (CLEAN, "running", 1, "append")
    assert table["inputs"] == [{"relation": "shop.clicks", "kind": "source stream", "reads": "topic 'clicks'"}]
    assert table["columns"] == [
        {"name": "item_id", "type": "STRING"},
        {"name": "views", "type": "BIGINT"},
        {"name": "tags", "type": "ARRAY<STRING>"},
    ]
    assert (table["table"]["rows"], table["table"]["version"], table["table"]["files"]) == (6, 1, 2)
    assert table["table"]["bytes"] > 0
    assert table["table"]["changed_at"] == pytest.approx(now, abs=60)
    assert table["table"]["path"] == ".penstock/warehouse/shop.db/clicks_clean"
    assert (table["rows_in_per_s"], table["rows_out_per_s"], table["lag_rows"]) == (20.0, 10.0, 7)
    assert table["checkpoint"].startswith(".penstock/checkpoints/shop.clicks_clean/g1-")
    assert table["job"] == ".penstock/jobs/shop.clicks_clean/1/job.py"
    assert [reader["stream"] for reader in table["read_by"]] == ["shop.views_per_minute"]
    assert table["last_error"] is None


def test_the_page_of_a_table_has_its_error_and_its_rows(paths: ProjectPaths, store: Store) -> None:
    make_table(paths)
    store.report(CLEAN, state=StreamState.QUARANTINED, error_code="PEN-4003", error="boom\nmore")
    code, printed, _ = run(paths, "describe", "clicks_clean")
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert code == 0
    assert "state quarantined (wanted running)" in lines
    assert "rows 6" in lines
    assert "last error PEN-4003 boom" in lines
    assert "shop.clicks source stream topic 'clicks'" in lines


def test_a_running_table_is_described_whatever_the_project_s_files_say(paths: ProjectPaths, store: Store) -> None:
    (paths.project / "target" / "manifest.json").unlink()
    assert found(paths, "describe", CLEAN)["table"] is None


def test_a_table_that_is_not_deployed_is_described_as_that(paths: ProjectPaths, store: Store) -> None:
    table = found(paths, "describe", "raw_lines")
    assert (table["name"], table["state"]) == ("shop.raw_lines", "not deployed")
    assert [each["relation"] for each in table["inputs"]] == ["shop.lines"]
    assert "dbt run" in run(paths, "describe", "raw_lines")[1]


def test_an_unknown_name_is_answered_with_the_nearest_one(paths: ProjectPaths, store: Store) -> None:
    code, _, said = run(paths, "describe", "clikcs")
    assert code == 2
    assert said.splitlines() == ["PEN-5008 There is no source or table 'clikcs'.", "  Did you mean 'clicks'?"]
    assert found(paths, "describe", "shop.order", code=2)["error"]["hint"] == "Did you mean 'shop.orders'?"


def test_a_name_that_two_have_needs_its_schema(paths: ProjectPaths, store: Store) -> None:
    store.deploy("other.clicks", "{}", "abc", verdict="NEW", new_checkpoint=True)
    error = found(paths, "describe", "CLICKS", code=2)["error"]
    assert (error["code"], error["hint"]) == ("PEN-5006", "Use one of other.clicks, shop.clicks.")


@pytest.mark.parametrize(
    ("settings", "start", "line"),
    [
        ({"start": "latest"}, "latest", "start latest"),
        (
            {"partitions": [0, 2], "start": {"offsets": {"0": 42, "2": "latest"}}},
            {"offsets": {"0": 42, "2": "latest"}},
            "start partition 0 at 42, partition 2 at latest",
        ),
        (
            {"start": {"timestamp": "2026-01-01T00:00:00Z"}},
            {"timestamp": "2026-01-01T00:00:00+00:00"},
            "start 2026-01-01 00:00:00+00:00",
        ),
    ],
)
def test_the_start_of_a_source_is_told_as_it_was_written(
    settings: dict[str, Any], start: Any, line: str, paths: ProjectPaths
) -> None:
    file = paths.project / "target" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["sources"]["source.shop.shop.lines"]["config"]["meta"]["stream"] |= settings
    file.write_text(json.dumps(manifest))
    assert found(paths, "describe", "lines", code=4)["start"] == start
    assert line in [" ".join(each.split()) for each in run(paths, "describe", "lines")[1].splitlines()]


# -- parts ------------------------------------------------------------------------------------------------------------
def test_a_manifest_is_current_until_a_file_is_written_added_or_removed(paths: ProjectPaths) -> None:
    manifest = paths.project / "target" / "manifest.json"

    def current() -> bool:
        return is_current(manifest, paths.project, paths.project)

    def later(path: Path) -> None:
        at = manifest.stat().st_mtime + 10
        os.utime(path, (at, at))

    for name in ("sources/shop.yml", "dbt_project.yml", "profiles.yml", "models", "models/raw_lines.sql"):
        before = (paths.project / name).stat()
        assert current()
        later(paths.project / name)
        assert not current(), name
        os.utime(paths.project / name, (before.st_atime, before.st_mtime))
    manifest.unlink()
    assert not current()


def test_a_manifest_is_older_than_a_function_that_was_written_since(paths: ProjectPaths) -> None:
    manifest = paths.project / "target" / "manifest.json"
    assert is_current(manifest, paths.project, paths.project)
    function = paths.project / "functions" / "with_tax.sql"
    function.parent.mkdir()
    function.write_text("price * 1.2")
    at = manifest.stat().st_mtime
    os.utime(function.parent, (at, at))
    os.utime(function, (at + 10, at + 10))
    assert not is_current(manifest, paths.project, paths.project)


def test_a_manifest_that_is_not_current_is_made_by_dbt(paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def parses(args: list[str], **_options: object) -> tuple[int, str]:
        seen.extend(args)
        return 0, ""

    monkeypatch.setattr(dbt, "run", parses)
    at = time.time() + 10
    os.utime(paths.project / "sources" / "shop.yml", (at, at))
    assert len(found(paths, "list", "sources")["sources"]) == 4
    assert seen[0] == "parse"


def test_a_place_without_a_table_has_no_facts(tmp_path: Path) -> None:
    assert table_facts(tmp_path) is None


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("integer", "INT"),
        ("decimal(10,2)", "DECIMAL(10,2)"),
        ({"type": "map", "keyType": "string", "valueType": "long"}, "MAP<STRING, BIGINT>"),
        ({"type": "struct", "fields": [{"name": "Aa", "type": "short"}]}, "STRUCT<`Aa`: SMALLINT>"),
    ],
)
def test_types_are_written_as_spark_sql_does(kind: Any, shown: str) -> None:
    assert spark_type(kind) == shown
