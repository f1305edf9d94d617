"""A new project, driven by the command line of the installed wheel alone: real broker, real engine, real dbt.

The tests share one project that is up; each leaves it as it found it. The last ones take it down. What they call is
a fork of one process of the wheel (see commands.py); what makes a project, brings it up and takes it down, and what
is interrupted, is started as it is installed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import psutil
import pytest
from project_processes import listening, processes_of

pytestmark = pytest.mark.timeout(600)


class Shop:
    """The project and the two commands that a user has."""

    def __init__(self, wheel: Path, directory: Path) -> None:
        self.wheel = wheel
        self.directory = directory

    def run(
        self, program: str, *args: str, code: int | None = 0, timeout: float = 240, installed: bool = False
    ) -> subprocess.CompletedProcess[str]:
        where = self.wheel if installed else commands.directory(str(self.wheel / "python"))
        done = subprocess.run(
            [str(where / program), *args],
            cwd=self.directory, capture_output=True, text=True, timeout=timeout, env=self.environment(), check=False,
        )  # fmt: skip
        if code is not None:
            assert done.returncode == code, f"{program} {args}\n{done.stdout}\n{done.stderr}"
        return done

    def environment(self) -> dict[str, str]:
        others = ("DBT_", "PENSTOCK_KAFKA", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        return kept | {"PATH": f"{self.wheel}{os.pathsep}{os.environ['PATH']}"}

    def penstock(self, *args: str, code: int | None = 0) -> str:
        return self.run("penstock", *args, code=code).stdout

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self.penstock(*args, "--output", "json", code=code))

    def streams(self) -> dict[str, dict[str, Any]]:
        return {stream["name"]: stream for stream in self.json("status")["streams"]}

    def until(self, condition: Any, what: str, seconds: float = 90) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.penstock('status')}"
            time.sleep(0.3)
        return found

    def scalar(self, sql: str) -> Any:
        (row,) = self.json("query", sql)
        return next(iter(row.values()))


@pytest.fixture(scope="module")
def shop(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    parent = tmp_path_factory.mktemp("cli")
    Shop(wheel, parent).run("penstock", "init", "shop", installed=True)
    project = Shop(wheel, parent / "shop")
    try:
        # Its unit tests come first: an engine, and neither broker nor topic.
        tested = project.run("dbt", "test", "--select", "test_type:unit", "--target", "unit").stdout
        assert "PASS=2 WARN=0 ERROR=0" in tested, tested
        assert project.json("status")["broker"]["state"] == "down"
        # So do its stream tests, which need no engine that runs, either.
        told = project.json("test")
        assert (told["passed"], told["failed"]) == (2, 0), told
        project.run("penstock", "up", installed=True)
        project.run("dbt", "run", installed=True)
        project.until(
            lambda: [s["state"] for s in project.streams().values()] == ["running"] * 2, "both streams running"
        )
        yield project
    finally:
        project.penstock("down", code=None)


def test_compile_needs_no_broker_no_engine_and_no_java(wheel: Path, tmp_path: Path) -> None:
    Shop(wheel, tmp_path).penstock("init", "shop")
    project = Shop(wheel, tmp_path / "shop")
    empty = tmp_path / "bin"
    empty.mkdir()
    done = subprocess.run(
        [str(wheel / "penstock"), "compile", "--output", "json"],
        cwd=project.directory, capture_output=True, text=True, timeout=120, check=False,
        env=project.environment() | {"PATH": str(empty), "JAVA_HOME": str(empty)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    streams = {row["stream"]: row for row in json.loads(done.stdout)["streams"]}
    assert streams["shop.views_per_item"]["mode"] == "upsert"
    assert streams["shop.views_per_item"]["keys"] == ["item_id"]
    assert streams["shop.clicks_clean"]["mode"] == "append"
    assert (project.directory / streams["shop.clicks_clean"]["job"]).is_file()
    assert not (project.directory / ".penstock").exists()


def test_what_ci_checks_of_a_new_project_without_java_passes(wheel: Path, tmp_path: Path) -> None:
    Shop(wheel, tmp_path).penstock("init", "shop")
    project = Shop(wheel, tmp_path / "shop")
    project.run("dbt", "parse", "--warn-error")
    for line in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *line], cwd=project.directory, check=True)
    assert "### Streams: 2 NO-OP" in project.penstock("plan", "--against", "HEAD", "--output", "markdown")


def test_compile_reports_every_bad_model(wheel: Path, tmp_path: Path) -> None:
    Shop(wheel, tmp_path).penstock("init", "shop")
    project = Shop(wheel, tmp_path / "shop")
    for name in ("one", "two"):
        config = f"{{{{ config(materialized='dynamic_table', time_windw='{name}') }}}}"
        (project.directory / "models" / f"{name}.sql").write_text(
            f"{config}\nselect item_id from {{{{ source('shop', 'clicks') }}}}\n"
        )
    found = project.json("compile", code=2)
    assert [(error["code"], Path(error["file"]).name) for error in found["errors"]] == [
        ("PEN-1301", "one.sql"), ("PEN-1301", "two.sql"),
    ]  # fmt: skip
    assert len(found["streams"]) == 2


def test_up_again_changes_nothing(shop: Shop) -> None:
    before = shop.json("status")
    began = time.monotonic()
    again = shop.json("up")
    assert time.monotonic() - began < 10
    assert again["engine"]["pid"] == before["engine"]["pid"]
    assert again["broker"]["address"] == before["broker"]["address"]


def test_clicks_arrive_in_both_tables_and_the_lag_goes_to_zero(shop: Shop) -> None:
    before = shop.scalar("select count(*) from clicks_clean")
    shop.penstock("generate", "clicks", "--count", "500", "--rate", "0")
    shop.until(lambda: shop.scalar("select count(*) from clicks_clean") == before + 500, "500 more clean clicks")
    views = shop.scalar("select count(*) from clicks_clean where event_type = 'view'")
    shop.until(lambda: shop.scalar("select sum(views) from views_per_item") == views, "the sum of all views")
    shop.until(lambda: all(s["lag_rows"] == 0 for s in shop.streams().values()), "a lag of 0")


def test_the_project_s_data_tests_pass(shop: Shop) -> None:
    shop.penstock("generate", "--count", "100", "--rate", "0")
    assert "no_item_has_more_views_than_clicks" in shop.penstock("test", "--select", "test_type:data")


def test_a_second_run_changes_nothing(shop: Shop) -> None:
    before = shop.streams()
    found = shop.json("run")
    assert [row["verdict"] for row in found["streams"]] == ["NO-OP", "NO-OP"]
    shop.run("dbt", "run")
    results = json.loads((shop.directory / "target" / "run_results.json").read_text())["results"]
    assert [each["adapter_response"]["verdict"] for each in results] == ["NO-OP", "NO-OP"]
    after = shop.streams()
    for name, stream in before.items():
        assert (after[name]["generation"], after[name]["started_at"]) == (stream["generation"], stream["started_at"])


def test_a_query_comes_as_table_json_and_csv(shop: Shop) -> None:
    sql = (
        "select 1 as n, cast('2.50' as decimal(9, 2)) as price, date '2026-01-31' as day, "
        "named_struct('a', array(1, null)) as nested, cast('x' as int) as bad"
    )
    assert shop.json("query", sql) == [
        {"n": 1, "price": "2.50", "day": "2026-01-31", "nested": {"a": [1, None]}, "bad": None}
    ]
    (row,) = csv.DictReader(io.StringIO(shop.penstock("query", sql, "-o", "csv")))
    assert row == {"n": "1", "price": "2.50", "day": "2026-01-31", "nested": '{"a": [1, null]}', "bad": ""}
    lines = shop.penstock("query", sql).splitlines()
    assert lines[0].split() == ["n", "price", "day", "nested", "bad"]
    assert lines[1].split()[:3] == ["1", "2.50", "2026-01-31"]


def test_a_query_shows_at_most_the_limit(shop: Shop) -> None:
    assert len(shop.json("query", "select * from range(1000)")) == 100
    assert len(shop.json("query", "select * from range(1000)", "--limit", "0")) == 1000


@pytest.mark.parametrize("sql", ["select * from no_such_table", "selec 1"])
def test_a_wrong_query_is_one_line(shop: Shop, sql: str) -> None:
    error = shop.json("query", sql, code=2)["error"]
    assert error["code"] == "PEN-4006"
    assert "\n" not in error["message"]
    assert "org.apache" not in error["message"]


def test_a_stream_stops_starts_and_restarts_by_the_model_s_name(shop: Shop) -> None:
    shop.penstock("stop", "clicks_clean")
    assert shop.streams()["shop.clicks_clean"]["state"] == "stopped"
    assert shop.penstock("status", "--check").count("running") == 1
    shop.penstock("start", "clicks_clean")
    before = shop.streams()["shop.clicks_clean"]
    assert before["state"] == "running"
    shop.penstock("restart", "clicks_clean")
    after = shop.streams()["shop.clicks_clean"]
    assert after["state"] == "running"
    assert after["started_at"] > before["started_at"]


def test_a_demo_that_fails_leaves_a_project_up_that_was_up(shop: Shop) -> None:
    failed = shop.json("demo", "--once", "--no-ui", "--seconds", "1", "--sql", "select * from no_such_table", code=2)
    assert failed["error"]["code"] == "PEN-4006"
    assert shop.json("status")["engine"]["state"] == "up"


def test_logs_of_the_engine_are_there(shop: Shop) -> None:
    assert shop.penstock("logs", "engine", "-n", "5").strip()


def test_ctrl_c_ends_the_generator_with_what_was_delivered(shop: Shop) -> None:
    process = subprocess.Popen(
        [str(shop.wheel / "penstock"), "generate", "--rate", "50"],
        cwd=shop.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=shop.environment(),
    )  # fmt: skip
    before = shop.scalar("select count(*) from clicks_clean")
    shop.until(lambda: shop.scalar("select count(*) from clicks_clean") > before, "clicks of the generator")
    process.send_signal(signal.SIGINT)
    printed, problems = process.communicate(timeout=60)
    assert process.returncode == 130, problems
    assert "clicks delivered to 'clicks'" in printed


def test_a_dropped_stream_is_gone_and_run_brings_it_back(shop: Shop) -> None:
    shop.penstock("drop", "views_per_item", "--yes")
    assert list(shop.streams()) == ["shop.clicks_clean"]
    assert shop.json("query", "select * from views_per_item", code=2)["error"]["code"] == "PEN-4006"
    shop.penstock("run")
    views = shop.scalar("select count(*) from clicks_clean where event_type = 'view'")
    shop.until(lambda: shop.scalar("select sum(views) from views_per_item") == views, "the table, computed anew")


def test_down_leaves_nothing_running_and_up_goes_on(shop: Shop) -> None:
    rows = shop.scalar("select count(*) from clicks_clean")
    running = processes_of(shop.directory)
    ports = listening(running)
    assert len(running) >= 4  # broker, supervisor, engine and its JVM
    assert len(ports) >= 3
    shop.run("penstock", "down", installed=True)
    shop.until(lambda: not processes_of(shop.directory), "no process of the project")
    assert not ports & {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert shop.json("query", "select 1", code=4)["error"]["code"] == "PEN-4002"
    assert shop.json("down") | {"seconds": 0} == {"was_up": False, "seconds": 0}
    shop.penstock("up")
    shop.until(lambda: shop.run("penstock", "status", "--check", code=None).returncode == 0, "all streams running")
    assert shop.scalar("select count(*) from clicks_clean") == rows
    shop.penstock("down")
    assert shop.until(lambda: not processes_of(shop.directory), "no process of the project")
