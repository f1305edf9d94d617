"""`penstock demo` as a person sees it: on a terminal, live, until Ctrl-C. (Without a terminal: test_cli_demo.py.)"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from project_processes import listening, processes_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]
ROOT = Path(__file__).parents[2]
PENSTOCK = Path(sys.executable).with_name("penstock")
CTRL_C = b"\x03"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path / "demo"
    copy.mkdir()
    shutil.copy(ROOT / "dbt_project.yml", copy)
    for name in ("models", "sources", "seeds", "profiles"):
        shutil.copytree(ROOT / name, copy / name)
    return copy


class Terminal:
    """A program on a terminal of its own: what it shows, and keys for it."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._keys, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PENSTOCK_KAFKA"))}
        self.process = subprocess.Popen(
            command, cwd=directory, env=kept | {"TERM": "xterm", "DO_NOT_TRACK": "1"},
            stdin=screen, stdout=screen, stderr=screen, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(screen)
        self.shown = ""

    def press(self, key: bytes) -> None:
        os.write(self._keys, key)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}; shown: {self.screen()}"
            self._read()

    def screen(self) -> str:
        """What was shown last, without the empty lines."""
        return "\n".join(line.rstrip() for line in self.shown[-20_000:].splitlines() if line.strip())

    def ended(self) -> bool:
        return self.process.poll() is not None

    def _read(self) -> None:
        if not select.select([self._keys], [], [], 0.2)[0]:
            return
        try:
            text = os.read(self._keys, 65536).decode(errors="replace")
        except OSError as problem:
            if problem.errno != errno.EIO:  # EIO: nobody has the terminal open any more
                raise
            self.process.wait(timeout=60)
        else:
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def close(self) -> None:
        if not self.ended():
            self.process.terminate()
            self.process.wait(timeout=120)
        os.close(self._keys)


@pytest.fixture
def terminal(project: Path) -> Iterator[Terminal]:
    made = Terminal([str(PENSTOCK), "demo", "--rate", "60", "--no-ui"], project)  # its page: test_cli_demo.py
    try:
        yield made
    finally:
        made.close()


def test_on_a_terminal_recommendations_stay_on_the_screen_until_ctrl_c(project: Path, terminal: Terminal) -> None:
    row = re.compile(r"\s1\s+\w.*\s\d+\.\d+\s+\d+\s+\d+\.\d+")  # rank 1, an item, …, price, seen together, score
    terminal.until(lambda: "recommendation" in terminal.shown and bool(row.search(terminal.shown)), 400, "a row")
    assert not terminal.ended()
    ports = listening(processes_of(project))
    assert len(ports) >= 3

    terminal.press(CTRL_C)
    terminal.until(terminal.ended, 120, "the end")
    assert terminal.process.returncode == 0, terminal.screen()
    assert "Traceback" not in terminal.shown
    deadline = time.monotonic() + 10
    while processes_of(project):
        assert time.monotonic() < deadline, processes_of(project)
        time.sleep(0.1)
    taken = {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert not ports & taken
