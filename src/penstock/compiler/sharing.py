"""Which streams may share the reading of their topic. Pure.

Rules
- Streams share a reading when each reads one topic, and they read it in the same way and at the same pace: broker,
  credentials, topic, partitions, and when a batch is due. What is decoded of a message is each stream's own matter.
- A stream that keeps state, or whose query Spark could not run on a batch by itself with the same outcome, reads alone.
- A reason is a sentence for people, after the word "alone:".
"""

from __future__ import annotations

import json

from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.compiler.statement import stream_reads
from penstock.errors import PenstockError
from penstock.kafka.security import is_security


def why_alone(spec: StreamSpec) -> str | None:
    """Why the stream reads its inputs by itself; None when it may share the reading with others."""
    if spec.is_full:
        return "it is computed anew, from all that its inputs hold."
    if spec.is_real_time:
        return "it runs in real time."
    streams = [each for each in spec.inputs if each.kind != "table"]
    if len(streams) != 1:
        return "it reads more than one stream." if streams else "it reads no stream."
    source = streams[0]
    if not isinstance(source, KafkaInput):
        return "it reads a dynamic table, not a topic."
    if spec.stateful or spec.deduplicate_by or spec.follow is not None:
        return "it keeps state."
    if spec.small_batch_rows <= 0:
        return "its batches are written by Spark (small_batch_rows: 0)."
    return _of_source(source) or _of_query(spec.sql, source)


def _of_source(source: KafkaInput) -> str | None:
    if source.topic is None:
        return "its topics are chosen by a pattern."
    if source.key_schema is not None or source.value_schema is not None:
        return "its messages have a schema, which is looked up when a stream starts."
    if any(not is_security(name) for name, _ in source.options):
        return "its source has Kafka settings of its own."
    return None


def _of_query(sql: str, source: KafkaInput) -> str | None:
    try:
        reads = stream_reads(sql, {source.view})
    except PenstockError:
        return "its query could not be looked into."
    return None if len(reads) == 1 else "its query reads the source more than once."


def reading(spec: StreamSpec) -> str | None:
    """What streams that share a reading have in common, as a text; None for one that reads alone."""
    if why_alone(spec) is not None:
        return None
    source = next(each for each in spec.inputs if isinstance(each, KafkaInput))
    trigger = spec.trigger
    return json.dumps(
        {
            "topic": source.topic,
            "partitions": source.partitions,
            "bootstrap": source.bootstrap,
            "options": [[name, str(value)] for name, value in source.options],  # secrets are references
            "buffer": trigger.buffer_limit,
            "window": trigger.time_window_ms if trigger.buffer_limit > 1 else None,  # else nobody waits for it
            "most": trigger.max_batch_rows,
        },
        sort_keys=True,
    )


def topic_of(spec: StreamSpec) -> KafkaInput:
    """The topic that a stream with a `reading` reads."""
    return next(each for each in spec.inputs if isinstance(each, KafkaInput))
