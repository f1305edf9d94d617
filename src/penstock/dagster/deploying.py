"""Materialising: dbt deploys the selection, and the run ends with what became of it.

Rules
- A run is short: it ends with the first committed batch of every stream it deployed, when there is nothing to read, or
  at a deadline. The stream lives in the engine.
- Events are dagster-dbt's; those of dynamic tables carry what the store and the table's log know beside it.
- dbt's failure is told as the product's error, in its own words; dbt's output is in the run's log above it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    Failure,
    MetadataValue,
    OpExecutionContext,
    Output,
    TableColumn,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
)
from dagster_dbt import DbtCliInvocation, DbtCliResource

from penstock.control.deployed import waiting_streams
from penstock.control.lag import table_path
from penstock.control.table_facts import table_facts
from penstock.control.waiting import wait_for
from penstock.dagster.columns import column_lineage
from penstock.dagster.project import Project
from penstock.dagster.source_tables import deploy_source_tables
from penstock.dagster.translator import PenstockTranslator
from penstock.engine.process import read_endpoint
from penstock.errors import PenstockError
from penstock.errors.catalogue import DBT_FAILED
from penstock.project.model import is_dynamic_table
from penstock.project.source import relation_of
from penstock.store import Actual, Store, StreamState, Wanted

_ANSWER = re.compile(r"(?:\x1b\[\d+m)?([A-Z-]+) generation \d+(?: beside the running one)?(?:\x1b\[0m)?")
FIRST_BATCH = 60.0  # seconds that a run waits for all first batches together
LAG_TOLD = 5.0  # seconds that the first lag is waited for, once there is a batch
NOTHING_TO_READ = 5.0  # seconds without anything unread, after which no first batch is waited for

Context = AssetExecutionContext | OpExecutionContext
Node = Mapping[str, Any]


class Deployment:
    """One run of dbt inside a run of Dagster."""

    def __init__(
        self, project: Project, translator: PenstockTranslator, context: Context, *, first_batch: float | None = None
    ) -> None:
        self._project = project
        self._translator = translator
        self._context = context
        self._first_batch = FIRST_BATCH if first_batch is None else first_batch
        self._deadline: float | None = None
        self._verdicts: dict[str, str] = {}

    def events(self, dbt: DbtCliResource, args: list[str], *, assets: bool) -> Iterator[Any]:
        """The events of a dbt command; of the run's assets, or of whatever the command selects."""
        manifest = self._project.manifest
        invocation = dbt.cli(
            args,
            manifest=None if assets else manifest,
            dagster_dbt_translator=None if assets else self._translator,
            context=self._context if assets else None,
            raise_on_error=False,
        )
        for raw in invocation.stream_raw_events():
            self._remember(raw.raw_event)
            for event in raw.to_default_asset_events(
                manifest=invocation.manifest,
                dagster_dbt_translator=invocation.dagster_dbt_translator,
                context=invocation.context,
                target_path=invocation.target_path,
                project=self._project.dbt,
            ):
                yield self._with_facts(event, invocation)
        if not invocation.is_successful():
            raise failed(_problem(invocation))
        # dagster-dbt gives each run a directory of its own; of a good one nothing is needed any more.
        if invocation.target_path != self._project.directory / self._project.target_path:
            shutil.rmtree(invocation.target_path, ignore_errors=True)

    def source_tables(self, ids: list[str], *, full_refresh: bool) -> Iterator[AssetMaterialization]:
        """Deploy source tables, each with what became of it."""
        tell = self._context.log.info
        for entry, done in deploy_source_tables(self._project, ids, tell, full_refresh=full_refresh):
            spec = self._translator.get_asset_spec(self._project.manifest, str(entry["unique_id"]), self._project.dbt)
            facts = self._stream(done.made.stream, done.made.verdict)
            if done.restarted:
                facts["restarted"] = ", ".join(done.restarted)
            yield AssetMaterialization(asset_key=spec.key, metadata=facts)

    def _remember(self, event: Mapping[str, Any]) -> None:
        """What the adapter answered for a node: `NEW generation 1`."""
        data = event.get("data") or {}
        unique_id = (data.get("node_info") or {}).get("unique_id")
        answer = _ANSWER.fullmatch(str(data.get("status") or ""))
        if unique_id and answer:
            self._verdicts[str(unique_id)] = answer.group(1)

    def _with_facts(self, event: Any, invocation: DbtCliInvocation) -> Any:
        if not isinstance(event, Output | AssetMaterialization):
            return event
        unique_id = str(event.metadata["unique_id"].value)
        node = self._project.manifest["nodes"].get(unique_id)
        if node is None:
            return event
        stream = is_dynamic_table(node)
        facts = self._stream(relation_of(node), self._verdicts.get(unique_id, "-")) if stream else {}
        facts |= dict(self._columns(node, invocation.target_path))  # after the first batch: it counts rows
        return event.with_metadata({**event.metadata, **facts})

    # -- the stream ---------------------------------------------------------------------------------------------------
    def _stream(self, stream: str, verdict: str) -> dict[str, Any]:
        store = self._project.store()
        want = store.find_desired(stream) if store else None
        if store is None or want is None:
            return {"verdict": verdict}
        rebuild = store.rebuild(stream)
        # Beside a rebuild there is one that has batches, and one that waits for a rebuild has none for a while.
        first = want.wanted is Wanted.RUNNING and rebuild is None and stream not in waiting_streams(store)
        found = self._await_batch(store, stream, want.generation) if first else None
        found = found or store.actual(stream)
        endpoint = read_endpoint(self._project.paths)
        facts: dict[str, Any] = {
            "stream": stream,
            "generation": want.generation,
            "verdict": verdict,
            "rebuild": f"generation {rebuild.generation} is built beside it" if rebuild else None,
            "state": found.state.value,
            "checkpoint": want.checkpoint_id,
            "compiled_job": MetadataValue.path(str(self._project.paths.job(stream, want.generation))),
            "total_rows_out": found.total_rows_out,
            "lag_rows": found.lag_rows,
            "lag_seconds": found.lag_seconds,
            "batch_id": found.batch_id,
            "first_batch": "committed" if _committed(found, want.generation) else "none yet",
            "spark_ui": MetadataValue.url(endpoint.ui) if endpoint and endpoint.ui else None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _await_batch(self, store: Store, stream: str, generation: int) -> Actual | None:
        """The stream once it has committed a batch, or once it is clear that there is nothing to commit."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._first_batch
        idle_since: float | None = None
        committed_since: float | None = None

        def settled() -> Actual | None:
            nonlocal idle_since, committed_since
            found = store.actual(stream)
            if found.state in (StreamState.FAILED, StreamState.QUARANTINED) and found.generation == generation:
                return found
            if found.state is not StreamState.RUNNING or found.generation != generation:
                return None
            if _committed(found, generation):
                # The lag is measured once a second, and is to be told as well.
                committed_since = committed_since or time.monotonic()
                told = found.lag_rows is not None or time.monotonic() - committed_since >= LAG_TOLD
                return found if told else None
            if found.lag_rows != 0 or (found.lag_at or 0.0) <= (found.started_at or 0.0):
                idle_since = None
                return None
            # Nothing unread: there is nothing to read, or the batch is in and its report is on the way.
            idle_since = time.monotonic() if idle_since is None else idle_since
            return found if time.monotonic() - idle_since >= NOTHING_TO_READ else None

        found = wait_for(settled, max(0.0, self._deadline - time.monotonic()))
        if found is not None and found.state in (StreamState.FAILED, StreamState.QUARANTINED):
            self._context.log.warning(f"{stream} is deployed and {found.state.value}: {found.error}")
        return found

    # -- columns ------------------------------------------------------------------------------------------------------
    def _columns(self, node: Node, target: Path) -> Iterator[tuple[str, Any]]:
        """The columns that the table has, and where they come from."""
        manifest, paths = self._project.manifest, self._project.paths
        facts = table_facts(table_path(paths, relation_of(node)))
        if facts is not None:
            about = node.get("columns") or {}
            columns = [
                TableColumn(name, kind.lower(), description=(about.get(name) or {}).get("description") or None)
                for name, kind in facts.columns
            ]
            yield "dagster/column_schema", TableSchema(columns=columns)
            if facts.rows is not None:
                yield "dagster/row_count", facts.rows
        compiled = target / "compiled" / str(node["package_name"]) / str(node["original_file_path"])
        if node["resource_type"] != "model" or not compiled.is_file():
            return
        inputs: dict[str, list[str]] = {}
        keys: dict[str, AssetKey] = {}
        for unique_id in (node.get("depends_on") or {}).get("nodes") or ():
            above = manifest["nodes"].get(unique_id) or manifest["sources"].get(unique_id)
            if above is None:
                continue
            relation = relation_of(above)
            known = table_facts(table_path(paths, relation)) if above["resource_type"] != "source" else None
            inputs[relation] = [name for name, _ in known.columns] if known else list(above.get("columns") or {})
            keys[relation] = self._translator.get_asset_spec(manifest, unique_id, self._project.dbt).key
        found = column_lineage(compiled.read_text(encoding="utf-8"), inputs)
        if any(found.values()):
            deps = {
                name: [TableColumnDep(asset_key=keys[relation], column_name=column) for relation, column in origins]
                for name, origins in found.items()
            }
            yield "dagster/column_lineage", TableColumnLineage(deps_by_column=deps)


def _committed(found: Actual, generation: int) -> bool:
    began = found.started_at or 0.0
    return found.generation == generation and found.last_batch_at is not None and found.last_batch_at >= began


def failed(problem: PenstockError) -> Failure:
    """A failure that shows the product's words: the next try would fail in the same way."""
    return Failure(description=str(problem), allow_retries=False)


def _problem(invocation: DbtCliInvocation) -> PenstockError:
    """dbt's failure in the words of those who failed."""
    try:
        results = invocation.get_artifact("run_results.json")["results"]
    except (FileNotFoundError, ValueError, KeyError):
        results = []
    said = [
        f"{result['unique_id'].split('.')[2]}: {result.get('message') or 'no message'}"
        for result in results
        if result.get("status") in ("error", "fail", "runtime error")
    ]
    if not said:
        said = [str(each) for each in invocation._error_messages[-3:]]  # before any node ran
    return DBT_FAILED.error("\n".join(said) or "dbt ended without a word.")
