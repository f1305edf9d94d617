"""A query that is followed: compiled like a model, without a table.

Rules
- Names without a schema are those of the profile's schema, as in any query.
- A source is shown as its view shows it: with the place of each record, and rows of nulls for what is unreadable.
- A stream begins with what comes next, or with all that is there.
- An outermost LIMIT is no part of the stream: it says after how many rows to end.
- What a model may not do, a followed query may not do: the errors are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from penstock.compiler.build import compile_model
from penstock.compiler.spec import KafkaInput, StreamSpec, TableInput, TableStreamInput, Trigger
from penstock.compiler.statement import parse, qualified, relations
from penstock.compiler.topic_view import position_columns
from penstock.errors import Location
from penstock.errors.catalogue import MODEL_UPDATING_INPUT
from penstock.project.source import is_source_table, is_stream, relation_of

PATH = "query"
_NODE = "model.penstock.followed"


@dataclass(frozen=True)
class Followed:
    """The stream of a query, and where it ends."""

    spec: StreamSpec
    limit: int | None


def compile_follow(
    manifest: Mapping[str, Any], sql: str, *, schema: str, project_dir: Path | str, from_beginning: bool
) -> Followed:
    """The stream; raises what a model with that SQL would raise."""
    text, limit = without_limit(sql.strip().rstrip(";").rstrip())
    text = qualified(parse(text, PATH, ()), schema)
    sources = {name: each for name, each in (manifest.get("sources") or {}).items() if is_stream(each)}
    nodes = {name: each for name, each in (manifest.get("nodes") or {}).items() if each.get("schema")}
    node = {
        "unique_id": _NODE,
        "resource_type": "model",
        "name": "followed",
        "alias": "followed",
        "schema": schema,
        "original_file_path": PATH,
        "raw_code": text,
        "config": {"materialized": "dynamic_table", "refresh_mode": "incremental"},
        "depends_on": {"nodes": [*sources, *nodes]},
    }
    graph = {"sources": sources, "nodes": {**nodes, _NODE: node}}
    spec = compile_model(graph, _NODE, text, project_dir=project_dir)
    for each in spec.inputs:
        if isinstance(each, TableStreamInput) and each.rows != "append":
            raise MODEL_UPDATING_INPUT.error(f"{each.relation} replaces its rows.", at=Location(PATH))
    # Rows are shown as they come: there is no table from which one could go.
    spec = spec.model_copy(update={"sql": spec.whole_sql, "follow": None})
    start = "earliest" if from_beginning else "latest"
    inputs = tuple(_starting(each, start) for each in spec.inputs)
    return Followed(spec.model_copy(update={"inputs": inputs, "trigger": Trigger(time_window_ms=300)}), limit)


def sources_read(manifest: Mapping[str, Any], sql: str, *, schema: str) -> list[str]:
    """The source streams that a query names; source tables are tables."""
    read = relations(parse(qualified(parse(sql.strip().rstrip(";"), PATH, ()), schema), PATH, ()))
    sources = (manifest.get("sources") or {}).values()
    known = [relation_of(each) for each in sources if is_stream(each) and not is_source_table(each)]
    return [name for name in known if name.lower() in read]


def tables_read(sql: str, *, schema: str) -> list[str]:
    """All relations that a query names."""
    return sorted(relations(parse(qualified(parse(sql.strip().rstrip(";"), PATH, ()), schema), PATH, ())))


def without_limit(sql: str) -> tuple[str, int | None]:
    """The text without an outermost LIMIT, and its number."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return sql, None
    if len(tokens) > 2 and tokens[-2].token_type is TokenType.LIMIT and tokens[-1].token_type is TokenType.NUMBER:
        return sql[: tokens[-2].start].rstrip(), int(tokens[-1].text)
    return sql, None


def _starting(
    item: KafkaInput | TableStreamInput | TableInput, start: str
) -> KafkaInput | TableStreamInput | TableInput:
    if isinstance(item, KafkaInput):
        columns = (*item.columns, *position_columns(item))
        return item.model_copy(update={"starting": start, "null_rows": True, "columns": columns})
    if isinstance(item, TableStreamInput):
        return item.model_copy(update={"starting": start})
    return item
