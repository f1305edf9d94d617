"""From dbt's manifest to StreamSpecs and the files below target/penstock/.

Rules
- A streaming input is a source stream or a dynamic table; source tables, other tables, views, seeds and snapshots are
  read as they stand, and so is a dynamic table that replaces its rows where it is joined to a stream. Ephemeral models
  are inlined by dbt, so their inputs count as the model's own.
- With `refresh_mode: auto` a query that a stream cannot keep is refreshed in full, for the reason that the analysis
  gives; with `incremental` that reason is the error.
- The compiled SQL is the caller's or the manifest's. Of an upstream dynamic table that dbt has not compiled yet only
  the shape is needed, and its raw SQL with the Jinja taken out has the same one.
- Nothing here reads a clock, a network or an environment; files are read for positions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlglot import exp

from penstock.compiler.clock import clock_warnings
from penstock.compiler.functions import functions_of, renamed
from penstock.compiler.inputs import kafka_input, view_name, watermark_of
from penstock.compiler.job import render_job
from penstock.compiler.lines import line_map
from penstock.compiler.lookups import refuse_joined_tables
from penstock.compiler.outline import outline
from penstock.compiler.publish import published, read_table
from penstock.compiler.result_key import key_warnings, own_key
from penstock.compiler.rows import Rows, columns_named, output_columns
from penstock.compiler.shape import Shape, Source, analyse
from penstock.compiler.spec import (
    Follow,
    Input,
    KafkaInput,
    Origin,
    Output,
    OutputMode,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
    check_full,
)
from penstock.compiler.split import VIEW, UncutError, split
from penstock.compiler.statement import Statement, parse, relations, rewrite, without_semicolon
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    DBT_FAILED,
    MODEL_KEYS,
    MODEL_NO_STREAM,
    MODEL_NOT_INCREMENTAL,
    MODEL_SETTING,
    MODEL_UPDATING_INPUT,
    SOURCE_NOT_STREAM,
    SOURCE_READ_ONLY,
)
from penstock.paths import safe_name
from penstock.project.live import is_live_test, read_live_test
from penstock.project.model import DynamicTable, is_dynamic_table, read_model
from penstock.project.source import is_source_table, is_stream, read_source, relation_of
from penstock.project.watermark import WatermarkSetting, no_column

Manifest = Mapping[str, Any]

# Why a query is refreshed in full; anything else that is wrong with a model is wrong in either mode.
_NOT_INCREMENTAL = (MODEL_NOT_INCREMENTAL, MODEL_UPDATING_INPUT, MODEL_KEYS, MODEL_NO_STREAM)


def compile_model(
    manifest: Manifest, unique_id: str, compiled_sql: str | None = None, *, project_dir: Path | str
) -> StreamSpec:
    """The spec of one dynamic table; raises the first thing that is wrong with it."""
    return _Compiler(manifest, Path(project_dir)).model(unique_id, compiled_sql)


def compile_project(manifest: Manifest, *, project_dir: Path | str) -> list[StreamSpec]:
    """The specs of all dynamic tables, upstream first. The manifest must be a compiled one."""
    compiler = _Compiler(manifest, Path(project_dir))
    return [compiler.model(unique_id) for unique_id in _upstream_first(manifest)]


def refuse_source(name: str, sources: Manifest, at: Location | None = None) -> None:
    """PEN-3020 when a relation that is about to be written is a source (dbt's id -> entry of the manifest)."""
    for entry in sources.values():
        if is_stream(entry) and relation_of(entry).lower() == name.lower():
            raise SOURCE_READ_ONLY.error(
                f"{relation_of(entry)} is a source: insertion into source stream/table is not allowed.", at=at
            )


def sources_of(manifest: Manifest, unique_id: str) -> list[Mapping[str, Any]]:
    """The nodes that a model's SQL reads, ephemeral models seen through; of a source, itself."""
    compiler = _Compiler(manifest, Path())
    if unique_id in compiler.sources:
        return [compiler.sources[unique_id]]
    return list(compiler.upstream(compiler.nodes[unique_id]))


def write_target(spec: StreamSpec, target_dir: Path | str) -> Path:
    """Write spec.json and job.py below target/penstock/<stream>/ and return that directory."""
    directory = Path(target_dir) / "penstock" / safe_name(spec.name)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec.json").write_text(spec.to_json() + "\n", encoding="utf-8")
    (directory / "job.py").write_text(render_job(spec), encoding="utf-8")
    return directory


class _Compiler:
    def __init__(self, manifest: Manifest, project: Path) -> None:
        self.manifest = manifest
        self.nodes: Mapping[str, Mapping[str, Any]] = manifest.get("nodes") or {}
        self.sources: Mapping[str, Mapping[str, Any]] = manifest.get("sources") or {}
        self.project = project
        self._shapes: dict[str, Shape] = {}

    def model(self, unique_id: str, compiled_sql: str | None = None) -> StreamSpec:
        node = self.nodes[unique_id]
        live = is_live_test(node)
        table = read_live_test(node) if live else read_model(node, self.project)
        refuse_source(table.name, self.sources, Location(table.path))
        compiled = compiled_sql if compiled_sql is not None else node.get("compiled_code")
        if not compiled:
            raise DBT_FAILED.error(
                f"{table.name} has not been compiled by dbt.", at=Location(table.path), hint="Run 'dbt compile' first."
            )
        compiled, lines = _trimmed(str(compiled), line_map(table.raw_code, str(compiled)))
        statement = parse(compiled, table.path, lines)
        inputs = tuple(self._inputs(node, table, statement))
        if not inputs:
            raise MODEL_NO_STREAM.error(f"{table.name} reads nothing that changes.", at=Location(table.path))
        streams = [each for each in inputs if not isinstance(each, TableInput)]
        sources = {each.relation.lower(): _source(each) for each in streams}
        shape, reason = self._choice(statement, sources, table)
        inputs = tuple(
            TableInput(relation=each.relation) if each.relation.lower() in shape.looked_up else each for each in inputs
        )
        streams = [each for each in inputs if not isinstance(each, TableInput)]
        functions = functions_of(self.manifest, unique_id)
        sql = renamed(rewrite(statement, {each.relation.lower(): each.view for each in streams}), functions)
        sql, follow = _following(sql, shape, statement, streams)
        spec = StreamSpec(
            name=table.name,
            unique_id=unique_id,
            origin=Origin.LIVE_TEST if live else Origin.MODEL,
            path=table.path,
            sql=sql,
            follow=follow,
            stateful=shape.stateful,
            joined=shape.joined,
            inputs=inputs,
            output=Output(
                relation=table.name,
                mode=shape.mode,
                keys=shape.keys,
                contract=table.contract,
                checks=table.checks,
                on_schema_change=table.on_schema_change,
            ),
            functions=functions,
            deduplicate_by=table.deduplicate_by,
            publish=published(table, shape, reason, inputs),
            # Full refresh knows no final rows: a query that is refused as a stream is refused.
            refresh_mode="incremental" if table.emit == "final" else table.refresh_mode,
            reason=reason,
            warnings=(*shape.warnings, *(_costs(streams) if reason else ())),
            own_key=_own_key(statement, sources, table),
            event_time=_event_time(table, shape),
            line_map=lines,
            **_settings(table),
        )
        if spec.in_order and any(isinstance(each, TableInput) for each in inputs):
            refuse_joined_tables(parse(spec.sql, spec.path, lines), [each.view for each in streams])
        return spec.model_copy(update={"warnings": (*spec.warnings, *_idle(table, spec))})

    def _choice(
        self, statement: Statement, streams: Mapping[str, Source], table: DynamicTable
    ) -> tuple[Shape, str | None]:
        """How the table is kept: incrementally, or in full and why."""
        if table.refresh_mode == "full":
            if table.emit == "final":
                raise MODEL_SETTING.error("'emit: final' is not for 'refresh_mode: full'.", at=Location(table.path))
            return self._full(statement, streams, table, "refresh_mode is full.")
        try:
            if not streams:
                raise MODEL_NO_STREAM.error(f"{table.name} reads tables alone.", at=Location(table.path))
            shape = analyse(statement, streams, table.unique_key, emit=table.emit, deduplicate_by=table.deduplicate_by)
            if shape.aggregate is not None:
                _cuttable(statement, shape.aggregate)
        except PenstockError as problem:
            if problem.kind not in _NOT_INCREMENTAL:
                raise
            if table.emit == "final":
                raise _never_full(problem, table) from None
            if table.refresh_mode == "incremental":
                raise
            return self._full(statement, streams, table, _reason(problem))
        if shape.columns is not None:
            columns_named(statement, "deduplicate_by", table.deduplicate_by, shape.columns)
        if table.unique_key is not None:
            warnings = (*shape.warnings, *key_warnings(statement, streams, table.unique_key))
            shape = replace(shape, warnings=warnings)
        return shape, None

    def _full(
        self, statement: Statement, streams: Mapping[str, Source], table: DynamicTable, reason: str
    ) -> tuple[Shape, str]:
        """A full refresh, which has no key of its own and no first row of one."""
        if table.unique_key is not None and isinstance(statement.tree, exp.Select):
            columns = output_columns(statement.tree, Rows())
            if columns is not None:
                columns_named(statement, "unique_key", table.unique_key, columns)
        at, key = statement.at(statement.tree), _own_key(statement, streams, table)
        check_full(table.name, reason, at, own_key=key, deduplicate_by=table.deduplicate_by)
        warnings = tuple(clock_warnings(statement, full=True))
        return Shape(OutputMode.REPLACE, (), stateful=False, warnings=warnings), reason

    def _inputs(self, node: Mapping[str, Any], table: DynamicTable, statement: Statement) -> Iterator[Input]:
        taken = _names_in(statement)
        read = relations(statement)
        for upstream in self.upstream(node):
            relation = relation_of(upstream)
            if relation.lower() not in read:
                continue  # named in a comment or an unused branch
            here = statement.at(read[relation.lower()])
            if upstream.get("resource_type") == "source":
                if not is_stream(upstream):
                    raise SOURCE_NOT_STREAM.error(
                        f"{table.name} reads source {relation}, which has no stream settings.", at=here
                    )
                if is_source_table(upstream):
                    yield TableInput(relation=relation)
                else:
                    yield kafka_input(upstream, view_name(relation, taken), self.project, table.on_bad_record)
            elif is_dynamic_table(upstream):
                above = read_table(read_model(upstream, self.project), here)
                yield TableStreamInput(
                    view=view_name(relation, taken),
                    relation=relation,
                    watermark=watermark_of(self._watermark_of(upstream, above)),
                    **self._rows_of(upstream),
                )
            else:
                yield TableInput(relation=relation)

    def upstream(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
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

    def shape_of(self, node: Mapping[str, Any]) -> Shape:
        """How a dynamic table's rows change."""
        unique_id = str(node["unique_id"])
        if unique_id not in self._shapes:
            self._shapes[unique_id] = self._shape_of(node)
        return self._shapes[unique_id]

    def _rows_of(self, node: Mapping[str, Any]) -> dict[str, Any]:
        shape = self.shape_of(node)
        return {"rows": shape.mode.value, "keys": shape.keys if shape.mode is OutputMode.UPSERT else ()}

    def _watermark_of(self, node: Mapping[str, Any], table: DynamicTable) -> WatermarkSetting | None:
        """The event time of a dynamic table's rows; not one that the whole project has and this table does not."""
        watermark = table.watermark
        if watermark is None or "watermark" in table.own:
            return watermark
        return None if _lacks(self.shape_of(node).columns, watermark.column) else watermark

    def _shape_of(self, node: Mapping[str, Any]) -> Shape:
        table = read_model(node, self.project)
        streams: dict[str, Source] = {}
        for upstream in self.upstream(node):
            if is_dynamic_table(upstream):
                watermark = self._watermark_of(upstream, read_model(upstream, self.project))
                streams[relation_of(upstream).lower()] = Source(
                    None, watermark.column if watermark else None, **self._rows_of(upstream)
                )
            elif is_stream(upstream) and not is_source_table(upstream):
                streams[relation_of(upstream).lower()] = self._declared(upstream)
        compiled = str(node.get("compiled_code") or "")
        sql = compiled or outline(node, {**self.nodes, **self.sources})
        try:
            statement = parse(sql, table.path, line_map(table.raw_code, compiled) if compiled else ())
            return self._choice(statement, streams, table)[0]
        except PenstockError:
            if compiled:
                raise
            # The outline was too coarse to see the shape. Appending is the rule, and Spark itself refuses to stream
            # from a table whose rows are replaced.
            return Shape(OutputMode.APPEND, (), stateful=False)

    def _declared(self, source: Mapping[str, Any]) -> Source:
        try:
            read = read_source(source, self.project)
        except PenstockError:  # it is told where that source is read
            return Source(tuple(source.get("columns") or ()) or None)
        columns = tuple(column.name for column in read.columns) or None
        return Source(columns, read.watermark.column if read.watermark else None)


def _source(item: KafkaInput | TableStreamInput) -> Source:
    columns = tuple(column.name for column in item.columns) if isinstance(item, KafkaInput) else None
    watermark = item.watermark.column if item.watermark else None
    if isinstance(item, TableStreamInput):
        return Source(columns, watermark, item.rows, item.keys)
    return Source(columns, watermark)


def _following(
    sql: str, shape: Shape, statement: Statement, streams: list[KafkaInput | TableStreamInput]
) -> tuple[str, Follow | None]:
    """The SQL of the stream and, where rows may be gone after a change, that of what follows from changed rows."""
    if shape.changed is None:
        return sql, None
    if shape.aggregate is None:
        (changed,) = (each for each in streams if isinstance(each, TableStreamInput) and each.rows == "upsert")
        return f"select * from {changed.view}", Follow(sql=sql, view=changed.view, keys=shape.changed, whole=sql)
    place = [id(each) for each in statement.tree.find_all(exp.Select)].index(id(shape.aggregate))
    tree = parse(sql, statement.path, statement.lines).tree
    cut = split(sql, tree, list(tree.find_all(exp.Select))[place])  # what can be cut can be so under other names
    return cut.aggregate, Follow(sql=cut.rest, view=VIEW, keys=shape.changed, whole=sql)


def _never_full(problem: PenstockError, table: DynamicTable) -> PenstockError:
    """The problem with what helps where rows have to be final: refresh_mode alone does not."""
    hint = problem.hint
    if hint is None and problem.kind in (MODEL_NOT_INCREMENTAL, MODEL_UPDATING_INPUT):
        mode = " and refresh_mode at 'auto'" if table.refresh_mode == "incremental" else ""
        hint = f"Leave 'emit: final' out{mode}: the table is then recomputed when an input changed."
    return problem.kind.error(problem.message, at=problem.at, hint=hint)


def _cuttable(statement: Statement, aggregate: exp.Select) -> None:
    """Refuse a filter above an aggregate where the text cannot be cut between the two."""
    try:
        split(statement.sql, statement.tree, aggregate)
    except UncutError as problem:
        raise MODEL_NOT_INCREMENTAL.error(
            f"a filter above an aggregate {problem.what} cannot be kept up to date by a stream.",
            at=statement.at(aggregate), hint=problem.cure,
        ) from None  # fmt: skip


def _own_key(statement: Statement, streams: Mapping[str, Source], table: DynamicTable) -> tuple[str, ...]:
    """The model's unique_key, unless it is the key that the query gives its rows by itself."""
    return own_key(statement, {name: each.keys for name, each in streams.items()}, table.unique_key)


def _event_time(table: DynamicTable, shape: Shape) -> str | None:
    """The column of the watermark that the model itself sets; it is of rows that are appended."""
    at = table.own.get("watermark")
    if table.watermark is None or at is None or shape.mode is not OutputMode.APPEND:
        return None  # a default of the whole project may fit others
    column = table.watermark.column
    if shape.columns is not None and _lacks(shape.columns, column):
        raise no_column(column, shape.columns, at)
    return column


def _lacks(names: Sequence[str] | None, column: str) -> bool:
    """Whether the column is known to be missing."""
    return names is not None and column.lower() not in {name.lower() for name in names}


def _reason(problem: PenstockError) -> str:
    """Why a query is refreshed in full, with its place and what would help."""
    where = f" ({problem.at})" if problem.at else ""
    hint = f" {problem.hint}" if problem.hint else ""
    return f"{problem.message.rstrip('.')}{where}.{hint}"


def _costs(streams: list[KafkaInput | TableStreamInput]) -> list[str]:
    """What a full refresh over topics costs."""
    return [
        f"every refresh reads {each.topics} (source {each.relation}) from its beginning, and only what the topic still "
        "keeps. Cure: a dynamic table that takes in the rows you need, and a 'ref' to it here."
        for each in streams
        if isinstance(each, KafkaInput)
    ]


def _idle(table: DynamicTable, spec: StreamSpec) -> Iterator[str]:
    """What the model itself sets and what has no effect on it; a default of the whole project may fit others."""
    if (at := table.own.get("buffer_limit")) is not None and (table.buffer_limit or 1) > 1:
        if spec.is_full:
            yield f"{at}: 'buffer_limit' has no effect on a table that is refreshed in full. Cure: use 'time_window'."
        elif not any(isinstance(each, KafkaInput) for each in spec.inputs):
            cure = (
                "leave it out; rows by key are taken in order, as they come" if spec.in_order else "use 'time_window'"
            )
            yield f"{at}: 'buffer_limit' counts messages, and no topic is read here. Cure: {cure}."

    if (at := table.own.get("watermark")) is not None and spec.output.mode is not OutputMode.APPEND:
        yield (
            f"{at}: 'watermark' has no effect on a table that replaces its rows. Cure: leave it out; what closes "
            "windows here is the watermark of an input."
        )


def _settings(table: DynamicTable) -> dict[str, Any]:
    trigger = {
        "time_window_ms": table.time_window_ms,
        "buffer_limit": table.buffer_limit,
        "max_batch_rows": table.max_batch_rows,
    }
    if table.target_lag_ms is not None:
        # Rows wait for half of the time at most; the other half is for computing and committing them.
        rows = table.max_batch_rows or Trigger().max_batch_rows
        trigger |= {"time_window_ms": max(table.target_lag_ms // 2, 1), "buffer_limit": rows}
    settings: dict[str, Any] = {
        "trigger": Trigger.model_validate({key: value for key, value in trigger.items() if value is not None})
    }
    if table.shuffle_partitions is not None:
        settings["shuffle_partitions"] = table.shuffle_partitions
    if table.small_batch_rows is not None:
        settings["small_batch_rows"] = table.small_batch_rows
    if table.expectations:
        settings["expectations"] = table.expectations
    if table.maintenance is not None:
        settings["maintenance"] = table.maintenance
    return settings


def _trimmed(sql: str, lines: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The SQL without empty lines around it and a semicolon after it, and the lines that are left."""
    texts = without_semicolon(sql).splitlines()
    kept = [index for index, text in enumerate(texts) if text.strip()]
    if not kept:
        return "", ()
    first, last = kept[0], kept[-1] + 1
    return "\n".join(texts[first:last]).rstrip(), lines[first:last]


def _names_in(statement: Statement) -> set[str]:
    """The plain table names and CTEs of the SQL, which a view's name must not meet."""
    ctes = {cte.alias.lower() for cte in statement.tree.find_all(exp.CTE)}
    return ctes | {table.name.lower() for table in statement.tree.find_all(exp.Table) if not table.db}


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
