"""A stream's rows as messages of a topic: beside its table or in its place.

Rules
- The topic has an identity of its own for each batch, as the table has: a batch that is in one of them and not in the
  other is written to the other alone when it comes again.
- Schemas are registered when a stream starts, under `<topic>-key` and `<topic>-value`; the topic is made then, too.
- Changed rows are messages by the key of the table, rows that are gone messages without a value.
- Messages are made partition by partition or chunk by chunk; a large batch is never here as a whole.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.checkpoint.offsets import committed_batch
from penstock.compiler.publish import Field, Layout, avro_name, avro_schema, layout, protobuf_name, protobuf_schema
from penstock.compiler.spec import Publish
from penstock.engine import encoders, messages
from penstock.engine.changed_rows import GONE
from penstock.engine.identity import NO_BATCH, application
from penstock.engine.snapshot import Broker
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import PUBLISH_FORGOTTEN, PUBLISH_NULL_KEY, REGISTRY_UNREACHABLE
from penstock.kafka.writing import Message, TopicProducer, TransactionalProducer, ensure_topic
from penstock.project.protobuf import ProtobufSchema
from penstock.project.protoc import compiled
from penstock.registry.register import Registrar

log = logging.getLogger(__name__)

Encoder = Callable[[Mapping[str, Any]], bytes | None]
CHUNK = 4096  # rows that are Python values at the same time
PART = 500_000  # rows in a transaction of many
_MEMORY = "published.json"
_PROTO = "published.proto"


@dataclass(frozen=True)
class Part:
    """Key or value of messages with a schema."""

    subject: str
    kind: str  # AVRO | PROTOBUF
    text: str
    fields: tuple[Field, ...]


class Memory:
    """What the checkpoint keeps of a topic: whether the broker was told of batches, by which settings all rows of the
    table were published, and the ids of schemas.
    """

    def __init__(self, checkpoint: Path, topic: str) -> None:
        self._file = checkpoint / _MEMORY
        found = _remembered(checkpoint)
        same = found.get("topic") == topic
        self.topic = topic
        self.told = bool(same and found.get("told"))
        self.complete_by: dict[str, Any] | None = found.get("complete_by") if same else None
        self.schemas: dict[str, tuple[str, int]] = {}  # subject -> text and id
        if same:
            self.schemas = {name: (str(text), int(id_)) for name, (text, id_) in (found.get("schemas") or {}).items()}

    def is_complete(self, publish: Publish) -> bool:
        """Whether every row of the table was published by these settings."""
        return self.complete_by == publish.model_dump(mode="json")

    def complete(self, publish: Publish | None) -> None:
        """Remember the settings by which every row was published; None: by none."""
        settings = None if publish is None else publish.model_dump(mode="json")
        if settings != self.complete_by:
            self.complete_by = settings
            self.save()

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        content = {
            "topic": self.topic, "told": self.told, "complete_by": self.complete_by, "schemas": self.schemas,
        }  # fmt: skip
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
        draft.replace(self._file)


def _remembered(checkpoint: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((checkpoint / _MEMORY).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


class Publisher:
    """Writes the batches of one stream to its topic."""

    def __init__(
        self,
        session: SparkSession,
        stream: str,
        publish: Publish,
        schema: StructType,
        broker: Broker,
        *,
        upsert: bool,
        checkpoint: Path,
        checkpoint_id: str,
    ) -> None:
        self._stream = stream
        self._publish = publish
        self._checkpoint = checkpoint
        self._upsert = upsert
        found = layout(publish, schema.jsonValue())
        options = dict(broker.options)
        ensure_topic(
            broker.bootstrap, publish.topic, options,
            partitions=publish.partitions, compacted=upsert and bool(publish.key),
        )  # fmt: skip
        self._memory = Memory(checkpoint, publish.topic)
        if committed_batch(checkpoint) is None:
            self.complete()  # what comes is all there is
        elif not self._memory.is_complete(publish):
            self._memory.complete(None)
        self._key, self._value = _encoders(session, publish, found, self._memory)
        self._producer: TopicProducer
        if publish.delivery == "exactly_once":
            name = application(stream, checkpoint_id)
            self._producer = TransactionalProducer(broker.bootstrap, publish.topic, options, name)
        else:
            self._producer = TopicProducer(broker.bootstrap, publish.topic, options)
        self.newest = NO_BATCH  # the newest batch that is known to be in the topic
        self._closed = False

    def fence(self) -> None:
        """Shut out an older engine, and learn which batch was published last. At least once, there is no such thing."""
        if not isinstance(self._producer, TransactionalProducer):
            return
        known = self._producer.fence()
        if known is None and self._memory.told and self._unfinished():
            raise PUBLISH_FORGOTTEN.error(
                f"{self._stream}: whether its last batch is in topic '{self._publish.topic}' is not known."
            )
        self.newest = NO_BATCH if known is None else known
        self._producer.confirm(self.newest)
        self._memory.told = True
        self._memory.save()

    def has(self, batch_id: int) -> bool:
        return self.newest >= batch_id

    def complete(self) -> None:
        """From now on the topic has every row of the table."""
        self._memory.complete(self._publish)

    def send(self, rows: Iterable[pa.RecordBatch], batch_id: int) -> int:
        """Publish a batch unless it is there; how many messages that were."""
        return self._send([(rows, True)], batch_id)

    def send_in_parts(self, rows: Iterable[pa.RecordBatch], batch_id: int, most: int = PART) -> int:
        """Publish more than a transaction has time for, unless it is there; how many messages that were.

        The last part says that the batch is in the topic. Should it not come to that, all parts are sent again.
        """
        return self._send(in_parts(rows, most), batch_id)

    def _send(self, parts: Iterable[tuple[Iterable[pa.RecordBatch], bool]], batch_id: int) -> int:
        if self.has(batch_id):
            return 0
        named = self._publish.key if self._upsert else ()
        sent = 0
        for part, is_last in parts:
            made = to_messages(part, self._key, self._value, named=named, stream=self._stream)
            sent += self._producer.send(made, batch_id if is_last else self.newest)
        if isinstance(self._producer, TransactionalProducer):
            self.newest = batch_id
        return sent

    def close(self) -> None:
        """Let go of the producer; nothing is sent after that."""
        if not self._closed:
            self._closed = True
            self._producer.close()

    def _unfinished(self) -> bool:
        """Whether a batch was begun that the checkpoint does not call done."""
        done = committed_batch(self._checkpoint)
        begun = self._checkpoint / "offsets" / str(0 if done is None else done + 1)
        return begun.exists()


def in_parts(rows: Iterable[pa.RecordBatch], most: int) -> Iterator[tuple[list[pa.RecordBatch], bool]]:
    """The rows in parts of at least that many, but for the last one; whether it is the last."""
    part: list[pa.RecordBatch] = []
    for each in rows:
        if sum(before.num_rows for before in part) >= most:
            yield part, False
            part = []
        part.append(each)
    yield part, True


def newest_published(broker: Broker, publish: Publish, stream: str, checkpoint: Path, checkpoint_id: str) -> int:
    """The newest batch of a stream that is sure to be in its topic; whoever still publishes for it is shut out."""
    if publish.delivery != "exactly_once":
        done = committed_batch(checkpoint)
        return NO_BATCH if done is None else done
    name = application(stream, checkpoint_id)
    producer = TransactionalProducer(broker.bootstrap, publish.topic, dict(broker.options), name)
    try:
        known = producer.fence()
    finally:
        producer.close()
    return NO_BATCH if known is None else known


def to_messages(
    rows: Iterable[pa.RecordBatch], key: Encoder, value: Encoder, *, named: tuple[str, ...], stream: str
) -> Iterator[Message]:
    """Key and value of each row; of one that is gone, the key alone. Rows that are `named` by columns have a key."""
    for chunk in rows:
        for row in chunk.to_pylist():
            name = key(row)
            if name is None and named:
                raise PUBLISH_NULL_KEY.error(f"{stream}: a row is published by {', '.join(named)}, which is null.")
            yield name, None if row.get(GONE) else value(row)


def not_published(checkpoint: Path) -> None:
    """A stream goes on without a topic: one that it had before lacks rows from now on."""
    found = _remembered(checkpoint)
    if found:
        Memory(checkpoint, str(found.get("topic"))).complete(None)


def check(session: SparkSession, publish: Publish, schema: StructType, at: Location) -> None:
    """What is against publishing rows of this schema is found here, and nothing is changed."""
    found = layout(publish, schema.jsonValue(), at)
    parts = _parts(publish, found)
    if not parts:
        return
    registry = _registry(session)
    for part in parts.values():
        registry.check_schema(part.subject, _final(registry, part), part.kind)


def by_partition(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows of a persisted DataFrame, one partition after the other."""
    for number in range(rows.rdd.getNumPartitions()):
        yield from rows.where(F.spark_partition_id() == number).toArrow().to_batches(max_chunksize=CHUNK)


