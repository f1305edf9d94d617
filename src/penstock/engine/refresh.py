"""A dynamic table that is computed anew when an input changed: full refresh.

Rules
- A loop of its own, in a thread, in the place of a Spark streaming query, with the same life: started, active, stopped,
  ended with an error.
- Before a refresh the ends of its topics and the versions of its tables are written down (`checkpoint.refreshes`); the
  rows replace the table's in one commit with the refresh's identity. A crash neither skips a change nor repeats a
  refresh that is in the table.
- Offsets of one Kafka cluster say nothing of another one: when a topic is on another one at the start, nothing of it is
  known, and the table is computed anew.
- No refresh without a change of an input or of the query, and none sooner after the last one than the time window.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.refreshes import Inputs, Offsets, read_inputs, write_commit, write_inputs
from penstock.engine import pools, snapshot, tables
from penstock.engine.sink import TableWriter
from penstock.engine.snapshot import Broker, TableWatch, Topic
from penstock.kafka.topic_watch import TopicWatch

log = logging.getLogger(__name__)

_END = 10.0  # seconds that a cancelled refresh has to end
_LOOK_EVERY = 1.0  # seconds between two looks at the inputs, at most


@dataclass(frozen=True)
class Plan:
    """What is refreshed, from what, and how often."""

    name: str
    definition: str
    build: Callable[[SparkSession], DataFrame]
    topics: Sequence[tuple[Topic, Broker]]
    followed: tuple[str, ...]  # the dynamic tables among the inputs
    time_window_ms: int
    watch: TopicWatch = field(default_factory=TopicWatch)
    clusters: Callable[[], Mapping[str, str]] = dict  # source -> the cluster it is on, as far as brokers tell it


@dataclass(frozen=True)
class Refreshed:
    """A refresh that is in the table."""

    number: int
    new_messages: int
    duration_ms: int
    offsets: dict[str, Any]  # input -> what was read, as Spark writes offsets


class Refresh:
    """Keeps one table; looks like a Spark streaming query to whoever runs it."""

    def __init__(self, session: SparkSession, plan: Plan, writer: TableWriter, checkpoint: Path) -> None:
        self.runId = uuid.uuid4()  # as Spark spells it
        self._session = session
        self._plan = plan
        self._writer = writer
        self._checkpoint = checkpoint
        self._topics = plan.watch
        self._tables = TableWatch()
        self.turn = threading.Lock()  # held while it looks and refreshes; who takes it has the table stay as it is
        self._stopping = threading.Event()
        self._look = threading.Condition()  # guards the two numbers; told when the loop is to look, or has looked
        self._asked = 0  # how often somebody wanted to know whether there is something to do
        self._answered = -1  # the newest of these that a look begun after it answered with no
        self._problem: BaseException | None = None
        self._known: Inputs | None = None
        self._due = True
        self._paths: dict[str, str] = {}
        self._clusters: Mapping[str, str] = {}
        self._observe: Callable[[Refreshed], None] = lambda _: None
        self._idle: Callable[[], None] = lambda: None
        self._ended: Callable[[str | None], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name=f"refresh {plan.name}", daemon=True)

    def listen(
        self, observe: Callable[[Refreshed], None], idle: Callable[[], None], ended: Callable[[str | None], None]
    ) -> None:
        """Who is told of refreshes, of the first look without one, and of the end."""
        self._observe, self._idle, self._ended = observe, idle, ended

    # -- as of a streaming query --------------------------------------------------------------------------------------
    def start(self) -> None:
        self._paths = {name: tables.location(self._session, name) for name in self._plan.followed}
        self._known = read_inputs(self._checkpoint, self._writer.newest_batch())
        self._due = self._known is None or self._known.definition != self._plan.definition
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 -- Spark's names
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._problem

    def stop(self) -> None:
        """End it; what it computes is abandoned."""
        with self._look:
            self._stopping.set()
            self._look.notify_all()
        if threading.current_thread() is not self._thread:
            self._session.sparkContext.cancelJobGroup(str(self.runId))
            self._thread.join(timeout=_END)

    def processAllAvailable(self) -> None:  # noqa: N802
        """Until nothing has changed since the last refresh; raises what ended it."""
        with self._look:
            self._asked += 1
            mine = self._asked
            self._look.notify_all()
            self._look.wait_for(lambda: self._answered >= mine)
        if self._problem is not None:
            raise self._problem

    def awaitTermination(self) -> None:  # noqa: N802
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    # -- the loop -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        context = self._session.sparkContext
        pools.enter(context, pools.LONG)
        context.setJobGroup(str(self.runId), self._plan.name, interruptOnCancel=True)
        window = self._plan.time_window_ms / 1000
        try:
            self._look_at_clusters()
            while not self._stopping.is_set():
                with self.turn:
                    if self._stopping.is_set():
                        break
                    began, asked = time.monotonic(), self._asked
                    changed = self._due or self._known is None or self._changed(self._known)
                    if changed:
                        self._refresh()
                        self._due = False
                if changed:
                    self._stopping.wait(max(0.0, window - (time.monotonic() - began)))
                else:
                    if asked > self._answered:
                        self._idle()
                    self._rest(asked, min(max(window, 0.1), _LOOK_EVERY))
        except InterruptedError:
            log.info("%s: stopped before a refresh", self._plan.name)
        except BaseException as problem:  # noqa: BLE001 -- it is told to whoever watches this query
            if not self._stopping.is_set():
                self._problem = problem
                self._writer.error = self._writer.error or problem
        finally:
            self._topics.close()
            with self._look:
                self._answered = sys.maxsize  # whoever still waits looks at what ended it
                self._look.notify_all()
        if not self._stopping.is_set():
            self._ended(str(self._problem) if self._problem else None)

    def _look_at_clusters(self) -> None:
        before, now = self._known.clusters if self._known else {}, self._plan.clusters()
        self._clusters = {**before, **now}
        if moved := sorted(name for name in before if self._clusters[name] != before[name]):
            log.info("%s: %s is on another Kafka cluster, and it is computed anew", self._plan.name, ", ".join(moved))
            self._known, self._due = None, True

    def _rest(self, asked: int, seconds: float) -> None:
        """Nothing to do: say so to whoever asked before this look, and wait for the next one."""
        with self._look:
            self._answered = asked
            self._look.notify_all()
            self._look.wait_for(lambda: self._stopping.is_set() or self._asked > asked, seconds)

    def _changed(self, known: Inputs) -> bool:
        for topic, broker in self._plan.topics:
            if snapshot.ends(self._topics, topic, broker) != known.ends.get(topic.relation):
                return True
        for path, version in known.tables.items():
            if self._tables.changed(path, version) is not None:
                return True
            # Commits without rows are behind us; they are not looked at again.
            self._known = known = replace(known, tables={**known.tables, path: self._tables.version(path)})
        return False

    def _refresh(self) -> None:
        began = time.monotonic()
        number = self._writer.newest_batch() + 1
        starts, fixed, ends = self._bounds()
        snapshot.fix_bounds(self._session, starts, ends)
        # Tables that a first look finds are asked for their version before the query is built for good.
        known = self._known.tables if self._known and not self._due else None
        paths = known or snapshot.tables_of(self._plan.build(self._session))
        versions = {path: self._tables.version(path) for path in paths}
        rows = self._plan.build(self._session)
        for path in snapshot.tables_of(rows):
            versions.setdefault(path, self._tables.version(path))
        inputs = Inputs(self._plan.definition, ends=ends, starts=fixed, tables=versions, clusters=self._clusters)
        followed = {name: path for name, path in self._paths.items() if path in versions}
        write_inputs(self._checkpoint, number, inputs, list(followed.values()))
        self._writer(rows, number)
        write_commit(self._checkpoint, number)
        new, self._known = _new_messages(self._known, inputs, starts), inputs
        read: dict[str, Any] = {name: _spelled(offsets) for name, offsets in ends.items()}
        read |= {name: {"reservoirVersion": versions[path].version + 1, "index": -1} for name, path in followed.items()}
        self._observe(Refreshed(number, new, int((time.monotonic() - began) * 1000), read))

    def _bounds(self) -> tuple[dict[str, Offsets], dict[str, Offsets], dict[str, Offsets]]:
        """From where and up to where each topic is read now; and those starts that hold for ever."""
        starts: dict[str, Offsets] = {}
        fixed: dict[str, Offsets] = {}
        ends: dict[str, Offsets] = {}
        for topic, broker in self._plan.topics:
            name = topic.relation
            if snapshot.is_fixed_once(topic):
                known = self._known.starts.get(name) if self._known else None
                fixed[name] = known or snapshot.starts(self._topics, topic, broker)
                begin = snapshot.starts(self._topics, replace(topic, starting="earliest"), broker)
                starts[name] = snapshot.kept(fixed[name], begin)
            else:
                starts[name] = snapshot.starts(self._topics, topic, broker)
            ends[name] = snapshot.ends(self._topics, topic, broker)
            starts[name] = {
                each: {number: min(starts[name].get(each, {}).get(number, 0), end) for number, end in parts.items()}
                for each, parts in ends[name].items()
            }
        return starts, fixed, ends


def _new_messages(known: Inputs | None, inputs: Inputs, starts: Mapping[str, Offsets]) -> int:
    count = 0
    for name, topics in inputs.ends.items():
        before = known.ends.get(name, {}) if known else starts[name]
        for topic, parts in topics.items():
            count += sum(max(end - before.get(topic, {}).get(number, 0), 0) for number, end in parts.items())
    return count


def _spelled(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(number): at for number, at in parts.items()} for topic, parts in offsets.items()}
