"""Deploying a dynamic table from dbt.

Rules
- The order is compile, write the files, look for a relation in the way, deploy; a failure leaves what ran running.
- A relation of the same name is the stream's own when a stream of that name is deployed, or when the table says so
  (`penstock.stream` in its properties: made with --empty, or by a deployment that did not come to its end).
- `--empty` makes the table and records nothing, so nothing starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.contracts.connection import AdapterResponse

from dbt.adapters.penstock.sources import read_as_streams
from penstock.errors import Location
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, MODEL_LANGUAGE, TABLE_CONFLICT
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from penstock.compiler import StreamSpec
    from penstock.store import Store

# What dbt puts in the place of a relation with --empty.
_EMPTIED = re.compile(r"\(select \* from (\S+) where false limit 0\)(?: _dbt_limit_subq_\w+)?")


@dataclass
class StreamResponse(AdapterResponse):  # type: ignore[misc]
    """What run_results.json says of a dynamic table."""

    stream: str | None = None
    generation: int | None = None
    verdict: str | None = None
    checkpoint: str | None = None
    changed: bool | None = None
    reasons: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)  # what became of the sources that it reads


@dataclass(frozen=True)
class Request:
    """One dynamic table of a dbt run."""

    model: Mapping[str, Any]
    sql: str
    graph: Mapping[str, Any]
    full_refresh: bool
    empty: bool
    selected: tuple[str, ...] = ()  # unique ids of the run
    run_refreshes: bool = False  # --full-refresh of the run, which a model's own `full_refresh` overrides

    @property
    def on_change(self) -> str:
        from penstock.project.live import is_live_test
        from penstock.project.model import on_change

        # Nobody reads from the table of a test as a stream, and it is computed from what the tables hold.
        return "apply" if is_live_test(self.model) else on_change(self.model)

    @property
    def own_refresh(self) -> bool | None:
        from penstock.project.model import own_full_refresh

        return own_full_refresh(self.model)

    def together(self) -> set[str]:
        """The streams that this run rebuilds when they need it."""
        from penstock.project.model import is_dynamic_table, is_refreshed, on_change, own_full_refresh
        from penstock.project.source import relation_of

        nodes = [(self.graph.get("nodes") or {}).get(unique_id) for unique_id in self.selected]
        return {
            relation_of(node)
            for node in nodes
            if node
            and is_dynamic_table(node)
            and (is_refreshed(own_full_refresh(node), run=self.run_refreshes) or on_change(node) == "apply")
        }


def read_sources(request: Request) -> list[Mapping[str, Any]]:
    """The sources that the model reads."""
    from penstock.compiler import sources_of

    nodes = sources_of(request.graph, str(request.model["unique_id"]))
    return [each for each in nodes if each.get("resource_type") == "source"]


def compiled(request: Request, project: Path, target: Path) -> StreamSpec:
    """The model's spec, with its files written below target/penstock/."""
    from penstock.compiler import compile_model, write_target

    model = request.model
    if model.get("language", "sql") != "sql":
        raise MODEL_LANGUAGE.error(f"{model['name']} is a Python model.", at=Location(str(model["original_file_path"])))
    sql = with_inputs(request.sql) if request.empty else request.sql
    spec = compile_model(request.graph, str(model["unique_id"]), sql, project_dir=project)
    write_target(spec, target)
    return spec


def with_inputs(sql: str) -> str:
    """The SQL as it is without --empty: a stream is analysed on its inputs, not on empty copies of them."""
    return _EMPTIED.sub(r"\1", sql)


def deployed(
    store: Store, paths: ProjectPaths, spec: StreamSpec, request: Request, tell: Callable[[str], None]
) -> StreamResponse:
    """Make the spec the desired state, or only its table."""
    from penstock.control.deploy import deploy, make_table

    if request.empty:
        changes = make_table(store, spec)
        if changes:
            raise CHANGE_NEEDS_REBUILD.error(f"{spec.name}: the columns changed: {'; '.join(changes)}.")
        return StreamResponse(_message="EMPTY", stream=spec.name, verdict="EMPTY", changed=False)
    before = _before(store, spec.name)
    made = deploy(
        store,
        paths,
        spec,
        full_refresh=request.full_refresh,
        own_refresh=request.own_refresh,
        on_change=request.on_change,
        together=request.together(),
        progress=tell,
    )
    why = f": {'; '.join(made.reasons)}" if made.verdict == "REFUSED" else ""
    why = " beside the running one" if made.beside else why
    return StreamResponse(
        _message=f"{made.verdict} generation {made.generation}{why}",
        stream=made.stream,
        generation=made.generation,
        verdict=made.verdict,
        checkpoint=made.checkpoint,
        changed=made.changed,
        reasons=list(made.reasons),
        sources=read_as_streams(before, spec, restarts=made.changed),
    )


def _before(store: Store, stream: str) -> StreamSpec | None:
    from pydantic import ValidationError

    from penstock.compiler import StreamSpec

    old = store.find_desired(stream)
    try:
        return StreamSpec.from_json(old.spec_json) if old else None
    except ValidationError:
        return None  # of another version of Penstock


def told(spec: StreamSpec) -> list[str]:
    """What a person should know of a stream that is deployed now: why it is refreshed in full, and warnings."""
    full = [f"{spec.name} is refreshed in full: {spec.reason}"] if spec.reason else []
    return full + [f"{spec.name}: {warning}" for warning in spec.warnings]


def in_the_way(spec: StreamSpec, kind: str) -> Exception:
    return TABLE_CONFLICT.error(f"{spec.name} is a {kind} that this stream did not make.", at=Location(spec.path))