# -- key and value ----------------------------------------------------------------------------------------------------
def _encoders(session: SparkSession, publish: Publish, found: Layout, memory: Memory) -> tuple[Encoder, Encoder]:
    """The key and the value of a row; schemas are registered."""
    made: dict[str, Callable[[Any], bytes]] = {}
    for name, part in _parts(publish, found).items():
        text, schema_id = memory.schemas[part.subject] = registered(lambda: _registry(session), part, memory.schemas)
        if part.kind == "AVRO":
            made[name] = encoders.avro_encoder(text, schema_id, part.fields)
        else:
            made[name] = encoders.protobuf_encoder(_message(text), schema_id, part.fields)
    if made:
        memory.save()
    value = made.get("value") or encoders.json_encoder(found.value)
    if not found.key:
        return (lambda _row: None), value
    if len(found.key) > 1 or publish.key_format == "protobuf":
        return made.get("key") or encoders.json_encoder(found.key), value
    if publish.key_format == "json":
        return _of(found.key[0], encoders.json_value_encoder(found.key[0]), null=True), value
    return _of(found.key[0], made.get("key") or encoders.text_encoder(found.key[0])), value


def cannot_be_null(publish: Publish) -> bool:
    """Whether the key is the bare value of one column, in a format that cannot say null."""
    return len(publish.key) == 1 and publish.key_format in ("string", "avro")


