"""A source of the project as an input of a stream: the topic, what is in its messages, where reading begins.

Pure: what a source declares is read and checked in `project.source`; here it gets the form that specs have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from penstock.compiler.messages import with_own_fields
from penstock.compiler.spec import (
    Column,
    FromOffsets,
    FromTimestamp,
    KafkaInput,
    MessageType,
    OnBadRecord,
    Schema,
    Watermark,
)
from penstock.compiler.sqltext import plain_name
from penstock.project.schemas import PartSchema
from penstock.project.source import read_source, relation_of
from penstock.project.start import StartAt
from penstock.project.watermark import WatermarkSetting


def compile_source(source: Mapping[str, Any], *, project_dir: Path | str) -> KafkaInput:
    """A source of the manifest on its own, as a stream would read it; raises the first thing that is wrong with it."""
    return kafka_input(source, view_name(relation_of(source), set()), Path(project_dir))


def kafka_input(source: Mapping[str, Any], view: str, project: Path, on_bad_record: str | None = None) -> KafkaInput:
    """A source of the manifest, as the stream of its topic; `on_bad_record` goes before the source's own word."""
    read = read_source(source, project)
    made = KafkaInput(
        view=view,
        relation=read.relation,
        topic=read.topic,
        topic_pattern=read.topic_pattern,
        partitions=read.partitions,
        bootstrap=read.bootstrap,
        starting=_starting(read.start),
        backfill=isinstance(read.start, StartAt) and read.start.backfill is not None,
        key_format=read.key.format,
        value_format=read.value.format,
        key_options=read.key.options(),
        value_options=read.value.options(),
        columns=tuple(
            Column(
                name=each.name,
                type=each.type.ddl,
                origin=each.origin,
                expr=each.expr,
                read_as=each.read_as.ddl if each.read_as is not None else None,
            )
            for each in read.columns
        ),
        watermark=watermark_of(read.watermark),
        on_bad_record=cast("OnBadRecord", on_bad_record or read.on_bad_record),
        options=read.options,
        registry=read.registry if read.key_schema or read.value_schema else (),
        key_schema=_schema(read.key_schema),
        value_schema=_schema(read.value_schema),
    )
    return with_own_fields(made)


def view_name(relation: str, taken: set[str]) -> str:
    """shop.clicks -> shop__clicks: a name in SQL and in Python that nothing else of the model has."""
    plain = plain_name(relation)
    view, number = plain, 1
    while view in taken:
        number += 1
        view = f"{plain}_{number}"
    taken.add(view)
    return view


def watermark_of(setting: WatermarkSetting | None) -> Watermark | None:
    """A watermark of the project as that of an input."""
    return None if setting is None else Watermark(column=setting.column, delay=setting.delay)


def _schema(schema: PartSchema | None) -> Schema | None:
    if schema is None:
        return None
    types = tuple(MessageType(name=each.name, content=each.content) for each in schema.types)
    return Schema(framed=schema.framed, subjects=schema.subjects, types=types)


def _starting(start: str | StartAt) -> str | FromTimestamp | FromOffsets:
    if isinstance(start, str):
        return start
    if start.time is not None:
        return FromTimestamp(timestamp=start.time)
    if start.from_ is not None:
        return "earliest"
    return FromOffsets(offsets=tuple(sorted((start.offsets or {}).items())))
