"""The place where stream tests run: one JVM, one directory, several tests at a time.

Rules
- A test has a directory of its own (topics, tables, checkpoints, store), deleted when it is over. Two runs at the same
  time share nothing.
- Tests that run at the same time share the JVM and nothing of a catalog: each place has a catalog of its own, where the
  tables of a test have the names that they have in the project. What is in a batch does not depend on other tests.
- A test is run by one thread from its beginning to its end: Spark's locks belong to the thread that took them.
- What happens to a stream happens by the engine's own code: `Streams` prepares, starts and stops it; the writer of the
  table, checkpoint and identity are those of every stream.
- A stream looks at its inputs only while the test waits for it (`RunningStreams.settle`): what is in a batch is what
  the test put there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.engine import failures
from penstock.engine.session import with_own_catalog
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths
from penstock.testing import tables
from penstock.testing.cases import Case
from penstock.testing.chain import Project, parts
from penstock.testing.compare import Diff


@dataclass(frozen=True)
class Failure:
    """Why a test failed."""

    message: str
    step: int | None = None  # its number, from 1
    what: str = ""  # the step's key
    place: str = ""  # file:line
    code: str | None = None
    hint: str | None = None
    diff: Diff | None = None

    def as_dict(self) -> dict[str, Any]:
        rows = [line.as_dict(self.diff.columns) for line in self.diff.lines] if self.diff else []
        return {
            "message": self.message, "step": self.step, "what": self.what or None, "place": self.place,
            "code": self.code, "hint": self.hint, "rows": rows,
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a test."""

    case: Case
    seconds: float
    failure: Failure | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.case.name,
            "file": self.case.file,
            "line": self.case.line,
            "models": list(self.case.test.model),
            "status": "passed" if self.passed else "failed",
            "seconds": round(self.seconds, 2),
            "failure": self.failure.as_dict() if self.failure else None,
        }


class StepFailedError(Exception):
    """An expectation that is not met."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Lab:
    """Runs stream tests of one project."""

    def __init__(self, spark: SparkSession, home: Path, manifest: Mapping[str, Any], project: Path) -> None:
        self.home = home
        self.project = Project(manifest, project)
        self._spark = spark
        self._guard = threading.Lock()  # of what tests share: the free places and the seeds
        self._free = [spark]
        self._seeds: dict[str, Path] = {}
        self._count = 0

    def with_manifest(self, manifest: Mapping[str, Any]) -> Lab:
        """The same place for another version of the project; seeds stay as they are."""
        other = Lab(self._spark, self.home, manifest, self.project.folder)
        other._seeds = self._seeds
        return other

    def run_all(self, cases: Sequence[Case], *, at_once: int, fail_fast: bool = False) -> Iterator[Outcome]:
        """Run tests, some at a time, and tell of them in their order. After a failure with `fail_fast` no further test
        begins; those under way are told of, too.
        """
        pool = ThreadPoolExecutor(max_workers=min(at_once, len(cases)) or 1, thread_name_prefix="stream test")
        try:
            running = [pool.submit(self.run, case) for case in cases]
            for each in running:
                if not each.cancelled():
                    outcome = each.result()
                    yield outcome
                    if fail_fast and not outcome.passed:
                        for later in running:
                            later.cancel()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def run(self, case: Case, tell: Callable[[str], None] = lambda _: None) -> Outcome:
        """Run a test; what it finds wrong is in the outcome."""
        spark = self._take()
        try:
            return self._run(case, spark, tell)
        finally:
            with self._guard:
                self._free.append(spark)

    def _run(self, case: Case, spark: SparkSession, tell: Callable[[str], None]) -> Outcome:
        from penstock.testing.trial import Trial

        began = time.monotonic()
        with self._guard:
            self._count += 1
            folder = self.home / f"test-{self._count}-{time.monotonic_ns()}"
        try:
            trial = Trial(self, case, spark, ProjectPaths(folder), parts(self.project, case))
            try:
                trial.run(tell)
            finally:
                trial.close()
        except StepFailedError as problem:
            return Outcome(case, time.monotonic() - began, problem.failure)
        except PenstockError as problem:
            place = str(problem.at or case.at())
            failure = Failure(problem.message, place=place, code=problem.code, hint=problem.next_step)
            return Outcome(case, time.monotonic() - began, failure)
        except (PySparkException, Py4JJavaError) as problem:  # a view that Spark does not take, say
            failure = Failure(failures.sentence(problem), place=str(case.at()))
            return Outcome(case, time.monotonic() - began, failure)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome(case, time.monotonic() - began)

    def _take(self) -> SparkSession:
        """A place that no other test has now."""
        with self._guard:
            if self._free:
                return self._free.pop()
        return with_own_catalog(self._spark)

    def seed(self, unique_id: str) -> Path:
        """The table of a seed, made once for all tests."""
        with self._guard:
            if unique_id not in self._seeds:
                rows, _ = tables.seed(self.project.entry(unique_id), self.project.folder)
                path = self.home / "seeds" / unique_id
                tables.write(path, rows)
                self._seeds[unique_id] = path
            return self._seeds[unique_id]


def with_step(failure: Failure, case: Case, index: int) -> Failure:
    """The failure with its place in the file."""
    step = case.test.steps[index]
    return replace(failure, step=index + 1, what=step.kind, place=str(case.at(index)))
