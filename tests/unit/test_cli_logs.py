"""`penstock logs` finds the lines that belong to what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.logs import Follower, about_stream
from penstock.cli.main import app
from penstock.paths import ProjectPaths
from penstock.store import Store

ENGINE = [
    "2026-01-01 INFO shop.clicks: started",
    "2026-01-01 INFO shop.views: started",
    "2026-01-01 ERROR shop.clicks: failed",
    "Traceback (most recent call last):",
    '  File "job.py", line 3',
    "Caused by: no broker",
    "2026-01-01 INFO shop.views: batch 3",
]


@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    paths = ProjectPaths(tmp_path)
    paths.logs.mkdir(parents=True)
    (paths.logs / "engine.log").write_text("\n".join(ENGINE) + "\n")
    Store.open(paths.store).deploy("shop.clicks", "{}", "abc", verdict="NEW", new_checkpoint=True)
    return paths


def invoke(paths: ProjectPaths, *args: str) -> Result:
    return CliRunner().invoke(app, ["logs", *args, "--project-dir", str(paths.project)])


def test_a_stream_s_lines_come_with_their_stack_trace() -> None:
    assert list(about_stream(ENGINE, "shop.clicks")) == [ENGINE[0], *ENGINE[2:6]]


def test_logs_of_the_engine_are_its_last_lines(paths: ProjectPaths) -> None:
    assert invoke(paths, "engine", "-n", "2").stdout.splitlines() == ENGINE[-2:]


def test_logs_of_a_stream_may_be_asked_for_by_the_model_s_name(paths: ProjectPaths) -> None:
    result = invoke(paths, "clicks", "--output", "json")
    assert json.loads(result.stdout.splitlines()[0]) == {"source": "engine", "line": ENGINE[0]}
    assert len(result.stdout.splitlines()) == 5


def test_an_unknown_stream_is_an_error(paths: ProjectPaths) -> None:
    result = invoke(paths, "nope")
    assert result.exit_code == 2
    assert "PEN-3001" in result.stderr


def test_a_log_that_is_not_there_yet_is_said_so(paths: ProjectPaths) -> None:
    result = invoke(paths, "kafka")
    assert result.exit_code == 0
    assert "no log yet" in result.stderr


def test_following_gives_whole_lines_and_notices_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    follower = Follower(file)
    assert follower.new_lines() == []
    file.write_text("one\ntw")
    assert follower.new_lines() == ["one"]
    with file.open("a") as log:
        log.write("o\n")
    assert follower.new_lines() == ["two"]
    file.write_text("new\n")
    assert follower.new_lines() == ["new"]
