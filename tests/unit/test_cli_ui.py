"""`penstock ui` before anything is started: what is missing or taken is said in one line."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import ui
from penstock.cli.output import Ui
from penstock.cli.session import Session
from penstock.errors import PenstockError


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "dbt_project.yml").write_text("name: x\nprofile: x\n")
    return Session(Ui(), tmp_path, target="prod")


def test_a_port_that_is_taken_is_named(session: Session) -> None:
    with socket.socket() as other:
        other.bind((ui.LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PenstockError, match=rf"PEN-5021 Port {port} on 127\.0\.0\.1 is taken\. .*--port 0"):
            ui.running(session, port).__enter__()


def test_without_dagster_it_says_how_to_get_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "installed", lambda: False)
    with pytest.raises(
        PenstockError, match=r"PEN-5021 Dagster is not installed\. pip install 'penstock\[orchestration\]'"
    ):
        ui.running(session, 0).__enter__()


def test_dagsters_home_is_the_projects_own_and_nothing_is_sent_home(session: Session) -> None:
    home = session.paths.home / "dagster"
    found = ui._environment(session, home)
    assert found["DAGSTER_HOME"] == str(home)
    assert found["DAGSTER_DISABLE_TELEMETRY"] == "1"
    assert found["PENSTOCK_PROJECT_DIR"] == str(session.project)
    assert found["PENSTOCK_TARGET"] == "prod"
    assert "telemetry: {enabled: false}" in ui._SETTINGS


def test_the_docs_show_what_an_instance_of_ones_own_needs(session: Session) -> None:
    shown = (Path(__file__).parents[2] / "docs/operate.md").read_text(encoding="utf-8")
    needed = [line for line in ui._SETTINGS.splitlines() if not line.startswith("nux")]
    assert "\n".join(needed) in shown


def test_the_command_line_needs_no_dagster() -> None:
    code = "import sys; sys.modules['dagster'] = None; import penstock.cli.main; print(penstock.cli.main.app.info.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "penstock", done.stderr
