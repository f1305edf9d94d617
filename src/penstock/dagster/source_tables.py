"""Source tables from Dagster: deployed by name, or before the tests that dbt runs over them.

Rules
- They are deployed as `penstock run` deploys them; an unchanged one changes nothing.
- dbt deploys a source table with the first model that reads it, but tests sources before any model: what is tested and
  was never deployed is deployed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.compiler import compile_source_table, write_target
from penstock.control.locking import complete
from penstock.control.source_tables import SourceDeployment, deploy_source_table
from penstock.control.up import ensure_up
from penstock.control.waiting import Tell
from penstock.dagster.project import Project
from penstock.project.source import is_source_table, relation_of
from penstock.store import Store

Entry = Mapping[str, Any]


def deploy_source_tables(
    project: Project, ids: Iterable[str], tell: Tell, *, full_refresh: bool = False
) -> Iterator[tuple[Entry, SourceDeployment]]:
    """Deploy source tables of the manifest, and say what became of each."""
    for unique_id in ids:
        entry = project.manifest["sources"][unique_id]
        complete([entry], project.directory, lambda: project.settings().schema_registry.options)
        spec = compile_source_table(entry, project_dir=project.directory)
        write_target(spec, project.directory / project.target_path)
        store = project.store()
        old = store.find_desired(spec.name) if store else None
        if old is None or old.spec_hash != spec.hash:
            ensure_up(project.paths, project.settings(), progress=tell)
        yield (
            entry,
            deploy_source_table(_opened(project), project.paths, spec, full_refresh=full_refresh, progress=tell),
        )


def tested_too_early(project: Project, models: Iterable[str]) -> list[str]:
    """The source tables with tests that these models read, and that were never deployed."""
    manifest, store = project.manifest, project.store()
    read = {above for each in models for above in _sources_above(manifest, each)}
    deployed = {want.stream for want in store.all_desired()} if store else set()
    return [
        each
        for each in sorted(read)
        if is_source_table(manifest["sources"][each])
        and relation_of(manifest["sources"][each]) not in deployed
        and any(child.startswith("test.") for child in manifest["child_map"].get(each, ()))
    ]


def _sources_above(manifest: Mapping[str, Any], model: str) -> Iterator[str]:
    for above in manifest["parent_map"].get(model, ()):
        if above.startswith("source."):
            yield above
        elif (manifest["nodes"][above].get("config") or {}).get("materialized") == "ephemeral":
            yield from _sources_above(manifest, above)


def _opened(project: Project) -> Store:
    store = project.store()
    if store is None:  # `ensure_up` makes one
        raise AssertionError("a project that is up has a store")
    return store
