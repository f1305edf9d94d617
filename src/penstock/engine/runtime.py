"""What a compiled job needs to run: the same for the engine and for `spark-submit job.py`.

Rules
- A job is a `Stream`: a function that builds the streaming DataFrame, and how and where its rows are written.
- `start` is the only place that starts a query; the engine and a job on its own both go through it.
- A stream with a backfill first reads what is there, in large batches, and ends by itself; whoever runs it notes that
  (`checkpoint.backfill`) and starts it again, on the same checkpoint, as it then stays. One that could take rows for
  late reads it in a single batch: of partitions that cover different times, one would bring the watermark past what
  another has still to give.
- A stream that replaces its table is no Spark query but a loop of the engine's own (`engine.refresh`), with the same
  life. So is one that shares the reading of its topic with others (`engine.shared`), on the same checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from penstock.checkpoint import backfill, leftovers
from penstock.checkpoint.standing import Standing
from penstock.compiler.messages import Messages
from penstock.compiler.quality import BAD, EMPTY, PARTLY
from penstock.compiler.spec import IN_ORDER_MS, Publish
from penstock.engine import columns, failures, functions, keys, pools, real_time, snapshot, tables, topic_files
from penstock.engine.changed_rows import Deletions, Follow
from penstock.engine.changes import Changes
from penstock.engine.expectations import Judge
from penstock.engine.given import SINGLE, GivenSession, built
from penstock.engine.identity import Mark, application
from penstock.engine.messages import REGISTRY_CONF, decoded, note_unknown
from penstock.engine.publish import Publisher, not_published
from penstock.engine.refresh import Plan, Refresh
from penstock.engine.shared import Member, Pace, Readers
from penstock.engine.sink import TableWriter, Target, TopicWriter
from penstock.engine.snapshot import Broker, Topic
from penstock.errors.catalogue import SOURCE_ANALYSIS
from penstock.kafka.admin import cluster_id, resolve_bootstrap
from penstock.kafka.security import effective, java_options, values_of
from penstock.kafka.tail import Tail
from penstock.kafka.topic_watch import TopicWatch
from penstock.kafka.writing import ensure_topic
from penstock.paths import ProjectPaths, is_beside
from penstock.project.expectations import Expectation

__all__ = [
    "Expectation",
    "Messages",
    "Running",
    "Stream",
    "decoded",
    "kafka_options",
    "main",
    "rows",
    "session_for",
    "start",
]

log = logging.getLogger(__name__)

BOOTSTRAP_CONF = "spark.penstock.kafka.bootstrap"
KAFKA_CONF = "spark.penstock.kafka.options"  # JSON: the profile's options, with references in place of secrets
PROJECT_CONF = "spark.penstock.project"
_HISTORY_CONF = "spark.penstock.history"  # of a session whose stream reads its history
_HISTORY_TIMES = 10
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"


# What is counted of the records of a source, batch by batch.
COUNTS = {
    "records": "count(*)",
    "empty": f"count(if(quality = '{EMPTY}', 1, null))",
    "bad": f"count(if(quality = '{BAD}', 1, null))",
    "partly_bad": f"count(if(quality = '{PARTLY}', 1, null))",
}


@dataclass(frozen=True)
class Stream:
    """A compiled dynamic table or source table."""

    name: str
    build: Callable[[SparkSession], DataFrame]
    table: str
    mode: str  # append | upsert | replace
    keys: tuple[str, ...]
    time_window_ms: int
    continuous: bool
    shuffle_partitions: int
    small_batch_rows: int
    stateful: bool
    in_order: bool = False  # the rows of a key are taken as they come, of tables, too
    joined: bool = False  # an upsert of the rows of a join of two streams, which never change
    view: str | None = None  # what people read in the place of the table
    changes: Changes | None = None
    follow: Follow | None = None
    expectations: tuple[Expectation, ...] = ()
    counts_rows: bool = False  # how many rows the table has is told with each batch
    definition: str = ""  # of a full refresh: another one is a reason to refresh
    topics: tuple[Topic, ...] = ()  # that a full refresh, or a stream in real time, reads
    tables: tuple[str, ...] = ()  # the dynamic tables that a full refresh reads
    backfill: bool = False  # it begins with what is there, in large batches
    publish: Publish | None = None
    on_schema_change: str = columns.FAIL
    functions: Mapping[str, str] = field(default_factory=dict)  # of the project, that the SQL calls

    @property
    def is_full(self) -> bool:
        return self.mode == "replace"

    @property
    def judge(self) -> Judge | None:
        """Of rows that are expected to be somehow. What follows an aggregate or a change leaves no row behind; a row of
        a join of two streams follows nothing: it says no more of the row before than a message does."""
        follows = self.mode == "upsert" and not self.joined and (self.stateful or self.follow is not None)
        return Judge(self.name, self.expectations, deletes=follows) if self.expectations else None

    @property
    def has_table(self) -> bool:
        return self.publish is None or self.publish.table

    @property
    def output_mode(self) -> str:
        """Spark's. It joins two streams in append mode alone, whatever the table does with the rows."""
        return "update" if self.mode == "upsert" and not self.joined else "append"


