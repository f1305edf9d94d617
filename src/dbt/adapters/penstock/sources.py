"""The sources that dbt's models read: source tables are deployed before what reads them.

Rules
- A source table is deployed once in a run of dbt, by the first model that reads it; later ones find its answer.
- An answer is what run_results.json says of a source, and what `penstock run` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from penstock.compiler import StreamSpec
    from penstock.store import Store

Entry = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Where a project is and what dbt writes for it."""

    paths: ProjectPaths
    project: Path
    target: Path


class SourceTables:
    """The source tables of one run of dbt."""

    def __init__(
        self,
        places: Places,
        open_store: Callable[[], Store],
        tell: Callable[[str], None],
        pin: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._places = places
        self._pin = pin  # adds their schemas to the lock file
        self._open_store = open_store
        self._tell = tell
        self._lock = Lock()
        self._answers: dict[str, Answer] = {}

    def deploy(
        self, sources: Mapping[str, Entry], read: Iterable[str], *, full_refresh: bool, empty: bool
    ) -> list[Answer]:
        """Deploy those of `sources` (dbt's id -> entry) that are tables and among the relations that are read."""
        from penstock.compiler import source_tables

        names = {name.lower() for name in read}
        wanted = {name: sources[each] for name, each in source_tables({"sources": sources}).items()}
        with self._lock:
            return [
                self._deploy(entry, full_refresh=full_refresh, empty=empty)
                for name, entry in wanted.items()
                if name.lower() in names
            ]

    def _deploy(self, entry: Entry, *, full_refresh: bool, empty: bool) -> Answer:
        from penstock.compiler import compile_source_table, write_target

        known = self._answers.get(str(entry["unique_id"]))
        if known is not None:
            return known
        self._pin([entry])
        spec = compile_source_table(entry, project_dir=self._places.project)
        write_target(spec, self._places.target)
        answer = self._empty(spec) if empty else self._made(spec, full_refresh=full_refresh)
        self._answers[spec.unique_id] = answer
        return answer

    def _made(self, spec: StreamSpec, *, full_refresh: bool) -> Answer:
        from penstock.control.source_tables import deploy_source_table

        done = deploy_source_table(
            self._open_store(), self._places.paths, spec, full_refresh=full_refresh, progress=self._tell
        )
        return done.as_dict()

    def _empty(self, spec: StreamSpec) -> Answer:
        from penstock.control.deploy import run_command

        payload = {"spec": spec.to_json(), "full_refresh": False, "dry": False}
        run_command(self._open_store(), "prepare", spec.name, payload)
        return {"source": spec.name, "kind": "table", "verdict": "EMPTY", "generation": None, "changes": [],
                "restarts": []}  # fmt: skip


def read_as_streams(old: StreamSpec | None, new: StreamSpec, *, restarts: bool) -> list[Answer]:
    """The sources whose topics a stream reads, and what changed of them since it was deployed."""
    from penstock.compiler import source_changes

    return [
        {
            "source": source,
            "kind": "stream",
            "verdict": "CHANGED" if changes else "NEW" if old is None else "NO-OP",
            "generation": None,
            "changes": list(changes),
            "restarts": [new.name] if changes and restarts else [],
        }
        for source, changes in source_changes(old, new).items()
    ]


def read_by(model: Any, nodes: Mapping[str, Any], sources: Mapping[str, Any]) -> dict[str, Entry]:
    """The sources that a node reads, itself or through ephemeral models: dbt's id -> entry."""
    found: dict[str, Entry] = {}
    seen: set[str] = set()
    pending = list(getattr(model.depends_on, "nodes", ()))  # a seed depends on macros alone
    while pending:
        unique_id = pending.pop()
        if unique_id in seen:
            continue
        seen.add(unique_id)
        if unique_id in sources:
            found[unique_id] = sources[unique_id].to_dict(omit_none=False)
        elif unique_id in nodes and nodes[unique_id].config.materialized == "ephemeral":
            pending.extend(nodes[unique_id].depends_on.nodes)
    return found


def deploy_quarantines(store: Store, paths: ProjectPaths, project: Path, sources: Mapping[str, Entry]) -> None:
    """The tables that keep the bad records of those of `sources` that are streams."""
    from penstock.compiler import quarantine_of
    from penstock.control.quarantine import ensure_quarantine
    from penstock.project.source import is_stream

    for entry in sources.values():
        if is_stream(entry):
            ensure_quarantine(store, paths, quarantine_of(entry, project_dir=project))
