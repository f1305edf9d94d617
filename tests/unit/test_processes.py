"""Background processes: a process is the same one whatever the clock says."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere the kernel keeps the time of day of the start")
@pytest.mark.parametrize("seconds", [-3600, 1, 3600])
def test_a_clock_that_is_set_makes_no_process_a_stranger(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    started = processes.started_at(sleeper.pid)
    assert started is not None
    before = psutil.boot_time()  # what Linux derives from the clock
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + seconds)
    assert processes.time_of_start(sleeper.pid) == pytest.approx(time.time() + seconds, abs=30), "the clock was set"

    assert processes.alive(sleeper.pid, started)
    assert processes.terminate(sleeper.pid, started, timeout=10)
    assert processes.started_at(sleeper.pid) is None


def test_a_process_that_only_has_the_same_pid_is_another_one() -> None:
    started = processes.started_at(os.getpid())
    assert started is not None
    assert processes.alive(os.getpid(), started)
    assert not processes.alive(os.getpid(), started - 1)


def test_a_process_whose_name_has_spaces_and_brackets_is_known(tmp_path: Path) -> None:
    program = tmp_path / "a) (b"
    shutil.copy(str(shutil.which("sleep")), program)
    process = subprocess.Popen([str(program), "60"])
    try:
        mine, its = processes.started_at(os.getpid()), processes.started_at(process.pid)
        assert mine is not None
        assert its is not None
        assert mine <= its
    finally:
        process.kill()
        process.wait()
    assert processes.started_at(process.pid) is None
    assert processes.time_of_start(process.pid) is None