@dataclass(frozen=True)
class Running:
    """A started stream."""

    query: StreamingQuery | Refresh | Member
    writer: TableWriter
    history: Path | None = None  # the checkpoint of one that ends by itself, when it has read what was there


@dataclass(frozen=True)
class Sharing:
    """With whom a stream reads its topic, from where on and at which pace."""

    readers: Readers
    key: str
    topic: Topic
    pace: Pace
    stands: Standing
    run_id: str | None = None  # of the query that it goes on for: to whoever watches, it is the same run


def bootstrap(spark: SparkSession, explicit: str | None) -> str:
    """The broker's address: the source's own, or the profile's as it is now."""
    project = Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".")
    return resolve_bootstrap(explicit, spark.conf.get(BOOTSTRAP_CONF, None), ProjectPaths(project))


def kafka_options(
    spark: SparkSession, explicit: str | None, own: Mapping[str, str | Mapping[str, str]] | None = None
) -> dict[str, str]:
    """The broker's address and the credentials for it, of the source or of the profile; secrets are looked up now."""
    if isinstance(spark, GivenSession):
        return {}  # nobody asks the broker
    if topic_files.home(spark) is not None:
        return {}  # a test has no broker
    profile = json.loads(spark.conf.get(KAFKA_CONF, None) or "{}")
    project = Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".")
    options = effective(
        values_of(own or {}), values_of(profile), own_broker=explicit is not None, base=project.absolute()
    )
    return {"kafka.bootstrap.servers": bootstrap(spark, explicit), **java_options(options, partial(keys.opened, spark))}


def paced(
    spark: SparkSession, max_rows: int, min_rows: int = 1, delay_ms: int = 0, *, at_once: bool = False
) -> dict[str, str]:
    """How many messages a batch reads: many, or all `at_once`, while a stream reads its history, else as the model
    says."""
    if spark.conf.get(_HISTORY_CONF, "false") == "true":
        return {} if at_once else {"maxOffsetsPerTrigger": str(max_rows * _HISTORY_TIMES)}
    held = {"minOffsetsPerTrigger": str(min(min_rows, max_rows)), "maxTriggerDelay": f"{delay_ms}ms"}
    return {"maxOffsetsPerTrigger": str(max_rows), **(held if min_rows > 1 else {})}


def snapshot_options(spark: SparkSession, topic: Topic) -> dict[str, str]:
    """What a refresh reads of a topic: the broker, the credentials and the offsets between which it reads."""
    # Messages that retention takes away while they are read are no longer part of what the topic holds.
    options = kafka_options(spark, topic.bootstrap, topic.security)
    return {**options, **snapshot.bounds_of(spark, topic), "failOnDataLoss": "false"}


def profile_broker(spark: SparkSession) -> Broker:
    """The broker of the profile."""
    return broker_of(spark, Topic(relation=""))


def broker_of(spark: SparkSession, topic: Topic) -> Broker:
    """Where a topic is: on the broker of its source, or on that of the profile."""
    if topic_files.home(spark) is not None:
        return Broker("", ())
    project = Path(spark.conf.get(PROJECT_CONF, str(Path.cwd())) or ".")
    profile = values_of(json.loads(spark.conf.get(KAFKA_CONF, None) or "{}"))
    own = topic.bootstrap is not None
    options = effective(values_of(topic.security), profile, own_broker=own, base=project.absolute())
    return Broker(bootstrap(spark, topic.bootstrap), tuple(sorted(options.items())))


