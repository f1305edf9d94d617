"""Deploying a stream: from a compiled spec to the desired state.

Rules
- One deployment at a time in a project; a second waits for its turn, then says who is in the way. The turn of a process
  that died is over at once.
- An unchanged spec changes nothing and asks nobody.
- The engine says yes to a spec before it becomes the desired state. When it says no, nothing was changed.
- A change that the stream's state or rows do not survive needs --full-refresh; that stops the stream, makes the table
  anew and starts again from the beginning of the inputs, with a checkpoint of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from penstock.compiler.plan import Plan, Verdict, plan_change
from penstock.compiler.spec import FromOffsets, KafkaInput, StreamSpec
from penstock.control.inputs import access, topics_read
from penstock.control.requests import BUSY_TIMEOUT, run_command, turn
from penstock.control.streams import drop_stream, restart_stream, start_stream, stop_stream
from penstock.control.waiting import Tell, silent
from penstock.errors import Location
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, PARTITION_MISSING
from penstock.paths import ProjectPaths
from penstock.project.profile import read_settings
from penstock.store import Desired, Store, StreamState, Wanted

__all__ = [
    "Deployment",
    "check_inputs",
    "deploy",
    "drop_stream",
    "restart_stream",
    "run_command",
    "start_stream",
    "stop_stream",
]


@dataclass(frozen=True)
class Deployment:
    """What became of a spec."""

    stream: str
    generation: int
    verdict: str  # NEW | NO-OP | HOT | RESTART | REBUILD
    checkpoint: str
    reasons: tuple[str, ...]
    changed: bool


def deploy(
    store: Store,
    paths: ProjectPaths,
    spec: StreamSpec,
    *,
    full_refresh: bool = False,
    progress: Tell | None = None,
    busy_timeout: float = BUSY_TIMEOUT,
) -> Deployment:
    """Make the spec the desired state of its stream."""
    tell = progress or silent
    with turn(store, tell, busy_timeout):
        old = store.find_desired(spec.name)
        plan = _plan(old, spec)
        verdict, reasons = plan.verdict, plan.reasons
        if old is not None and verdict is Verdict.NO_OP and not full_refresh:
            reasons = (*reasons, *_left_alone(store, old))
            return Deployment(spec.name, old.generation, verdict.value, old.checkpoint_id, reasons, changed=False)
        if verdict is Verdict.REBUILD and not full_refresh:
            raise CHANGE_NEEDS_REBUILD.error(
                f"The change of '{spec.name}' needs a rebuild: {'; '.join(reasons) or 'its state does not fit'}.",
                at=Location(spec.path),
            )
        check_inputs(spec, paths)
        if full_refresh and old is not None:
            made = _rebuild(store, spec, old, tell)
            verdict = Verdict.REBUILD
        else:
            _prepare(store, spec, full_refresh=full_refresh)
            made = store.deploy(spec.name, spec.to_json(), spec.hash, verdict=verdict.value, new_checkpoint=old is None)
        return Deployment(spec.name, made.generation, verdict.value, made.checkpoint_id, reasons, changed=True)


def check_inputs(spec: StreamSpec, paths: ProjectPaths) -> None:
    """The topics of a spec exist, with their partitions, and their brokers answer; PEN-2001 to PEN-2008 when not."""
    kafka = read_settings(paths).kafka
    for item in spec.inputs:
        if isinstance(item, KafkaInput):
            read = topics_read(item, access(item, kafka, paths))
            if isinstance(item.starting, FromOffsets):
                _check_offsets(item, item.starting, set(read[str(item.topic)]))


def _check_offsets(item: KafkaInput, start: FromOffsets, read: set[int]) -> None:
    given = {partition for partition, _ in start.offsets}
    if given != read:
        wrong = sorted(given ^ read)
        problem = "is not read" if wrong[0] in given else "has no offset to start at"
        raise PARTITION_MISSING.error(
            f"{item.relation}: partition {wrong[0]} of topic '{item.topic}' {problem}.",
            hint="Give an offset, earliest or latest for each partition that is read.",
        )


def _plan(old: Desired | None, spec: StreamSpec) -> Plan:
    try:
        return plan_change(StreamSpec.from_json(old.spec_json) if old else None, spec)
    except ValidationError:
        return Plan(Verdict.REBUILD, ("it was deployed by another version of Penstock",))


def _prepare(store: Store, spec: StreamSpec, *, full_refresh: bool, dry: bool = False) -> None:
    run_command(store, "prepare", spec.name, {"spec": spec.to_json(), "full_refresh": full_refresh, "dry": dry})


def _rebuild(store: Store, spec: StreamSpec, old: Desired, tell: Tell) -> Desired:
    # A model that Spark rejects is found out while the old version still runs.
    _prepare(store, spec, full_refresh=True, dry=True)
    try:
        stop_stream(store, spec.name, progress=tell)
        _prepare(store, spec, full_refresh=True)
    except BaseException:  # Ctrl-C, too, leaves it as it was
        store.set_wanted(spec.name, old.wanted)
        raise
    verdict = Verdict.REBUILD.value
    return store.deploy(
        spec.name, spec.to_json(), spec.hash, verdict=verdict, new_checkpoint=True, wanted=Wanted.RUNNING
    )


def _left_alone(store: Store, old: Desired) -> tuple[str, ...]:
    """What a person who deploys an unchanged stream should know of it; a quarantine ends here."""
    if old.wanted is Wanted.STOPPED:
        return ("it is stopped: 'penstock start' starts it",)
    if store.actual(old.stream).state is StreamState.QUARANTINED:
        store.set_wanted(old.stream, Wanted.RUNNING)
        return ("it was quarantined, and is tried again",)
    return ()
