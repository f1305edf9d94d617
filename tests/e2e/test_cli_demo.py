"""`penstock demo` in a copy of this repository's own project: it shows real rows and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project_processes import processes_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]
ROOT = Path(__file__).parents[2]
PENSTOCK = str(Path(sys.executable).parent / "penstock")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path / "demo"
    copy.mkdir()
    shutil.copy(ROOT / "dbt_project.yml", copy)
    for name in ("models", "sources", "seeds", "profiles"):
        shutil.copytree(ROOT / name, copy / name)
    return copy


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("DBT_", "PENSTOCK_KAFKA"))}


def penstock(project: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PENSTOCK, *args],
        cwd=project, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_once_shows_recommendations_and_stops_everything(project: Path) -> None:
    demo = penstock(project, "demo", "--once", "--seconds", "5", "--rate", "60", "--output", "json")
    printed, progress = demo.communicate(timeout=400)
    assert demo.returncode == 0, progress
    found = json.loads(printed)
    assert found["clicks"] > 100
    assert {"item", "rank", "recommendation", "score"} <= set(found["rows"][0])
    assert found["streams"]
    assert {stream["state"] for stream in found["streams"]} == {"running"}
    assert {"up", "dbt build", "streaming"} <= set(found["seconds"])
    assert "web UI http://127.0.0.1:" in progress
    assert processes_of(project) == []


@pytest.mark.parametrize(
    ("moment", "number"), [("Waiting for the engine", signal.SIGTERM), ("dbt build", signal.SIGINT)]
)
def test_interrupted_it_stops_what_it_started(project: Path, moment: str, number: signal.Signals) -> None:
    demo = penstock(project, "demo", "--once")
    assert demo.stderr is not None
    said: list[str] = []
    for line in demo.stderr:
        said.append(line)
        if line.startswith(moment):
            break
    else:
        pytest.fail(f"the demo ended before '{moment}': {said}")
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)  # a terminal's Ctrl-C goes to dbt as well
    else:
        os.kill(demo.pid, number)
    _, progress = demo.communicate(timeout=120)
    assert demo.returncode == 130, progress
    deadline = time.monotonic() + 10
    while processes_of(project) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(project) == []
