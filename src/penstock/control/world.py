"""Everything the deployment store says of a project at one moment, in a fixed number of queries.

Rules
- Only the store is read: no engine, no broker, no file of a process.
- A lease that was given back says that its holder ended on purpose; one whose holder is gone says that it was lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.control.deployed import waiting_streams
from penstock.control.engine_watch import ENGINE_LEASE
from penstock.control.rebuilds import standing
from penstock.control.supervisor import LEASE as SUPERVISOR_LEASE
from penstock.store import Actual, Desired, Lease, Part, Progress, Store, holder_is_dead


class Liveness(str, Enum):
    """Whether somebody does a job."""

    UP = "up"
    OFF = "off"  # it ended on purpose, or never began
    LOST = "lost"  # its process died, or stopped renewing


@dataclass(frozen=True)
class World:
    """A project at one moment."""

    at: float
    supervisor: Liveness = Liveness.OFF
    engine: Liveness = Liveness.OFF
    supervisor_token: int = 0
    supervisor_until: float = 0.0  # when its lease ends, or ended
    engine_token: int = 0  # of the engine that runs, or of the last one
    desired: tuple[Desired, ...] = ()
    actual: Mapping[str, Actual] = field(default_factory=dict)
    batches: Mapping[str, Progress] = field(default_factory=dict)  # the newest of each stream
    parts: tuple[Part, ...] = ()  # brokers and registries, as the supervisor saw them
    violations: Mapping[str, Mapping[str, tuple[int, float | None]]] = field(default_factory=dict)  # by stream
    asked: Mapping[str, float] = field(default_factory=dict)  # stream -> when its open start or stop was asked
    waiting: Mapping[str, Sequence[str]] = field(default_factory=dict)  # stream -> the rebuilds after which it starts
    standing: frozenset[str] = frozenset()  # streams that are stopped for a takeover

    def of(self, stream: str) -> Actual:
        """What is known of a stream; an empty record when nothing was reported."""
        return self.actual.get(stream) or Actual(stream=stream)


def read_world(store: Store, *, now: float | None = None) -> World:
    """The project as the store knows it now."""
    now = time.time() if now is None else now
    supervisor, engine = store.lease_record(SUPERVISOR_LEASE), store.lease_record(ENGINE_LEASE)
    return World(
        at=now,
        supervisor=liveness(supervisor, now),
        engine=liveness(engine, now),
        supervisor_token=supervisor.token if supervisor else 0,
        supervisor_until=supervisor.expires_at if supervisor else 0.0,
        engine_token=engine.token if engine else 0,
        desired=tuple(store.all_desired()),
        violations=store.violations(),
        actual=store.all_actual(),
        batches=store.newest_progress(),
        parts=tuple(store.parts()),
        asked={each.stream: each.created_at for each in store.open_commands() if each.kind in ("start", "stop")},
        waiting=waiting_streams(store),
        standing=frozenset(standing(store.rebuilds())),
    )


def liveness(lease: Lease | None, now: float) -> Liveness:
    """What a lease tells of its holder."""
    if lease is None or not lease.holder:
        return Liveness.OFF
    return Liveness.UP if lease.expires_at > now and not holder_is_dead(lease.holder) else Liveness.LOST
