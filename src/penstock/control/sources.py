"""Sources as views of the catalog: an unchanged one asks nobody, a changed one is made anew.

Rules
- Sources are compared by fingerprint with what the store has. Only what differs is asked of the engine.
- A source table has a view of its own; one that was a source stream before makes room for it.
- One source that cannot be registered keeps no other from it; the caller is told of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.compiler import compile_source
from penstock.compiler.spec import KafkaInput
from penstock.compiler.topic_view import fingerprint
from penstock.control.requests import run_command
from penstock.errors import PenstockError
from penstock.project.source import is_source_table, is_stream, relation_of
from penstock.store import Store


@dataclass(frozen=True)
class Registered:
    """What became of the sources of a project."""

    changed: tuple[str, ...]  # relations that were made or made anew
    failed: Mapping[str, PenstockError]


def register_sources(store: Store, entries: Iterable[Mapping[str, Any]], project: Path) -> Registered:
    """Make views of the manifest's sources that are streams, as far as they are new or changed."""
    changed: list[str] = []
    failed: dict[str, PenstockError] = {}
    known = store.sources()
    for entry in entries:
        if not is_stream(entry):
            continue
        relation = relation_of(entry)
        if is_source_table(entry):  # a query of its own keeps that one
            if relation in known:
                drop_source(store, relation)
            continue
        try:
            source = compile_source(entry, project_dir=project)
            deployed = known.get(relation)
            if deployed is None or deployed.hash != fingerprint(source):
                register(store, source)
                changed.append(relation)
        except PenstockError as problem:
            failed[relation] = problem
    return Registered(tuple(changed), failed)


def register(store: Store, source: KafkaInput) -> None:
    """Have the engine make the view of one source."""
    spec = source.model_dump_json()
    try:
        answer = run_command(store, "source", source.relation, {"spec": spec})
    except PenstockError:
        store.forget_source(source.relation)  # what was there before may be gone
        raise
    store.put_source(source.relation, spec, fingerprint(source), answer["properties"])


def drop_source(store: Store, relation: str) -> None:
    """Have the engine drop the view of a source; the topic stays."""
    run_command(store, "drop_source", relation, {})
    store.forget_source(relation)
