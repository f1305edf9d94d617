"""Progress of queries, from Spark's listener into the store.

Rules
- Spark calls from threads of its own; what is shared is behind a lock, in the store or in the writer.
- An exception here would vanish in the JVM: each is logged, and the stream goes on.
- A listener tells of one run, the first that starts after it was made. Spark tells of batches and ends later than they
  happen: what comes late of a run before, in the same session, is not this one's.
- Rows that are left out because they are older than the watermark are told of in the log, once in a run: that they may
  come late is what a watermark is for, but one that is too strict should not go unseen.
- Of a batch Spark is asked for its text, once. PySpark's own listener asks for each part of it by itself, a call into
  the JVM each, and has the JVM look through all its jars for a class, once for each source that is counted.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.checkpoint.offsets import Offset, by_relation
from penstock.compiler.spec import StreamSpec
from penstock.engine.refresh import Refreshed
from penstock.engine.runtime import COUNTS
from penstock.engine.shared import Read
from penstock.engine.sink import TableWriter, Written
from penstock.store import Progress, RecordCounts, Store

log = logging.getLogger(__name__)

_LITTLE = 5_000  # messages: a batch of no more says that the stream is not far behind
_WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"


@dataclass(frozen=True)
class Batch:
    """Spark's progress of one batch."""

    runId: str  # noqa: N815 -- as Spark spells it
    json: str


@dataclass(frozen=True)
class BatchDone:
    """What Spark tells when a batch is done."""

    progress: Batch


