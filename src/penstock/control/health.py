"""How well streams and the parts of the platform are. Pure: the same world has the same answer.

Rules
- A stream is running, catching up, degraded, failed, quarantined or stopped; every answer says why and what to do.
- What a person asked for is never a failure: a stopped stream and a project that was taken down are "stopped".
- A stream that says "running" but commits nothing while rows wait for it is stuck, and that is a failure.
- An idle topic is not late: without unread rows there is no lag. What is not known is never called good.
- Lag above the limit is a warning, above twice the limit an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.control.world import Liveness, World
from penstock.errors.catalogue import ENGINE_LOST
from penstock.store import Actual, Desired, Part, StreamState, Wanted

ERROR_FACTOR = 2  # lag above this many times the limit is an error


class State(str, Enum):
    """What a person is told."""

    RUNNING = "running"
    CATCHING_UP = "catching up"
    DEGRADED = "degraded"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"


class Severity(str, Enum):
    OK = "ok"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class Limits:
    """How patient the judgement is; seconds and rows."""

    max_lag_seconds: float = 300.0
    max_lag_rows: int | None = None
    start_grace: float = 120.0  # until a stream that starts counts as failed
    stuck_after: float = 300.0  # without a batch while rows wait
    stuck_batches: float = 10.0  # or this many times the length of the last batch, if that is longer
    lag_is_old: float = 30.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Verdict:
    """The answer about one stream or part."""

    state: State
    severity: Severity
    summary: str
    advice: str = ""
    stuck: bool = False
    facts: Mapping[str, int | float | str] = field(default_factory=dict)


def judge_stream(want: Desired, world: World, limits: Limits) -> Verdict:
    """How a stream is."""
    found = world.of(want.stream)
    if found.state is StreamState.QUARANTINED:
        return Verdict(
            State.QUARANTINED,
            Severity.ERROR,
            f"quarantined after {found.failures} failures in a row: {cause(found)}",
            f"Mend the cause, then 'dbt run --select {_model(want)}' or 'penstock start {want.stream}'.",
        )
    if want.wanted is Wanted.STOPPED:
        return Verdict(
            State.STOPPED, Severity.OK, "stopped on purpose", f"'penstock start {want.stream}' starts it again."
        )
    if Liveness.UP not in (world.engine, world.supervisor):
        return _platform_down(world)
    if want.stream in world.waiting:
        above = ", ".join(world.waiting[want.stream])
        starts = f"it starts when the rebuild of {above} is over"
        return Verdict(State.STOPPED, Severity.OK, starts, "'penstock status' shows how far the rebuild is.")
    if want.stream in world.standing and found.state in (StreamState.STOPPING, StreamState.STOPPED):
        return Verdict(
            State.STOPPED, Severity.OK, "stands still while its new generation takes over",
            "'penstock status' shows the rebuild.",
        )  # fmt: skip
    if found.state is StreamState.FAILED:
        return _failed(want, found, world.at)
    if world.engine is not Liveness.UP:
        return Verdict(
            State.FAILED,
            Severity.ERROR,
            "its engine is not running",
            "The supervisor starts the engine again; 'penstock logs engine' says why it ended.",
        )
    if found.state is StreamState.RUNNING and found.engine_token >= world.engine_token:
        return _running(want, found, world, limits)
    return _on_its_way(want, found, world, limits)


def judge_lag(want: Desired, world: World, limits: Limits) -> Verdict:
    """How far a stream is behind, against its limits."""
    found = world.of(want.stream)
    stopped = want.wanted is Wanted.STOPPED or want.stream in world.waiting or want.stream in world.standing
    state = State.STOPPED if stopped else State.RUNNING
    if found.lag_at is None or world.at - found.lag_at > limits.lag_is_old:
        return Verdict(
            State.DEGRADED if not stopped else state,
            Severity.OK if stopped else Severity.WARN,
            "lag is not known: nobody has measured it lately",
            "The supervisor measures it; 'penstock up' starts one.",
        )
    if found.lag_rows is None:
        return Verdict(
            State.DEGRADED if not stopped else state,
            Severity.OK if stopped else Severity.WARN,
            "lag is not known: an input does not answer",
            "See the check of the broker, and 'penstock logs supervisor'.",
        )
    behind = _behind(found)
    if stopped or found.lag_rows == 0:
        return Verdict(state, Severity.OK, behind)
    over = excess(found, limits)
    if over <= 1:
        return Verdict(state, Severity.OK, f"{behind}; allowed are {_allowed(limits)}")
    return Verdict(
        State.CATCHING_UP,
        Severity.ERROR if over > ERROR_FACTOR else Severity.WARN,
        f"{behind}; allowed are {_allowed(limits)}",
        "If it does not shrink: more cores for the engine, a larger max_batch_rows, or a simpler query.",
    )


def judge_supervisor(world: World) -> Verdict:
    match world.supervisor:
        case Liveness.UP:
            return Verdict(State.RUNNING, Severity.OK, "looks after the streams")
        case Liveness.LOST:
            return Verdict(
                State.FAILED, Severity.ERROR, "its process is gone: nobody restarts what fails",
                "Dagster's restart sensor brings it back; by hand: 'penstock up'.",
            )  # fmt: skip
        case Liveness.OFF:
            return _off()


def judge_engine(world: World) -> Verdict:
    match world.engine:
        case Liveness.UP:
            return Verdict(State.RUNNING, Severity.OK, "runs")
        case Liveness.LOST:
            who = "the supervisor starts it again" if world.supervisor is Liveness.UP else "nobody is there to start it"
            return Verdict(
                State.FAILED, Severity.ERROR, f"its process is gone; {who}", "'penstock logs engine' says why it ended."
            )
        case Liveness.OFF if world.supervisor is Liveness.UP:
            return Verdict(
                State.DEGRADED, Severity.WARN, "not there yet; the supervisor starts it",
                "'penstock logs engine' if it does not come.",
            )  # fmt: skip
        case Liveness.OFF:
            return _off()


def judge_part(part: Part, world: World, limits: Limits) -> Verdict:
    """A broker or a registry, as the supervisor saw it."""
    if world.at - part.at > limits.lag_is_old:
        if Liveness.UP not in (world.engine, world.supervisor) and world.supervisor is Liveness.OFF:
            return _off()
        return Verdict(State.DEGRADED, Severity.WARN, "not known: nobody has looked lately", "'penstock up'.")
    if part.ok:
        return Verdict(State.RUNNING, Severity.OK, "answers")
    return Verdict(
        State.FAILED, Severity.ERROR, part.detail or "does not answer",
        "Streams wait for it and go on by themselves when it answers again.",
    )  # fmt: skip


def is_stuck(found: Actual, world: World, limits: Limits) -> bool:
    """Does it say "running" and commit nothing while rows wait?"""
    known = found.lag_at is not None and world.at - found.lag_at <= limits.lag_is_old
    if found.state is not StreamState.RUNNING or not known or not found.lag_rows:
        return False
    since = max(found.started_at or 0.0, found.last_batch_at or 0.0)
    newest = world.batches.get(found.stream)
    patience = max(limits.stuck_after, limits.stuck_batches * (newest.duration_ms / 1000 if newest else 0.0))
    return since > 0 and world.at - since > patience and (found.lag_seconds is None or found.lag_seconds > patience)


def excess(found: Actual, limits: Limits) -> float:
    """How many times its limit the lag is."""
    by_time = (found.lag_seconds or 0.0) / limits.max_lag_seconds
    by_rows = (found.lag_rows or 0) / limits.max_lag_rows if limits.max_lag_rows else 0.0
    return max(by_time, by_rows)


def cause(found: Actual) -> str:
    """The stream's last error in one line."""
    text = f"{found.error_code or ''} {found.error or 'no message'}".strip()
    return text.splitlines()[0][:300]


