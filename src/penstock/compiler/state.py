"""What the state of a stream is made of.

Rules
- A state behind a watermark is forgotten, and what comes later for it is left out: which rows those are depends on the
  event time of all that the stream reads.
- Groups of one stream that are kept for ever know nothing of it, unless the query makes something of the event time.
"""

from __future__ import annotations

from penstock.compiler.spec import KafkaInput, OutputMode, StreamSpec, TableStreamInput, Watermark
from penstock.compiler.statement import names_used, stream_reads


def knows_time(spec: StreamSpec, watermark: Watermark | None) -> bool:
    """Whether what a stream keeps depends on this watermark of what it reads."""
    if watermark is None or not spec.stateful:
        return False
    names = names_used(spec.sql)
    if names is None or watermark.column.lower() in names:
        return True
    kept = spec.output.mode is OutputMode.UPSERT and not spec.deduplicate_by
    return not kept or len(reads(spec)) > 1


def reads(spec: StreamSpec) -> list[str]:
    """The streams in the order in which the query reads them; a view's name is nobody's choice."""
    streams = {each.view: each.relation for each in spec.inputs if isinstance(each, KafkaInput | TableStreamInput)}
    return [streams[view] for view in stream_reads(spec.sql, streams)]
