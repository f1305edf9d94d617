"""Worlds for tests: a healthy one, and changes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.control.health import DEFAULT_LIMITS, Limits
from penstock.control.world import Liveness, World
from penstock.store import Actual, Desired, Progress, StreamState, Wanted

NOW = 1_000_000.0
STREAM = "shop.clicks"


def limits_of(_stream: str) -> Limits:
    return DEFAULT_LIMITS


def wanted(stream: str = STREAM, **changes: Any) -> Desired:
    made = Desired(stream, 3, "hash", "{}", "g3-abc", Wanted.RUNNING, NOW - 5000)
    return replace(made, **changes)


def running(stream: str = STREAM, **changes: Any) -> Actual:
    made = Actual(
        stream=stream, generation=3, state=StreamState.RUNNING, engine_token=7, run_id="r", started_at=NOW - 1000,
        updated_at=NOW - 1, batch_id=50, last_batch_at=NOW - 1, last_commit_at=NOW - 1, total_rows_in=1000,
        total_rows_out=900, lag_rows=0, lag_seconds=0.0, lag_at=NOW - 1,
    )  # fmt: skip
    return replace(made, **changes)


def batch(stream: str = STREAM, **changes: Any) -> Progress:
    made = Progress(stream, 3, 50, NOW - 1, 10, 9, 250, "delta-rs", state_rows=5, state_bytes=4096)
    return replace(made, **changes)


def healthy(*streams: str, **changes: Any) -> World:
    """All is well; the streams run."""
    names = streams or (STREAM,)
    made = World(
        at=NOW,
        supervisor=Liveness.UP,
        engine=Liveness.UP,
        supervisor_token=4,
        supervisor_until=NOW + 10,
        engine_token=7,
        desired=tuple(wanted(name) for name in names),
        actual={name: running(name) for name in names},
        batches={name: batch(name) for name in names},
    )
    return replace(made, **changes)


def with_actual(world: World, stream: str = STREAM, **changes: Any) -> World:
    return replace(world, actual={**world.actual, stream: replace(world.of(stream), **changes)})


def with_wanted(world: World, stream: str = STREAM, **changes: Any) -> World:
    desired = tuple(replace(each, **changes) if each.stream == stream else each for each in world.desired)
    return replace(world, desired=desired)
