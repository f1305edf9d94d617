"""What tables cost that have nothing to do: full refreshes beside streams, and beside an engine without any.

Rules
- All tables are there and have read their topic; then no message comes. Those that are not measured are stopped.
- They take turns in every round. CPU is what engine and JVM took of one core.
- A full refresh that computed anything would have committed: the versions of its tables are counted, too.
"""

from __future__ import annotations

import time

from deltalake import DeltaTable
from tests.unit.model_files import Project

from bench.feed import preload
from bench.report import median, note, table
from bench.site import Site, site, until
from bench.tables import cpu_of
from penstock.control.deploy import deploy
from penstock.control.streams import start_stream, stop_stream
from penstock.engine.process import read_endpoint
from penstock.store import Store

SCHEMA = "idle"
KINDS = {
    "full refresh": "select item_id, count(distinct user_id) as users from {clicks} group by item_id",
    "stream": "select item_id, count(*) as n from {clicks} group by item_id",
}
NOTHING = "nothing deployed"


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print the CPU of an engine whose tables have nothing to do."""
    number, rounds, counted = rows or 10, rounds or (1 if quick else 3), 10.0 if quick else 30.0
    found: dict[str, list[float]] = {}
    with site() as place:
        store = Store.open(place.paths.store)
        try:
            names = _deployed(place, store, number)
            for each in range(rounds):
                for kind in (NOTHING, *KINDS):
                    found.setdefault(kind, []).append(_turn(place, store, names.get(kind, []), counted))
                    note(f"round {each + 1}, {kind}: {found[kind][-1]:.3f} cores")
        finally:
            store.close()
    empty = median(found[NOTHING])
    table(
        f"{number} tables that have nothing to do, cores, median of {rounds} rounds",
        ["what", "cores", "cores a table, above an empty engine"],
        [
            [kind, f"{median(values):.3f}", "-" if kind == NOTHING else f"{(median(values) - empty) / number:.4f}"]
            for kind, values in found.items()
        ],
    )


def _deployed(place: Site, store: Store, number: int) -> dict[str, list[str]]:
    """The tables of each kind, filled and stopped."""
    topic = place.topic("idle")
    project = Project(SCHEMA)
    project.source("clicks", topic, {"user_id": "string from key", "item_id": "string"})
    names = {kind: [f"{kind.split()[0]}_{each}" for each in range(number)] for kind in KINDS}
    for kind, sql in KINDS.items():
        for name in names[kind]:
            project.model(name, sql)
    preload(place.bootstrap, topic, 2_000)
    for spec in project.specs().values():
        deploy(store, place.paths, spec)
        until(lambda spec=spec: store.actual(spec.name).last_batch_at, f"rows of {spec.name}")
        stop_stream(store, spec.name)
    return {kind: [f"{SCHEMA}.{name}" for name in each] for kind, each in names.items()}


def _turn(place: Site, store: Store, streams: list[str], counted: float) -> float:
    for stream in streams:
        start_stream(store, stream)
    time.sleep(5)  # what a start costs does not count
    endpoint = read_endpoint(place.paths)
    assert endpoint is not None
    versions = [_version(place, stream) for stream in streams]
    before, began = cpu_of(endpoint.pid), time.monotonic()
    time.sleep(counted)
    cores = (cpu_of(endpoint.pid) - before) / (time.monotonic() - began)
    assert versions == [_version(place, stream) for stream in streams], "something was committed"
    for stream in streams:
        stop_stream(store, stream)
    return cores


def _version(place: Site, stream: str) -> int:
    schema, _, name = stream.partition(".")
    return DeltaTable(place.paths.warehouse / f"{schema}.db" / name).version()
