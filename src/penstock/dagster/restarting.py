"""When Dagster asks for a restart. Pure: a world and a memory in, requests and a memory out.

Rules
- What to do is `reconcile`'s answer, the same that the supervisor asks for.
- While a supervisor lives, streams are its business: Dagster only steps in where it does not see anything wrong (a
  stuck stream) or does not get on (the same step is due for longer than the grace).
- A supervisor that is gone takes everything with it sooner or later: one request for the project, whatever is down.
- One failure makes one request: its key is the stream, the generation and the failure. If that did not help, the next
  one waits, longer each time; after the last, Dagster gives up and says so in a check. The count begins anew when all
  was well for a while.
- What was stopped on purpose, a stream or the project, stays stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.control import health
from penstock.control.actions import MarkLost, RestartStream, StartStream
from penstock.control.health import Limits
from penstock.control.policy import Policy
from penstock.control.reconcile import EngineView, reconcile
from penstock.control.world import Liveness, World
from penstock.dagster.budget import TRIES
from penstock.dagster.findings import LimitsOf
from penstock.store import Desired, StreamState, Wanted

PROJECT = "project"
GRACE = 60.0  # seconds that a step of the supervisor may be due
AT_ONCE = 5  # requests for single streams in one look; the others come in the next


@dataclass(frozen=True)
class Attempt:
    """What was done about one failure."""

    failure: str
    since: float  # when it was seen first
    tries: int = 0
    next_at: float = 0.0
    last_at: float = 0.0  # of the last request, or of the last look that found the failure
    told: bool = False  # that Dagster gave up


@dataclass(frozen=True)
class Request:
    """A run that Dagster shall make."""

    key: str
    streams: tuple[str, ...]
    reason: str
    stuck: bool = False


@dataclass(frozen=True)
class Answer:
    """All that follows from one look."""

    requests: tuple[Request, ...] = ()
    memory: Mapping[str, Attempt] = field(default_factory=dict)
    gave_up: tuple[str, ...] = ()  # subjects that were tried often enough, and did not get well after the last try
    skip: str = ""


@dataclass(frozen=True)
class _Failure:
    subject: str
    identity: str
    streams: tuple[str, ...]
    reason: str
    grace: float = 0.0
    stuck: bool = False


def restarts(world: World, memory: Mapping[str, Attempt], limits: LimitsOf, policy: Policy = TRIES) -> Answer:
    """The restarts to ask for now."""
    wanted = tuple(want for want in world.desired if _shall_run(want, world))
    recent = {name: each for name, each in memory.items() if world.at - each.last_at < policy.healthy_after}
    if not wanted:
        return Answer(skip="No stream is wanted running.")
    if world.supervisor is Liveness.OFF:
        return Answer(skip="The project was taken down on purpose; 'penstock up' starts it.")
    due = _due(world)
    if world.supervisor is Liveness.LOST:
        names = tuple(want.stream for want in wanted if want.stream in due) or tuple(want.stream for want in wanted)
        down = "supervisor and engine are gone" if world.engine is not Liveness.UP else "the supervisor is gone"
        identity = f"s{world.supervisor_token}:{int(world.supervisor_until)}"
        return _decided([_Failure(PROJECT, identity, names, down)], recent, world.at, policy)
    failures = [found for want in wanted if (found := _failure(want, world, due, limits(want.stream))) is not None]
    if not failures:
        return Answer(memory=recent, skip="The supervisor looks after the streams; nothing is left to do.")
    return _decided(failures, recent, world.at, policy)


def _shall_run(want: Desired, world: World) -> bool:
    held = world.of(want.stream).state is StreamState.QUARANTINED or want.stream in world.waiting
    held = held or want.stream in world.standing
    return want.wanted is Wanted.RUNNING and not held


def _due(world: World) -> dict[str, str]:
    """Stream -> the step that `reconcile` would take for it now."""
    engine = EngineView(running=world.engine is Liveness.UP, token=world.engine_token, open_since=world.asked)
    steps = reconcile(world.desired, world.actual, engine, world.at, Policy())
    return {
        step.stream: type(step).__name__ for step in steps if isinstance(step, StartStream | RestartStream | MarkLost)
    }


def _failure(want: Desired, world: World, due: Mapping[str, str], limits: Limits) -> _Failure | None:
    found = world.of(want.stream)
    if health.is_stuck(found, world, limits) and world.engine is Liveness.UP:
        # The run and its last batch: a stream that got on, or was started anew, is another case.
        identity = f"g{want.generation}:stuck:{int(found.started_at or 0)}:b{found.batch_id}"
        reason = health.judge_stream(want, world, limits).summary
        return _Failure(want.stream, identity, (want.stream,), reason, stuck=True)
    if want.stream in due and world.engine is Liveness.UP:
        identity = f"g{want.generation}:{found.state.value}:f{found.failures}:{int(found.updated_at)}"
        reason = f"{found.state.value}, and the supervisor does not get on with it"
        return _Failure(want.stream, identity, (want.stream,), reason, grace=GRACE)
    return None


def _decided(failures: list[_Failure], memory: Mapping[str, Attempt], now: float, policy: Policy) -> Answer:
    requests: list[Request] = []
    after: dict[str, Attempt] = dict(memory)
    gave_up: list[str] = []
    for failure in failures:
        before = memory.get(failure.subject) or Attempt(failure.identity, now)
        if before.failure != failure.identity:
            before = replace(before, failure=failure.identity, since=now)
        after[failure.subject] = before = replace(before, last_at=now)
        if before.tries >= policy.quarantine_after and now >= before.next_at:
            if not before.told:
                gave_up.append(failure.subject)
            after[failure.subject] = replace(before, told=True)
        elif (
            before.tries < policy.quarantine_after
            and now - before.since >= failure.grace
            and now >= before.next_at
            and len(requests) < AT_ONCE
        ):
            tries = before.tries + 1
            after[failure.subject] = replace(
                before, tries=tries, next_at=now + policy.delay(failure.subject, tries), last_at=now
            )
            key = f"penstock-restart:{failure.subject}:{failure.identity}:try{tries}"
            requests.append(Request(key, failure.streams, failure.reason, failure.stuck))
    skip = "" if requests else f"Waiting: {', '.join(failure.subject for failure in failures[:5])}."
    return Answer(tuple(requests), after, tuple(gave_up), skip)
