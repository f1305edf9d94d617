"""How far every deployed stream is behind, measured from outside the engine.

Rules
- What was read is the committed offset in the store, or, when there is none, the checkpoint's: lag is known while the
  stream, and the engine, are dead.
- What there is to read comes from the broker and from the tables' commit logs.
- A stream whose input does not answer has an unknown lag; the others are not held up for longer than a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from penstock.checkpoint.offsets import Offset, committed, committed_batch, normalised
from penstock.checkpoint.table_ids import relations
from penstock.compiler.spec import FromTimestamp, KafkaInput, StreamSpec, TableStreamInput
from penstock.control import behind
from penstock.control.behind import Lag
from penstock.control.delta_log import DeltaLog
from penstock.control.inputs import access
from penstock.errors import PenstockError
from penstock.kafka.admin import matching
from penstock.kafka.topic_watch import Options, TopicWatch
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings, read_settings
from penstock.store import Actual, Desired, Store


class Topics(Protocol):
    """What is asked of a broker."""

    def watermarks(self, bootstrap: str, topic: str, options: Options) -> tuple[dict[int, int], dict[int, int]]: ...
    def time_of(self, bootstrap: str, topic: str, options: Options, partition: int, offset: int) -> float | None: ...
    def offsets_at(
        self, bootstrap: str, topic: str, options: Options, milliseconds: int, partitions: tuple[int, ...]
    ) -> dict[int, int]: ...
    def names(self, bootstrap: str, options: Options) -> list[str]: ...
    def close(self) -> None: ...


class LagMeter:
    """Measures streams; keeps clients and read commits between two measurements."""

    def __init__(self, paths: ProjectPaths, topics: Topics | None = None) -> None:
        self._paths = paths
        self._topics = topics or TopicWatch()
        self._deltas = DeltaLog()
        self._specs: dict[str, StreamSpec] = {}

    def measure(self, want: Desired, found: Actual, kafka: KafkaSettings, now: float) -> Lag:
        """How far the stream is behind; raises when an input does not answer."""
        spec = self._spec(want)
        offsets = self._offsets(want, spec, found)
        return behind.total(
            self._kafka(item, offsets.get(item.relation), kafka, now)
            if isinstance(item, KafkaInput)
            else self._deltas.lag(table_path(self._paths, item.relation), offsets.get(item.relation), now)
            for item in spec.inputs
            if isinstance(item, KafkaInput | TableStreamInput)
        )

    def close(self) -> None:
        self._topics.close()

    def _spec(self, want: Desired) -> StreamSpec:
        if want.spec_hash not in self._specs:
            if len(self._specs) > 1000:
                self._specs.clear()
            self._specs[want.spec_hash] = StreamSpec.from_json(want.spec_json)
        return self._specs[want.spec_hash]

    def _offsets(self, want: Desired, spec: StreamSpec, found: Actual) -> dict[str, Offset]:
        if found.generation == want.generation:
            reported = {name: offset for name, raw in found.offsets.items() if (offset := normalised(raw)) is not None}
            if reported:
                return reported
        checkpoint = self._paths.checkpoint(want.stream, want.checkpoint_id)
        if committed_batch(checkpoint) is None:
            return {}
        tables = relations(spec.inputs, lambda name: table_path(self._paths, name))
        return committed(checkpoint, spec.inputs, tables)

    def _kafka(self, item: KafkaInput, offset: Offset | None, kafka: KafkaSettings, now: float) -> Lag:
        broker = access(item, kafka, self._paths)
        bootstrap = broker.bootstrap
        options: Options = tuple(sorted(broker.options.items()))
        if item.topic_pattern is None:
            return self._topic(item, str(item.topic), offset, bootstrap, options, now)
        names = matching(item.topic_pattern, self._topics.names(bootstrap, options))
        return behind.total(self._topic(item, name, offset, bootstrap, options, now) for name in names)

    def _topic(
        self, item: KafkaInput, topic: str, offset: Offset | None, bootstrap: str, options: Options, now: float
    ) -> Lag:
        begin, end = self._topics.watermarks(bootstrap, topic, options)
        if item.partitions:
            begin, end = ({p: at for p, at in each.items() if p in item.partitions} for each in (begin, end))
        if offset is not None:
            read = _partitions(offset, topic)
        elif isinstance(item.starting, FromTimestamp):
            read = self._topics.offsets_at(bootstrap, topic, options, item.starting.milliseconds, tuple(end))
        else:
            read = behind.start(item.starting if isinstance(item.starting, str) else dict(item.starting.offsets), end)
        waiting = behind.unread(read, begin, end)
        if not waiting:
            return behind.NONE
        times = [
            self._topics.time_of(bootstrap, topic, options, partition, first)
            for partition, (first, _) in waiting.items()
        ]
        return Lag(sum(count for _, count in waiting.values()), behind.age(times, now))


def table_path(paths: ProjectPaths, relation: str) -> Path:
    """Where the warehouse keeps a table: the default schema at its root, any other in a directory of its own."""
    schema, _, table = relation.rpartition(".")
    return paths.warehouse / table if schema in ("", "default") else paths.warehouse / f"{schema}.db" / table


def _partitions(offset: Mapping[str, Any] | None, topic: str) -> dict[int, int]:
    return {int(number): int(value) for number, value in ((offset or {}).get(topic) or {}).items()}


class LagWatcher:
    """A thread that measures every deployed stream again and again and writes it into the store."""

    def __init__(
        self,
        paths: ProjectPaths,
        store: Store,
        *,
        every: float,
        say: Callable[[str], None],
        topics: Topics | None = None,
    ) -> None:
        self._paths = paths
        self._store = store
        self._every = every
        self._say = say
        self._topics = topics
        self._ending = threading.Event()
        self._trouble: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        meter = LagMeter(self._paths, self._topics)
        while not self._ending.is_set():
            begun = time.monotonic()
            try:
                self._round(meter)
            except (PenstockError, OSError) as problem:
                self._note("", str(problem))
            self._ending.wait(max(0.05, self._every - (time.monotonic() - begun)))
        meter.close()

    def _round(self, meter: LagMeter) -> None:
        kafka = read_settings(self._paths).kafka
        actual = self._store.all_actual(hidden=True)
        for want in self._store.all_desired(hidden=True):
            if self._ending.is_set():
                return
            now = time.time()
            found = actual.get(want.stream) or Actual(stream=want.stream)
            lag = self._measured(meter, want, found, kafka, now)
            if (lag.rows, lag.seconds) != (found.lag_rows, found.lag_seconds) or now - (found.lag_at or 0) >= 5:
                self._store.record_lag(found, lag.rows, lag.seconds, now=now)
        self._note("", None)

    def _measured(self, meter: LagMeter, want: Desired, found: Actual, kafka: KafkaSettings, now: float) -> Lag:
        try:
            lag = meter.measure(want, found, kafka, now)
        except Exception as problem:  # noqa: BLE001 -- one stream's trouble must not end the thread that serves all
            self._note(want.stream, str(problem))
            return behind.UNKNOWN
        self._note(want.stream, None)
        return lag

    def _note(self, stream: str, trouble: str | None) -> None:
        """Say a change: a trouble that is new, or one that went away."""
        if trouble == self._trouble.get(stream):
            return
        name = f"{stream}: lag" if stream else "lag"
        self._say(f"{name} is unknown: {trouble}" if trouble else f"{name} is known again")
        if trouble:
            self._trouble[stream] = trouble
        else:
            del self._trouble[stream]
