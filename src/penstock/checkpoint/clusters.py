"""Which Kafka clusters the offsets of a checkpoint are of, as a file of the checkpoint.

Rules
- Each topic source has the id of its cluster, with the address at which it was asked for: who comes to the same address
  need not ask again.
- Offsets of one cluster mean nothing in another one. A checkpoint that has read nothing yet is of no cluster.
- Spark does not look at files that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.checkpoint.files import write_whole

_FILE = "penstock-clusters"


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster, and where it was found."""

    id: str
    address: str


def read_from(checkpoint: Path) -> dict[str, Cluster]:
    """Source -> the cluster that it was read from; empty when that is not known, or nothing was read."""
    return noted(checkpoint) if _has_begun(checkpoint) else {}


def noted(checkpoint: Path) -> dict[str, Cluster]:
    """What the file says, read from or not."""
    try:
        found = json.loads((checkpoint / _FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {relation: Cluster(str(each["id"]), str(each["address"])) for relation, each in found.items()}


def note(checkpoint: Path, clusters: Mapping[str, Cluster]) -> None:
    """Write down the clusters of all sources."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    text = json.dumps({relation: asdict(each) for relation, each in sorted(clusters.items())}, indent=1)
    write_whole(checkpoint / _FILE, text)


def others(before: Mapping[str, Cluster], now: Mapping[str, Cluster]) -> list[str]:
    """The sources that are on another cluster now; one of which either is not known is not among them."""
    return sorted(relation for relation, each in before.items() if relation in now and now[relation].id != each.id)


def _has_begun(checkpoint: Path) -> bool:
    """Whether Spark has written down where a source begins, or a batch."""
    begun = any(checkpoint.glob("sources/*/0"))
    return begun or any(each.name.isdigit() for each in checkpoint.glob("offsets/*"))
