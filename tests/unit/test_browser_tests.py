"""The browser tests where there is no browser: skipped with a word on a developer's machine, failed in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which there is neither Chromium nor a way to install it."""
    for name in ("bash", "env", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "PATH")}
    return kept | {"PATH": str(tmp_path)}


def _run(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "tests/e2e/test_ui.py", "-q", "-rs", "-p", "no:cacheprovider", *args]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_without_chromium_they_are_skipped_and_say_what_to_install(environment: dict[str, str]) -> None:
    done = _run(environment)
    assert "skipped" in done.stdout
    assert "There is no Chromium: the browser tests are skipped" in done.stdout
    installed = subprocess.run(["tools/browser.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert installed.returncode == 0
    assert "the browser tests are skipped" in installed.stderr


def test_in_ci_they_fail(environment: dict[str, str]) -> None:
    done = _run(environment | {"CI": "true"})
    assert done.returncode not in (0, 5), done.stdout
    assert "There is no Chromium, and CI has to run the browser tests" in done.stdout
    installed = subprocess.run(
        ["tools/browser.sh"], cwd=ROOT, env=environment | {"CI": "true"}, capture_output=True, text=True
    )
    assert installed.returncode == 1
    assert "CI has to run the browser tests" in installed.stderr


def test_in_ci_a_run_that_leaves_them_out_needs_no_browser(environment: dict[str, str]) -> None:
    done = _run(environment | {"CI": "true"}, "-m", "not deep")
    assert done.returncode == 5, done.stdout  # pytest's code for a run that found no test
    assert "Chromium" not in done.stdout
