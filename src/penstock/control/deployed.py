"""The deployed streams as values, for planning.

A stream is stale when an input table was made after its own checkpoint was, or is being made: its place is in a table
that is gone, or will be.
"""

from __future__ import annotations

from penstock.compiler.spec import StreamSpec, TableInput, TableStreamInput
from penstock.control.planning import Built, Deployed
from penstock.control.rebuilds import waiting
from penstock.store import Desired, Rebuild, Store
from penstock.store.rebuilds import OPEN


def deployed_streams(store: Store) -> dict[str, Deployed]:
    """Every deployed stream, by name."""
    wants = {want.stream: want for want in store.all_desired()}
    made = {stream: checkpoint_made_at(store, want) for stream, want in wants.items()}
    rebuilds = store.rebuilds()
    later = waiting_streams(store)
    found = {}
    for stream, want in wants.items():
        spec = spec_of(want)
        inputs = [each.relation for each in spec.inputs if isinstance(each, TableStreamInput)] if spec else []
        coming_up = [name for name in inputs if is_rebuilt(rebuilds.get(name)) and name not in later.get(stream, ())]
        stale = tuple(name for name in inputs if made.get(name, 0.0) > made[stream] or name in coming_up)
        rebuild = rebuilds.get(stream)
        known = StreamSpec.if_known(rebuild.spec_json) if rebuild is not None and is_rebuilt(rebuild) else None
        built = Built(rebuild.generation, rebuild.spec_hash, known) if rebuild is not None and known else None
        found[stream] = Deployed(stream, want.generation, spec, stale, built)
    return found


def waiting_streams(store: Store) -> dict[str, list[str]]:
    """The streams that start only when rebuilds are over, and which these are."""
    return waiting(store.rebuilds(), store.rebuild_links())


def is_rebuilt(rebuild: Rebuild | None) -> bool:
    """Whether a new generation is on its way."""
    return rebuild is not None and rebuild.phase in OPEN


def coming(store: Store, stream: str) -> StreamSpec | None:
    """The spec that a stream will have: that of a rebuild, or the deployed one."""
    rebuild = store.rebuild(stream)
    if rebuild is not None and is_rebuilt(rebuild):
        return StreamSpec.if_known(rebuild.spec_json)
    want = store.find_desired(stream)
    return spec_of(want) if want is not None else None


def spec_of(want: Desired) -> StreamSpec | None:
    """The spec of a deployed stream; None when another version of Penstock wrote it."""
    return StreamSpec.if_known(want.spec_json)


def looking_up(store: Store, relation: str, *, hidden: bool = False) -> list[str]:
    """The streams that read a table as it stands, at each of their batches; with `hidden` also those of rebuilds."""
    specs = [(want.stream, spec_of(want)) for want in store.all_desired(hidden=hidden)]
    return [stream for stream, spec in specs if spec is not None and _looks_up(spec, relation)]


def _looks_up(spec: StreamSpec, relation: str) -> bool:
    return any(isinstance(each, TableInput) and each.relation.lower() == relation.lower() for each in spec.inputs)


def checkpoint_made_at(store: Store, want: Desired) -> float:
    """When the checkpoint of the stream, and the table with it, was made."""
    times = [row["created_at"] for row in store.generations(want.stream) if row["checkpoint_id"] == want.checkpoint_id]
    return min(times, default=want.updated_at)