def rows(spark: SparkSession, source: str, sql: str) -> DataFrame:
    """The rows of a source. What Spark has against it is told as a fault of the source, not of the model."""
    if isinstance(spark, GivenSession):
        return spark.rows(source, sql, lambda: _of_source(spark, source, sql))
    return _of_source(spark, source, sql)


def _of_source(spark: SparkSession, source: str, sql: str) -> DataFrame:
    try:
        return spark.sql(sql)
    except AnalysisException as problem:
        raise SOURCE_ANALYSIS.error(f"source {source}: {failures.sentence(problem)}") from problem


def counted(spark: SparkSession, source: str, sql: str) -> DataFrame:
    """The records of a source with their quality, which are counted as they pass: see `penstock.engine.listener`."""

    def judged() -> DataFrame:
        counts = [F.expr(f"{count} as {name}") for name, count in COUNTS.items()]
        return _of_source(spark, source, sql).observe(source, *counts)

    return spark.counted(source, sql, judged) if isinstance(spark, GivenSession) else judged()


def changes_of(spark: SparkSession, table: str) -> DataFrame:
    """The changes of a table, as a stream: first all its rows, then what is inserted, updated and deleted."""
    tables.keep_changes(spark, table)
    reader = spark.readStream.format("delta").option("readChangeFeed", "true").option("maxBytesPerTrigger", "64m")
    return reader.table(table)


def session_for(spark: SparkSession, stream: Stream, known: SparkSession | None = None) -> SparkSession:
    """A session of the stream's own, the `known` one or a new one: its settings, views and functions touch nobody
    else's."""
    session = known or spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(stream.shuffle_partitions))
    functions.make(session, stream.functions)
    # A join that shuffles rows loses their order: better that it fails where there is no room for the table.
    session.conf.set(_BROADCAST, str(2**63 - 1) if stream.in_order else spark.conf.get(_BROADCAST))
    return topic_files.session(own_session(spark, session))


def own_session(spark: SparkSession, session: SparkSession | None = None) -> SparkSession:
    """A session that knows the project's broker and registry."""
    session = session or spark.newSession()
    for name in (BOOTSTRAP_CONF, KAFKA_CONF, REGISTRY_CONF, PROJECT_CONF, topic_files.RECORDS_CONF):
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    return session


def table_schema(session: SparkSession, stream: Stream, rows: StructType) -> StructType:
    """The columns of the stream's table: those of its rows, without the mark of deletion."""
    if stream.follow is not None:
        return stream.follow.schema(session, rows)
    return StructType(
        [field for field in rows.fields if stream.changes is None or field.name != stream.changes.deleted]
    )


def fitted(session: SparkSession, stream: Stream) -> Stream:
    """The stream, with rows that have the columns of its table where the query may have others."""
    if stream.on_schema_change == columns.FAIL or not stream.has_table or not tables.exists(session, stream.table):
        return stream
    there, build, follow = session.table(tables.quoted(stream.table)).schema, stream.build, stream.follow
    if follow is not None:
        return replace(stream, follow=replace(follow, make=lambda rows: columns.fitted(follow.make(rows), there)))
    return replace(stream, build=lambda spark: columns.fitted(build(spark), there))


def ensure_table(session: SparkSession, stream: Stream, schema: StructType, *, full_refresh: bool = False) -> bool:
    """Make the stream's table, and the view over it, when they are missing; True when the table was made now."""
    if not stream.has_table:
        if full_refresh:
            tables.drop(session, stream.table, stream.name)  # it had one before
        return False
    if stream.view is not None:
        tables.free_view(session, stream.view, stream.name, full_refresh=full_refresh)
    made = tables.ensure(session, stream.table, schema, stream.name, full_refresh=full_refresh)
    ensure_view(session, stream, anew=made)
    return made


