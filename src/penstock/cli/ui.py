"""`penstock ui`: Dagster's web UI for the project, on loopback, until Ctrl-C.

Rules
- Dagster is a process of its own; nothing here imports it. Its home is below `.penstock/`, it sends no telemetry, and
  it listens on 127.0.0.1 alone.
- What was started is ended, whatever happens: web server, daemon, code server and runs.
- An UI that does not come up says why, with the end of its log.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import lifecycle
from penstock.cli.session import Session, command
from penstock.errors.catalogue import UI_NOT_STARTED

app = typer.Typer()
LOOPBACK = "127.0.0.1"
PORT = 3000
PATIENCE = 8.0  # seconds for a kind end; what it leaves is killed
# Ticks of sensors are the one thing in Dagster's home that grows without anything happening.
_SETTINGS = """\
telemetry: {enabled: false}
nux: {enabled: false}
retention:
  sensor: {purge_after_days: {skipped: 1, failure: 7, success: 1, started: -1}}
  schedule: {purge_after_days: {skipped: 7, failure: 30, success: 30, started: -1}}
run_monitoring: {enabled: true, start_timeout_seconds: 180, max_runtime_seconds: 1800}
concurrency: {runs: {max_concurrent_runs: 4}}
"""


@command(
    app,
    "ui",
    examples=["penstock ui", "penstock ui --port 0", "penstock ui --project-dir shop"],
    codes=(0, 2, 3),
    profile=True,
)
def ui(
    session: Session,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any free one.", min=0, max=65535)] = PORT,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it answers.", min=1)] = 120,
) -> None:
    """Open Dagster's web UI: every table as an asset, with health, lag, jobs and alerts. Ctrl-C ends it.

    It listens on this machine only; docs/operate.md shows how to put it behind a proxy with authentication. Streams
    need no UI: they go on when it is closed.
    """
    out = session.ui
    with lifecycle.ended_by_signals(), running(session, port) as web:
        with out.working("starting the web UI"):
            web.wait(timeout)
        if out.is_json:
            out.data({"url": web.url, "pid": web.pid})
        else:
            out.say(f"Web UI: {web.url} (Ctrl-C ends it)")
        try:
            web.watch()
        except KeyboardInterrupt:
            out.note("The web UI is closed.")


class WebUi:
    """Dagster's processes, started by us."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, log: Path, mark: int, patience: float = PATIENCE
    ) -> None:
        self._process = process
        self._log = log
        self._mark = mark
        self._patience = patience
        self._began = time.monotonic()
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def answers(self) -> bool:
        """Is the web server there, with the project loaded?"""
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, timeout: float, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it answers; False when `interrupted` first. PEN-5021 when it ends or does not come."""
        while not self.answers():
            if interrupted():
                return False
            if self._process.poll() is not None:
                raise UI_NOT_STARTED.error(f"Dagster ended with code {self._process.returncode}: {self._last_words()}")
            if time.monotonic() - self._began > timeout:
                raise UI_NOT_STARTED.error(f"The web UI did not answer within {timeout:.0f} s: {self._last_words()}")
            time.sleep(0.2)
        return True

    def watch(self) -> None:
        """Until it ends or Ctrl-C."""
        while self._process.poll() is None:
            time.sleep(0.2)
        raise UI_NOT_STARTED.error(f"Dagster ended with code {self._process.returncode}: {self._last_words()}")

    def end(self) -> None:
        """End it with all that belongs to its session: kindly, then not. A supervisor that a run started stays."""
        from penstock.control.sessions import end_session

        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=self._patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        end_session(self.pid)

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._mark)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if "PEN-" in line or "Error" in line]
        return (told or lines or ["nothing was said"])[-1][:300]


def installed() -> bool:
    """Is Dagster there?"""
    return importlib.util.find_spec("dagster_webserver") is not None


@contextmanager
def running(session: Session, port: int, patience: float = PATIENCE) -> Iterator[WebUi]:
    """The web UI of the session's project; ended in the end."""
    if not installed():
        raise UI_NOT_STARTED.error("Dagster is not installed.", hint="pip install 'penstock[orchestration]'")
    port = _free(port)
    home = session.paths.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():  # an operator may have changed it
        settings.write_text(_SETTINGS, encoding="utf-8")
    log = session.paths.logs / "ui.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    mark = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dagster",
                "dev",
                "-m",
                "penstock.dagster.location",
                "-h",
                LOOPBACK,
                "-p",
                str(port),
            ],
            cwd=session.project,
            env=_environment(session, home),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
    web = WebUi(process, f"http://{LOOPBACK}:{port}", log, mark, patience)
    try:
        yield web
    finally:
        with lifecycle.unhurried():
            web.end()


def _environment(session: Session, home: Path) -> dict[str, str]:
    found = os.environ | {
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "DAGSTER_DBT_PARSE_PROJECT_ON_LOAD": "0",  # the manifest is ours to keep current
        "PENSTOCK_PROJECT_DIR": str(session.project),
        "PYTHONUNBUFFERED": "1",
    }
    if session.profiles_dir:
        found["PENSTOCK_PROFILES_DIR"] = str(session.profiles)
    if session.target:
        found["PENSTOCK_TARGET"] = session.target
    return found


def _free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise UI_NOT_STARTED.error(
                f"Port {port} on {LOOPBACK} is taken.", hint="Choose another with --port, or --port 0 for any."
            ) from None
        return int(probe.getsockname()[1])
