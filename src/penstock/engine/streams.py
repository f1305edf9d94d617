"""The streams of one engine: prepare, start, stop, drop.

Rules
- A stream runs the module that the compiler writes for its spec: job.py below .penstock/jobs, the same text as in
  target/.
- Every change of state is reported with the engine's token; a replaced engine's reports are refused by the store.
- Stopping lets the batch under way finish; what does not finish in time is abandoned and comes again, once, later.
- Streams that read a topic in the same way share its reading (`engine.shared`) when there are several of them and they
  are not far behind. Each begins as a query of Spark's; one whose batch failed in a shared reading goes on as one.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.checkpoint import backfill
from penstock.checkpoint.offsets import committed
from penstock.checkpoint.standing import standing
from penstock.checkpoint.table_ids import relations
from penstock.compiler import sharing
from penstock.compiler.spec import OutputMode, StreamSpec
from penstock.engine import (
    columns,
    expectations,
    failures,
    jobs,
    messages,
    polling,
    publish,
    runtime,
    snapshot,
    tables,
    takeover,
    topic_files,
)
from penstock.engine.clusters import Clusters
from penstock.engine.culprit import Culprits, Failure
from penstock.engine.identity import application
from penstock.engine.listener import ProgressListener
from penstock.engine.refresh import Refresh
from penstock.engine.replay import Replay
from penstock.engine.shared import CHUNK, Member, Pace, Readers
from penstock.engine.sink import TableWriter
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import LEASE_LOST, MODEL_NOT_INCREMENTAL
from penstock.paths import ProjectPaths, beside, is_beside, safe_name
from penstock.store import Desired, Store, StreamState, Wanted

log = logging.getLogger(__name__)

FINISH_BATCH = 20.0  # seconds that a batch under way has to finish when its stream is stopped
_TELL_BATCH = 2.0  # seconds for word of the last batch
SHARING_CONF = "spark.penstock.shared_reading"  # from how many streams of a topic on; 0: every stream reads by itself
_SHARED_FROM = "4"  # measured: with 5 a row is there in half the time, for three quarters of the CPU


@dataclass(frozen=True)
class _Live:
    running: runtime.Running
    spec: StreamSpec
    generation: int
    session: SparkSession
    listener: ProgressListener
    checkpoint: Path
    reading: str | None  # what it has in common with streams that may read with it


class Streams:
    """Runs the streams of the project in one Spark application."""

    def __init__(self, spark: SparkSession, store: Store, paths: ProjectPaths, token: int) -> None:
        self._spark = spark
        self._store = store
        self._paths = paths
        self._token = token
        self._lock = threading.RLock()  # of the three below; never held while Spark works
        self._live: dict[str, _Live] = {}
        self._stopping: set[str] = set()
        self._alone: dict[str, int] = {}  # stream -> the generation that failed in a shared reading
        self._culprits = Culprits(spark, store, paths, token)
        self._sessions: dict[str, SparkSession] = {}  # one per stream, kept: Spark never lets go of one that listened
        self._readers = Readers(spark)
        self._clusters = Clusters()
        self._shortest_rest = int(spark._jsparkSession.sessionState().conf().streamingPollingDelay())
        # A stream test decides what is in a batch.
        self._share_from = int(spark.conf.get(SHARING_CONF, _SHARED_FROM) or 0)
        self._shares = self._share_from > 0 and topic_files.home(spark) is None

    # -- prepare ------------------------------------------------------------------------------------------------------
    def prepare(self, spec: StreamSpec, *, full_refresh: bool, dry: bool) -> dict[str, Any]:
        """Have Spark read the model, and make its table unless `dry`. Nothing is started or changed when it fails.

        When the table is there with other columns than the query's, `followed` says what becomes of them; where that
        takes a rebuild, the table is left as it is and `changes` says why.
        """
        job = jobs.load(spec, self._paths.jobs / safe_name(spec.name) / "prepare" / "job.py")
        at = Location(spec.path)
        try:
            session = runtime.session_for(self._spark, job.STREAM)
            rows = job.build(session)
            if not spec.is_full:
                check_streaming(rows, job.STREAM.output_mode)
            schema = runtime.table_schema(session, job.STREAM, rows.schema)
        except (PySparkException, Py4JJavaError, PenstockError) as problem:
            told = failures.of_model(problem, spec)
            if told.kind is MODEL_NOT_INCREMENTAL and spec.refresh_mode == "auto":
                return {"full": f"Spark refuses it as a stream: {told.message}"}  # the caller asks again
            raise told from problem
        tables.check_columns(schema, at)
        tables.check_event_time(schema, spec.event_time, at)
        tables.check_contract(schema, spec.output.contract, at)
        changes = [] if full_refresh else tables.changes(session, spec.output.relation, schema, spec.name)
        how = spec.output.on_schema_change
        streamed = bool(changes) and self._is_streamed(spec)
        becomes = columns.outcome(changes, how, streamed=streamed, safe=partial(columns.is_safe, session))
        schema = schema if becomes.refused else columns.written(schema, changes, how)
        if spec.expectations:
            expectations.check(session.createDataFrame([], schema), spec.expectations, at)
        if spec.publish is not None:
            publish.check(session, spec.publish, schema, at)
        found = {"columns": [[field.name, field.dataType.simpleString()] for field in schema.fields]}
        if becomes.refused:
            return {**found, "made": False, "changes": list(becomes.refused)}
        if not dry and (becomes.added or becomes.replaces):
            self.stop(spec.name)  # it knows nothing of the new columns; it is started again with the new version
            self._change_columns(session, spec, schema, becomes)
        if full_refresh and not dry:
            self.stop(spec.name)  # commands of a stream take turns: nobody starts it before this one is done
        made = not dry and runtime.ensure_table(session, job.STREAM, schema, full_refresh=full_refresh)
        if not dry and spec.has_table:
            tables.keep_checks(session, spec.output.relation, dict(spec.output.checks), at)
        return {**found, "made": made, "changes": [], "followed": list(becomes.followed), "replaced": becomes.replaces}

    def _is_streamed(self, spec: StreamSpec) -> bool:
        """Whether a deployed stream reads the table as a stream."""
        known = (StreamSpec.if_known(want.spec_json) for want in self._store.all_desired(hidden=True))
        return any(each.streams_from(spec.output.relation) for each in known if each is not None)

    def _change_columns(
        self, session: SparkSession, spec: StreamSpec, schema: StructType, becomes: columns.Outcome
    ) -> None:
        table, at = spec.output.relation, Location(spec.path)
        if not becomes.replaces:
            tables.add_columns(session, table, becomes.added)
            return
        want = self._store.find_desired(spec.name)
        if want is not None:
            app = application(spec.name, want.checkpoint_id)
            takeover.fenced(tables.location(session, table), app, self._token)
        in_order = spec.output.mode is OutputMode.APPEND
        columns.replace(session, table, schema, dict(spec.output.checks), at, in_order=in_order)
        log.info("%s: its table has other columns now: %s", spec.name, "; ".join(becomes.followed))

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

    def _start(self, want: Desired, spec: StreamSpec, run_id: str | None = None) -> None:
        job = jobs.load(spec, self._paths.job(want.stream, want.generation))
        session = runtime.session_for(self._spark, job.STREAM, self._sessions.get(want.stream))
        self._sessions[want.stream] = session
        rest = polling.rest_ms(self._wanted(), self._shortest_rest)
        session.conf.set(polling.CONF, f"{rest}ms")
        runtime.ensure_view(session, job.STREAM)
        checkpoint = self._paths.checkpoint(want.stream, want.checkpoint_id)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        self._clusters.check(session, spec, checkpoint)
        reading = self._reading(want.stream, want.generation, spec)
        listeners: list[ProgressListener] = []

        def listen(writer: TableWriter, own: Refresh | Member | None) -> None:
            def ended(exception: str | None) -> None:
                self._ended(want.stream, writer, exception)

            read = {} if spec.is_full else relations(spec.inputs, lambda name: tables.location(session, name))
            listener = ProgressListener(self._store, spec, read, want.generation, self._token, writer, ended)
            listeners.append(listener)
            if isinstance(own, Refresh):
                own.listen(listener.refreshed, listener.idle, listener.ended)
                return
            if own is None:
                session.streams.addListener(listener)
            else:
                own.listen(listener.shared, listener.idle, listener.ended)
            began = committed(checkpoint, spec.inputs, read, written=writer.newest_batch())
            self._store.record_beginning(want.stream, want.generation, began)

        try:
            running = runtime.start(
                session,
                job.STREAM,
                checkpoint=checkpoint,
                checkpoint_id=want.checkpoint_id,
                token=self._token,
                prepare=listen,
                sharing=self._sharing(want.stream, spec, reading, session, checkpoint, run_id),
            )
        except BaseException:
            if not job.STREAM.is_full:
                for listener in listeners:
                    session.streams.removeListener(listener)
            raise
        query = running.query
        self._report(want.stream, state=StreamState.RUNNING, run_id=str(query.runId), retry_at=None)
        told = (want.stream, want.generation, want.checkpoint_id, rest)
        log.info("%s runs, generation %s, checkpoint %s; it rests %s ms when nothing comes", *told)
        if isinstance(query, Member):
            log.info("%s reads topic '%s' with others", want.stream, query.stands.topic)
        # From here on its end is noticed; should it have ended before, nobody was told.
        with self._lock:
            self._live[want.stream] = _Live(running, spec, want.generation, session, listeners[0], checkpoint, reading)
        self._check(want.stream, self._live[want.stream])
        self._clear_checkpoints(want, checkpoint)

    def _wanted(self) -> int:
        """How many streams are to run, this one among them."""
        return sum(want.wanted is Wanted.RUNNING for want in self._store.all_desired(hidden=True))

    # -- sharing ------------------------------------------------------------------------------------------------------
    def _sharing(
        self,
        stream: str,
        spec: StreamSpec,
        key: str | None,
        session: SparkSession,
        checkpoint: Path,
        run_id: str | None,
    ) -> runtime.Sharing | None:
        """With whom the stream reads its topic; None when it reads alone."""
        with self._lock:
            others = [name for name, each in self._live.items() if name != stream and each.reading == key]
        # One that goes on for a query was counted before; meanwhile the others may be on their way as well.
        enough = run_id is not None or len(others) + 1 >= max(self._share_from, 2)
        if key is None or not enough:
            return None
        stands = standing(checkpoint)
        source = sharing.topic_of(spec)
        if stands is None or stands.topic != source.topic or (source.backfill and not backfill.is_over(checkpoint)):
            return None
        if source.partitions and set(stands.position) != set(source.partitions):
            return None
        topic = snapshot.topic_of(source)
        try:
            if runtime.behind(session, topic, stands) > CHUNK:
                return None
        except PenstockError as problem:
            log.info("%s: how far it is behind is not known, so it begins alone: %s", stream, problem)
            return None
        trigger = spec.trigger
        window = trigger.time_window_ms / 1000 if trigger.buffer_limit > 1 else 0.0
        pace = Pace(min(trigger.max_batch_rows, CHUNK), trigger.buffer_limit, window)
        return runtime.Sharing(self._readers, key, topic, pace, stands, run_id)

    def _reading(self, stream: str, generation: int, spec: StreamSpec) -> str | None:
        """What the stream has in common with others that may read with it; None if it reads alone."""
        with self._lock:
            failed = self._alone.get(stream) == generation
        return None if failed or not self._shares or is_beside(stream) else sharing.reading(spec)

    def lonely(self) -> list[str]:
        """Streams that run as queries of Spark's and could share their reading by now."""
        with self._lock:
            live = list(self._live.items())
        readings = Counter(each.reading for _, each in live)
        return [
            name
            for name, each in live
            if each.reading is not None
            and readings[each.reading] >= max(self._share_from, 2)
            and not isinstance(each.running.query, Member)
            and each.listener.is_close
            and standing(each.checkpoint) is not None
        ]

    def share(self, want: Desired) -> None:
        """Let a stream that runs alone go on with others, at the place where it stands."""
        with self._lock:
            live = self._live.get(want.stream)
            if live is None or live.generation != want.generation or isinstance(live.running.query, Member):
                return
        run_id = str(live.running.query.runId)
        if self._sharing(want.stream, live.spec, live.reading, live.session, live.checkpoint, run_id) is None:
            return  # not now: nothing is stopped for nothing
        with self._lock:
            if self._live.get(want.stream) is not live:
                return
            self._stopping.add(want.stream)
        self._end(want.stream, live)
        try:
            self._start(want, StreamSpec.from_json(want.spec_json), run_id)
        except Exception as problem:
            log.exception("%s did not go on", want.stream)
            self._failed(want.stream, failures.of_model(problem, live.spec))

    def _clear_checkpoints(self, want: Desired, checkpoint: Path) -> None:
        """Remove those of generations before, whose rows are gone."""
        rebuild = self._store.rebuild(want.stream)
        kept = {checkpoint.name, rebuild.checkpoint_id if rebuild else checkpoint.name}
        for old in checkpoint.parent.iterdir():
            if old.name not in kept and not is_beside(want.stream):
                shutil.rmtree(old, ignore_errors=True)

    def running(self, stream: str) -> runtime.Running | None:
        """The stream's query and writer while it runs."""
        with self._lock:
            live = self._live.get(stream)
        return live.running if live is not None else None

    def adjust(self, want: Desired) -> None:
        """Take over settings of a running stream that need no restart."""
        with self._lock:
            live = self._live.get(want.stream)
            if live is None or live.generation != want.generation:
                return  # it reads them when it starts
            spec = StreamSpec.from_json(want.spec_json)
            live.running.writer.small_batch_rows = spec.small_batch_rows
            reading = self._reading(want.stream, want.generation, spec)
            self._live[want.stream] = replace(live, spec=spec, reading=reading)

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
        self._stop(stream, state=StreamState.STOPPED)
        log.info("%s stopped", stream)

    def fail(self, stream: str, problem: PenstockError) -> None:
        """End a stream that somebody found to be beyond help; it counts as a failure, and comes back as after one."""
        with self._lock:
            live = self._live.get(stream)
            if live is None:
                return  # it ended in another way since
        log.error("%s is ended: %s", stream, problem)
        self._stop(stream, **_failure(problem))
        if isinstance(live.running.query, Member):
            with self._lock:
                self._alone[stream] = live.generation

    def _stop(self, stream: str, **end: Any) -> None:
        end |= {"rows_in_per_s": 0.0, "rows_out_per_s": 0.0}
        with self._lock:
            self._alone.pop(stream, None)
            live = self._live.get(stream)
            if live is None:
                self._report(stream, **end)
                return
            self._stopping.add(stream)
        self._end(stream, live)
        self._report(stream, run_id=None, **end)

    def _end(self, stream: str, live: _Live) -> None:
        if not live.running.writer.close(FINISH_BATCH):
            log.warning("%s: its batch did not finish in %s s and is abandoned", stream, FINISH_BATCH)
        elif not isinstance(live.running.query, Refresh | Member):
            live.running.writer.is_told(_TELL_BATCH)  # Spark tells of a batch a moment after it was written
        live.running.query.stop()
        self._forget(stream, live)

    def abandon(self, stream: str) -> None:
        """End a stream as a crash would: its batch is not waited for, and nothing is reported."""
        with self._lock:
            live = self._live.get(stream)
            self._stopping.add(stream)
        if live is not None:
            live.running.query.stop()
            self._forget(stream, live)

    def stop_all(self) -> None:
        """Stop every stream, all at once."""
        self._culprits.close()
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
        if spec.output.view is not None:
            tables.drop_view(self._spark, spec.output.view, stream)
        dropped = tables.drop(self._spark, spec.output.relation, stream)
        for folder in (self._paths.checkpoints / safe_name(stream), self._paths.jobs / safe_name(stream)):
            shutil.rmtree(folder, ignore_errors=True)
        return {"dropped": dropped}

    # -- rebuild beside -----------------------------------------------------------------------------------------------
    def take_over(self, rebuilds: Sequence[tuple[Desired, StreamSpec, str]]) -> dict[str, Any]:
        """Replace the rows of streams by those of their rebuilds (spec and checkpoint), upstream first; none runs."""
        members = [
            takeover.Member(self._spark, self._paths, want, spec, checkpoint_id)
            for want, spec, checkpoint_id in rebuilds
        ]
        for each in members:
            self._stop_live(each.spec.name)
            self._stop_live(beside(each.spec.name))
        done = takeover.take_over(runtime.own_session(self._spark), self._token, members)
        for each in members:
            log.info(
                "%s: the rows of checkpoint %s %s in", each.spec.name, each.checkpoint_id, "are" if done else "were"
            )
        return {"done": done}

    def discard(self, spec: StreamSpec, checkpoint_id: str | None) -> dict[str, Any]:
        """Clear away the hidden table of a rebuild, and its checkpoint if it is of no use any more."""
        name = beside(spec.name)
        self._stop_live(name)
        dropped = tables.drop(self._spark, beside(spec.output.relation), name)
        shutil.rmtree(self._paths.jobs / safe_name(name), ignore_errors=True)
        if checkpoint_id is not None:
            shutil.rmtree(self._paths.checkpoint(name, checkpoint_id), ignore_errors=True)
        return {"dropped": dropped}

    def _stop_live(self, stream: str) -> None:
        with self._lock:
            live = stream in self._live
        if live:
            self.stop(stream)

    # -- maintenance --------------------------------------------------------------------------------------------------
    def quiet(self, stream: str) -> AbstractContextManager[None]:
        """While it is open, a running stream writes no batch."""
        with self._lock:
            live = self._live.get(stream)
        return nullcontext() if live is None else live.running.writer.between_batches()

    # -- replay -------------------------------------------------------------------------------------------------------
    def replay(self, want: Desired, *, where: str | None, dry: bool) -> dict[str, Any]:
        """Give the quarantined records of a source that fit by now to the streams that passed them."""
        return Replay(self._spark, self._store, self._paths, self._token, want).run(where=where, dry=dry)

    # -- ends ---------------------------------------------------------------------------------------------------------
    def _ended(self, stream: str, writer: TableWriter, exception: str | None) -> None:
        """A query ended: because it was stopped, because it failed, or because another engine took over."""
        with self._lock:
            live = self._live.get(stream)
            if stream in self._stopping or live is None or live.running.writer is not writer:
                return
            del self._live[stream]
        _silence(live)
        writer.close(0)  # Spark goes on holding it, and with it a producer
        if self._new_schema(stream, live, exception) or self._history_read(stream, live, exception):
            return
        if isinstance(live.running.query, Member) and live.running.query.is_own_fault:
            with self._lock:
                self._alone[stream] = live.generation
        problem = failures.of_stream(writer.error or exception or "the query ended without an error", live.spec)
        if problem.kind is LEASE_LOST:
            log.error("%s", problem)
        else:
            log.error("%s failed: %s\n%s", stream, problem, exception or "")
        failure = Failure(stream, live.spec, live.generation, live.checkpoint, problem)
        try:
            self._failed(stream, self._culprits.known(failure))
        except PenstockError:
            with self._lock:
                self._live.setdefault(stream, live)  # `check` tries again
            raise
        self._culprits.look_into(failure)

    def _new_schema(self, stream: str, live: _Live, exception: str | None) -> bool:
        """Whether the query ended for a schema id it did not know: it is started again at once, and looks it up.

        That is no failure. The batch was not committed, and comes again from the checkpoint.
        """
        ids = messages.note_unknown(live.session, exception or "")
        if not ids:
            return False
        log.info("%s has messages of a new schema (id %s) and starts again with it", stream, ", ".join(map(str, ids)))
        self._report(stream, state=StreamState.PENDING, run_id=None, rows_in_per_s=0.0, rows_out_per_s=0.0)
        return True

    def _history_read(self, stream: str, live: _Live, exception: str | None) -> bool:
        """Whether the query ended because it has read its history: it goes on live, on the same checkpoint."""
        if live.running.history is None or exception or live.running.writer.error:
            return False
        backfill.mark_over(live.running.history)
        log.info("%s has read its history and goes on live", stream)
        self._report(stream, state=StreamState.PENDING, run_id=None, rows_in_per_s=0.0, rows_out_per_s=0.0)
        return True

    def _failed(self, stream: str, problem: PenstockError) -> None:
        self._report(stream, run_id=None, rows_in_per_s=0.0, rows_out_per_s=0.0, **_failure(problem))

    def _forget(self, stream: str, live: _Live) -> None:
        with self._lock:
            self._stopping.discard(stream)
            if self._live.get(stream) is live:
                del self._live[stream]
        _silence(live)

    def _report(self, stream: str, **changes: Any) -> None:
        if not self._store.report(stream, engine_token=self._token, **changes):
            log.error("%s: a newer engine reports this stream; this one is out of date", stream)


def _failure(problem: PenstockError) -> dict[str, Any]:
    return {
        "state": StreamState.FAILED,
        "retry_at": None,
        "last_failure_at": time.time(),
        "error_code": problem.code,
        "error": str(problem),
    }


def _silence(live: _Live) -> None:
    if not isinstance(live.running.query, Refresh | Member):  # these tell their listener themselves, not through Spark
        live.session.streams.removeListener(live.listener)


def check_streaming(rows: DataFrame, output_mode: str) -> None:
    """Ask Spark now what it would otherwise say at the start: can it keep this query as a stream?"""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    # The whole name at once: for each part of it the JVM would look through all its jars for a class of that name.
    modes = getattr(jvm, "org.apache.spark.sql.streaming.OutputMode")
    mode = modes.Update() if output_mode == "update" else modes.Append()
    checker = getattr(jvm, "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)
