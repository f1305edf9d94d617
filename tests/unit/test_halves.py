"""Two runs of pytest that share their tests: each test is run once, and what needs a dear fixture by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import halves

TESTS = """
import os, time
import pytest

@pytest.fixture(scope="session")
def wheel():
    return None

@pytest.mark.parametrize("number", range(3))
def test_one({fixture}number):
    with open("ran", "a") as out:
        out.write(f"{name} {{number}} {{os.getpid()}}\\n")
    deadline = time.monotonic() + 100
    while len({{line.split()[2] for line in open("ran")}}) < 2:
        assert time.monotonic() < deadline, "the other run takes nothing"
        time.sleep(0.01)
"""


def test_every_test_is_run_once_and_a_dear_fixture_is_in_one_run(tmp_path: Path) -> None:
    names = [f"test_{number}" for number in range(6)]
    tests, shared = tmp_path / "tests", tmp_path / "shared"  # beside each other: what is taken has the names of tests
    tests.mkdir()
    shared.mkdir()
    for name in names:
        fixture = "wheel, " if name in ("test_1", "test_4") else ""
        (tests / f"{name}.py").write_text(TESTS.format(name=name, fixture=fixture))
    environment = os.environ | {
        halves.SHARED: str(shared),
        "PYTHONPATH": str(Path(halves.__file__).parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    line = [sys.executable, "-m", "pytest", "-q", "-p", "halves", "-p", "no:cacheprovider", "--rootdir", "."]
    runs = [subprocess.Popen(line, cwd=tests, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for run in runs:
        said, _ = run.communicate(timeout=120)
        assert run.returncode == 0, said
    ran = [tuple(each.split()) for each in (tests / "ran").read_text().splitlines()]
    assert sorted(each[:2] for each in ran) == sorted((name, str(number)) for name in names for number in range(3))
    by_name = {name: {each[2] for each in ran if each[0] == name} for name in names}
    assert all(len(processes) == 1 for processes in by_name.values())
    assert by_name["test_1"] == by_name["test_4"]
    assert len(set.union(*by_name.values())) == 2
