"""Progress of queries, from Spark's listener into the store.

Rules
- Spark calls from threads of its own; what is shared is behind a lock, in the store or in the writer.
- An exception here would vanish in the JVM: each is logged, and the stream goes on.
- Queries are known by their run id, which changes with every start.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.checkpoint.offsets import Offset, by_relation
from penstock.compiler.spec import StreamSpec
from penstock.engine.sink import TableWriter
from penstock.store import Progress, Store

log = logging.getLogger(__name__)


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Reports one stream's batches and its end."""

    def __init__(
        self,
        store: Store,
        spec: StreamSpec,
        generation: int,
        token: int,
        writer: TableWriter,
        ended: Callable[[str | None], None],
    ) -> None:
        self._store = store
        self._spec = spec
        self._generation = generation
        self._token = token
        self._writer = writer
        self._ended = ended

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """The engine reports the start itself, with the generation."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            self._store.record_progress(self._progress(json.loads(event.progress.json)), engine_token=self._token)
        except Exception:
            log.exception("%s: progress could not be recorded", self._spec.name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        try:
            self._store.report(self._spec.name, engine_token=self._token, rows_in_per_s=0.0, rows_out_per_s=0.0)
        except Exception:
            log.exception("%s: idleness could not be recorded", self._spec.name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        try:
            self._ended(event.exception)
        except Exception:
            log.exception("%s: its end could not be recorded", self._spec.name)

    def _progress(self, found: dict[str, Any]) -> Progress:
        batch_id = int(found["batchId"])
        written = self._writer.written(batch_id)
        state = found.get("stateOperators") or []
        return Progress(
            stream=self._spec.name,
            generation=self._generation,
            batch_id=batch_id,
            at=time.time(),
            rows_in=int(found.get("numInputRows") or 0),
            rows_out=written.rows if written else 0,
            duration_ms=int((found.get("durationMs") or {}).get("triggerExecution") or 0),
            writer=written.writer if written else "empty",
            rows_in_per_s=_number(found.get("inputRowsPerSecond")),
            offsets=by_relation([_offset(each.get("endOffset")) for each in found["sources"]], self._spec.inputs),
            state_rows=sum(int(each.get("numRowsTotal") or 0) for each in state),
            state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in state),
        )


def _number(value: Any) -> float:
    """Spark writes NaN and infinity for a batch without a length."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0


def _offset(value: Any) -> Offset | None:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else None