def _of(field: Field, encode: Callable[[Any], bytes], *, null: bool = False) -> Encoder:
    """The bare value of one column; null is no key, unless the format can say it."""
    name = field.name
    return lambda row: None if row[name] is None and not null else encode(row[name])


def _parts(publish: Publish, found: Layout) -> dict[str, Part]:
    """Key and value, as far as they have a schema."""
    parts: dict[str, Part] = {}
    for name, kind, fields in (("key", publish.key_format, found.key), ("value", publish.value_format, found.value)):
        if kind == "avro" and fields:
            bare = name == "key" and len(fields) == 1
            text = avro_schema(fields, avro_name(publish.topic, name), bare=bare)
            parts[name] = Part(f"{publish.topic}-{name}", "AVRO", text, fields)
        elif kind == "protobuf" and fields:
            text = protobuf_schema(fields, protobuf_name(publish.topic, name))
            parts[name] = Part(f"{publish.topic}-{name}", "PROTOBUF", text, fields)
    return parts


def registered(registry: Callable[[], Registrar], part: Part, known: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """The text of the schema and its id; those that are `known` will do while the registry does not answer."""
    try:
        found = registry()
        text = _final(found, part)
        return text, found.register(part.subject, text, part.kind)
    except PenstockError as problem:
        before = known.get(part.subject)
        if problem.kind is not REGISTRY_UNREACHABLE or before is None or numbered(part, before[0]) != before[0]:
            raise
        log.warning("topic of %s: the schema that is known will do for now: %s", part.subject, problem)
        return before


def _final(registry: Registrar, part: Part) -> str:
    before = registry.newest(part.subject) if part.kind == "PROTOBUF" else None
    if before is None or before.kind != "PROTOBUF":
        return part.text
    return numbered(part, before.text, before.files)


def numbered(part: Part, before: str, files: Mapping[str, str] | None = None) -> str:
    """The schema with the numbers that the fields of a Protobuf message have already."""
    if part.kind != "PROTOBUF":
        return part.text
    name = part.text.split("message ", 1)[1].split(" ", 1)[0]
    schema = ProtobufSchema.read(compiled(before, _PROTO, files or {}).encoded)
    return protobuf_schema(part.fields, name, schema.message(name)) if name in schema.messages else part.text


def _message(text: str) -> Any:
    schema = ProtobufSchema.read(compiled(text, _PROTO, {}).encoded)
    return schema.message(schema.outermost[0])


def _registry(session: SparkSession) -> Registrar:
    place = messages.registry_access(session)
    return Registrar(place.url, place.options)
