"""Whose events a listener takes for its own."""

from __future__ import annotations

import json
import logging
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.engine.listener import Batch, BatchDone, ProgressListener

SPEC = StreamSpec(
    name="shop.a", unique_id="model.shop.a", path="models/a.sql", sql="select k from clicks", stateful=False,
    inputs=(KafkaInput(view="clicks", relation="shop.clicks", topic="clicks",
                       columns=(Column(name="k", type="STRING", origin="value.k"),)),),
    output=Output(relation="shop.a", mode=OutputMode.APPEND),
)  # fmt: skip


class Idle:
    """A store that only hears of idleness."""

    def __init__(self) -> None:
        self.heard = 0

    def report(self, *_: Any, **__: Any) -> bool:
        self.heard += 1
        return True


def test_what_comes_late_of_a_run_before_is_not_taken_for_the_one_that_runs() -> None:
    # Spark tells of the end of a query that was stopped when the next one is already there, in the same session.
    before, own = uuid.uuid4(), uuid.uuid4()
    store, ends = Idle(), list[str | None]()
    listener = ProgressListener(cast(Any, store), SPEC, {}, 1, 1, cast(Any, None), ends.append)
    listener.onQueryTerminated(cast(Any, SimpleNamespace(runId=before, exception=None)))
    listener.onQueryStarted(cast(Any, SimpleNamespace(runId=own)))
    listener.onQueryTerminated(cast(Any, SimpleNamespace(runId=before, exception=None)))
    listener.onQueryIdle(cast(Any, SimpleNamespace(runId=before)))
    listener.onQueryProgress(cast(Any, SimpleNamespace(progress=SimpleNamespace(runId=before))))
    assert (ends, store.heard) == ([], 0)
    listener.onQueryIdle(cast(Any, SimpleNamespace(runId=own)))
    listener.onQueryTerminated(cast(Any, SimpleNamespace(runId=own, exception="it broke")))
    assert (ends, store.heard) == (["it broke"], 1)


def test_rows_that_are_left_out_as_late_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    own, recorded = uuid.uuid4(), []
    store = SimpleNamespace(record_progress=lambda progress, **_: recorded.append(progress))
    writer = SimpleNamespace(written=lambda _: None)
    listener = ProgressListener(cast(Any, store), SPEC, {}, 1, 1, cast(Any, writer), lambda _: None)
    listener.onQueryStarted(cast(Any, SimpleNamespace(runId=own)))
    caplog.set_level(logging.WARNING)
    for batch, late in enumerate((0, 3, 4)):
        operators = [{"numRowsTotal": 1, "numRowsDroppedByWatermark": each} for each in (0, late)]
        told = {"batchId": batch, "sources": [], "stateOperators": operators}
        listener.onQueryProgress(BatchDone(Batch(str(own), json.dumps(told))))
    assert len(recorded) == 3
    (told_once,) = [each.getMessage() for each in caplog.records]
    assert told_once.startswith(
        "shop.a: rows are left out because they are older than the watermark, first in batch 1;"
    )
