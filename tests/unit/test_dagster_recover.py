"""The run that the restart sensor asks for: what it leaves alone, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.dagster import jobs
from penstock.dagster.jobs import Recover, recover
from penstock.dagster.project import Project
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings
from penstock.store import Store, StreamState, Wanted

STREAM = "shop.clicks"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    paths = ProjectPaths(tmp_path)
    save_settings(paths, RuntimeSettings(target="dev", schema="shop"))
    store = Store.open(paths.store)
    store.deploy(STREAM, "{}", "hash", verdict="NEW", new_checkpoint=True)
    return store


@pytest.fixture
def project(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose streams run as soon as it is brought up."""

    def ensure_up(*_: Any, **__: Any) -> None:
        store.report(STREAM, state=StreamState.RUNNING, generation=1)

    monkeypatch.setattr(jobs, "ensure_up", ensure_up)
    monkeypatch.setattr(jobs, "RUNS_AGAIN", 0.2)
    return Project(tmp_path)


def _recover(project: Project, **more: Any) -> list[str]:
    return recover(project, Recover(streams=[STREAM], reason="the supervisor is gone", **more), lambda _: None)


def test_streams_that_shall_run_are_brought_back(project: Project) -> None:
    assert _recover(project) == [STREAM]


@pytest.mark.parametrize("how", ["stopped", "dropped", "quarantined"])
def test_what_was_taken_out_in_the_meantime_is_left_alone(
    project: Project, store: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ensure_up", lambda *_, **__: pytest.fail("nothing is to be started"))
    if how == "stopped":
        store.set_wanted(STREAM, Wanted.STOPPED)
    elif how == "dropped":
        store.forget(STREAM)
    else:
        store.report(STREAM, state=StreamState.QUARANTINED)
    assert _recover(project) == []


def test_a_project_whose_data_is_on_another_machine_is_not_started_here(project: Project, store: Store) -> None:
    store.report(STREAM, state=StreamState.RUNNING, generation=1, batch_id=7)
    with pytest.raises(PenstockError, match=r"PEN-\d+ The checkpoints of shop\.clicks are not on this machine"):
        _recover(project)
    project.paths.checkpoint(STREAM, store.desired(STREAM).checkpoint_id).mkdir(parents=True)
    assert _recover(project) == [STREAM]


def test_a_stream_that_does_not_come_back_fails_the_run(
    project: Project, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ensure_up", lambda *_, **__: None)
    with pytest.raises(PenstockError, match=r"Waited 0 s for shop\.clicks to run"):
        _recover(project)
    monkeypatch.setattr(
        jobs, "ensure_up", lambda *_, **__: store.report(STREAM, state=StreamState.QUARANTINED, error="PEN-4003 boom")
    )
    with pytest.raises(PenstockError, match=r"shop\.clicks cannot run: PEN-4003 boom"):
        _recover(project)
