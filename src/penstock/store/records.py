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


class RebuildPhase(str, Enum):
    """How far a rebuild beside the deployed generation has come."""

    CATCHING_UP = "catching up"  # both generations run
    SETTLING = "settling"  # the old one stands still, the new one reads what the old one has read
    STANDING = "standing"  # both stand still; others that take over together with it may not do so yet
    TAKING_OVER = "taking over"  # both stand still; the new rows replace the old ones
    TAKEN_OVER = "taken over"  # the new generation is the deployed one; its hidden table is left to clear away
    ENDING = "ending"  # given up; the hidden table and the checkpoint are left to clear away
    FAILED = "failed"  # given up for an error, which is kept for people


@dataclass(frozen=True)
class Rebuild:
    """A new generation of a stream that is built beside the deployed one."""

    stream: str
    generation: int
    spec_hash: str
    spec_json: str
    checkpoint_id: str
    phase: RebuildPhase
    error_code: str | None
    error: str | None
    started_at: float
    updated_at: float  # of the phase


class LinkKind(str, Enum):
    """What a rebuild means for a stream that reads its table."""

    TOGETHER = "together"  # it is rebuilt, too: both take over, or neither
    AFTER = "after"  # it starts when the rebuild is over


@dataclass(frozen=True)
class RebuildLink:
    """A stream that a rebuild is not alone with."""

    upstream: str  # the stream that is rebuilt
    reader: str
    kind: LinkKind


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
    writer: str  # direct | delta-rs | spark | skipped | empty
    rows_in_per_s: float = 0.0
    offsets: dict[str, Any] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class RecordCounts:
    """How good the records of a source were that a stream read."""

    records: int = 0
    empty: int = 0
    bad: int = 0
    partly_bad: int = 0
    last_at: float | None = None  # when the last was read that was bad or partly bad

    def plus(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(
            self.records + other.records,
            self.empty + other.empty,
            self.bad + other.bad,
            self.partly_bad + other.partly_bad,
            other.last_at or self.last_at,
        )


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
    # prepare | start | adjust | stop | drop | takeover | discard | replay | maintain | source | drop_source | follow
    kind: str
    stream: str
    payload: dict[str, Any]
    state: str  # new | taken | done | failed
    result: dict[str, Any] | None = None
    created_at: float = 0.0


@dataclass(frozen=True)
class Part:
    """Something outside that streams need, as the supervisor saw it last."""

    name: str  # broker 127.0.0.1:9092
    kind: str  # broker | registry
    ok: bool
    detail: str  # why not, in one line; empty when it answers
    at: float


@dataclass(frozen=True)
class DeployedSource:
    """A source that is a view of the catalog."""

    relation: str
    hash: str
    spec_json: str
    properties: list[str]
    updated_at: float
