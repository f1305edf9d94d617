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

from penstock.errors import Location
from penstock.errors.catalogue import MODEL_LANGUAGE, TABLE_CONFLICT
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


@dataclass(frozen=True)
class Request:
    """One dynamic table of a dbt run."""

    model: Mapping[str, Any]
    sql: str
    graph: Mapping[str, Any]
    full_refresh: bool
    empty: bool


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
    from penstock.control.deploy import deploy, run_command

    if request.empty:
        run_command(store, "prepare", spec.name, {"spec": spec.to_json(), "full_refresh": False, "dry": False})
        return StreamResponse(_message="EMPTY", stream=spec.name, verdict="EMPTY", changed=False)
    made = deploy(store, paths, spec, full_refresh=request.full_refresh, progress=tell)
    return StreamResponse(
        _message=f"{made.verdict} generation {made.generation}",
        stream=made.stream,
        generation=made.generation,
        verdict=made.verdict,
        checkpoint=made.checkpoint,
        changed=made.changed,
        reasons=list(made.reasons),
    )


def in_the_way(spec: StreamSpec, kind: str) -> Exception:
    return TABLE_CONFLICT.error(f"{spec.name} is a {kind} that this stream did not make.", at=Location(spec.path))