def _running(want: Desired, found: Actual, world: World, limits: Limits) -> Verdict:
    if is_stuck(found, world, limits):
        since = world.at - max(found.started_at or 0.0, found.last_batch_at or 0.0)
        return Verdict(
            State.FAILED,
            Severity.ERROR,
            f"stuck: no batch for {_span(since)} while {found.lag_rows:,} rows wait",
            f"'penstock restart {want.stream}'; Spark's UI shows what the batch waits for.",
            stuck=True,
        )
    if found.generation != want.generation:
        return Verdict(
            State.DEGRADED, Severity.WARN, f"generation {found.generation} runs, {want.generation} is deployed",
            "The supervisor changes over; 'penstock status' if it does not.",
        )  # fmt: skip
    if found.failures:
        return Verdict(
            State.DEGRADED, Severity.WARN, f"runs again after {found.failures} failures in a row: {cause(found)}",
            f"'penstock logs {want.stream}'.",
        )  # fmt: skip
    known = found.lag_at is not None and world.at - found.lag_at <= limits.lag_is_old
    if known and found.lag_rows and excess(found, limits) > 1:
        return Verdict(State.CATCHING_UP, Severity.OK, f"runs, and is {_behind(found)}", "See the check of its lag.")
    return Verdict(State.RUNNING, Severity.OK, f"runs generation {found.generation}")


def _on_its_way(want: Desired, found: Actual, world: World, limits: Limits) -> Verdict:
    """Pending, starting, stopping before a start, or still in the record of an engine that is gone."""
    lost = found.error_code == ENGINE_LOST.code or (
        found.state is StreamState.RUNNING and found.engine_token < world.engine_token
    )
    since = max(want.updated_at, found.started_at or 0.0, found.updated_at)
    if lost or world.at - since > limits.start_grace:
        why = "its engine ended" if lost else f"it has been {found.state.value} for {_span(world.at - since)}"
        return Verdict(
            State.FAILED, Severity.ERROR, f"not running: {why}",
            "The supervisor starts it as soon as the engine is ready; 'penstock logs supervisor' if it does not.",
        )  # fmt: skip
    return Verdict(State.DEGRADED, Severity.WARN, f"{found.state.value}; it runs in a moment")


def _failed(want: Desired, found: Actual, now: float) -> Verdict:
    again = f"next try in {_span(max(0.0, found.retry_at - now))}" if found.retry_at is not None else "waits for a try"
    return Verdict(
        State.FAILED, Severity.ERROR, f"failed, {again}: {cause(found)}",
        f"'penstock logs {want.stream}'; it is tried again by itself.",
    )  # fmt: skip


def _platform_down(world: World) -> Verdict:
    if Liveness.LOST in (world.engine, world.supervisor):
        return Verdict(
            State.FAILED, Severity.ERROR, "engine and supervisor are gone",
            "Dagster's restart sensor brings them back; by hand: 'penstock up'.",
        )  # fmt: skip
    return _off()


def _off() -> Verdict:
    return Verdict(State.STOPPED, Severity.WARN, "the project is down", "'penstock up' starts it.")


def _model(want: Desired) -> str:
    return want.stream.rpartition(".")[2]


def _behind(found: Actual) -> str:
    rows = found.lag_rows or 0
    if rows == 0:
        return "nothing unread"
    late = f", the oldest {_span(found.lag_seconds)} old" if found.lag_seconds is not None else ""
    return f"{rows:,} rows behind{late}"


def _allowed(limits: Limits) -> str:
    rows = f" or {limits.max_lag_rows:,} rows" if limits.max_lag_rows else ""
    return _span(limits.max_lag_seconds) + rows


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
