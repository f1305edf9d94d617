"""The stream that keeps a source's bad records.

Rules
- A source has one quarantine, `<source>__quarantine`, however many models ask for it. It depends on the source alone:
  whichever model brings it about, the spec is the same.
- It reads the topic by itself and is as exact as any stream: a record that does not fit is in the table once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.compiler.inputs import kafka_input
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.compiler.sqltext import plain_name
from penstock.project.primary_key import RESERVED
from penstock.project.source import relation_of

SUFFIX = "__quarantine"


def quarantines(spec: StreamSpec) -> list[StreamSpec]:
    """The quarantines that a stream needs beside it."""
    return [quarantine(each) for each in spec.inputs if isinstance(each, KafkaInput) and asks(each)]


def quarantine(source: KafkaInput) -> StreamSpec:
    """The stream that keeps the bad records of a source."""
    name = f"{source.relation}{SUFFIX}"
    view = plain_name(source.relation)
    changes = {"view": view, "on_bad_record": "quarantine", "rejects": True, "watermark": None}
    rejects = source.model_copy(update={**changes, "columns": _declared(source)})
    return StreamSpec(
        name=name,
        unique_id=f"quarantine.{source.relation}",
        path=source.relation,
        sql=f"select * from {view}",
        stateful=False,
        inputs=(rejects,),
        output=Output(relation=name, mode=OutputMode.APPEND),
    )


def quarantine_of(entry: Mapping[str, Any], *, project_dir: Path | str) -> StreamSpec:
    """The quarantine of a source of the manifest."""
    return quarantine(kafka_input(entry, plain_name(relation_of(entry)), Path(project_dir)))


def same_definition(one: KafkaInput, other: KafkaInput) -> bool:
    """Whether two inputs decode a record alike."""
    return _definition(one) == _definition(other)


def _definition(source: KafkaInput) -> tuple[object, ...]:
    formats = (source.key_format, source.key_options, source.value_format, source.value_options)
    return (*formats, source.key_schema, source.value_schema, _declared(source))


def _declared(source: KafkaInput) -> tuple[Column, ...]:
    """The columns that are the user's: those that a source table adds say nothing of a message."""
    return tuple(column for column in source.columns if not column.name.startswith(RESERVED))


def asks(source: KafkaInput) -> bool:
    """Whether the stream that reads it wants its bad records to be kept."""
    return source.on_bad_record == "quarantine" and not source.rejects
