"""The state of a project at one moment, read from the store and the process files: no engine, no broker is asked.

Rules
- Rates are rows per second over the last ten seconds of the progress history, not of the last batch alone.
- A stream that is wanted running is healthy only when it is running, under a supervisor and an engine that live.
- Reading never creates anything: a project that was never started has an empty snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock import processes
from penstock.cli.session import Session
from penstock.paths import beside

if TYPE_CHECKING:
    from penstock.store import Actual, Desired, Progress, Rebuild, RebuildLink, RecordCounts, Store

WINDOW = 10.0  # seconds
LAG_IS_OLD = 30.0  # seconds: the supervisor measures every second, and writes at least every five
_BATCHES = 300  # enough for ten seconds of the shortest batches


_NO_REGISTRY: dict[str, Any] = {"state": "none", "embedded": False, "address": None, "pid": None}


@dataclass(frozen=True)
class SourceCounts:
    """How good the records of a source were that a stream read, since its checkpoint began."""

    source: str
    records: int
    empty: int
    bad: int
    partly_bad: int
    last_at: float | None  # when the last was read that was bad or partly bad


@dataclass(frozen=True)
class ExpectationView:
    """How many rows did not hold an expectation of a stream."""

    name: str
    expect: str
    on_violation: str
    violations: int
    last_at: float | None


@dataclass(frozen=True)
class StreamView:
    """One stream as `penstock status` shows it."""

    name: str
    state: str
    wanted: str
    generation: int
    running_generation: int
    lag_rows: int | None
    lag_seconds: float | None
    rows_in_per_s: float
    rows_out_per_s: float
    total_rows_in: int
    total_rows_out: int
    batch_id: int | None
    last_batch_at: float | None
    last_commit_at: float | None
    started_at: float | None
    restarts: int
    failures: int
    retry_at: float | None
    error_code: str | None
    error: str | None
    checkpoint: str
    records: tuple[SourceCounts, ...] = ()
    expectations: tuple[ExpectationView, ...] = ()
    rebuild: dict[str, Any] | None = None  # a new generation beside this one: how far it is, or what it failed of
    state_bytes: int | None = None  # of the newest batch; None for a stream that has none
    waits_for: tuple[str, ...] = ()  # rebuilds after which it starts, or together with which it takes over

    @property
    def healthy(self) -> bool:
        return self.wanted != "running" or self.state == "running" or (bool(self.waits_for) and self.rebuild is None)


@dataclass(frozen=True)
class Snapshot:
    """A project at one moment."""

    at: float
    supervisor: dict[str, Any]
    engine: dict[str, Any]
    broker: dict[str, Any]
    streams: tuple[StreamView, ...]
    schema_registry: dict[str, Any] = field(default_factory=lambda: dict(_NO_REGISTRY))

    @property
    def engine_side_up(self) -> bool:
        return "up" in (self.supervisor["state"], self.engine["state"])

    @property
    def anything_up(self) -> bool:
        return self.engine_side_up or self.embedded_broker_up or self.embedded_registry_up

    @property
    def embedded_broker_up(self) -> bool:
        return bool(self.broker["embedded"]) and self.broker["state"] == "up"

    @property
    def embedded_registry_up(self) -> bool:
        return bool(self.schema_registry["embedded"]) and self.schema_registry["state"] == "up"

    @property
    def healthy(self) -> bool:
        up = self.supervisor["state"] == "up" and self.engine["state"] == "up"
        return up and all(stream.healthy for stream in self.streams)

    def as_dict(self) -> dict[str, Any]:
        return {
            "supervisor": self.supervisor,
            "engine": self.engine,
            "broker": self.broker,
            "schema_registry": self.schema_registry,
            "streams": [asdict(stream) for stream in self.streams],
        }


def rates(batches: Sequence[Progress], now: float, since: float | None = None) -> tuple[float, float]:
    """Rows per second in and out over the window, which is shorter for a stream that only just started."""
    seconds = min(WINDOW, max(now - since, 1.0)) if since is not None else WINDOW
    recent = [batch for batch in batches if now - seconds < batch.at <= now + 1]
    return (
        round(sum(batch.rows_in for batch in recent) / seconds, 2),
        round(sum(batch.rows_out for batch in recent) / seconds, 2),
    )


def stream_view(
    desired: Desired,
    actual: Actual,
    batches: Sequence[Progress],
    now: float,
    counts: Mapping[str, RecordCounts] | None = None,
    rebuild: dict[str, Any] | None = None,
    violations: Mapping[str, tuple[int, float | None]] | None = None,
    waits_for: Sequence[str] = (),
) -> StreamView:
    rows_in, rows_out = rates(batches, now, actual.started_at)
    known = actual.lag_at is not None and now - actual.lag_at < LAG_IS_OLD
    return StreamView(
        name=desired.stream,
        state=actual.state.value,
        wanted=desired.wanted.value,
        generation=desired.generation,
        running_generation=actual.generation,
        lag_rows=actual.lag_rows if known else None,
        lag_seconds=actual.lag_seconds if known else None,
        rows_in_per_s=rows_in,
        rows_out_per_s=rows_out,
        total_rows_in=actual.total_rows_in,
        total_rows_out=actual.total_rows_out,
        batch_id=actual.batch_id,
        last_batch_at=actual.last_batch_at,
        last_commit_at=actual.last_commit_at,
        started_at=actual.started_at,
        restarts=actual.restarts,
        failures=actual.failures,
        retry_at=actual.retry_at,
        error_code=actual.error_code,
        error=actual.error,
        checkpoint=desired.checkpoint_id,
        records=tuple(SourceCounts(source, **asdict(read)) for source, read in sorted((counts or {}).items())),
        expectations=_expectations(desired, violations or {}),
        rebuild=rebuild,
        state_bytes=next((batch.state_bytes for batch in batches), 0) or None,
        waits_for=tuple(waits_for),
    )


def _expectations(desired: Desired, violations: Mapping[str, tuple[int, float | None]]) -> tuple[ExpectationView, ...]:
    declared = json.loads(desired.spec_json).get("expectations") or ()
    return tuple(
        ExpectationView(each["name"], each["expect"], each["on_violation"], *violations.get(each["name"], (0, None)))
        for each in declared
    )


def take(session: Session, store: Store | None = None) -> Snapshot:
    """Look at the project now."""
    now = time.time()
    engine = _engine(session)
    broker, registry = _broker(session), _registry(session)
    if store is not None:
        return Snapshot(now, _supervisor(store, now), engine, broker, _streams(store, now), registry)
    if not session.has_store():
        return Snapshot(now, {"state": "down", "holder": None}, engine, broker, (), registry)
    with session.store() as opened:
        return Snapshot(now, _supervisor(opened, now), engine, broker, _streams(opened, now), registry)


def _streams(store: Store, now: float) -> tuple[StreamView, ...]:
    actual, counts, rebuilds = store.all_actual(hidden=True), store.record_counts(), store.rebuilds()
    violations, waits = store.violations(), _waits(rebuilds, store.rebuild_links())
    found = []
    for desired in store.all_desired():
        known = actual.get(desired.stream) or store.actual(desired.stream)
        batches, read = store.progress(desired.stream, _BATCHES), counts.get(desired.stream)
        rebuild = rebuilds.get(desired.stream)
        told = rebuild_view(rebuild, actual.get(beside(desired.stream))) if rebuild else None
        broken, waits_for = violations.get(desired.stream), waits.get(desired.stream, ())
        found.append(stream_view(desired, known, batches, now, read, told, broken, waits_for))
    return tuple(found)


def _waits(rebuilds: Mapping[str, Rebuild], links: Sequence[RebuildLink]) -> dict[str, list[str]]:
    """Streams that start when rebuilds are over, and rebuilds of which those of readers have not begun."""
    if not rebuilds:
        return {}  # without loading what compiles SQL

    from penstock.control.rebuilds import groups, waiting

    found = waiting(rebuilds, links)
    for members, awaited in groups(rebuilds, links):
        found |= {member: sorted(awaited) for member in members if awaited}
    return found


def rebuild_view(rebuild: Rebuild, new: Actual | None) -> dict[str, Any] | None:
    """What is told of a rebuild; nothing of one that has taken over or was given up by a person."""
    from penstock.control.rebuilds import progress

    if rebuild.phase.value in ("taken over", "ending") and rebuild.error is None:
        return None
    part = progress(new) if new is not None else None
    trying = new is not None and rebuild.error is None
    return {
        "generation": rebuild.generation,
        "phase": "failed" if rebuild.error is not None else rebuild.phase.value,
        "progress": part if rebuild.error is None else None,
        "started_at": rebuild.started_at,
        "error_code": new.error_code if new is not None and trying else rebuild.error_code,
        "error": new.error if new is not None and trying else rebuild.error,
    }


def _supervisor(store: Store, now: float) -> dict[str, Any]:
    lease = store.live_lease("supervisor", now=now)
    return {"state": "up" if lease else "down", "holder": lease.holder if lease else None}


def _engine(session: Session) -> dict[str, Any]:
    from penstock.engine.process import read_endpoint

    endpoint = read_endpoint(session.paths)
    if endpoint is None:
        return {"state": "down", "pid": None, "port": None, "ui": None, "started_at": None}
    return {
        "state": "up",
        "pid": endpoint.pid,
        "port": endpoint.port,
        "ui": endpoint.ui,
        "started_at": processes.time_of_start(endpoint.pid),
    }


def _broker(session: Session) -> dict[str, Any]:
    """The embedded broker by its own file: importing a Kafka client for that would cost more than the rest."""
    try:
        known = json.loads((session.paths.kafka / "broker.json").read_text(encoding="utf-8"))
        if processes.alive(known["pid"], known["started_at"]):
            return {"state": "up", "embedded": True, "address": known["bootstrap"], "pid": known["pid"]}
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        pass  # no broker was started here, or it is only just being started
    address = (session.saved().get("kafka") or {}).get("bootstrap")
    if address:
        return {"state": "external", "embedded": False, "address": address, "pid": None}
    return {"state": "down", "embedded": True, "address": None, "pid": None}


def _registry(session: Session) -> dict[str, Any]:
    """The embedded schema registry by its own file, or the profile's."""
    try:
        known = json.loads((session.paths.registry / "registry.json").read_text(encoding="utf-8"))
        if processes.alive(known["pid"], known["started_at"]):
            return {"state": "up", "embedded": True, "address": known["url"], "pid": known["pid"]}
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        pass  # none was started here, or it is only just being started
    saved = session.saved().get("schema_registry") or {}
    if saved.get("embedded"):
        return {"state": "down", "embedded": True, "address": None, "pid": None}
    address = (saved.get("options") or {}).get("url")
    return {"state": "external", "embedded": False, "address": address, "pid": None} if address else dict(_NO_REGISTRY)
