"""What there is to say about every stream and part. Pure: a world in, findings out.

Rules
- A subject is a stream (by its name) or a part of the platform (`supervisor`, `engine`, `broker`, `registry`).
- Each stream has two checks, `health` and `lag`; each part has `health`.
- A data test that a stream keeps is as good as its table is empty.
- Several brokers, or registries, are one part: it is as well as the worst of them. One that nobody uses is well.
- `restarts` of the supervisor says whether Dagster gave up on something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.control import health
from penstock.control.health import Limits, Severity, State, Verdict
from penstock.control.world import World
from penstock.store import Desired, Wanted

HEALTH = "health"
LAG = "lag"
LIVE = "live test"
RESTARTS = "restarts"
SUPERVISOR = "supervisor"
ENGINE = "engine"
BROKER = "broker"
REGISTRY = "registry"
PARTS = (SUPERVISOR, ENGINE, BROKER, REGISTRY)

LimitsOf = Callable[[str], Limits]  # by stream
Facts = Mapping[str, int | float | str]
_WORSE = (Severity.OK, Severity.WARN, Severity.ERROR)


@dataclass(frozen=True)
class Finding:
    """One check of one subject, as it is now."""

    subject: str
    check: str
    verdict: Verdict
    is_part: bool = False
    facts: Facts = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{'part' if self.is_part else 'stream'}:{self.subject}:{self.check}"

    @property
    def state(self) -> str:
        """What a change is a change of."""
        return f"{self.verdict.state.value}/{self.verdict.severity.value}"


def health_findings(world: World, limits: LimitsOf, parts: tuple[str, ...] = PARTS) -> list[Finding]:
    """The health of every stream and part."""
    found = [_part(name, world, limits("")) for name in parts]
    return found + [_health(want, world, limits) for want in world.desired]


def lag_findings(world: World, limits: LimitsOf) -> list[Finding]:
    """The lag of every stream."""
    return [
        Finding(want.stream, LAG, health.judge_lag(want, world, limits(want.stream)), facts=numbers(want, world))
        for want in world.desired
    ]


def live_findings(world: World, limits: LimitsOf, tests: Collection[str]) -> list[Finding]:
    """Of each data test that a stream keeps (by the stream's name): whether rows break it now."""
    return [_live(want, world, limits) for want in world.desired if want.stream in tests]


def _live(want: Desired, world: World, limits: LimitsOf) -> Finding:
    rows = sum(count for count, _ in world.violations.get(want.stream, {}).values())
    stream = health.judge_stream(want, world, limits(want.stream))
    if rows:
        advice = f"'penstock query \"select * from {want.stream}\"' shows them."
        verdict = Verdict(State.FAILED, Severity.ERROR, f"{rows:,} rows break the test", advice)
    elif stream.severity is Severity.ERROR:
        verdict = Verdict(State.DEGRADED, Severity.WARN, f"not known: {stream.summary}", stream.advice)
    else:
        verdict = Verdict(State.RUNNING, Severity.OK, "no row breaks the test")
    return Finding(want.stream, LIVE, verdict, facts={"rows": rows, "stream": stream.summary})


def numbers(want: Desired, world: World) -> dict[str, int | float | str]:
    """What is plotted of a stream; what is not known is left out."""
    found, newest = world.of(want.stream), world.batches.get(want.stream)
    values: dict[str, int | float | str | None] = {
        "lag_rows": found.lag_rows,
        "lag_seconds": None if found.lag_seconds is None else round(found.lag_seconds, 3),
        "total_rows_in": found.total_rows_in,
        "total_rows_out": found.total_rows_out,
        "restarts": found.restarts,
        "batch_seconds": newest.duration_ms / 1000 if newest else None,
        "state_rows": newest.state_rows if newest else None,
        "state_bytes": newest.state_bytes if newest else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def restarts_finding(gave_up: Sequence[str]) -> Finding:
    """Whether Dagster gave up, and on what."""
    if not gave_up:
        return Finding(SUPERVISOR, RESTARTS, Verdict(State.RUNNING, Severity.OK, "nothing was given up"), is_part=True)
    named = ", ".join(gave_up[:5]) + (f" and {len(gave_up) - 5} more" if len(gave_up) > 5 else "")
    verdict = Verdict(
        State.FAILED,
        Severity.ERROR,
        f"gave up restarting {named}: it did not help",
        "See the failed runs of penstock_recover, mend the cause, then 'penstock up'.",
    )
    return Finding(SUPERVISOR, RESTARTS, verdict, is_part=True)


def _health(want: Desired, world: World, limits: LimitsOf) -> Finding:
    found = world.of(want.stream)
    facts: dict[str, int | float | str] = {
        "wanted": want.wanted.value,
        "reported": found.state.value,
        "generation": want.generation,
        "restarts": found.restarts,
        "failures": found.failures,
    }
    if found.error_code and want.wanted is Wanted.RUNNING:
        facts["last_error"] = health.cause(found)
    return Finding(want.stream, HEALTH, health.judge_stream(want, world, limits(want.stream)), facts=facts)


def _part(name: str, world: World, limits: Limits) -> Finding:
    if name == SUPERVISOR:
        return Finding(name, HEALTH, health.judge_supervisor(world), is_part=True)
    if name == ENGINE:
        return Finding(name, HEALTH, health.judge_engine(world), is_part=True)
    judged = [(part, health.judge_part(part, world, limits)) for part in world.parts if part.kind == name]
    if not judged:
        return Finding(name, HEALTH, Verdict(State.STOPPED, Severity.OK, "not in use"), is_part=True)
    part, worst = max(judged, key=lambda pair: _WORSE.index(pair[1].severity))
    return Finding(name, HEALTH, worst, is_part=True, facts={"address": part.name, "known": len(judged)})
