"""Messages that were read once, given to the jobs of several streams.

Rules
- A compiled job does not know: it is given a session whose `format("kafka")` has these messages, all of them and in
  their order, in the place of those that Spark would read.
- What jobs decode with the same text is decoded once, and counted once (`runtime.counted`, `runtime.rows`): records
  and rows stay in the JVM, as relations that plans of any session can hold. Jobs that take other columns decode by
  themselves, from the same messages.
- What a job makes of few messages by projections and filters alone, Spark's optimizer has computed when it is done:
  such rows are fetched without a job of Spark's, which would take longer than all the rest.
- The first job that asks does the work; the views on the way to it are made for that one alone. When it fails, each of
  the others tries for itself and fails by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from penstock.engine.topic_files import ARROW
from penstock.kafka.slices import Message

_COMPUTED = "LocalTableScan"  # what is left of a plan whose rows are known
_FEW = 2_000  # messages
_PART = 4 << 20  # bytes that are handed over at once
SINGLE = "spark.sql.leafNodeDefaultParallelism"  # few rows are worth one task


@dataclass(frozen=True)
class Computed:
    """Rows of a query, in memory, and what was counted on the way."""

    relation: Any  # a plan of the JVM's
    counts: Mapping[str, int]


class Given:
    """The messages of one batch."""

    def __init__(self, session: SparkSession, messages: Sequence[Message]) -> None:
        self._session = session
        self._messages = messages
        self._lock = threading.Lock()
        self._records: Any = None
        self._computed: dict[tuple[str, str], Computed] = {}  # source and text
        self._turns: dict[tuple[str, str], threading.Lock] = {}

    @property
    def size(self) -> int:
        return len(self._messages)

    def records(self, session: SparkSession) -> DataFrame:
        """The messages, with the columns of Spark's Kafka source."""
        with self._lock:
            if self._records is None:
                frame = self._session.createDataFrame(arrow_of(self._messages))
                self._records = frame._jdf.queryExecution().analyzed()
        return _frame(session, self._records)

    def once(self, session: SparkSession, source: str, sql: str, query: Callable[[], DataFrame]) -> Computed:
        """What the query makes of the messages, computed by the first who asks for that text."""
        key = (source, sql)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            if key not in self._computed:
                self._computed[key] = _computed(session, source, query())
            return self._computed[key]


class AtHand(ClassicDataFrame):  # type: ignore[misc]
    """Rows of a job that had given messages; fetched without a job of Spark's where Spark has computed them already."""

    def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
        plan = self._jdf.queryExecution().executedPlan()
        if plan.nodeName() != _COMPUTED:
            return super().toArrow()
        session = self.sparkSession
        converters = getattr(_class(session, "org.apache.spark.sql.execution.arrow.ArrowConverters$"), "MODULE$")
        rows = _class(session, "scala.collection.immutable.ArraySeq").unsafeWrapArray(plan.executeCollect())
        if rows.isEmpty():
            return _table(converters.createEmptyArrowBatch(plan.schema(), "UTC", True, False))
        parts = converters.toBatchWithSchemaIterator(rows.iterator(), plan.schema(), 0, _PART, "UTC", True, False)
        found = []
        while parts.hasNext():
            found.append(_table(parts.next()))
        return pa.concat_tables(found)


def _table(stream: bytes) -> pa.Table:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


