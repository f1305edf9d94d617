"""What the store holds, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Wanted(str, Enum):
    """What the operator wants of a stream."""

    RUNNING = "running"
    STOPPED = "stopped"


class StreamState(str, Enum):
    """What the stream is doing."""

    PENDING = "pending"  # deployed, not started yet
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # waits for its next restart
    QUARANTINED = "quarantined"  # failed too often; waits for a person


@dataclass(frozen=True)
class Desired:
    """A stream as it was deployed."""

    stream: str
    generation: int
    spec_hash: str
    spec_json: str
    checkpoint_id: str
    wanted: Wanted
    updated_at: float


@dataclass(frozen=True)
class Actual:
    """A stream as the engine last reported it, with what the supervisor counts."""

    stream: str
    generation: int = 0
    state: StreamState = StreamState.PENDING
    engine_token: int = 0  # fencing token of the engine that reported
    run_id: str | None = None
    started_at: float | None = None
    updated_at: float = 0.0
    batch_id: int | None = None
    last_batch_at: float | None = None
    last_commit_at: float | None = None  # a batch that carried rows
    rows_in_per_s: float = 0.0
    rows_out_per_s: float = 0.0
    total_rows_in: int = 0
    total_rows_out: int = 0
    offsets: dict[str, Any] = field(default_factory=dict)  # input relation -> committed offset as Spark writes it
    lag_rows: int | None = None
    lag_seconds: float | None = None
    lag_at: float | None = None
    restarts: int = 0
    failures: int = 0  # in a row, without a healthy stretch between
    last_failure_at: float | None = None
    retry_at: float | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Progress:
    """One batch."""

    stream: str
    generation: int
    batch_id: int
    at: float
    rows_in: int
    rows_out: int
    duration_ms: int
    writer: str  # delta-rs | spark | skipped | empty
    rows_in_per_s: float = 0.0
    offsets: dict[str, Any] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class Lease:
    """The right to do something, until it expires. Writes carry the token."""

    name: str
    holder: str
    token: int
    expires_at: float


@dataclass(frozen=True)
class Command:
    """Something the engine is asked to do."""

    id: int
    kind: str  # prepare | start | stop | drop
    stream: str
    payload: dict[str, Any]
    state: str  # new | taken | done | failed
    result: dict[str, Any] | None = None
    created_at: float = 0.0
