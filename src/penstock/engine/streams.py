"""The streams of one engine: prepare, start, stop, drop.

Rules
- A stream runs the module that the compiler writes for its spec: job.py below .penstock/jobs, the same text as in
  target/.
- Every change of state is reported with the engine's token; a replaced engine's reports are refused by the store.
- Stopping lets the batch under way finish; what does not finish in time is abandoned and comes again, once, later.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.compiler import render_job
from penstock.compiler.spec import StreamSpec
from penstock.engine import failures, runtime, tables
from penstock.engine.listener import ProgressListener
from penstock.engine.sink import TableWriter
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import LEASE_LOST
from penstock.paths import ProjectPaths, safe_name
from penstock.store import Desired, Store, StreamState

log = logging.getLogger(__name__)

FINISH_BATCH = 20.0  # seconds that a batch under way has to finish when its stream is stopped


@dataclass(frozen=True)
class _Live:
    running: runtime.Running
    spec: StreamSpec
    generation: int
    session: SparkSession
    listener: ProgressListener


class Streams:
    """Runs the streams of the project in one Spark application."""

    def __init__(self, spark: SparkSession, store: Store, paths: ProjectPaths, token: int) -> None:
        self._spark = spark
        self._store = store
        self._paths = paths
        self._token = token
        self._lock = threading.RLock()  # of the two below; never held while Spark works
        self._live: dict[str, _Live] = {}
        self._stopping: set[str] = set()
        self._sessions: dict[str, SparkSession] = {}  # one per stream, kept: Spark never lets go of one that listened

    # -- prepare ------------------------------------------------------------------------------------------------------
    def prepare(self, spec: StreamSpec, *, full_refresh: bool, dry: bool) -> dict[str, Any]:
        """Have Spark read the model, and make its table unless `dry`. Nothing is started or changed when it fails."""
        job = self._load(spec, self._paths.jobs / safe_name(spec.name) / "prepare" / "job.py")
        session = runtime.session_for(self._spark, job.STREAM)
        at = Location(spec.path)
        try:
            rows = job.build(session)
            _check_streaming(rows, job.STREAM.output_mode)
        except (PySparkException, Py4JJavaError, PenstockError) as problem:
            raise failures.of_model(problem, spec) from problem
        tables.check_columns(rows.schema, at)
        if full_refresh and not dry:
            self.stop(spec.name)  # commands of a stream take turns: nobody starts it before this one is done
        made = not dry and tables.ensure(
            session, spec.output.relation, rows.schema, spec.name, full_refresh=full_refresh
        )
        columns = [[field.name, field.dataType.simpleString()] for field in rows.schema.fields]
        return {"columns": columns, "made": made}

    # -- start and stop -----------------------------------------------------------------------------------------------
    def start(self, want: Desired) -> None:
        """Start a stream on its checkpoint; a failure is reported as its state, not raised."""
        spec = StreamSpec.from_json(want.spec_json)
        with self._lock:
            live = self._live.get(want.stream)
        if live is not None and live.generation == want.generation:
            self._report(want.stream, state=StreamState.RUNNING)
            return
        if live is not None:
            self.stop(want.stream)
        now = time.time()
        self._report(want.stream, state=StreamState.STARTING, generation=want.generation, started_at=now, run_id=None)
        try:
            self._start(want, spec)
        except Exception as problem:
            log.exception("%s did not start", want.stream)
            self._failed(want.stream, failures.of_model(problem, spec))

    def _start(self, want: Desired, spec: StreamSpec) -> None:
        job = self._load(spec, self._paths.job(want.stream, want.generation))
        session = runtime.session_for(self._spark, job.STREAM, self._sessions.get(want.stream))
        self._sessions[want.stream] = session
        checkpoint = self._paths.checkpoint(want.stream, want.checkpoint_id)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        listeners: list[ProgressListener] = []

        def listen(writer: TableWriter) -> None:
            def ended(exception: str | None) -> None:
                self._ended(want.stream, writer, exception)

            listener = ProgressListener(self._store, spec, want.generation, self._token, writer, ended)
            session.streams.addListener(listener)
            listeners.append(listener)

        try:
            running = runtime.start(
                session,
                job.STREAM,
                checkpoint=checkpoint,
                checkpoint_id=want.checkpoint_id,
                token=self._token,
                prepare=listen,
            )
        except BaseException:
            for listener in listeners:
                session.streams.removeListener(listener)
            raise
        query = running.query
        self._report(want.stream, state=StreamState.RUNNING, run_id=str(query.runId), retry_at=None)
        log.info("%s runs, generation %s, checkpoint %s", want.stream, want.generation, want.checkpoint_id)
        # From here on its end is noticed; should it have ended before, nobody was told.
        with self._lock:
            self._live[want.stream] = _Live(running, spec, want.generation, session, listeners[0])
        self._check(want.stream, self._live[want.stream])
        for old in checkpoint.parent.iterdir():
            if old != checkpoint:  # of a generation before, whose table is gone
                shutil.rmtree(old, ignore_errors=True)

    def check(self) -> None:
        """Notice every query that ended without its end having been recorded."""
        with self._lock:
            live = list(self._live.items())
        for stream, each in live:
            self._check(stream, each)

    def _check(self, stream: str, live: _Live) -> None:
        if not live.running.query.isActive:
            problem = live.running.query.exception()
            self._ended(stream, live.running.writer, str(problem) if problem else None)

    def stop(self, stream: str) -> None:
        """Stop a stream; its batch may finish first."""
        with self._lock:
            live = self._live.get(stream)
            if live is None:
                self._report(stream, state=StreamState.STOPPED, rows_in_per_s=0.0, rows_out_per_s=0.0)
                return
            self._stopping.add(stream)
        if not live.running.writer.close(FINISH_BATCH):
            log.warning("%s: its batch did not finish in %s s and is abandoned", stream, FINISH_BATCH)
        live.running.query.stop()
        self._forget(stream, live)
        self._report(stream, state=StreamState.STOPPED, run_id=None, rows_in_per_s=0.0, rows_out_per_s=0.0)
        log.info("%s stopped", stream)

    def stop_all(self) -> None:
        """Stop every stream, all at once."""
        with self._lock:
            names = list(self._live)
        threads = [threading.Thread(target=self._quietly_stop, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=FINISH_BATCH + 5)

    def _quietly_stop(self, stream: str) -> None:
        try:
            self.stop(stream)
        except Exception:
            log.exception("%s could not be stopped cleanly", stream)

    def drop(self, stream: str, want: Desired) -> dict[str, Any]:
        """Stop the stream, drop its table, delete its checkpoints and jobs."""
        self.stop(stream)
        spec = StreamSpec.from_json(want.spec_json)
        dropped = tables.drop(self._spark, spec.output.relation, stream)
        for folder in (self._paths.checkpoints / safe_name(stream), self._paths.jobs / safe_name(stream)):
            shutil.rmtree(folder, ignore_errors=True)
        return {"dropped": dropped}

    # -- ends ---------------------------------------------------------------------------------------------------------
    def _ended(self, stream: str, writer: TableWriter, exception: str | None) -> None:
        """A query ended: because it was stopped, because it failed, or because another engine took over."""
        with self._lock:
            live = self._live.get(stream)
            if stream in self._stopping or live is None or live.running.writer is not writer:
                return
            del self._live[stream]
        live.session.streams.removeListener(live.listener)
        problem = failures.of_stream(writer.error or exception or "the query ended without an error", live.spec)
        if problem.kind is LEASE_LOST:
            log.error("%s", problem)
        else:
            log.error("%s failed: %s\n%s", stream, problem, exception or "")
        try:
            self._failed(stream, problem)
        except PenstockError:
            with self._lock:
                self._live.setdefault(stream, live)  # `check` tries again
            raise

    def _failed(self, stream: str, problem: PenstockError) -> None:
        self._report(
            stream,
            state=StreamState.FAILED,
            run_id=None,
            retry_at=None,
            last_failure_at=time.time(),
            error_code=problem.code,
            error=str(problem),
            rows_in_per_s=0.0,
            rows_out_per_s=0.0,
        )

    def _forget(self, stream: str, live: _Live) -> None:
        with self._lock:
            self._stopping.discard(stream)
            if self._live.get(stream) is live:
                del self._live[stream]
        live.session.streams.removeListener(live.listener)

    def _report(self, stream: str, **changes: Any) -> None:
        if not self._store.report(stream, engine_token=self._token, **changes):
            log.error("%s: a newer engine reports this stream; this one is out of date", stream)

    # -- jobs ---------------------------------------------------------------------------------------------------------
    def _load(self, spec: StreamSpec, file: Path) -> ModuleType:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render_job(spec), encoding="utf-8")
        name = f"penstock_job_{safe_name(spec.name).replace('.', '_').replace('-', '_')}"
        found = importlib.util.spec_from_file_location(name, file)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module


def _check_streaming(rows: DataFrame, output_mode: str) -> None:
    """Ask Spark now what it would otherwise say at the start: can it keep this query as a stream?"""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Update() if output_mode == "update" else modes.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)
