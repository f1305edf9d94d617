"""`penstock list`: the sources, tables and queries of a project at a glance.

Rules
- Nothing is started and no broker is asked: sources come from dbt's manifest, the rest from the deployment store.
- A source that is wrong is listed with its error and does not hide the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli import facts, output
from penstock.cli.manifest import current_manifest
from penstock.cli.relations import (
    NOT_DEPLOYED,
    SOURCE,
    SOURCE_TABLE,
    Deployed,
    deployed,
    dynamic_tables,
    readers,
    stream_sources,
    upstream,
)
from penstock.cli.session import Session, command
from penstock.errors import PenstockError

app = typer.Typer()


class What(str, Enum):
    """What can be listed."""

    SOURCES = "sources"
    TABLES = "tables"
    QUERIES = "queries"


WORDS = tuple(what.value for what in What)


def sources(session: Session) -> list[dict[str, Any]]:
    """Every source stream and source table of the project."""
    from penstock.project.source import is_source_table, read_source

    streams = deployed(session)
    queries = {stream.name: stream for stream in streams if stream.kind == SOURCE_TABLE}
    rows: list[dict[str, Any]] = []
    for relation, entry in stream_sources(current_manifest(session)).items():
        try:
            rows.append(
                _source(facts.source_facts(read_source(entry, session.project), entry, streams), queries.get(relation))
            )
        except PenstockError as problem:
            kind = SOURCE_TABLE if is_source_table(entry) else SOURCE
            rows.append({"name": relation, "kind": kind, "read_only": True, "error": problem.as_dict()})
    return rows


def tables(session: Session) -> list[dict[str, Any]]:
    """Every dynamic table and source table, of the project or deployed."""
    from penstock.project.source import is_source_table

    manifest = current_manifest(session)
    streams = deployed(session)
    rows = {stream.name: _table(stream) for stream in streams}
    for name, entry in dynamic_tables(manifest).items():
        if name not in rows:
            found = facts.undeployed_facts(name, entry, upstream(entry, manifest), streams)
            names = ("name", "kind", "read_only", "state", "file")
            inputs = [each["relation"] for each in found["inputs"]]
            unknown: dict[str, Any] = {"generation": None, "mode": None, "key": []}
            rows[name] = {key: found[key] for key in names} | unknown | {"inputs": inputs}
    for name, entry in stream_sources(manifest).items():
        if name not in rows and is_source_table(entry):
            nothing: dict[str, Any] = {"generation": None, "mode": None, "key": [], "inputs": []}
            known = facts.of_any_table(name, entry.get("original_file_path"), SOURCE_TABLE)
            rows[name] = {**known, "state": NOT_DEPLOYED, **nothing}
    return [rows[name] for name in sorted(rows)]


def queries(session: Session) -> list[dict[str, Any]]:
    """Every deployed stream: what it reads, what it writes and how it does."""
    streams = deployed(session)
    return [
        {
            "name": stream.name,
            "kind": stream.kind,
            "read_only": stream.kind == SOURCE_TABLE,
            "state": stream.view.state,
            "wanted": stream.view.wanted,
            "generation": stream.view.generation,
            "reads": list(stream.inputs),
            "writes": stream.spec.output.shown if stream.spec else stream.name,
            "batch_id": stream.view.batch_id,
            "last_batch_at": stream.view.last_batch_at,
            "rows_in_per_s": stream.view.rows_in_per_s,
            "rows_out_per_s": stream.view.rows_out_per_s,
            "error_code": stream.view.error_code,
            "error": stream.view.error,
            "read_by": [each.name for each in readers(stream.name, streams)],
        }
        for stream in streams
    ]


def _source(found: dict[str, Any], query: Deployed | None) -> dict[str, Any]:
    names = ("name", "kind", "read_only", "primary_key", "file", "topic", "topic_pattern", "partitions_read", "start")
    return {name: found[name] for name in names} | {
        "key": found["key"]["format"],
        "value": found["value"]["format"],
        "columns": [column["name"] for column in found["columns"]],
        "read_by": [reader["stream"] for reader in found["read_by"]],
        "query": query.name if query else None,
        "error": None,
    }


def _table(stream: Deployed) -> dict[str, Any]:
    spec = stream.spec
    return {
        **facts.of_any_table(stream.name, spec.path if spec else None, stream.kind),
        "state": stream.view.state,
        "generation": stream.view.generation,
        "mode": spec.output.mode.value if spec else None,
        "key": list(spec.output.keys) if spec else [],
        "inputs": list(stream.inputs),
    }


def sources_grid(rows: Sequence[dict[str, Any]]) -> Table:
    table = output.grid("SOURCE", "KIND", "TOPIC", "KEY", "VALUE", "COLUMNS", "READ BY", "FILE", right=("COLUMNS",),
                        wraps=("READ BY", "FILE"))  # fmt: skip
    for row in rows:
        if row["error"]:
            problem = Text(output.coded(row["error"]["code"], row["error"]["message"]), style="red")
            table.add_row(Text(row["name"]), _short(row), "-", "-", "-", "-", "-", problem)
            continue
        topic = row["topic"] or f"/{row['topic_pattern']}/"
        cells = (
            row["name"],
            _short(row),
            topic,
            row["key"],
            row["value"],
            str(len(row["columns"])),
            _names(row["read_by"]),
        )
        table.add_row(*map(Text, (*cells, row["file"] or "-")))
    return table


def tables_grid(rows: Sequence[dict[str, Any]]) -> Table:
    table = output.grid(
        "TABLE", "KIND", "STATE", "GEN", "MODE", "KEY", "INPUTS", "FILE", right=("GEN",), wraps=("INPUTS",)
    )
    for row in rows:
        state = Text(NOT_DEPLOYED) if row["state"] == NOT_DEPLOYED else output.state_text(row["state"])
        cells = (str(row["generation"] or "-"), row["mode"] or "-", _names(row["key"]), _names(row["inputs"]))
        table.add_row(Text(row["name"]), row["kind"].split()[0], state, *map(Text, (*cells, row["file"] or "-")))
    return table


def queries_grid(rows: Sequence[dict[str, Any]]) -> Table:
    table = output.grid("QUERY", "KIND", "STATE", "GEN", "READS", "WRITES", "IN/S", "OUT/S", "LAST BATCH", "LAST ERROR",
                        right=("GEN", "IN/S", "OUT/S", "LAST BATCH"), wraps=("READS", "LAST ERROR"))  # fmt: skip
    now = time.time()
    for row in rows:
        rates = (output.rate(row["rows_in_per_s"]), output.rate(row["rows_out_per_s"]))
        cells = (str(row["generation"]), _names(row["reads"]), row["writes"], *rates)
        problem = output.coded(row["error_code"], row["error"]) or "-"
        ends = (output.ago(row["last_batch_at"], now), problem)
        table.add_row(Text(row["name"]), row["kind"], output.state_text(row["state"]), *map(Text, (*cells, *ends)))
    return table


def _short(row: dict[str, Any]) -> str:
    """Stream, or table with its key."""
    key = f" ({', '.join(row['primary_key'])})" if row.get("primary_key") else ""
    return f"{row['kind'].removeprefix('source ')}{key}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "-"


_EMPTY = {
    What.SOURCES: "The project has no source that is a stream.",
    What.TABLES: "The project has no dynamic tables.",
    What.QUERIES: "No streams are deployed. 'dbt run' deploys them.",
}
_LOOK = {What.SOURCES: sources, What.TABLES: tables, What.QUERIES: queries}
_GRID = {What.SOURCES: sources_grid, What.TABLES: tables_grid, What.QUERIES: queries_grid}


@command(
    app,
    "list",
    examples=["penstock list sources", "penstock list tables", "penstock list queries --output json"],
    codes=(0, 1, 2),
    profile=True,
)
def list_(
    session: Session, what: Annotated[What, typer.Argument(help="sources, tables or queries.", show_default=False)]
) -> None:
    """List the sources, the dynamic and source tables, or the queries that write them.

    Needs no broker and no engine. Without one of these words, it is dbt's own `list`, which is also `penstock ls`.
    """
    rows = _LOOK[what](session)
    if session.ui.is_json:
        session.ui.data({what.value: rows})
    elif rows:
        session.ui.show(_GRID[what](rows))
    else:
        session.ui.say(_EMPTY[what])
