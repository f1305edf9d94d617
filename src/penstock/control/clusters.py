"""Whether the topics of a model are still on the Kafka clusters that its deployed stream reads.

Rules
- Where the model is unchanged and its topics are at the addresses of before, nobody is asked: the engine looks when it
  starts a stream. Unless that is what the stream failed of.
- An address is asked once in a plan or a deployment: where packets are dropped, each answer takes seconds.
- A broker that does not answer says nothing. Nor does a stream that is refreshed in full need to know: it is computed
  anew.
- While a new generation of the same definition is built, its clusters count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.checkpoint.clusters import Cluster, read_from
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.control.inputs import Access, access
from penstock.errors import PenstockError
from penstock.errors.catalogue import CLUSTER_CHANGED
from penstock.kafka.admin import cluster_id
from penstock.paths import ProjectPaths, beside
from penstock.project.profile import KafkaSettings, read_settings
from penstock.store import Store
from penstock.store.rebuilds import OPEN

NOTHING_THERE = "another cluster: offsets mean nothing there"


class Asked:
    """Which cluster is at an address; each is asked once."""

    def __init__(self) -> None:
        self._found: dict[Any, str | None] = {}

    def cluster_at(self, broker: Access) -> str | None:
        key = (broker.bootstrap, *sorted(broker.options.items()))
        if key not in self._found:
            self._found[key] = cluster_id(broker.bootstrap, broker.options)
        return self._found[key]


def moved_sources(
    store: Store, paths: ProjectPaths, spec: StreamSpec, asked: Asked, kafka: KafkaSettings | None = None
) -> tuple[str, ...]:
    """The sources of a model whose topics are on another cluster than what was read of them, each with its reason."""
    old = store.find_desired(spec.name)
    if old is None or spec.is_full:
        return ()
    name, deployed, checkpoint_id = old.stream, old.spec_hash, old.checkpoint_id
    rebuild = store.rebuild(spec.name)
    if rebuild is not None and rebuild.phase in OPEN and rebuild.spec_hash == spec.hash:
        name, deployed, checkpoint_id = beside(old.stream), rebuild.spec_hash, rebuild.checkpoint_id
    before = read_from(paths.checkpoint(old.stream, checkpoint_id))
    if not before:
        return ()
    ask = deployed != spec.hash or store.actual(name).error_code == CLUSTER_CHANGED.code
    try:
        settings = kafka or read_settings(paths).kafka
    except PenstockError:
        return ()
    found = [item for item in spec.inputs if isinstance(item, KafkaInput)]
    return tuple(
        f"{each.relation} is on {NOTHING_THERE}"
        for each in found
        if is_other(each, before, settings, paths, asked, ask=ask)
    )


def is_other(
    source: KafkaInput,
    before: Mapping[str, Cluster],
    kafka: KafkaSettings,
    paths: ProjectPaths,
    asked: Asked,
    *,
    ask: bool = True,
) -> bool:
    """Whether a source is on another cluster than before. With `ask` also one that is where it was is asked."""
    known = before.get(source.relation)
    if known is None:
        return False
    try:
        broker = access(source, kafka, paths)
    except PenstockError:
        return False
    if not ask and broker.bootstrap == known.address:
        return False
    found = asked.cluster_at(broker)
    return found is not None and found != known.id
