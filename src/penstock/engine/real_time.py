"""Streams by Spark's real-time trigger: from topic to topic within milliseconds, by Spark's own sink.

Rules
- A stream holds a core of the engine for each partition that it reads, as long as it runs. One is left for everything
  else: a stream that would take the last one is refused.
- A batch ends every few seconds, when offsets are written down. What was published since comes again after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from penstock.compiler.spec import Publish
from penstock.errors.catalogue import REAL_TIME_SLOTS
from penstock.project.sparktypes import quoted

BATCH_MS = 5000  # the least that Spark takes

_guard = threading.Lock()
_held: dict[str, tuple[StreamingQuery, int]] = {}  # stream -> its query and the cores that it holds


def to_messages(rows: DataFrame, publish: Publish) -> DataFrame:
    """Key and value of each row, by Spark's own functions."""
    columns = [name for name in rows.columns if publish.key_in_value or name not in publish.key]
    parts = [_object(columns).alias("value")]
    if len(publish.key) == 1 and publish.key_format == "string":
        parts.append(F.col(quoted(publish.key[0])).cast("string").alias("key"))
    elif publish.key:
        parts.append(_object(publish.key).alias("key"))
    return rows.select(*parts)


def start(
    rows: DataFrame,
    publish: Publish,
    *,
    name: str,
    options: Mapping[str, str],
    checkpoint: Path,
    partitions: int,
    time_window_ms: int,
) -> StreamingQuery:
    """Start the query; PEN-4043 when the engine has no cores left for it."""
    cores = rows.sparkSession.sparkContext.defaultParallelism
    with _guard:
        for other in [other for other, (query, _) in _held.items() if not query.isActive or other == name]:
            del _held[other]
        held = sum(count for _, count in _held.values())
        if held + partitions >= cores:
            others = f", and {held} are held by others" if held else ""
            raise REAL_TIME_SLOTS.error(f"{name} reads {partitions} partitions; the engine has {cores} cores{others}.")
        query = (
            to_messages(rows, publish)
            .writeStream.queryName(name)
            .format("kafka")
            .options(**options)
            .option("kafka.linger.ms", "0")
            .option("topic", publish.topic)
            .option("checkpointLocation", str(checkpoint))
            .outputMode("update")
            .trigger(realTime=f"{max(time_window_ms, BATCH_MS)} milliseconds")
            .start()
        )
        _held[name] = (query, partitions)
    return query


def _object(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*[quoted(name) for name in columns]), {"ignoreNullFields": "false"})
