"""From dbt's manifest to StreamSpecs and the files below target/penstock/.

Rules
- A streaming input is a source with stream settings or an append-only dynamic table; tables, views, seeds and snapshots
  are read as they stand. Ephemeral models are inlined by dbt, so their inputs count as the model's own.
- The compiled SQL is the caller's or the manifest's. Of an upstream dynamic table that dbt has not compiled yet only
  the shape is needed, and its raw SQL with the Jinja taken out has the same one.
- Nothing here reads a clock, a network or an environment; files are read for positions alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlglot import exp

from penstock.compiler.job import render_job
from penstock.compiler.lines import line_map
from penstock.compiler.outline import outline
from penstock.compiler.shape import Shape, analyse
from penstock.compiler.spec import (
    Column,
    FromOffsets,
    FromTimestamp,
    Input,
    KafkaInput,
    Output,
    OutputMode,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
    Watermark,
)
from penstock.compiler.statement import Statement, parse, relations, rewrite
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import DBT_FAILED, MODEL_NO_STREAM, MODEL_UPDATING_INPUT, SOURCE_NOT_STREAM
from penstock.paths import safe_name
from penstock.project.model import DynamicTable, is_dynamic_table, read_model
from penstock.project.source import is_stream, read_source, relation_of
from penstock.project.start import StartAt
from penstock.project.watermark import WatermarkSetting

Manifest = Mapping[str, Any]


def compile_model(
    manifest: Manifest, unique_id: str, compiled_sql: str | None = None, *, project_dir: Path | str
) -> StreamSpec:
    """The spec of one dynamic table; raises the first thing that is wrong with it."""
    return _Compiler(manifest, Path(project_dir)).model(unique_id, compiled_sql)


def compile_project(manifest: Manifest, *, project_dir: Path | str) -> list[StreamSpec]:
    """The specs of all dynamic tables, upstream first. The manifest must be a compiled one."""
    compiler = _Compiler(manifest, Path(project_dir))
    return [compiler.model(unique_id) for unique_id in _upstream_first(manifest)]


def write_target(spec: StreamSpec, target_dir: Path | str) -> Path:
    """Write spec.json and job.py below target/penstock/<stream>/ and return that directory."""
    directory = Path(target_dir) / "penstock" / safe_name(spec.name)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec.json").write_text(spec.to_json() + "\n", encoding="utf-8")
    (directory / "job.py").write_text(render_job(spec), encoding="utf-8")
    return directory


class _Compiler:
    def __init__(self, manifest: Manifest, project: Path) -> None:
        self.nodes: Mapping[str, Mapping[str, Any]] = manifest.get("nodes") or {}
        self.sources: Mapping[str, Mapping[str, Any]] = manifest.get("sources") or {}
        self.project = project

    def model(self, unique_id: str, compiled_sql: str | None = None) -> StreamSpec:
        node = self.nodes[unique_id]
        table = read_model(node, self.project)
        compiled = compiled_sql if compiled_sql is not None else node.get("compiled_code")
        if not compiled:
            raise DBT_FAILED.error(
                f"{table.name} has not been compiled by dbt.", at=Location(table.path), hint="Run 'dbt compile' first."
            )
        compiled, lines = _trimmed(str(compiled), line_map(table.raw_code, str(compiled)))
        statement = parse(compiled, table.path, lines)
        inputs = tuple(self._inputs(node, table, statement))
        streams = [each for each in inputs if not isinstance(each, TableInput)]
        if not streams:
            raise MODEL_NO_STREAM.error(f"{table.name} reads no stream.", at=Location(table.path))
        shape = self._shape(statement, streams, table)
        return StreamSpec(
            name=table.name,
            unique_id=unique_id,
            path=table.path,
            sql=rewrite(statement, {each.relation.lower(): each.view for each in streams}),
            stateful=shape.stateful,
            inputs=inputs,
            output=Output(relation=table.name, mode=shape.mode, keys=shape.keys),
            line_map=lines,
            **_settings(table),
        )

    def _shape(self, statement: Statement, streams: list[KafkaInput | TableStreamInput], table: DynamicTable) -> Shape:
        columns = {
            each.relation.lower(): tuple(column.name for column in each.columns)
            if isinstance(each, KafkaInput)
            else None
            for each in streams
        }
        return analyse(statement, columns, table.unique_key)

    def _inputs(self, node: Mapping[str, Any], table: DynamicTable, statement: Statement) -> Iterator[Input]:
        taken = _names_in(statement)
        read = relations(statement)
        for upstream in self._upstream(node):
            relation = relation_of(upstream)
            if relation.lower() not in read:
                continue  # named in a comment or an unused branch
            here = statement.at(read[relation.lower()])
            if upstream.get("resource_type") == "source":
                if not is_stream(upstream):
                    raise SOURCE_NOT_STREAM.error(
                        f"{table.name} reads source {relation}, which has no stream settings.", at=here
                    )
                yield self._kafka(upstream, _view(relation, taken))
            elif is_dynamic_table(upstream):
                if self.mode_of(upstream) is OutputMode.UPSERT:
                    raise MODEL_UPDATING_INPUT.error(
                        f"{table.name} streams from {relation}, which replaces its rows.", at=here
                    )
                watermark = read_model(upstream, self.project).watermark
                yield TableStreamInput(view=_view(relation, taken), relation=relation, watermark=_watermark(watermark))
            else:
                yield TableInput(relation=relation)

    def _upstream(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The nodes that the compiled SQL reads, in the order of their ids, each once."""
        found: dict[str, Mapping[str, Any]] = {}
        pending = list((node.get("depends_on") or {}).get("nodes") or ())
        while pending:
            unique_id = pending.pop()
            upstream = self.sources.get(unique_id) or self.nodes.get(unique_id)
            if upstream is None or unique_id in found:
                continue  # macros, metrics and the like are no relations
            if (upstream.get("config") or {}).get("materialized") == "ephemeral":
                pending.extend((upstream.get("depends_on") or {}).get("nodes") or ())
            else:
                found[unique_id] = upstream
        for unique_id in sorted(found):
            yield found[unique_id]

    def mode_of(self, node: Mapping[str, Any]) -> OutputMode:
        """Whether a dynamic table appends or replaces rows."""
        table = read_model(node, self.project)
        if table.unique_key is not None:
            return OutputMode.UPSERT
        streams = {
            relation_of(upstream).lower(): _column_names(upstream)
            for upstream in self._upstream(node)
            if is_dynamic_table(upstream) or is_stream(upstream)
        }
        if compiled := node.get("compiled_code"):
            return analyse(parse(str(compiled), table.path, line_map(table.raw_code, str(compiled))), streams).mode
        try:
            return analyse(parse(outline(node, {**self.nodes, **self.sources}), table.path, ()), streams).mode
        except PenstockError:
            # The outline was too coarse to see the shape. Appending is the rule, and Spark itself refuses to stream
            # from a table whose rows are replaced.
            return OutputMode.APPEND

    def _kafka(self, source: Mapping[str, Any], view: str) -> KafkaInput:
        read = read_source(source, self.project)
        return KafkaInput(
            view=view,
            relation=read.relation,
            topic=read.topic,
            topic_pattern=read.topic_pattern,
            partitions=read.partitions,
            bootstrap=read.bootstrap,
            starting=_starting(read.start),
            key_format=read.key.format,
            value_format=read.value.format,
            key_options=read.key.options(),
            value_options=read.value.options(),
            columns=tuple(
                Column(name=each.name, type=each.type.ddl, origin=each.origin, expr=each.expr) for each in read.columns
            ),
            watermark=_watermark(read.watermark),
            options=read.options,
        )


