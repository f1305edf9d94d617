"""`penstock status` against a real store that the test fills."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import processes
from penstock.cli.main import app
from penstock.cli.snapshot import rates
from penstock.paths import ProjectPaths
from penstock.store import Progress, Store, StreamState, Wanted

NAME = "shop.clicks_clean"


@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    return ProjectPaths(tmp_path)


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    store = Store.open(paths.store)
    store.deploy(NAME, "{}", "abc", verdict="NEW", new_checkpoint=True)
    return store


def batch(at: float, rows: int, batch_id: int = 1) -> Progress:
    return Progress(NAME, 1, batch_id, at, rows_in=rows, rows_out=rows // 2, duration_ms=50, writer="delta-rs")


def invoke(paths: ProjectPaths, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", "--project-dir", str(paths.project), *args])
    return result.exit_code, result.stdout


def status(paths: ProjectPaths, *args: str) -> dict:
    code, printed = invoke(paths, "--output", "json", *args)
    assert code == 0
    return json.loads(printed)


def pretend_engine(paths: ProjectPaths) -> None:
    paths.engine.mkdir(parents=True, exist_ok=True)
    endpoint = {"pid": os.getpid(), "started_at": processes.started_at(os.getpid()), "host": "127.0.0.1", "port": 15002}
    endpoint |= {"token": "secret", "ui": "http://127.0.0.1:4040", "engine_token": 1}
    (paths.engine / "endpoint.json").write_text(json.dumps(endpoint))


def test_rates_count_the_last_ten_seconds_not_the_last_batch() -> None:
    now = 1000.0
    batches = [batch(999.9, 100), batch(995, 100), batch(990.5, 100), batch(980, 5000)]
    assert rates(batches, now) == (30.0, 15.0)


def test_rates_of_a_stream_that_started_two_seconds_ago_are_over_two_seconds() -> None:
    assert rates([batch(999.5, 100)], 1000.0, since=998.0) == (50.0, 25.0)


def test_rates_are_zero_when_nothing_came_lately() -> None:
    assert rates([batch(900, 100)], 1000.0) == (0.0, 0.0)


def test_a_project_that_was_never_started_has_nothing_and_stays_untouched(paths: ProjectPaths) -> None:
    found = status(paths)
    assert found["streams"] == []
    assert found["supervisor"]["state"] == found["engine"]["state"] == found["broker"]["state"] == "down"
    assert not paths.home.exists()


def test_a_lag_that_nobody_measures_any_more_is_unknown_not_zero(paths: ProjectPaths, store: Store) -> None:
    now = time.time()
    store.report(NAME, state=StreamState.RUNNING, lag_rows=0, lag_seconds=0.0, lag_at=now - 120)
    (stream,) = status(paths)["streams"]
    assert (stream["lag_rows"], stream["lag_seconds"]) == (None, None)


def test_json_has_every_field_of_a_stream(paths: ProjectPaths, store: Store) -> None:
    now = time.time()
    store.report(
        NAME, state=StreamState.RUNNING, started_at=now - 60, lag_rows=7, lag_seconds=1.5, lag_at=now, restarts=2
    )
    store.record_progress(batch(now - 1, 200, batch_id=9), engine_token=1)
    (stream,) = status(paths)["streams"]
    assert stream["name"] == NAME
    assert stream["state"] == stream["wanted"] == "running"
    assert stream["generation"] == 1
    assert (stream["lag_rows"], stream["lag_seconds"]) == (7, 1.5)
    assert (stream["rows_in_per_s"], stream["rows_out_per_s"]) == (20.0, 10.0)
    assert stream["batch_id"] == 9
    assert stream["last_batch_at"] == pytest.approx(now - 1)
    assert (stream["restarts"], stream["failures"]) == (2, 0)
    assert stream["error_code"] is stream["error"] is None
    assert stream["checkpoint"].startswith("g1-")


def test_expectations_are_shown_with_the_rows_that_were_otherwise(paths: ProjectPaths, store: Store) -> None:
    declared = [{"name": "positive", "expect": "v > 0", "on_violation": "drop"},
                {"name": "named", "expect": "k <> ''", "on_violation": "warn"}]  # fmt: skip
    store.deploy(NAME, json.dumps({"expectations": declared}), "abc", verdict="RESTART", new_checkpoint=False)
    now = time.time()
    store.record_progress(batch(now - 2, 9), engine_token=1, violations={"positive": 3, "gone": 4})
    (stream,) = status(paths)["streams"]
    found = [(each["name"], each["violations"], each["last_at"]) for each in stream["expectations"]]
    assert found == [("positive", 3, pytest.approx(now - 2)), ("named", 0, None)], "in the model's order, and no other"
    code, printed = invoke(paths)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert code == 0
    assert f"{NAME} positive drop 3 2 s ago" in lines
    assert f"{NAME} named warn 0 -" in lines


def test_the_table_shows_lag_rate_and_the_last_error(paths: ProjectPaths, store: Store) -> None:
    store.report(
        NAME, state=StreamState.QUARANTINED, lag_rows=12345, lag_seconds=90.0, lag_at=time.time(), error_code="PEN-2001"
    )
    store.report(NAME, error="No broker answers at [red]127.0.0.1:9[/red].\nsecond line")
    code, printed = invoke(paths)
    assert code == 0
    line = next(line for line in printed.splitlines() if NAME in line)
    assert "quarantined" in line
    assert "12,345 / 2 min" in line
    assert "PEN-2001 No broker answers at [red]127.0.0.1:9[/red]." in line
    assert "second line" not in printed


def test_nothing_is_coloured_in_a_pipe(paths: ProjectPaths, store: Store) -> None:
    assert "\x1b" not in invoke(paths)[1]


def test_processes_show_as_up_and_the_token_is_never_printed(paths: ProjectPaths, store: Store) -> None:
    pretend_engine(paths)
    store.acquire("supervisor", "host:1", ttl=60)
    found = status(paths)
    assert found["supervisor"]["state"] == "up"
    assert abs(found["engine"]["started_at"] - time.time()) < 24 * 3600, "a time of day"
    assert found["engine"] | {"started_at": 0} == {
        "state": "up", "pid": os.getpid(), "port": 15002, "ui": "http://127.0.0.1:4040", "started_at": 0,
    }  # fmt: skip
    assert "secret" not in json.dumps(found)


def test_a_lease_that_expired_is_a_supervisor_that_is_down(paths: ProjectPaths, store: Store) -> None:
    store.acquire("supervisor", "host:1", ttl=5, now=time.time() - 60)
    assert status(paths)["supervisor"]["state"] == "down"


def test_check_fails_until_all_that_should_run_is_running(paths: ProjectPaths, store: Store) -> None:
    pretend_engine(paths)
    store.report(NAME, state=StreamState.RUNNING)
    assert invoke(paths, "--check")[0] == 1  # no supervisor
    store.acquire("supervisor", "host:1", ttl=60)
    assert invoke(paths, "--check")[0] == 0
    store.report(NAME, state=StreamState.FAILED)
    assert invoke(paths, "--check")[0] == 1
    assert invoke(paths)[0] == 0
    store.set_wanted(NAME, Wanted.STOPPED)
    assert invoke(paths, "--check")[0] == 0


def test_the_size_of_a_streams_state_is_that_of_its_newest_batch(paths: ProjectPaths, store: Store) -> None:
    for number, size in ((1, 1000), (2, 3 << 20)):
        progress = Progress(NAME, 1, number, time.time(), 1, 1, 50, "delta-rs", state_bytes=size)
        store.record_progress(progress, engine_token=1)
    assert status(paths)["streams"][0]["state_bytes"] == 3 << 20
    assert "3.0 MiB" in invoke(paths)[1]
