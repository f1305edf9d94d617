"""How a demo without rows ends: at once when a stream is out, else when its patience is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import demo
from penstock.cli.output import Stopwatch, Ui
from penstock.cli.query import Result
from penstock.cli.session import Session
from penstock.errors import PenstockError
from penstock.store import Store, StreamState


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A project with one stream, whose query never has a row."""
    (tmp_path / "dbt_project.yml").write_text("name: shop\n")
    found = Session(Ui(quiet=True), project_dir=tmp_path)
    Store.open(found.paths.store).deploy("shop.clicks", "{}", "hash", verdict="NEW", new_checkpoint=False)
    monkeypatch.setattr(demo, "_look", lambda _spark, _sql: Result((), (), more=False))
    monkeypatch.setattr(demo, "_LOOK", 0.01)
    return found


def ended(session: Session) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        demo._until_rows(session, None, "select 1", 0.0, Stopwatch())
    return caught.value


def test_no_rows_in_time_is_an_error(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_PATIENCE", 0.05)
    assert ended(session).code == "PEN-5007"


def test_a_quarantined_stream_is_told_without_waiting(session: Session) -> None:
    store = Store.open(session.paths.store)
    store.report("shop.clicks", state=StreamState.QUARANTINED, error_code="PEN-4003", error="boom")
    problem = ended(session)
    assert problem.code == "PEN-4004"
    assert "boom" in problem.message
