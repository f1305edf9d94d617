"""Which record a batch failed of.

Rules
- A stream that failed is looked into in a thread of its own, one at a time and for a bounded time, while it waits for
  its next try: parts of the failed batch are read again and computed without being written.
- What is found is added to the stream's error in the store, and told at once should the same batch fail again.
- Only failures that a record can be at fault for are looked into: an error of the query, a broken constraint, a broken
  expectation, or a row that is published by a key that is null. A constraint on rows that many records make together
  says nothing of one of them; that their key is null does.
- A record is blamed only if it fails by itself in the same way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.checkpoint.bisect import Range, bounds, culprit, failed_ranges
from penstock.compiler.spec import StreamSpec
from penstock.engine import failures, jobs, pools, runtime, snapshot
from penstock.errors import Kind, PenstockError
from penstock.errors.catalogue import CONSTRAINT_BROKEN, EXPECTATION_BROKEN, PUBLISH_NULL_KEY, STREAM_FAILED
from penstock.paths import ProjectPaths, safe_name
from penstock.project.sparktypes import quoted
from penstock.store import Store

log = logging.getLogger(__name__)

BUDGET = 90.0  # seconds for one batch
_OF_SINGLE_ROWS = (CONSTRAINT_BROKEN, EXPECTATION_BROKEN)  # that one record makes
_OF_ROWS = (*_OF_SINGLE_ROWS, PUBLISH_NULL_KEY)
_OF_RECORDS = (STREAM_FAILED, *_OF_ROWS)


@dataclass(frozen=True)
class Failure:
    """A stream that failed, and on what."""

    stream: str
    spec: StreamSpec
    generation: int
    checkpoint: Path
    problem: PenstockError


class _GaveUpError(Exception):
    """Something else is wrong than what is looked into."""


class Culprits:
    """Finds records at fault."""

    def __init__(self, spark: SparkSession, store: Store, paths: ProjectPaths, token: int) -> None:
        self._spark = spark
        self._store = store
        self._paths = paths
        self._token = token
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="culprit")
        self._lock = threading.Lock()
        # Stream -> generation, batch, and the error with the record at fault; None: no record is.
        self._found: dict[str, tuple[int, int, PenstockError | None]] = {}
        self._busy: set[str] = set()

    def known(self, failure: Failure) -> PenstockError:
        """The failure's error, with the record at fault when that was found out before."""
        read = failed_ranges(failure.checkpoint, failure.spec.inputs)
        with self._lock:
            generation, batch, told = self._found.get(failure.stream, (0, -1, None))
        same = read is not None and (generation, batch) == (failure.generation, read[0])
        if not same or told is None or told.kind is not failure.problem.kind:
            return failure.problem
        return replace(told, at=failure.problem.at)  # the line may have moved since

    def look_into(self, failure: Failure) -> None:
        """Find the record at fault, in the background, unless this was done or no record can be at fault."""
        read = failed_ranges(failure.checkpoint, failure.spec.inputs)
        if read is None or not is_of_records(failure.problem, failure.spec):
            return
        with self._lock:
            done = self._found.get(failure.stream, (0, -1))[:2] == (failure.generation, read[0])
            if done or failure.stream in self._busy:
                return
            self._busy.add(failure.stream)
        self._pool.submit(self._find, failure, *read)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, failure: Failure, batch: int, ranges: list[Range]) -> None:
        try:
            found = self._search(failure, ranges)
            told = None if found is None else blamed(failure.problem, *found)
            with self._lock:
                self._found[failure.stream] = (failure.generation, batch, told)
            if told is not None:
                log.error("%s: batch %s failed of one record: %s", failure.stream, batch, told)
                self._store.amend_error(failure.stream, self._token, str(failure.problem), str(told))
            else:
                log.info("%s: no single record of batch %s is at fault", failure.stream, batch)
        except _GaveUpError as other:
            log.info("%s: which record is at fault could not be found out: %s", failure.stream, other)
        except Exception:
            log.exception("%s: which record is at fault could not be found out", failure.stream)
        finally:
            with self._lock:
                self._busy.discard(failure.stream)

    def _search(self, failure: Failure, ranges: list[Range]) -> tuple[Range, PenstockError] | None:
        begun = time.monotonic()
        probe = self._probe(failure, ranges)
        return culprit(ranges, probe, lambda: time.monotonic() - begun < BUDGET)

    def _probe(self, failure: Failure, whole: Sequence[Range]) -> Callable[[Sequence[Range]], PenstockError | None]:
        """A function that computes what the model makes of some messages, and says what is wrong with them."""
        spec = failure.spec.over_all("looked into")
        job = jobs.load(spec, self._paths.jobs / safe_name(spec.name) / "culprit" / "job.py")
        session = runtime.session_for(self._spark, job.STREAM)
        pools.enter(session.sparkContext, pools.LONG)
        session.sparkContext.setJobDescription(f"{spec.name}: which record is at fault?")

        def probe(part: Sequence[Range]) -> PenstockError | None:
            snapshot.fix_bounds(session, *bounds(whole, part))
            try:
                rows = job.build(session)
                if failure.problem.kind in _OF_ROWS:
                    return broken(rows, failure.spec, failure.problem.kind)
                rows.write.format("noop").mode("overwrite").save()
            except (PySparkException, Py4JError) as problem:
                told = failures.of_stream(problem, failure.spec)
                if told.kind is not failure.problem.kind:
                    raise _GaveUpError(str(told)) from problem
                return told
            return None

        return probe


def is_of_records(problem: PenstockError, spec: StreamSpec) -> bool:
    """Whether a record may be at fault for a failure, and could be found."""
    if spec.is_full or problem.kind not in _OF_RECORDS:
        return False
    return not (problem.kind in _OF_SINGLE_ROWS and spec.stateful)


def broken(rows: DataFrame, spec: StreamSpec, kind: Kind) -> PenstockError | None:
    """What some of the rows do not hold, as an error of that kind."""
    if kind is not EXPECTATION_BROKEN and not spec.stateful:
        for each in spec.expectations:
            rows = rows.where(each.expect) if each.on_violation == "drop" else rows  # the others are not written
    checks = _checks(spec, kind)
    counts = [F.expr(f"count_if(not coalesce(({check}), false))").alias(name) for name, check in checks.items()]
    found = rows.agg(*counts).first() if counts else None
    names = [name for name in checks if found is not None and found[name]]
    if not names:
        return None
    if kind is PUBLISH_NULL_KEY:
        return kind.error(f"{spec.name}: its row is published by {', '.join(names)}, which is null.")
    told = " and ".join(name if name == checks[name] else f"{name} ({checks[name]})" for name in names)
    return kind.error(f"{spec.name}: its row does not hold {told}.")


def _checks(spec: StreamSpec, kind: Kind) -> dict[str, str]:
    """Name -> condition of what must hold for each row, when a failure of this kind says that it does not."""
    if kind is PUBLISH_NULL_KEY:
        return {column: f"{quoted(column)} is not null" for column in (spec.publish.key if spec.publish else ())}
    if kind is EXPECTATION_BROKEN:
        return {each.name: each.expect for each in spec.expectations if each.on_violation == "fail"}
    return dict(spec.output.checks)


def blamed(problem: PenstockError, record: Range, of_record: PenstockError) -> PenstockError:
    """The error of a stream, with the record that is at fault for it."""
    stream, _, message = of_record.message.partition(": ")
    return problem.kind.error(f"{stream}: {record}: {message}", at=problem.at, hint=problem.hint)
