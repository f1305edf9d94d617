"""The quarantines of sources: deployed beside the streams that ask for them, and replayed.

Rules
- A quarantine runs before the stream that passes bad records over to it does.
- What it holds outlives every change of the source: it is never rebuilt, only started anew where its place in the topic
  means nothing any more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.compiler.plan import Verdict, plan_change
from penstock.compiler.quarantine import SUFFIX, asks
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.control.clusters import Asked, moved_sources
from penstock.control.inputs import check_inputs
from penstock.control.requests import run_command, turn
from penstock.control.waiting import Tell, silent, wait_for
from penstock.errors import did_you_mean
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, NO_QUARANTINE, STREAM_FAILED
from penstock.paths import ProjectPaths
from penstock.store import Desired, Store, Wanted

START_TIMEOUT = 90.0
REPLAY_TIMEOUT = 1800.0


def deploy_quarantine(store: Store, paths: ProjectPaths, spec: StreamSpec, tell: Tell, asked: Asked) -> None:
    """Make a quarantine the desired state; the caller has the turn to deploy."""
    old = store.find_desired(spec.name)
    plan = plan_change(StreamSpec.from_json(old.spec_json) if old else None, spec)
    moved = old is not None and bool(moved_sources(store, paths, spec, asked))
    if plan.verdict is Verdict.NO_OP and not moved:
        return
    if plan.verdict is Verdict.HOT and not moved:
        store.amend(spec.name, spec.to_json(), spec.hash)
        return
    check_inputs(spec, paths)
    answer = run_command(store, "prepare", spec.name, {"spec": spec.to_json(), "full_refresh": False, "dry": False})
    if answer.get("changes"):
        raise CHANGE_NEEDS_REBUILD.error(
            f"{spec.name} is of another version of Penstock: {'; '.join(answer['changes'])}.",
            hint=f"Keep what you need of it, then 'penstock drop {spec.name}'.",
        )
    verdict = Verdict.REBUILD if moved else plan.verdict
    anew = verdict in (Verdict.NEW, Verdict.REBUILD)
    made = store.deploy(spec.name, spec.to_json(), spec.hash, verdict=verdict.value, new_checkpoint=anew)
    if anew and _starts_now(spec):
        _wait_for_its_place(store, paths, made, tell)


def ensure_quarantine(store: Store, paths: ProjectPaths, spec: StreamSpec, progress: Tell | None = None) -> None:
    """Deploy a quarantine by itself."""
    with turn(store, progress or silent):
        deploy_quarantine(store, paths, spec, progress or silent, Asked())


def _starts_now(spec: StreamSpec) -> bool:
    return any(isinstance(each, KafkaInput) and each.starting == "latest" for each in spec.inputs)


def _wait_for_its_place(store: Store, paths: ProjectPaths, made: Desired, tell: Tell) -> None:
    """Until it knows where the topic ends now: a stream that starts later reads nothing that it does not."""
    if made.wanted is not Wanted.RUNNING or store.live_lease("supervisor") is None:
        return
    place = paths.checkpoint(made.stream, made.checkpoint_id) / "sources" / "0" / "0"
    found = wait_for(
        lambda: True if place.exists() else None, START_TIMEOUT, tell=tell, message=f"Waiting for {made.stream} to run"
    )
    if found is None:
        raise STREAM_FAILED.error(f"{made.stream} did not start within {START_TIMEOUT:.0f} s.")


def replay(
    store: Store, name: str, *, where: str | None = None, dry_run: bool = False, progress: Tell | None = None
) -> dict[str, Any]:
    """Have the engine replay the quarantine of a source; what became of its records."""
    stream = quarantine_of(store, name)
    tell = progress or silent
    with turn(store, tell):
        _wait_for_readers(store, stream.removesuffix(SUFFIX), tell)
        return run_command(store, "replay", stream, {"where": where, "dry": dry_run}, timeout=REPLAY_TIMEOUT)


def _wait_for_readers(store: Store, source: str, tell: Tell) -> None:
    """Until the streams that were deployed last run: before, they decode as they did, and the engine refuses."""
    for want in store.all_desired():
        spec = StreamSpec.from_json(want.spec_json)
        read = [each for each in spec.inputs if isinstance(each, KafkaInput) and not spec.is_full]
        if want.wanted is Wanted.RUNNING and any(each.relation == source and asks(each) for each in read):
            begun = partial(_has_begun, store, want)
            wait_for(begun, START_TIMEOUT, tell=tell, message=f"Waiting for {want.stream} to run")


def _has_begun(store: Store, want: Desired) -> bool | None:
    return True if want.generation in store.beginnings(want.stream) else None


def quarantine_of(store: Store, name: str) -> str:
    """The quarantine of a source, which may be named without its schema; PEN-4033 when there is none."""
    known = [want.stream for want in store.all_desired() if StreamSpec.from_json(want.spec_json).is_quarantine]
    wanted = name.lower().removesuffix(SUFFIX)
    sources = {each.removesuffix(SUFFIX): each for each in known}
    matches = [each for each in sources if each.lower() == wanted or each.lower().rpartition(".")[2] == wanted]
    if len(matches) != 1:
        hint = did_you_mean(name, sources) if sources else None
        raise NO_QUARANTINE.error(f"Source '{name}' has no quarantine.", hint=hint)
    return sources[matches[0]]
