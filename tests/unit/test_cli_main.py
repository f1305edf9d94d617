"""What becomes of failures, and how quickly the command answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import explain, init, main
from penstock.cli.main import app
from penstock.cli.session import find_profiles, find_project
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths
from penstock.project.schema import source_file_schema
from penstock.store import Store

runner = CliRunner()
OURS = [
    "init", "up", "down", "compile", "run", "status", "logs", "list", "describe", "stop", "start", "restart", "drop",
    "query", "generate", "demo", "schema", "jars", "explain-error",
]  # fmt: skip


def failing(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    def fail(_code: str) -> None:
        raise problem

    monkeypatch.setattr(explain, "find_kind", fail)


def test_outside_a_project_the_error_is_one_line_a_hint_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].startswith("PEN-5001 ")
    assert len(result.stderr.splitlines()) == 2
    assert result.stdout == ""


def test_with_json_the_error_is_on_standard_output(tmp_path: Path) -> None:
    result = runner.invoke(app, ["status", "--project-dir", str(tmp_path), "-o", "json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "PEN-5001"


def test_a_wrong_option_is_json_too_when_json_was_asked_for() -> None:
    result = runner.invoke(app, ["status", "--output", "json", "--nope"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "PEN-5006"


def test_an_unexpected_error_is_one_line_without_a_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("boom\nmore"))
    result = runner.invoke(app, ["explain-error", "1203"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "Unexpected RuntimeError: boom"
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_where_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("boom"))
    result = runner.invoke(app, ["explain-error", "1203", "--debug"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    result = runner.invoke(app, ["explain-error", "1203"])
    assert result.exit_code == main.INTERRUPTED == 130


@pytest.mark.parametrize("name", OURS)
def test_every_command_explains_itself_with_examples_and_exit_codes(name: str) -> None:
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"penstock {name}" in result.stdout
    assert "Exit codes:" in result.stdout


def test_help_lists_the_exit_codes() -> None:
    result = runner.invoke(app, ["--help"])
    assert "4 a broker or the engine does not" in result.stdout


def test_status_loads_neither_spark_nor_dbt_nor_a_kafka_client(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: x\nprofile: x\n")
    Store.open(ProjectPaths(tmp_path).store).deploy("x.a", "{}", "abc", verdict="NEW", new_checkpoint=True)
    code = (
        "import sys\nfrom penstock.cli.main import app\n"
        "try:\n    app(['status'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'pyspark', 'dbt', 'confluent_kafka', 'jinja2', 'sqlglot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_a_reader_that_closes_the_pipe_gets_no_stack_trace() -> None:
    line = f"{sys.executable} -m penstock.cli.main explain-error 1203 | true"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in result.stderr


def test_the_project_is_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: x\n")
    below = tmp_path / "models" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_project(None) == tmp_path


def test_profiles_come_from_the_project_or_its_profiles_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBT_PROFILES_DIR", raising=False)
    assert find_profiles(tmp_path, None) is None
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "profiles.yml").write_text("{}")
    assert find_profiles(tmp_path, None) == tmp_path / "profiles"
    (tmp_path / "profiles.yml").write_text("{}")
    assert find_profiles(tmp_path, None) == tmp_path
    monkeypatch.setenv("DBT_PROFILES_DIR", "/elsewhere")
    assert find_profiles(tmp_path, None) is None


# -- init -------------------------------------------------------------------------------------------------------------
def test_init_makes_a_project_whose_profile_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.project.profile import load_profile

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DBT_PROFILES_DIR", raising=False)
    result = runner.invoke(app, ["init", "shop"])
    assert result.exit_code == 0, result.stderr
    project = tmp_path / "shop"
    assert {
        ".github/workflows/ci.yml", ".gitignore", ".vscode/extensions.json", ".vscode/penstock-sources.json",
        ".vscode/settings.json", "README.md", "dbt_project.yml", "models/clicks_clean.sql", "models/schema.yml",
        "models/unit_tests.yml", "models/views_per_item.sql", "profiles.yml", "requirements.txt", "sources/clicks.yml",
        "tests/data/no_item_has_more_views_than_clicks.sql", "tests/streams/views.yml",
    } == {str(file.relative_to(project)) for file in project.rglob("*") if file.is_file()}  # fmt: skip
    settings = load_profile(project)
    assert (settings.target, settings.schema) == ("dev", "shop")
    assert settings.kafka.embedded
    assert settings.kafka.topics["clicks"].partitions == 2
    assert not [file for file in project.rglob("*") if file.is_file() and re.search("@[A-Z]+@", file.read_text())]
    editor = json.loads((project / ".vscode" / "settings.json").read_text())
    (schema,) = editor["yaml.schemas"]
    assert json.loads((project / schema).read_text()) == source_file_schema()


def test_init_writes_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("mine")
    result = runner.invoke(app, ["init", "shop"])
    assert result.exit_code == 2
    assert "PEN-5002" in result.stderr
    assert [file.name for file in (tmp_path / "shop").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["my-shop", "1shop", "a b", "../x", ""])
def test_init_takes_only_names_that_dbt_takes(name: str) -> None:
    with pytest.raises(PenstockError, match="PEN-5006"):
        init.check_name(name)
