"""Topics as files: records of a test in the place of a broker.

Rules
- It is on when a session has the setting `spark.penstock.records`, a directory; only tests set it. Then nobody is asked
  for anything over the network: no broker, no registry, no secret.
- A topic is a directory of Parquet files with just the columns of Spark's Kafka source. A file is what one batch reads.
- A compiled job does not know: it is given a session whose `format("kafka")` reads these files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.kafka.topic_watch import Options, TopicWatch
from penstock.paths import safe_name

RECORDS_CONF = "spark.penstock.records"

COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class Record:
    """A message as Kafka has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


def home(spark: SparkSession) -> Path | None:
    """The directory of the topics; None when there is a broker."""
    found = spark.conf.get(RECORDS_CONF, None)
    return Path(found) if found else None


def write(home: Path, topic: str, number: int, records: Sequence[Record]) -> Path:
    """Add a file to a topic; files are read in the order of their numbers."""
    folder = home / safe_name(topic)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "key": each.key,
            "value": each.value,
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "timestamp": each.timestamp * 1000,
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in each.headers] or None,
        }
        for each in records
    ]
    file = folder / f"{number:06d}.parquet"
    draft = folder / f".{file.stem}.draft"  # whatever looks for *.parquet finds whole files alone
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), draft)
    os.utime(draft, (number, number))  # Spark reads the oldest first, by this time alone
    draft.replace(file)
    return file


def session(spark: SparkSession) -> SparkSession:
    """The session itself, or one that reads files where a job asks for Kafka."""
    place = home(spark)
    if place is None or isinstance(spark, _Session):
        return spark
    return cast("SparkSession", _Session(spark, place))


def watch(spark: SparkSession) -> TopicWatch:
    """What tells a full refresh where topics begin and end."""
    place = home(spark)
    return TopicWatch() if place is None else _Watch(place)


class _Session:
    """A Spark session but for `format("kafka")`."""

    def __init__(self, session: SparkSession, place: Path) -> None:
        self._session = session
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def readStream(self) -> _Reader:  # noqa: N802 -- Spark's names
        return _Reader(self._session, self._place, streaming=True)

    @property
    def read(self) -> _Reader:
        return _Reader(self._session, self._place, streaming=False)


class _Reader:
    """`spark.read` or `spark.readStream`."""

    def __init__(self, session: SparkSession, place: Path, *, streaming: bool) -> None:
        self._session = session
        self._place = place
        self._streaming = streaming

    def _real(self) -> Any:
        return self._session.readStream if self._streaming else self._session.read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def format(self, name: str) -> Any:
        if name != "kafka":
            return self._real().format(name)
        return _Topics(self._real(), self._place, streaming=self._streaming)


class _Topics:
    """Spark's Kafka source, of which the options that choose topics and partitions matter here."""

    def __init__(self, reader: Any, place: Path, *, streaming: bool) -> None:
        self._reader = reader
        self._place = place
        self._streaming = streaming
        self._options: dict[str, str] = {}

    def option(self, name: str, value: Any) -> _Topics:
        self._options[name] = str(value)
        return self

    def options(self, **options: Any) -> _Topics:
        for name, value in options.items():
            self.option(name, value)
        return self

    def load(self) -> DataFrame:
        reader = self._reader.schema(COLUMNS)
        if self._streaming:
            reader = reader.option("maxFilesPerTrigger", 1)
        if (topic := self._options.get("subscribe")) is not None:
            return self._files(reader, topic)
        if (pattern := self._options.get("subscribePattern")) is not None:
            self._place.mkdir(parents=True, exist_ok=True)
            every: DataFrame = reader.option("recursiveFileLookup", "true").parquet(str(self._place))
            return every.where(F.col("topic").rlike(f"^(?:{pattern})$"))
        assigned = json.loads(self._options["assign"])
        frames = [self._files(reader, topic).where(F.col("partition").isin(p)) for topic, p in assigned.items()]
        found = frames[0]
        for each in frames[1:]:
            found = found.unionByName(each)
        return found

    def _files(self, reader: Any, topic: str) -> DataFrame:
        folder = self._place / safe_name(topic)
        folder.mkdir(parents=True, exist_ok=True)
        found: DataFrame = reader.parquet(str(folder))
        return found


class _Watch(TopicWatch):
    """Answers from the files."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place

    def watermarks(self, bootstrap: str, topic: str, options: Options) -> tuple[dict[int, int], dict[int, int]]:
        ends: dict[int, int] = {0: 0}
        for partition, offset in self._offsets(topic):
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return dict.fromkeys(ends, 0), ends

    def offsets_at(
        self, bootstrap: str, topic: str, options: Options, milliseconds: int, partitions: tuple[int, ...]
    ) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)  # a test reads all that it is given

    def names(self, bootstrap: str, options: Options) -> list[str]:
        found: set[str] = set()
        for file in self._place.glob("*/*.parquet"):
            found.update(pq.read_table(file, columns=["topic"]).column("topic").to_pylist())
        return sorted(found)

    def _offsets(self, topic: str) -> Iterable[tuple[int, int]]:
        for file in (self._place / safe_name(topic)).glob("*.parquet"):
            table = pq.read_table(file, columns=["partition", "offset"])
            yield from zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
