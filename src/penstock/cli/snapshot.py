"""The state of a project at one moment, read from the store and the process files: no engine, no broker is asked.

Rules
- Rates are rows per second over the last ten seconds of the progress history, not of the last batch alone.
- A stream that is wanted running is healthy only when it is running, under a supervisor and an engine that live.
- Reading never creates anything: a project that was never started has an empty snapshot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock import processes
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock.store import Actual, Desired, Progress, Store

WINDOW = 10.0  # seconds
LAG_IS_OLD = 30.0  # seconds: the supervisor measures every second, and writes at least every five
_BATCHES = 300  # enough for ten seconds of the shortest batches


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

    @property
    def healthy(self) -> bool:
        return self.wanted != "running" or self.state == "running"


@dataclass(frozen=True)
class Snapshot:
    """A project at one moment."""

    at: float
    supervisor: dict[str, Any]
    engine: dict[str, Any]
    broker: dict[str, Any]
    streams: tuple[StreamView, ...]

    @property
    def engine_side_up(self) -> bool:
        return "up" in (self.supervisor["state"], self.engine["state"])

    @property
    def anything_up(self) -> bool:
        return self.engine_side_up or self.embedded_broker_up

    @property
    def embedded_broker_up(self) -> bool:
        return bool(self.broker["embedded"]) and self.broker["state"] == "up"

    @property
    def healthy(self) -> bool:
        up = self.supervisor["state"] == "up" and self.engine["state"] == "up"
        return up and all(stream.healthy for stream in self.streams)

    def as_dict(self) -> dict[str, Any]:
        return {
            "supervisor": self.supervisor,
            "engine": self.engine,
            "broker": self.broker,
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


def stream_view(desired: Desired, actual: Actual, batches: Sequence[Progress], now: float) -> StreamView:
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
    )


def take(session: Session, store: Store | None = None) -> Snapshot:
    """Look at the project now."""
    now = time.time()
    engine = _engine(session)
    broker = _broker(session)
    if store is not None:
        return Snapshot(now, _supervisor(store, now), engine, broker, _streams(store, now))
    if not session.has_store():
        return Snapshot(now, {"state": "down", "holder": None}, engine, broker, ())
    with session.store() as opened:
        return Snapshot(now, _supervisor(opened, now), engine, broker, _streams(opened, now))


def _streams(store: Store, now: float) -> tuple[StreamView, ...]:
    actual = store.all_actual()
    found = []
    for desired in store.all_desired():
        known = actual.get(desired.stream) or store.actual(desired.stream)
        found.append(stream_view(desired, known, store.progress(desired.stream, _BATCHES), now))
    return tuple(found)


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
        "started_at": endpoint.started_at,
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