class GivenSession:
    """A Spark session but for `format("kafka")`."""

    def __init__(self, session: SparkSession, given: Given) -> None:
        self._session = session
        self._given = given
        self._later: dict[str, Callable[[], DataFrame]] = {}  # views that were not needed yet
        self.counts: dict[str, Mapping[str, int]] = {}  # source -> what was counted of its records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def size(self) -> int:
        return self._given.size

    @property
    def readStream(self) -> _Reader:  # noqa: N802 -- Spark's names
        return _Reader(self)

    def records(self) -> DataFrame:
        return self._view(lambda: self._given.records(self._session))

    def counted(self, source: str, sql: str, query: Callable[[], DataFrame]) -> DataFrame:
        """The judged records of a source; their counts are kept."""
        found = self._given.once(self._session, source, sql, lambda: self._with_views(query))
        self.counts[source] = found.counts
        return self._view(lambda: _frame(self._session, found.relation))

    def rows(self, source: str, sql: str, query: Callable[[], DataFrame]) -> DataFrame:
        """The rows of a source."""
        found = self._given.once(self._session, source, sql, lambda: self._with_views(query))
        return _frame(self._session, found.relation)

    def _view(self, make: Callable[[], DataFrame]) -> DataFrame:
        return cast("DataFrame", _View(self._later, make))

    def _with_views(self, query: Callable[[], DataFrame]) -> DataFrame:
        for name in list(self._later):
            self._later.pop(name)().createOrReplaceTempView(name)
        return query()


class _View:
    """Rows that a job makes a view of, which is made when somebody reads it."""

    def __init__(self, later: dict[str, Callable[[], DataFrame]], make: Callable[[], DataFrame]) -> None:
        self._later = later
        self._make = make

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 -- Spark's names
        self._later[name] = self._make


def built(build: Callable[[SparkSession], DataFrame], session: SparkSession) -> DataFrame:
    """What a job makes of the messages that its session is given; many of them are worth a job of Spark's."""
    rows = build(session)
    few = cast("GivenSession", session).size <= _FEW
    return AtHand(rows._jdf, rows.sparkSession) if few else rows


def session(session: SparkSession, given: Given) -> SparkSession:
    """The session, for a job that is to have these messages."""
    return cast("SparkSession", GivenSession(session, given))


def counts(session: SparkSession) -> dict[str, Mapping[str, int]]:
    return cast("GivenSession", session).counts


class _Reader:
    """`spark.readStream`."""

    def __init__(self, session: GivenSession) -> None:
        self._session = session

    def format(self, name: str) -> _Records:
        assert name == "kafka", "a stream that shares its reading reads one topic and nothing else"
        return _Records(self._session)


class _Records:
    """Spark's Kafka source. What is asked of the broker was decided before."""

    def __init__(self, session: GivenSession) -> None:
        self._session = session

    def option(self, _name: str, _value: Any) -> _Records:
        return self

    def options(self, **_options: Any) -> _Records:
        return self

    def load(self) -> DataFrame:
        return self._session.records()


def arrow_of(messages: Sequence[Message]) -> pa.Table:
    """Messages as Spark's Kafka source has them."""
    columns = {
        "key": [each.key for each in messages],
        "value": [each.value for each in messages],
        "topic": [each.topic for each in messages],
        "partition": [each.partition for each in messages],
        "offset": [each.offset for each in messages],
        "timestamp": [each.timestamp * 1000 for each in messages],
        "timestampType": [each.timestamp_type for each in messages],
        "headers": [
            [{"key": name, "value": value} for name, value in each.headers] if each.headers else None
            for each in messages
        ],
    }
    return pa.table({name: pa.array(values, ARROW.field(name).type) for name, values in columns.items()}, ARROW)


def _frame(session: SparkSession, plan: Any) -> DataFrame:
    """A plan as a DataFrame of a session, whichever session it comes from."""
    dataset = _class(session, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


def _class(session: SparkSession, name: str) -> Any:
    """A class of the JVM's by its whole name: part by part, the JVM would look through all jars for each of them."""
    return getattr(session._jvm, name)


def _computed(session: SparkSession, source: str, query: DataFrame) -> Computed:
    execution = query._jdf.queryExecution()
    plan = execution.executedPlan()
    rows = _class(session, "scala.collection.immutable.ArraySeq").unsafeWrapArray(plan.executeCollect())
    relations = _class(session, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation")
    relation = relations(plan.output(), rows, False, _class(session, "scala.Option").empty())
    found = execution.observedMetrics().get(source)
    counts: dict[str, int] = {}
    if found.isDefined():
        row = found.get()
        counts = {str(name): int(row.getLong(at)) for at, name in enumerate(row.schema().fieldNames())}
    return Computed(relation, counts)
