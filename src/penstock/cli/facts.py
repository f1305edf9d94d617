"""All that is known of a source or a table, as plain values: what `penstock describe --output json` prints.

Rules
- What is declared and deployed is told whatever runs; what the broker says is added when it answers, and when it does
  not, `last_error` says why.
- Times are epoch seconds. No credential is part of it, not even a reference to one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.relations import NOT_DEPLOYED, SOURCE, SOURCE_TABLE, TABLE, Deployed, Entry, readers
from penstock.cli.schema_facts import settings_of
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.compiler.spec import Input
    from penstock.paths import ProjectPaths
    from penstock.project.profile import KafkaSettings, RuntimeSettings
    from penstock.project.source import StreamSource
    from penstock.project.start import StartAt

_UNASKED: dict[str, Any] = {
    "broker": None,
    "topics": [],
    "messages": None,
    "latest_message_at": None,
    "rows_per_s": None,
    "schema_registry": None,
    "schemas": [],
    "ids_met": {},
}


def source_facts(source: StreamSource, entry: Entry, streams: Sequence[Deployed]) -> dict[str, Any]:
    """A source as it is declared, and who reads it."""
    return {
        "name": source.relation,
        "kind": SOURCE_TABLE if source.is_table else SOURCE,
        "read_only": True,
        "primary_key": list(source.primary_key),
        "file": entry.get("original_file_path"),
        "topic": source.topic,
        "topic_pattern": source.topic_pattern,
        "partitions_read": list(source.partitions) or "all",
        "start": _start(source.start),
        "key": settings_of(source.key),
        "value": settings_of(source.value),
        "on_bad_record": source.on_bad_record,
        "watermark": {"column": source.watermark.column, "delay": source.watermark.delay} if source.watermark else None,
        "columns": [
            {"name": each.name, "type": each.type.ddl, "origin": each.origin, "expr": each.expr}
            for each in source.columns
        ],
        "records": _judged_most(source.relation, streams),
        "read_by": _readers(source.relation, streams),
        **_UNASKED,
        "last_error": None,
    }


def broker_facts(source: StreamSource, kafka: KafkaSettings, paths: ProjectPaths, now: float) -> dict[str, Any]:
    """What the broker says of a source's topics; raises what keeps it from saying anything."""
    from penstock.control.inputs import access, topics_read
    from penstock.kafka.topics import RECENT, partitions, retention

    broker = access(source, kafka, paths)
    read = topics_read(source, broker)
    found = partitions(broker.bootstrap, read, broker.options, now=now)
    kept = retention(broker.bootstrap, read, broker.options)
    topics = [
        {
            "topic": topic,
            "retention": kept[topic],
            "partitions": [
                {"partition": each.number, "begin": each.begin, "end": each.end, "messages": each.messages,
                 "latest_message_at": each.latest_at}
                for each in found if each.topic == topic
            ],
        }
        for topic in read
    ]  # fmt: skip
    return {
        "broker": broker.bootstrap,
        "topics": topics,
        "messages": sum(each.messages for each in found),
        "latest_message_at": max((each.latest_at for each in found if each.latest_at is not None), default=None),
        "rows_per_s": round(sum(each.recent for each in found) / RECENT, 2),
    }


def table_facts(stream: Deployed, streams: Sequence[Deployed], paths: ProjectPaths) -> dict[str, Any]:
    """A deployed dynamic table or source table: its stream and what its commit log says."""
    view, spec = stream.view, stream.spec
    job = paths.job(stream.name, view.generation)
    checkpoint = paths.checkpoint(stream.name, view.checkpoint)
    return {
        **of_any_table(stream.name, spec.path if spec else None, stream.kind),
        "read_by": _readers(stream.name, streams),
        "stream": stream.name,
        "state": view.state,
        "wanted": view.wanted,
        "generation": view.generation,
        "mode": spec.output.mode.value if spec else None,
        "key": list(spec.output.keys) if spec else [],
        "stateful": spec.stateful if spec else None,
        "full_refresh": spec.reason if spec else None,
        "published": spec.publish.model_dump(mode="json") if spec and spec.publish else None,
        "state_bytes": view.state_bytes,
        "inputs": [_input(item, full=spec.is_full) for item in spec.inputs] if spec else [],
        "records": [asdict(each) for each in view.records],
        "expectations": [asdict(each) for each in view.expectations],
        "checkpoint": _shown(checkpoint, paths),
        "job": _shown(job, paths) if job.exists() else None,
        "lag_rows": view.lag_rows,
        "lag_seconds": view.lag_seconds,
        "rows_in_per_s": view.rows_in_per_s,
        "rows_out_per_s": view.rows_out_per_s,
        "last_batch_at": view.last_batch_at,
        "last_error": {"code": view.error_code, "message": view.error} if view.error or view.error_code else None,
        **stored(spec.output.relation if spec else stream.name, paths),
    }


