"""The sources and dynamic tables of a project, by the names people know them by.

Rules
- Sources are those of dbt's manifest that are streams. Tables are those of the manifest and those that are deployed:
  one that is in the project only is not deployed yet, one that is deployed only was removed from the project.
- A name may leave out its schema when only one source or table has it. Case does not matter, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli.session import Session
from penstock.cli.snapshot import StreamView, take
from penstock.errors import did_you_mean
from penstock.errors.catalogue import RELATION_UNKNOWN, USAGE

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec

SOURCE = "source stream"
SOURCE_TABLE = "source table"
TABLE = "dynamic table"
NOT_DEPLOYED = "not deployed"
Entry = Mapping[str, Any]  # of the manifest


@dataclass(frozen=True)
class Deployed:
    """A stream of the store."""

    view: StreamView
    spec: StreamSpec | None  # None: deployed by a version of Penstock that wrote it otherwise

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(item.relation for item in self.spec.inputs) if self.spec else ()

    @property
    def kind(self) -> str:
        """What it writes."""
        return SOURCE_TABLE if self.spec is not None and self.spec.is_source_table else TABLE


def deployed(session: Session) -> list[Deployed]:
    """Every deployed stream with its spec."""
    from pydantic import ValidationError

    from penstock.compiler.spec import StreamSpec

    if not session.has_store():
        return []
    found = []
    with session.store() as store:
        texts = {desired.stream: desired.spec_json for desired in store.all_desired()}
        views = take(session, store).streams
    for view in views:
        try:
            spec = StreamSpec.from_json(texts[view.name])
        except ValidationError:
            spec = None
        found.append(Deployed(view, spec))
    return found


def stream_sources(manifest: Mapping[str, Any]) -> dict[str, Entry]:
    """Relation -> manifest entry of every source that is a stream."""
    from penstock.project.source import is_stream, relation_of

    return {relation_of(entry): entry for entry in _sorted(manifest["sources"]) if is_stream(entry)}


def dynamic_tables(manifest: Mapping[str, Any]) -> dict[str, Entry]:
    """Relation -> manifest entry of every dynamic table."""
    from penstock.project.model import is_dynamic_table
    from penstock.project.source import relation_of

    return {relation_of(entry): entry for entry in _sorted(manifest["nodes"]) if is_dynamic_table(entry)}


def upstream(entry: Entry, manifest: Mapping[str, Any]) -> list[str]:
    """The relations that a model names."""
    from penstock.project.source import relation_of

    nodes = (entry.get("depends_on") or {}).get("nodes") or ()
    known = [manifest["sources"].get(each) or manifest["nodes"].get(each) for each in nodes]
    return [relation_of(each) for each in known if each is not None]


def readers(relation: str, streams: Iterable[Deployed]) -> list[Deployed]:
    """The streams that read a source or a table; the query behind a source table reads its topic."""
    others = [each for each in streams if each.name.lower() != relation.lower()]
    return [each for each in others if relation.lower() in (name.lower() for name in each.inputs)]


def pick(name: str, known: Sequence[str]) -> str:
    """The relation that a name means; PEN-5008 with the nearest one when there is none."""
    wanted = name.lower()
    matches = [each for each in known if each.lower() == wanted]
    matches = matches or [each for each in known if each.lower().rpartition(".")[2] == wanted]
    if len(matches) > 1:
        raise USAGE.error(f"'{name}' is more than one source or table.", hint=f"Use one of {', '.join(matches)}.")
    if not matches:
        short = [each.rpartition(".")[2] for each in known]
        hint = did_you_mean(name, known if "." in name else short) if known else None
        raise RELATION_UNKNOWN.error(f"There is no source or table '{name}'.", hint=hint)
    return matches[0]


def _sorted(entries: Mapping[str, Entry]) -> list[Entry]:
    return [entries[unique_id] for unique_id in sorted(entries)]
