"""dbt gets the user's arguments, and only what was left out is added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import compile as compile_command
from penstock.cli import dbt, run
from penstock.cli.main import app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DBT_PROFILES_DIR", "DBT_PROJECT_DIR", "DBT_TARGET_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "profiles.yml").write_text("shop: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_project_s_profiles_are_used_when_none_are_named(project: Path) -> None:
    assert dbt.complete(["build", "-s", "x"]) == ["build", "-s", "x", "--profiles-dir", str(project / "profiles")]


@pytest.mark.parametrize("given", [["--profiles-dir", "mine"], ["--profiles-dir=mine"]])
def test_profiles_that_the_user_named_are_kept(project: Path, given: list[str]) -> None:
    assert dbt.complete(["build", *given]) == ["build", *given]


def test_from_below_the_project_its_directory_is_passed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "models").mkdir()
    monkeypatch.chdir(project / "models")
    args = dbt.complete(["ls"])
    assert args[:3] == ["ls", "--project-dir", str(project)]


def test_options_are_added_before_the_end_of_options(project: Path) -> None:
    assert dbt.complete(["show", "--", "x"]) == ["show", "--profiles-dir", str(project / "profiles"), "--", "x"]


def test_outside_a_project_dbt_gets_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dbt.complete(["debug"]) == ["debug"]


def test_the_target_directory_is_where_dbt_writes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dbt.target_dir(project) == project / "target"
    (project / "dbt_project.yml").write_text("name: shop\ntarget-path: out\n")
    assert dbt.target_dir(project) == project / "out"
    monkeypatch.setenv("DBT_TARGET_PATH", "env")
    assert dbt.target_dir(project) == project / "env"
    assert dbt.target_dir(project, ["--target-path", "/abs"]) == Path("/abs")


def test_the_exit_code_and_the_arguments_of_dbt_are_kept(project: Path) -> None:
    """A program in dbt's place tells what it got."""
    fake = project / "bin"
    fake.mkdir()
    (fake / "dbt").write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    (fake / "dbt").chmod(0o755)
    args = ["build", "--select", "a b", "--vars", "{x: 1}", "--help", "--profiles-dir", "p", "--", "-z"]
    code = (
        "import sys\nfrom penstock.cli import dbt\nfrom penstock.cli.main import main\n"
        f"dbt.command_line = lambda args: [{str(fake / 'dbt')!r}, *args]\n"
        "sys.argv = ['penstock', *sys.argv[1:]]\n"
        "main()\n"
    )
    for typed, got in ((args, args), (["test", "--data", *args[1:]], ["test", *args[1:]]),
                       (["test", *args[1:]], ["test", *args[1:]])):  # fmt: skip
        line = [sys.executable, "-c", code, *typed]
        result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 7, result.stderr
        assert result.stdout.strip() == str(got)


# -- run --------------------------------------------------------------------------------------------------------------
RESULTS = {
    "results": [
        {
            "unique_id": "model.shop.clicks",
            "status": "success",
            "execution_time": 1.234,
            "adapter_response": {
                "stream": "shop.clicks", "generation": 2, "verdict": "RESTART", "checkpoint": "g1-a",
                "reasons": ["SQL"],
            },
        },
        {"unique_id": "model.shop.table", "status": "success", "execution_time": 1.0, "adapter_response": {}},
    ]
}  # fmt: skip


def test_run_shows_the_streams_of_this_run_only(project: Path) -> None:
    file = project / "target" / "run_results.json"
    assert run.answers(file, since=0) == []
    file.parent.mkdir()
    file.write_text(json.dumps(RESULTS))
    (stream,) = run.deployed(run.answers(file, since=file.stat().st_mtime))
    assert (stream["stream"], stream["verdict"], stream["generation"]) == ("shop.clicks", "RESTART", 2)
    assert run.answers(file, since=file.stat().st_mtime + 10) == []


def fake_dbt_run(project: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> list[str]:
    seen: list[str] = []

    def runs(args: list[str], **_options: object) -> tuple[int, str]:
        seen.extend(args)
        (project / "target").mkdir(exist_ok=True)
        (project / "target" / "run_results.json").write_text(json.dumps(RESULTS))
        return code, ""

    monkeypatch.setattr(dbt, "run", runs)
    return seen


def test_run_ends_with_a_table_of_verdicts_and_dbt_s_exit_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_dbt_run(project, monkeypatch, code=1)
    result = CliRunner().invoke(app, ["run", "--select", "clicks", "--full-refresh"])
    assert seen == ["run", "--select", "clicks", "--full-refresh"]
    assert result.exit_code == 1
    assert "shop.clicks  RESTART" in result.stdout


def test_run_takes_output_json_for_itself(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_dbt_run(project, monkeypatch, code=0)
    result = CliRunner().invoke(app, ["run", "--output", "json", "-s", "x"])
    assert seen == ["run", "-s", "x"]
    assert json.loads(result.stdout)["streams"][0]["verdict"] == "RESTART"


def test_run_with_an_unknown_output_is_refused_before_dbt_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_dbt_run(project, monkeypatch, code=0)
    result = CliRunner().invoke(app, ["run", "--output", "xml"])
    assert result.exit_code == 2
    assert "PEN-5006" in result.stderr
    assert seen == []


# -- compile ----------------------------------------------------------------------------------------------------------
def test_compile_looks_at_dynamic_tables_only() -> None:
    manifest = {
        "nodes": {
            "model.shop.b": {"resource_type": "model", "config": {"materialized": "dynamic_table"}},
            "model.shop.a": {"resource_type": "model", "config": {"materialized": "dynamic_table"}},
            "model.shop.v": {"resource_type": "model", "config": {"materialized": "view"}},
            "seed.shop.s": {"resource_type": "seed", "config": {"materialized": "seed"}},
        }
    }
    assert compile_command.dynamic_tables(manifest) == ["model.shop.a", "model.shop.b"]


def test_a_project_that_dbt_cannot_read_is_an_error_with_dbt_s_message(project: Path) -> None:
    (project / "profiles" / "profiles.yml").write_text("shop: {target: dev, outputs: {}}\n")
    result = CliRunner(env=dict(os.environ)).invoke(app, ["compile"])
    assert result.exit_code == 1
    assert "PEN-5005" in result.stderr
    assert "target" in result.stderr
