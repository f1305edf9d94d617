"""Whose events a listener takes for its own."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.engine.listener import ProgressListener

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
