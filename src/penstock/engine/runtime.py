"""What a compiled job needs to run: the same for the engine and for `spark-submit job.py`.

Rules
- A job is a `Stream`: a function that builds the streaming DataFrame, and how and where its rows are written.
- `start` is the only place that starts a query; the engine and a job on its own both go through it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.engine import keys, tables
from penstock.engine.identity import Mark, application
from penstock.engine.sink import TableWriter, Target
from penstock.kafka.admin import resolve_bootstrap
from penstock.kafka.security import Reference, Value, effective, java_options
from penstock.paths import ProjectPaths

BOOTSTRAP_CONF = "spark.penstock.kafka.bootstrap"
KAFKA_CONF = "spark.penstock.kafka.options"  # JSON: the profile's options, with references in place of secrets
PROJECT_CONF = "spark.penstock.project"


@dataclass(frozen=True)
class Stream:
    """A compiled dynamic table."""

    name: str
    build: Callable[[SparkSession], DataFrame]
    table: str
    mode: str  # append | upsert
    keys: tuple[str, ...]
    time_window_ms: int
    continuous: bool
    shuffle_partitions: int
    small_batch_rows: int
    stateful: bool

    @property
    def output_mode(self) -> str:
        return "update" if self.mode == "upsert" else "append"


@dataclass(frozen=True)
class Running:
    """A started stream."""

    query: StreamingQuery
    writer: TableWriter


def bootstrap(spark: SparkSession, explicit: str | None) -> str:
    """The broker's address: the source's own, or the profile's as it is now."""
    project = Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".")
    return resolve_bootstrap(explicit, spark.conf.get(BOOTSTRAP_CONF, None), ProjectPaths(project))


def kafka_options(
    spark: SparkSession, explicit: str | None, own: Mapping[str, str | Mapping[str, str]] | None = None
) -> dict[str, str]:
    """The broker's address and the credentials for it, of the source or of the profile; secrets are looked up now."""
    profile = json.loads(spark.conf.get(KAFKA_CONF, None) or "{}")
    project = Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".")
    options = effective(_values(own or {}), _values(profile), own_broker=explicit is not None, base=project.absolute())
    return {"kafka.bootstrap.servers": bootstrap(spark, explicit), **java_options(options, partial(keys.opened, spark))}


def _values(options: Mapping[str, str | Mapping[str, str]]) -> dict[str, Value]:
    return {
        name: value if isinstance(value, str) else Reference.model_validate(dict(value))
        for name, value in options.items()
    }


def session_for(spark: SparkSession, stream: Stream, known: SparkSession | None = None) -> SparkSession:
    """A session of the stream's own, the `known` one or a new one: its settings and views touch nobody else's."""
    session = known or spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(stream.shuffle_partitions))
    for name in (BOOTSTRAP_CONF, KAFKA_CONF, PROJECT_CONF):
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    return session


def start(
    session: SparkSession,
    stream: Stream,
    *,
    checkpoint: Path,
    checkpoint_id: str,
    token: int,
    prepare: Callable[[TableWriter], None] | None = None,
) -> Running:
    """Start the stream on its checkpoint. `prepare` sees the writer before the first batch does."""
    # The pool is a property of this thread, and the query's own thread inherits it.
    session.sparkContext.setLocalProperty("spark.scheduler.pool", stream.name)
    session.sparkContext.setJobDescription(stream.name)
    rows = stream.build(session)
    target = Target(
        stream=stream.name,
        table=stream.table,
        path=tables.location(session, stream.table),
        mode=stream.mode,
        keys=stream.keys,
        checkpoint=checkpoint,
        checkpoint_id=checkpoint_id,
        small_batch_rows=stream.small_batch_rows,
        stateful=stream.stateful,
    )
    writer = TableWriter(target, token)
    writer.fence()
    if prepare:
        prepare(writer)
    query = (
        rows.writeStream.queryName(stream.name)
        .outputMode(stream.output_mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(writer)
        .trigger(processingTime="0 seconds" if stream.continuous else f"{stream.time_window_ms} milliseconds")
        .start()
    )
    return Running(query, writer)


def main(stream: Stream) -> None:
    """Run one job on its own, under `spark-submit`, until it ends or is interrupted."""
    from penstock.engine.session import standalone

    parser = argparse.ArgumentParser(description=f"Stream {stream.name}")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--project-dir", type=Path, default=Path.cwd(), help="project whose broker is used")
    parser.add_argument("--once", action="store_true", help="read what is there, then end")
    arguments = parser.parse_args()
    spark = standalone(stream.name, arguments.project_dir)
    session = session_for(spark, stream)
    tables.ensure(session, stream.table, stream.build(session).schema, stream.name)
    checkpoint = arguments.checkpoint.resolve()
    token = _next_token(tables.location(session, stream.table), application(stream.name, checkpoint.name))
    running = start(session, stream, checkpoint=checkpoint, checkpoint_id=checkpoint.name, token=token)
    try:
        if arguments.once:
            running.query.processAllAvailable()
        else:
            running.query.awaitTermination()
    finally:
        running.writer.close(timeout=30)
        running.query.stop()
        spark.stop()


def _next_token(path: str, app: str) -> int:
    """Without a store nobody hands out tokens; one above the last that the table's log knows does as well."""
    return Mark.of(DeltaTable(path).transaction_version(app)).token + 1