def source_table_facts(declared: dict[str, Any], stream: Deployed | None, paths: ProjectPaths) -> dict[str, Any]:
    """A source table: the source as it is declared, the query behind it and the table that the query keeps."""
    if stream is None:
        return {**declared, "state": NOT_DEPLOYED, "query": None}
    behind = table_facts(stream, [], paths)
    names = ("stream", "wanted", "generation", "checkpoint", "job", "lag_rows", "lag_seconds", "rows_in_per_s",
             "rows_out_per_s", "last_batch_at")  # fmt: skip
    return {
        **declared,
        "state": behind["state"],
        "query": {name: behind[name] for name in names},
        "table": behind["table"],
        "last_error": behind["last_error"],
    }


def undeployed_facts(name: str, entry: Entry, inputs: Sequence[str], streams: Sequence[Deployed]) -> dict[str, Any]:
    """A dynamic table that is in the project only."""
    return {
        **of_any_table(name, entry.get("original_file_path")),
        "read_by": _readers(name, streams),
        "state": NOT_DEPLOYED,
        "inputs": [{"relation": each, "kind": None, "reads": None} for each in inputs],
        "last_error": None,
    }


def stored(name: str, paths: ProjectPaths) -> dict[str, Any]:
    """Columns, rows, size and version of a table's files; nothing of it before the first deployment made it."""
    from penstock.control.lag import table_path
    from penstock.control.table_facts import table_facts as read

    found = read(table_path(paths, name))
    if found is None:
        return {"columns": [], "table": None}
    return {
        "columns": [{"name": column, "type": kind} for column, kind in found.columns],
        "table": {
            "path": _shown(table_path(paths, name), paths),
            "version": found.version,
            "rows": found.rows,
            "files": found.files,
            "bytes": found.bytes,
            "changed_at": found.changed_at,
        },
    }


def of_any_table(name: str, path: str | None, kind: str = TABLE) -> dict[str, Any]:
    """What is so of every table."""
    return {"name": name, "kind": kind, "read_only": kind == SOURCE_TABLE, "file": path}


def _start(start: str | StartAt) -> str | dict[str, Any]:
    """As it is written in YAML."""
    if isinstance(start, str):
        return start
    more = {"backfill": start.backfill} if start.backfill else {}
    if start.from_ is not None:
        return {"from": start.from_, **more}
    if start.timestamp is not None:
        return {"timestamp": start.timestamp, **more}
    words = {-2: "earliest", -1: "latest"}
    return {"offsets": {str(number): words.get(at, at) for number, at in (start.offsets or {}).items()}, **more}


def _readers(relation: str, streams: Sequence[Deployed]) -> list[dict[str, Any]]:
    return [
        {
            "stream": each.name,
            "state": each.view.state,
            "lag_rows": each.view.lag_rows,
            "last_error": each.view.error_code,
            "records": _records(relation, each),
        }
        for each in readers(relation, streams)
    ]


def _records(relation: str, stream: Deployed) -> dict[str, Any] | None:
    """How many records of a source a stream has read, and how good they were."""
    return next((asdict(each) for each in stream.view.records if each.source.lower() == relation.lower()), None)


def _judged_most(relation: str, streams: Sequence[Deployed]) -> dict[str, Any] | None:
    """Of the stream that found most: all read the same records, but not all judge all columns."""
    found = [counts for each in streams if (counts := _records(relation, each)) is not None]
    return max(found, key=lambda counts: (counts["bad"] + counts["partly_bad"], counts["records"]), default=None)


def _input(item: Input, *, full: bool) -> dict[str, Any]:
    from penstock.compiler.spec import KafkaInput, TableStreamInput

    if isinstance(item, KafkaInput):
        return {"relation": item.relation, "kind": SOURCE, "reads": item.topics}
    if full:
        reads = "as it stands at each refresh"
    elif isinstance(item, TableStreamInput):
        reads = "changes" if item.rows == "upsert" else "new rows"
    else:
        reads = "as it stands at each batch"
    return {"relation": item.relation, "kind": TABLE if isinstance(item, TableStreamInput) else "table", "reads": reads}


def _shown(path: Path, paths: ProjectPaths) -> str:
    return str(path.relative_to(paths.project)) if path.is_relative_to(paths.project) else str(path)


def with_broker(
    facts: Mapping[str, Any],
    source: StreamSource,
    settings: Callable[[], RuntimeSettings],
    paths: ProjectPaths,
    now: float,
) -> tuple[dict[str, Any], PenstockError | None]:
    """The facts with what the broker says, or with the error in its place; `settings` reads the profile."""
    try:
        return {**facts, **broker_facts(source, settings().kafka, paths, now)}, None
    except PenstockError as problem:
        return {**facts, "last_error": facts.get("last_error") or problem.as_dict()}, problem
