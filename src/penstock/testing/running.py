"""The streams of one test, held still except when the test waits for them.

Rules
- A stream of Spark's plans a batch under a lock, and so does a full refresh. The test has that lock; waiting for the
  stream hands it over until the stream has found nothing new. So what is in a batch does not depend on how quick
  anything was.
- Who stops a stream lets go of its lock before: a stream that waits for it does not end.
- Killing: the query ends without its batch being finished, and Spark's record of the last batch is gone, as after a
  crash between the commit of the table and that record. The next engine has a higher token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.checkpoint.offsets import committed_batch
from penstock.compiler.plan import Verdict
from penstock.compiler.spec import StreamSpec
from penstock.engine.refresh import Refresh
from penstock.engine.shared import Member
from penstock.engine.streams import Streams
from penstock.errors import PenstockError
from penstock.errors.catalogue import ALL, STREAM_FAILED
from penstock.paths import ProjectPaths
from penstock.store import Desired, Store, StreamState

_TRIES = 5  # a stream that meets a new schema starts again
_MICRO_BATCH = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_LAST = 2**62  # a batch that no stream comes to
_END = 30.0  # seconds until the end of a stream has been noted
_TOLD = 60_000  # milliseconds until Spark has told of all that happened


class RunningStreams:
    """Deploys, starts, waits for and ends the streams of a test."""

    def __init__(self, spark: SparkSession, paths: ProjectPaths) -> None:
        self._spark = spark
        self._paths = paths
        paths.home.mkdir(parents=True)
        self.store = Store.open(paths.store)
        self._token = 1
        self.engine = Streams(spark, self.store, paths, self._token)
        self._held: dict[str, Callable[[], Any]] = {}  # stream -> how its lock is let go
        assert spark._jvm is not None
        self._micro_batch = getattr(spark._jvm, "java.lang.Class").forName(_MICRO_BATCH)

    def close(self) -> None:
        self._let_go()
        for want in self.store.all_desired():
            running = self.engine.running(want.stream)
            if running is not None:
                self.engine.stop(want.stream)
        # Spark tells of batches later than they happen, and what it tells is written into the store.
        # Other tests go on meanwhile: what is waited for is that every queue has been empty once since.
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_TOLD)
        self.store.close()

    # -- one stream ---------------------------------------------------------------------------------------------------
    def deployed(self, stream: str) -> Desired | None:
        return self.store.find_desired(stream)

    def prepare(self, spec: StreamSpec, *, full_refresh: bool, dry: bool) -> dict[str, Any]:
        """Have the engine look at the spec and make its table; a stream whose table gets new columns is stopped."""
        self._release(spec.name)
        try:
            return self.engine.prepare(spec, full_refresh=full_refresh, dry=dry)
        finally:
            self._hold(spec.name)

    def deploy(self, spec: StreamSpec, verdict: Verdict, *, anew: bool) -> None:
        """Make the spec the one that runs, and start it."""
        self._release(spec.name)
        want = self.store.deploy(spec.name, spec.to_json(), spec.hash, verdict=verdict.value, new_checkpoint=anew)
        self.start(want)

    def stop(self, stream: str) -> None:
        self._release(stream)
        self.engine.stop(stream)

    def start(self, want: Desired) -> None:
        self.engine.start(want)
        self._raise_end(want.stream)
        self._hold(want.stream)

    def settle(self, stream: str) -> None:
        """Until it has taken in all that is there; raises what ended it."""
        for _ in range(_TRIES):
            running = self.engine.running(stream)
            if running is None:
                self._raise_end(stream)
                want = self.store.find_desired(stream)
                assert want is not None
                self.start(want)  # it met a schema that it did not know
                continue
            try:
                self._take_in(stream, running.query)
            except (StreamingQueryException, PySparkException, Py4JJavaError, PenstockError, InterruptedError):
                self._await_end(stream)
            else:
                return
        self._raise_end(stream)

    def _take_in(self, stream: str, query: StreamingQuery | Refresh) -> None:
        if not isinstance(query, Refresh):
            query.processAllAvailable()  # it hands the lock over, and takes it back
            return
        self._release(stream)
        query.processAllAvailable()
        self._hold(stream)

    def advance(self, stream: str, milliseconds: int) -> bool | None:
        """Put the watermark at that time at least; None of a stream without one, False if it is past it already."""
        running = self.engine.running(stream)
        if running is None or isinstance(running.query, Refresh | Member):
            return None
        execution = running.query._jsq.streamingQuery()
        tracker = execution.watermarkTracker()
        if tracker is None or tracker.watermarkMap().isEmpty():
            return None
        if tracker.currentWatermark() > milliseconds:
            return False
        # Spark has worked out what the next batch would do with the watermark as it was; that is to be forgotten.
        field = self._micro_batch.getDeclaredField("watermarkPropagator")
        field.setAccessible(True)
        field.get(execution).purge(_LAST)
        tracker.setWatermark(milliseconds)
        return True

    # -- all streams --------------------------------------------------------------------------------------------------
    def restart(self, streams: Iterable[str]) -> None:
        names = list(streams)
        self._let_go()
        for name in reversed(names):
            self.engine.stop(name)
        self._start_all(names)

    def kill(self, streams: Iterable[str]) -> None:
        names = list(streams)
        self._let_go()
        for name in names:
            running = self.engine.running(name)
            if running is not None:
                self.engine.abandon(name)
            want = self.store.find_desired(name)
            assert want is not None
            self._forget_last_batch(want)
        self._token += 1
        self.engine = Streams(self._spark, self.store, self._paths, self._token)
        self._start_all(names)

    def _start_all(self, names: list[str]) -> None:
        for name in names:
            want = self.store.find_desired(name)
            assert want is not None
            self.start(want)

    def _forget_last_batch(self, want: Desired) -> None:
        checkpoint = self._paths.checkpoint(want.stream, want.checkpoint_id)
        last = committed_batch(checkpoint)
        if last is not None:
            for file in (f"{last}", f".{last}.crc"):
                (checkpoint / "commits" / file).unlink(missing_ok=True)

    # -- ends ---------------------------------------------------------------------------------------------------------
    def _await_end(self, stream: str) -> None:
        self.engine.check()
        deadline = time.monotonic() + _END
        waiting = (StreamState.RUNNING, StreamState.STARTING)
        while self.engine.running(stream) is not None or self.store.actual(stream).state in waiting:
            if time.monotonic() > deadline:
                raise STREAM_FAILED.error(f"{stream}: its end was not noted within {_END:.0f} s.")
            time.sleep(0.01)
        self._held.pop(stream, None)

    def _raise_end(self, stream: str) -> None:
        actual = self.store.actual(stream)
        if actual.state is StreamState.FAILED:
            kind = ALL.get(actual.error_code or "", STREAM_FAILED)
            text = (actual.error or "").removeprefix(f"{kind.code} ").removesuffix(kind.fix).strip()
            raise kind.error(text)

    # -- the lock -----------------------------------------------------------------------------------------------------
    def _hold(self, stream: str) -> None:
        running = self.engine.running(stream)
        if running is None:
            return
        if isinstance(running.query, Refresh):
            running.query.turn.acquire()
            self._held[stream] = running.query.turn.release
        elif not isinstance(running.query, Member):  # which no test has: each stream reads its files by itself
            lock = running.query._jsq.streamingQuery().awaitProgressLock()
            lock.lock()
            self._held[stream] = lock.unlock

    def _release(self, stream: str) -> None:
        let_go = self._held.pop(stream, None)
        if let_go is not None:
            let_go()

    def _let_go(self) -> None:
        for stream in list(self._held):
            self._release(stream)
