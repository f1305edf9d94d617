"""The services of a measurement, in a directory of their own that is gone afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec, Trigger
from penstock.control import up
from penstock.control.deploy import deploy
from penstock.control.streams import drop_stream, start_stream, stop_stream
from penstock.dev import broker
from penstock.kafka.admin import create_topics
from penstock.paths import ProjectPaths
from penstock.project.profile import EngineSettings, KafkaSettings, RuntimeSettings
from penstock.store import Store, StreamState

T = TypeVar("T")
SCHEMA = "bench"
MEMORY = "1g"
CORES = 2
COLUMNS = (
    Column(name="user_id", type="string", origin="key"),
    Column(name="event_id", type="string", origin="value.event_id"),
    Column(name="session_id", type="string", origin="value.session_id"),
    Column(name="item_id", type="string", origin="value.item_id"),
    Column(name="event_type", type="string", origin="value.event_type"),
    Column(name="page", type="string", origin="value.page"),
    Column(name="clicked_at", type="timestamp", origin="value.clicked_at"),
    Column(name="price", type="double", origin="value.price"),
    Column(name="at", type="timestamp", origin="timestamp"),
)
COUNTED = "select item_id, count(*) as n, max(at) as at from clicks group by item_id"
SQL = "select user_id, event_id, session_id, item_id, event_type, page, clicked_at, price, at from clicks"


def until(look: Callable[[], T], what: str, timeout: float = 120, every: float = 0.05) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(every)
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is deleted at the end."""
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Site:
    """A project with its broker, and with its engine when one was asked for."""

    paths: ProjectPaths
    settings: RuntimeSettings
    bootstrap: str

    def topic(self, name: str, partitions: int = 2) -> str:
        """A new topic."""
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        create_topics(self.bootstrap, {unique: partitions})
        return unique


@contextmanager
def site(*, engine: bool = True, spark_conf: dict[str, str] | None = None) -> Iterator[Site]:
    """Broker and engine on loopback; both are ended with the block."""
    with scratch() as directory:
        paths = ProjectPaths(directory)
        settings = RuntimeSettings(
            target="bench",
            schema=SCHEMA,
            kafka=KafkaSettings(embedded=True),
            engine=EngineSettings(memory=MEMORY, cores=CORES, spark_conf=spark_conf or {}),
        )
        try:
            running = broker.start(paths)
            if engine:
                up.ensure_up(paths, settings, timeout=240)
            yield Site(paths, settings, running.bootstrap)
        finally:
            up.down(paths)


class Penstock:
    """A dynamic table in the real engine."""

    name = "Penstock"

    def __init__(self, place: Site, table: str = "clicks") -> None:
        self._site = place
        self._store = Store.open(place.paths.store)
        self._stream = f"{SCHEMA}.{table}"
        self.table = place.paths.warehouse / f"{SCHEMA}.db" / table

    def start(
        self,
        topic: str,
        *,
        max_batch_rows: int | None = None,
        small_batch_rows: int | None = None,
        where: str | None = None,
        counted: bool = False,
    ) -> None:
        """Deploy the dynamic table on the topic, with the rows that fulfil a condition; it runs when this returns.

        Or one with the number of clicks of each item.
        """
        trigger = Trigger() if max_batch_rows is None else Trigger(max_batch_rows=max_batch_rows)
        spec = StreamSpec(
            name=self._stream,
            unique_id="model.bench.clicks",
            path="models/clicks.sql",
            sql=COUNTED if counted else f"{SQL} where {where}" if where else SQL,
            stateful=counted,
            inputs=(KafkaInput(view="clicks", relation="bench_raw.clicks", topic=topic, columns=COLUMNS),),
            output=Output(relation=self._stream, mode=OutputMode.UPSERT, keys=("item_id",))
            if counted
            else Output(relation=self._stream, mode=OutputMode.APPEND),
            trigger=trigger,
        )
        if small_batch_rows is not None:
            spec = spec.model_copy(update={"small_batch_rows": small_batch_rows})
        deploy(self._store, self._site.paths, spec)
        until(lambda: self._store.actual(self._stream).state is StreamState.RUNNING, f"{self._stream} to run")

    def began(self) -> float:
        """When the query wrote its checkpoint's first file."""
        folder = self._site.paths.checkpoints / self._stream
        return max(file.stat().st_mtime for file in folder.glob("*/metadata"))

    def pause(self) -> None:
        stop_stream(self._store, self._stream)

    def resume(self) -> None:
        start_stream(self._store, self._stream)

    def drop(self) -> None:
        drop_stream(self._store, self._stream)

    def batches(self) -> list[tuple[int, int, str]]:
        """Rows, milliseconds and writer of the newest batches."""
        return [(each.rows_in, each.duration_ms, each.writer) for each in self._store.progress(self._stream, limit=200)]

    def close(self) -> None:
        self._store.close()


class Handwritten:
    """The hand-written job in an application of its own, which does nothing while it is paused."""

    def __init__(self, place: Site, *, tuned: bool = False, unlimited: bool = True) -> None:
        self.name = "hand-written, fetch wait tuned" if tuned else "hand-written"
        self._site = place
        self._tuned = tuned
        self._limit = None if unlimited else 200_000
        self._home = place.paths.project / f"handwritten-{uuid.uuid4().hex[:6]}"
        self._home.mkdir()
        self._number = 0
        self._topic = ""
        self._conditions: list[str] = []
        self._counted = False
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.handwritten", "--memory", MEMORY, "--cores", str(CORES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parent.parent,
            )
        try:
            self._answer()
        except BaseException:  # also Ctrl-C while it starts: it must not stay behind
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def table(self) -> Path:
        return self.tables[0]

    @property
    def tables(self) -> list[Path]:
        return [self._home / f"table-{self._number}" / str(at) for at in range(max(1, len(self._conditions)))]

    @property
    def _checkpoint(self) -> Path:
        return self._home / f"checkpoint-{self._number}"

    def start(self, topic: str, *, conditions: list[str] | None = None, counted: bool = False) -> None:
        """Start on a new table and checkpoint, or on one for each condition that rows have to fulfil."""
        self._counted = counted
        self._number += 1
        self._topic = topic
        self._conditions = conditions or []
        self.resume()

    def began(self) -> float:
        return (self._checkpoint / "0" / "metadata").stat().st_mtime

    def pause(self) -> None:
        self._ask({"do": "stop"})

    def resume(self) -> None:
        self._ask(
            {
                "do": "start",
                "bootstrap": self._site.bootstrap,
                "topic": self._topic,
                "path": str(self.table.parent),
                "checkpoint": str(self._checkpoint),
                "conditions": self._conditions,
                "counted": self._counted,
                "tuned": self._tuned,
                "limit": self._limit,
            }
        )

    def drain(self, views: dict[str, Any], sql: str, keys: list[str], *, full: bool) -> float:
        """Run a query over topics until all is read; seconds from its first file to its end."""
        self._number += 1
        query = {"bootstrap": self._site.bootstrap, "views": views, "sql": sql, "keys": keys, "full": full}
        self._ask({"do": "drain", "path": str(self.table), "checkpoint": str(self._checkpoint), **query})
        ended = time.time()
        return ended - (self._checkpoint / "metadata").stat().st_mtime

    def drop(self) -> None:
        self.pause()
        shutil.rmtree(self.table.parent, ignore_errors=True)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._send({"do": "quit"})
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, command: dict[str, Any]) -> None:
        self._send(command)
        self._answer()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return
        raise RuntimeError("the hand-written job ended: " + (self._home / "log").read_text()[-2000:])


Contender = Penstock | Handwritten
