"""The mark of a checkpoint whose history was read."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoint import backfill


def test_a_history_is_over_when_it_was_said_and_stays_so(tmp_path: Path) -> None:
    checkpoint = tmp_path / "g1-abc"
    assert not backfill.is_over(checkpoint)
    backfill.mark_over(checkpoint)
    backfill.mark_over(checkpoint)
    assert backfill.is_over(checkpoint)