def _starting(start: str | StartAt) -> str | FromTimestamp | FromOffsets:
    if isinstance(start, str):
        return start
    if start.timestamp is not None:
        return FromTimestamp(timestamp=start.timestamp)
    return FromOffsets(offsets=tuple(sorted((start.offsets or {}).items())))


def _settings(table: DynamicTable) -> dict[str, Any]:
    trigger = {
        "time_window_ms": table.time_window_ms,
        "buffer_limit": table.buffer_limit,
        "max_batch_rows": table.max_batch_rows,
    }
    settings: dict[str, Any] = {
        "trigger": Trigger.model_validate({key: value for key, value in trigger.items() if value is not None})
    }
    if table.shuffle_partitions is not None:
        settings["shuffle_partitions"] = table.shuffle_partitions
    if table.small_batch_rows is not None:
        settings["small_batch_rows"] = table.small_batch_rows
    return settings


def _trimmed(sql: str, lines: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The SQL without empty lines around it, and the lines that are left."""
    texts = sql.splitlines()
    kept = [index for index, text in enumerate(texts) if text.strip()]
    if not kept:
        return "", ()
    first, last = kept[0], kept[-1] + 1
    return "\n".join(texts[first:last]).rstrip(), lines[first:last]


def _watermark(setting: WatermarkSetting | None) -> Watermark | None:
    return None if setting is None else Watermark(column=setting.column, delay=setting.delay)


def _view(relation: str, taken: set[str]) -> str:
    """shop.clicks -> shop__clicks: a name in SQL and in Python that nothing else of the model has."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", relation.replace(".", "__")).lower()
    plain = f"_{plain}" if plain[0].isdigit() else plain
    view, number = plain, 1
    while view in taken:
        number += 1
        view = f"{plain}_{number}"
    taken.add(view)
    return view


def _names_in(statement: Statement) -> set[str]:
    """The plain table names and CTEs of the SQL, which a view's name must not meet."""
    ctes = {cte.alias.lower() for cte in statement.tree.find_all(exp.CTE)}
    return ctes | {table.name.lower() for table in statement.tree.find_all(exp.Table) if not table.db}


def _column_names(node: Mapping[str, Any]) -> tuple[str, ...] | None:
    if node.get("resource_type") != "source":
        return None
    return tuple(node.get("columns") or ()) or None


def _upstream_first(manifest: Manifest) -> Iterator[str]:
    nodes: Mapping[str, Mapping[str, Any]] = manifest.get("nodes") or {}
    done: set[str] = set()

    def visit(unique_id: str) -> Iterator[str]:
        if unique_id in done or unique_id not in nodes:
            return
        done.add(unique_id)
        for above in (nodes[unique_id].get("depends_on") or {}).get("nodes") or ():
            yield from visit(above)
        if is_dynamic_table(nodes[unique_id]):
            yield unique_id

    for unique_id in sorted(nodes):
        yield from visit(unique_id)
