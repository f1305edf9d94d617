"""What a run tells of a stream that it deployed: when the first batch does not come in time, too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from dagster import build_op_context

from penstock.dagster import PenstockTranslator, deploying
from penstock.dagster.deploying import Deployment
from penstock.dagster.project import Project
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings
from penstock.store import Store, StreamState

STREAM = "shop.clicks"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    paths = ProjectPaths(tmp_path)
    save_settings(paths, RuntimeSettings(target="dev", schema="shop"))
    store = Store.open(paths.store)
    store.deploy(STREAM, "{}", "hash", verdict="NEW", new_checkpoint=True)
    now = time.time()
    store.report(
        STREAM, state=StreamState.RUNNING, generation=1, started_at=now, lag_rows=500, lag_seconds=1.0, lag_at=now + 1
    )
    return store


def _facts(root: Path, timeout: float) -> tuple[dict[str, object], float]:
    deployment = Deployment(Project(root), PenstockTranslator(), build_op_context(), first_batch=timeout)
    begun = time.monotonic()
    return deployment._stream(STREAM, "NEW"), time.monotonic() - begun


def test_a_run_ends_at_its_deadline_without_the_first_batch_and_says_so(tmp_path: Path, store: Store) -> None:
    facts, waited = _facts(tmp_path, 0.2)
    assert (facts["first_batch"], facts["state"], facts["lag_rows"]) == ("none yet", "running", 500)
    assert 0.2 <= waited < 5


def test_the_first_lag_is_waited_for_as_well_but_not_for_ever(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.report(STREAM, last_batch_at=time.time() + 1, batch_id=0, total_rows_out=500, lag_rows=None)
    told = threading.Timer(0.5, lambda: store.report(STREAM, lag_rows=7))
    told.start()
    facts, _ = _facts(tmp_path, 60)
    told.join()
    assert (facts["first_batch"], facts["lag_rows"]) == ("committed", 7)
    store.report(STREAM, lag_rows=None)
    monkeypatch.setattr(deploying, "LAG_TOLD", 0.3)
    facts, waited = _facts(tmp_path, 60)
    assert (facts["first_batch"], "lag_rows" in facts) == ("committed", False)
    assert 0.3 <= waited < 30


def test_a_batch_that_is_there_is_not_waited_for(tmp_path: Path, store: Store) -> None:
    store.report(STREAM, last_batch_at=time.time() + 1, batch_id=0, total_rows_out=500)
    facts, waited = _facts(tmp_path, 60)
    assert (facts["first_batch"], facts["total_rows_out"]) == ("committed", 500)
    assert waited < 30
