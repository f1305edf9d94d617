"""A source table as a stream of its own: the topic, kept as the latest row of each key.

Rules
- Its name is the source's. The rows are in a table that people do not see, with the place of each row's message; what
  they read, and what nobody can write, is a view of the source's name over the declared columns.
- A message without a value deletes the row of its key. One with a null in its key is no row: a primary key has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.compiler.inputs import kafka_input, view_name
from penstock.compiler.origins import TOMBSTONE, TOPIC_PARTITION
from penstock.compiler.spec import Changes, Column, Origin, Output, OutputMode, StreamSpec
from penstock.project.primary_key import RESERVED
from penstock.project.source import is_source_table, read_source, relation_of
from penstock.project.sparktypes import quoted

HIDDEN = "penstock__"  # how the schemas of the tables begin that people do not see
CHANGES = Changes(
    partition=f"{RESERVED}partition",
    offset=f"{RESERVED}offset",
    timestamp=f"{RESERVED}timestamp",
    deleted=f"{RESERVED}deleted",
)
_PLACE = (
    Column(name=CHANGES.partition, type="STRING", origin=TOPIC_PARTITION),
    Column(name=CHANGES.offset, type="BIGINT", origin="offset"),
    Column(name=CHANGES.timestamp, type="TIMESTAMP", origin="timestamp"),
    Column(name=CHANGES.deleted, type="BOOLEAN", origin=TOMBSTONE),
)


def source_tables(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Relation -> dbt's id of every source table of a manifest, or of dbt's graph."""
    sources: Mapping[str, Mapping[str, Any]] = manifest.get("sources") or {}
    return {relation_of(sources[each]): each for each in sorted(sources) if is_source_table(sources[each])}


def compile_source_table(source: Mapping[str, Any], *, project_dir: Path | str) -> StreamSpec:
    """The spec of one source table of a manifest; raises the first thing that is wrong with it."""
    read = read_source(source, Path(project_dir))
    topic = kafka_input(source, view_name(read.relation, set()), Path(project_dir))
    topic = topic.model_copy(update={"columns": (*topic.columns, *_PLACE)})
    names = ",\n    ".join(quoted(column.name) for column in topic.columns)
    keys = " and ".join(f"{quoted(name)} is not null" for name in read.primary_key)
    return StreamSpec(
        name=read.relation,
        unique_id=read.unique_id,
        origin=Origin.SOURCE_TABLE,
        path=str(source.get("original_file_path") or source.get("path") or ""),
        sql=f"select\n    {names}\nfrom {topic.view}\nwhere {keys}",
        stateful=False,
        inputs=(topic,),
        output=Output(
            relation=f"{HIDDEN}{read.relation}",
            mode=OutputMode.UPSERT,
            keys=read.primary_key,
            changes=CHANGES,
            view=read.relation,
        ),
    )