class _Events(JStreamingQueryListener):  # type: ignore[misc]
    """What Spark calls, with objects of the JVM."""

    def onQueryProgress(self, jevent: JavaObject) -> None:
        progress = jevent.progress()
        self.pylistener.onQueryProgress(BatchDone(Batch(str(progress.runId().toString()), str(progress.json()))))


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Reports one stream's batches and its end."""

    def __init__(
        self,
        store: Store,
        spec: StreamSpec,
        tables: Mapping[str, str],  # id -> relation
        generation: int,
        token: int,
        writer: TableWriter,
        ended: Callable[[str | None], None],
    ) -> None:
        self._store = store
        self._spec = spec
        self._tables = tables
        self._generation = generation
        self._token = token
        self._writer = writer
        self._ended = ended
        self._run: str | None = None  # Spark tells of a start before it returns from it
        self.is_close = False  # the stream has read about all that there is
        self._told_late = False
        self._in_jvm: JavaObject | None = None

    @property
    def _jlistener(self) -> JavaObject:
        """What PySpark gives to Spark."""
        if self._in_jvm is None:
            self._in_jvm = getattr(SparkContext._jvm, _WRAPPER)(_Events(self))
        return self._in_jvm

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """The engine reports the start itself, with the generation."""
        self._run = self._run or str(event.runId)

    def _is_own(self, run: object) -> bool:
        return str(run) == self._run

    def onQueryProgress(self, event: BatchDone) -> None:
        if not self._is_own(event.progress.runId):
            return
        try:
            found = json.loads(event.progress.json)
            self.is_close = int(found.get("numInputRows") or 0) <= _LITTLE
            written = self._writer.written(int(found["batchId"]))
            self._tell_late(found)
            self._store.record_progress(
                self._progress(found, written),
                engine_token=self._token,
                counts=_counts(found),
                violations=written.violations if written else None,
                anew=written.anew if written else False,
            )
        except Exception:
            log.exception("%s: progress could not be recorded", self._spec.name)

    def _tell_late(self, found: dict[str, Any]) -> None:
        late = any(int(each.get("numRowsDroppedByWatermark") or 0) for each in found.get("stateOperators") or ())
        if late and not self._told_late:
            self._told_late = True
            log.warning(
                "%s: rows are left out because they are older than the watermark, first in batch %s; give it a longer "
                "delay, or read a history with backfill: batch", self._spec.name, found["batchId"],
            )  # fmt: skip

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if self._is_own(event.runId):
            self.is_close = True
            self.idle()

    def shared(self, done: Read) -> None:
        """As `onQueryProgress`, for a batch of a reading that is shared."""
        written = self._writer.written(done.number)
        try:
            progress = Progress(
                stream=self._spec.name,
                generation=self._generation,
                batch_id=done.number,
                at=time.time(),
                rows_in=done.messages,
                rows_out=written.rows if written else 0,
                duration_ms=int(done.seconds * 1000),
                writer=written.writer if written else "empty",
                rows_in_per_s=done.messages / max(done.since, 0.001),
                offsets=by_relation([done.offsets], self._spec.inputs),
            )
            self._store.record_progress(
                progress,
                engine_token=self._token,
                counts=_counts({"observedMetrics": done.counts}),
                violations=written.violations if written else None,
                anew=written.anew if written else False,
            )
        except Exception:
            log.exception("%s: progress could not be recorded", self._spec.name)

    def refreshed(self, done: Refreshed) -> None:
        """As `onQueryProgress`, for a full refresh."""
        written = self._writer.written(done.number)
        try:
            progress = Progress(
                stream=self._spec.name,
                generation=self._generation,
                batch_id=done.number,
                at=time.time(),
                rows_in=done.new_messages,
                rows_out=written.rows if written else 0,
                duration_ms=done.duration_ms,
                writer=written.writer if written else "empty",
                offsets=done.offsets,
            )
            violations = written.violations if written else None
            self._store.record_progress(progress, engine_token=self._token, violations=violations, anew=True)
        except Exception:
            log.exception("%s: progress could not be recorded", self._spec.name)

    def idle(self) -> None:
        """Nothing was to be done at the last look."""
        try:
            self._store.report(self._spec.name, engine_token=self._token, rows_in_per_s=0.0, rows_out_per_s=0.0)
        except Exception:
            log.exception("%s: idleness could not be recorded", self._spec.name)

    def ended(self, exception: str | None) -> None:
        try:
            self._ended(exception)
        except Exception:
            log.exception("%s: its end could not be recorded", self._spec.name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._is_own(event.runId):
            self.ended(event.exception)

    def _progress(self, found: dict[str, Any], written: Written | None) -> Progress:
        batch_id = int(found["batchId"])
        state = found.get("stateOperators") or []
        # Of Spark's own sink, which streams in real time have; -1 where it does not know.
        published = max(int((found.get("sink") or {}).get("numOutputRows") or 0), 0)
        return Progress(
            stream=self._spec.name,
            generation=self._generation,
            batch_id=batch_id,
            at=time.time(),
            rows_in=int(found.get("numInputRows") or 0),
            rows_out=written.rows if written else published,
            duration_ms=int((found.get("durationMs") or {}).get("triggerExecution") or 0),
            writer=written.writer if written else "kafka" if published else "empty",
            rows_in_per_s=_number(found.get("inputRowsPerSecond")),
            offsets=by_relation(
                [_offset(each.get("endOffset")) for each in found["sources"]], self._spec.inputs, self._tables
            ),
            state_rows=sum(int(each.get("numRowsTotal") or 0) for each in state),
            state_bytes=sum(_state_size(each) for each in state),
        )


def _counts(found: dict[str, Any]) -> dict[str, RecordCounts]:
    """What `runtime.counted` counted, by source. A batch that was not run has no counts, or null ones."""
    counts = {}
    for source, each in (found.get("observedMetrics") or {}).items():
        read = {name: int(each.get(name) or 0) for name in COUNTS}
        if read["records"]:
            wrong = read["bad"] + read["partly_bad"] > 0
            counts[str(source)] = RecordCounts(**read, last_at=time.time() if wrong else None)
    return counts


def _number(value: Any) -> float:
    """Spark writes NaN and infinity for a batch without a length."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0


def _state_size(operator: dict[str, Any]) -> int:
    """What a state store has in memory and in its files, in bytes."""
    files = (operator.get("customMetrics") or {}).get("rocksdbSstFileSize") or 0
    return int(operator.get("memoryUsedBytes") or 0) + int(files)


def _offset(value: Any) -> Offset | None:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else None
