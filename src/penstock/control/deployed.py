"""The deployed streams as values, for planning.

A stream is stale when an input table was made after its own checkpoint was: it has a place in a table that is gone.
"""

from __future__ import annotations

from penstock.compiler.spec import StreamSpec, TableInput, TableStreamInput
from penstock.control.planning import Deployed
from penstock.store import Desired, RebuildPhase, Store


def deployed_streams(store: Store) -> dict[str, Deployed]:
    """Every deployed stream, by name."""
    wants = {want.stream: want for want in store.all_desired()}
    made = {stream: checkpoint_made_at(store, want) for stream, want in wants.items()}
    rebuilds = store.rebuilds()
    found = {}
    for stream, want in wants.items():
        spec = spec_of(want)
        inputs = [each.relation for each in spec.inputs if isinstance(each, TableStreamInput)] if spec else []
        stale = tuple(name for name in inputs if made.get(name, 0.0) > made[stream])
        rebuild = rebuilds.get(stream)
        running = rebuild is not None and rebuild.phase not in (RebuildPhase.FAILED, RebuildPhase.ENDING)
        built = (rebuild.generation, rebuild.spec_hash) if rebuild is not None and running else None
        found[stream] = Deployed(stream, want.generation, spec, stale, built)
    return found


def spec_of(want: Desired) -> StreamSpec | None:
    """The spec of a deployed stream; None when another version of Penstock wrote it."""
    return StreamSpec.if_known(want.spec_json)


def looking_up(store: Store, relation: str) -> list[str]:
    """The streams that read a table as it stands, at each of their batches."""
    deployed = deployed_streams(store).values()
    return [each.stream for each in deployed if each.spec is not None and _looks_up(each.spec, relation)]


def _looks_up(spec: StreamSpec, relation: str) -> bool:
    return any(isinstance(each, TableInput) and each.relation.lower() == relation.lower() for each in spec.inputs)


def checkpoint_made_at(store: Store, want: Desired) -> float:
    """When the checkpoint of the stream, and the table with it, was made."""
    times = [row["created_at"] for row in store.generations(want.stream) if row["checkpoint_id"] == want.checkpoint_id]
    return min(times, default=want.updated_at)
