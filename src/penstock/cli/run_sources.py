"""What a run did with the sources: which are new, unchanged or changed, how, and which streams start again for it.

Rules
- A source stream is what its readers read: it has changed when a deployed reader had it otherwise before.
- Readers of a changed source that were not part of the run go on with what they had, and are named.
- dbt deploys the source tables that its models read; after a run without selection, the others are deployed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from penstock.cli import dbt, output
from penstock.cli.session import Session
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec

Source = dict[str, Any]
_SELECTIONS = ("--select", "-s", "--models", "--model", "-m", "--exclude", "--selector", "--resource-type", "--empty")
_ORDER = ("NO-OP", "NEW", "EMPTY", "RESTART", "CHANGED", "REBUILD")  # what says more stands later


def is_selection(args: Sequence[str]) -> bool:
    """Whether a part of the project was asked for."""
    return any(arg.partition("=")[0] in _SELECTIONS for arg in args)


def found(results: Sequence[Mapping[str, Any]]) -> list[Source]:
    """The sources that the deployed models read, each once."""
    sources: dict[str, Source] = {}
    for result in results:
        for each in (result.get("adapter_response") or {}).get("sources") or ():
            known = sources.get(each["source"])
            sources[each["source"]] = dict(each) if known is None else _both(known, each)
    return [sources[name] for name in sorted(sources)]


def _both(one: Source, other: Mapping[str, Any]) -> Source:
    """What two readers say of a source."""
    verdict = max(one["verdict"], other["verdict"], key=_ORDER.index)
    merged = {name: list(dict.fromkeys([*one[name], *other[name]])) for name in ("changes", "restarts")}
    return {**one, "verdict": verdict, **merged}


def with_left_behind(session: Session, sources: list[Source]) -> list[Source]:
    """The sources, each with the deployed streams that go on reading it as it was before: they were not selected."""
    changed = [each for each in sources if each["kind"] == "stream" and each["restarts"]]
    if not changed or not session.has_store():
        return sources
    from penstock.control.deployed import deployed_streams

    with session.store() as store:
        read = {stream.stream: stream.spec for stream in deployed_streams(store).values() if stream.spec is not None}
    behind = {each["source"]: _as_before(each, read) for each in changed}
    return [{**each, "left_behind": behind.get(each["source"], [])} for each in sources]


def _as_before(source: Source, specs: Mapping[str, StreamSpec]) -> list[str]:
    inputs = {
        name: item.model_copy(update={"view": ""})
        for name, spec in specs.items()
        for item in spec.inputs
        if item.kind == "kafka" and item.relation == source["source"] and not spec.is_source_table
    }
    new = [inputs[name] for name in source["restarts"] if name in inputs]
    return sorted(name for name, item in inputs.items() if new and item not in new)


def with_others(
    session: Session, manifest: Path, args: Sequence[str], sources: list[Source], since: float
) -> tuple[list[Source], list[PenstockError]]:
    """The sources, with the source tables that dbt had no reason to deploy, deployed now; and what was wrong."""
    from penstock.compiler import source_tables

    try:
        if manifest.stat().st_mtime < since - 1:
            return sources, []
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return sources, []
    done = {each["source"] for each in sources}
    left = [content["sources"][each] for name, each in source_tables(content).items() if name not in done]
    problems: list[PenstockError] = []
    for entry in left:
        try:
            sources = [*sources, _deployed(session, entry, args)]
        except PenstockError as problem:
            problems.append(problem)
    return sorted(sources, key=lambda each: str(each["source"])), problems


def _deployed(session: Session, entry: Mapping[str, Any], args: Sequence[str]) -> Source:
    from penstock.compiler import compile_source_table, write_target
    from penstock.control.locking import complete
    from penstock.control.source_tables import deploy_source_table
    from penstock.control.up import ensure_up

    complete([entry], session.project, lambda: session.settings().schema_registry.options)
    spec = compile_source_table(entry, project_dir=session.project)
    write_target(spec, dbt.target_dir(session.project, args))
    with session.ui.working(f"deploying {spec.name}") as step, session.store() as store:
        old = store.find_desired(spec.name)
        if old is None or old.spec_hash != spec.hash:
            ensure_up(session.paths, session.settings(), progress=step)
        full_refresh = "--full-refresh" in args or "-f" in args
        return deploy_source_table(store, session.paths, spec, full_refresh=full_refresh, progress=step).as_dict()


def grid(sources: Sequence[Source]) -> Table:
    table = output.grid("SOURCE", "KIND", "VERDICT", "RESTARTS", "WHY", wraps=("RESTARTS", "WHY"))
    for each in sources:
        table.add_row(
            each["source"],
            each["kind"],
            "UNCHANGED" if each["verdict"] == "NO-OP" else str(each["verdict"]),
            ", ".join(each["restarts"]) or "-",
            "; ".join([*each["changes"], *(f"{name} reads it as before" for name in each.get("left_behind", ()))])
            or "-",
        )
    return table