def ensure_view(session: SparkSession, stream: Stream, *, anew: bool = False) -> None:
    """Make the view that people read when it is missing, or `anew`: whoever may drop a table may drop a view, too."""
    if stream.view is None or (not anew and tables.exists(session, stream.view)):
        return
    place = {stream.changes.partition, stream.changes.offset, stream.changes.timestamp} if stream.changes else set()
    shown = [name for name in session.table(tables.quoted(stream.table)).columns if name not in place]
    tables.make_view(session, stream.view, stream.table, shown, stream.name)


def start(
    session: SparkSession,
    stream: Stream,
    *,
    checkpoint: Path,
    checkpoint_id: str,
    token: int,
    prepare: Callable[[TableWriter, Refresh | Member | None], None] | None = None,
    sharing: Sharing | None = None,
) -> Running:
    """Start the stream on its checkpoint. `prepare` sees the writer, and what is no query of Spark's, before the first
    batch does."""
    stream = fitted(session, stream)
    history = stream.backfill and not backfill.is_over(checkpoint)
    # The pool is a property of this thread, and the query's own thread inherits it.
    pools.enter(session.sparkContext, _pool(stream, history=history))
    session.sparkContext.setJobDescription(stream.name)
    session.conf.set(_HISTORY_CONF, str(history).lower())
    rows = None if stream.is_full else stream.build(session)
    judge, follow = stream.judge, stream.follow
    deletes = follow is not None or (judge is not None and judge.deletes and judge.drops)
    target = Target(
        stream=stream.name,
        table=stream.table,
        path=tables.location(session, stream.table) if stream.has_table else "",
        mode=stream.mode,
        keys=stream.keys,
        checkpoint=checkpoint,
        checkpoint_id=checkpoint_id,
        small_batch_rows=0 if history else stream.small_batch_rows,
        stateful=stream.stateful,
        changes=Deletions() if deletes else stream.changes,
        follow=follow if follow is None or judge is None else _judging(follow, judge),
        judge=judge,
        counts_rows=stream.counts_rows,
    )
    publisher = None
    if rows is not None and stream.publish is not None and not stream.publish.real_time:
        publisher = publisher_of(session, stream.publish, table_schema(session, stream, rows.schema), target)
    else:
        not_published(checkpoint)
    writer = (TableWriter if stream.has_table else TopicWriter)(target, token, publisher)
    writer.fence()
    if rows is None:
        refresh = Refresh(session, _refreshes(session, stream), writer, checkpoint)
        if prepare:
            prepare(writer, refresh)
        refresh.start()
        return Running(refresh, writer)
    if sharing is not None:
        return Running(_shared(session, stream, sharing, writer, checkpoint, prepare), writer)
    if left := leftovers.sweep(checkpoint):
        log.info("%s: cleared what a batch that was never planned left: %s", stream.name, ", ".join(left))
    if prepare:
        prepare(writer, None)
    if stream.publish is not None and stream.publish.real_time:
        return Running(_in_real_time(session, stream, stream.publish, rows, checkpoint), writer)
    sink = (
        rows.writeStream.queryName(stream.name)
        .outputMode(stream.output_mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(writer)
    )
    if history:
        return Running(sink.trigger(availableNow=True).start(), writer, checkpoint)
    # One file at each look: at the pace of its time window it would never catch up with who writes as often.
    window = min(stream.time_window_ms, IN_ORDER_MS) if stream.in_order else stream.time_window_ms
    every = "0 seconds" if stream.continuous else f"{window} milliseconds"
    return Running(sink.trigger(processingTime=every).start(), writer)


def _pool(stream: Stream, *, history: bool) -> str:
    if stream.publish is not None and stream.publish.real_time:
        return pools.REAL_TIME
    return pools.LONG if history or is_beside(stream.name) else pools.STREAMS


def _shared(
    session: SparkSession,
    stream: Stream,
    sharing: Sharing,
    writer: TableWriter,
    checkpoint: Path,
    prepare: Callable[[TableWriter, Refresh | Member | None], None] | None,
) -> Member:
    session.conf.set(SINGLE, "1")
    broker, topic = broker_of(session, sharing.topic), sharing.topic
    build = partial(built, stream.build)
    member = Member(session, stream.name, build, writer, checkpoint, sharing.stands, sharing.run_id)
    if prepare:
        prepare(writer, member)

    def tail() -> Tail:
        return Tail(broker.bootstrap, str(topic.topic), topic.partitions, dict(broker.options))

    sharing.readers.join((sharing.key, broker), member, f"topic '{topic.topic}'", tail, sharing.pace)
    return member


def behind(session: SparkSession, topic: Topic, stands: Standing) -> int:
    """How many messages of a topic a stream has not read."""
    watch = TopicWatch()
    try:
        ends = snapshot.ends(watch, topic, broker_of(session, topic))
    finally:
        watch.close()
    return sum(end - stands.position.get(number, 0) for parts in ends.values() for number, end in parts.items())


def _in_real_time(
    session: SparkSession, stream: Stream, publish: Publish, rows: DataFrame, checkpoint: Path
) -> StreamingQuery:
    broker = profile_broker(session)
    watch = TopicWatch()
    try:
        ends = [snapshot.ends(watch, topic, broker_of(session, topic)) for topic in stream.topics]
    finally:
        watch.close()
    ensure_topic(broker.bootstrap, publish.topic, dict(broker.options), partitions=publish.partitions)
    return real_time.start(
        rows,
        publish,
        name=stream.name,
        options=kafka_options(session, None),
        checkpoint=checkpoint,
        partitions=sum(len(parts) for each in ends for parts in each.values()),
        time_window_ms=stream.time_window_ms,
    )


def publisher_of(
    session: SparkSession, publish: Publish | None, schema: StructType, target: Target
) -> Publisher | None:
    """What writes rows of that schema to the stream's topic; None when it has none."""
    if publish is None:
        return None
    return Publisher(
        session,
        target.stream,
        publish,
        schema,
        profile_broker(session),
        upsert=target.mode == "upsert",
        checkpoint=target.checkpoint,
        checkpoint_id=target.checkpoint_id,
    )


def _judging(follow: Follow, judge: Judge) -> Follow:
    return replace(follow, make=lambda rows: judge.judged(follow.make(rows)))


def _refreshes(session: SparkSession, stream: Stream) -> Plan:
    return Plan(
        name=stream.name,
        definition=stream.definition,
        build=stream.build,
        topics=[(topic, broker_of(session, topic)) for topic in stream.topics],
        followed=stream.tables,
        time_window_ms=stream.time_window_ms,
        watch=topic_files.watch(session),
        clusters=partial(_clusters, session, stream),
    )


def _clusters(session: SparkSession, stream: Stream) -> dict[str, str]:
    """The clusters of a stream's topics, as far as their brokers tell."""
    if topic_files.home(session) is not None:
        return {}  # a test has no broker
    brokers = {topic.relation: broker_of(session, topic) for topic in stream.topics}
    found = {relation: cluster_id(each.bootstrap, dict(each.options)) for relation, each in brokers.items()}
    return {relation: each for relation, each in found.items() if each is not None}


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
    stream = fitted(session, stream)
    ensure_table(session, stream, table_schema(session, stream, stream.build(session).schema))
    checkpoint = arguments.checkpoint.resolve()
    token = 1  # without a table, producers are told apart by the broker
    if stream.has_table:
        token = _next_token(tables.location(session, stream.table), application(stream.name, checkpoint.name))
    try:
        while _run(session, stream, checkpoint, token, once=arguments.once):
            token += 1
    finally:
        spark.stop()


def _run(session: SparkSession, stream: Stream, checkpoint: Path, token: int, *, once: bool) -> bool:
    """Run the stream to its end; True if it must be run again: it met a schema that it did not know, or has only read
    its history."""
    running = start(session, stream, checkpoint=checkpoint, checkpoint_id=checkpoint.name, token=token)
    query = running.query
    assert not isinstance(query, Member)  # a job on its own shares nothing
    try:
        if once:
            query.processAllAvailable()
        else:
            query.awaitTermination()
        if running.history is not None:
            backfill.mark_over(running.history)
            return True
    except StreamingQueryException as problem:
        if not note_unknown(session, str(problem)):
            raise
        return True
    finally:
        running.writer.close(timeout=30)
        query.stop()
    return False


def _next_token(path: str, app: str) -> int:
    """Without a store nobody hands out tokens; one above the last that the table's log knows does as well."""
    return Mark.of(DeltaTable(path).transaction_version(app)).token + 1
