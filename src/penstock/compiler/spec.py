"""StreamSpec: all that a stream is, as a frozen value.

Rules
- A spec depends on the project alone: no port, path, token or time of the machine that compiled it.
- Two specs are the same stream definition exactly when their hashes are equal.
- Unknown fields are rejected; `format_version` rises when a field changes its meaning.
- Checkpoint, generation and table location belong to the deployment, not to the spec.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from penstock.errors import Location
from penstock.errors.catalogue import MODEL_KEY_IN_FULL, PUBLISH_UNFIT
from penstock.kafka.security import Reference
from penstock.project.expectations import Expectation
from penstock.project.maintenance import OwnMaintenance
from penstock.project.model_settings import OnSchemaChange

FORMAT_VERSION = 1
IN_ORDER_MS = 200  # between looks of a stream that reads one file at each


class Frozen(BaseModel):
    """Base of every part of a spec."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Watermark(Frozen):
    """Event-time column and how late rows may come."""

    column: str
    delay: str


class Column(Frozen):
    """A column of a source: its Spark type and where in the message it comes from."""

    name: str
    type: str
    origin: str  # value[.a.b] | key[.a.b] | headers | header(x) | topic | partition | … | record | computed
    expr: str | None = None  # of a computed column, over the other columns
    read_as: str | None = None  # the type that its schema has for it; None without a schema

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, ("expr", "read_as"))


class MessageType(Frozen):
    """A type of messages: its full name, and the schema that reads it."""

    name: str | None = None  # None: a simple type of Avro
    content: str  # Avro: the fields that columns take; Protobuf: descriptors, base64


class Schema(Frozen):
    """The schema of a source's keys or values."""

    framed: bool = True  # Confluent's wire format
    subjects: tuple[str, ...] = ()  # of the registry; none: the types are all there is
    types: tuple[MessageType, ...]
    written: str | None = None  # Avro without a registry: the schema that messages are written with

    @property
    def several(self) -> bool:
        return len(self.types) > 1


class FromTimestamp(Frozen):
    """Start at the first message of that time or later."""

    timestamp: datetime

    @property
    def milliseconds(self) -> int:
        return int(self.timestamp.timestamp() * 1000)


class FromOffsets(Frozen):
    """Start at these offsets; as in Spark, -2 is the earliest and -1 the latest."""

    offsets: tuple[tuple[int, int], ...]


# What becomes of a record that is bad or partly bad: what does not fit is null, the record is left out, it is left out
# and kept in a table, or the stream stops.
OnBadRecord = Literal["null", "skip", "quarantine", "fail"]


class KafkaInput(Frozen):
    """A topic, some of its partitions, or the topics of a pattern, read as a stream."""

    kind: Literal["kafka"] = "kafka"
    view: str  # the name that the stream's SQL uses
    relation: str  # the name that the model's author knows: shop.clicks
    topic: str | None = None
    topic_pattern: str | None = None  # instead of a topic
    partitions: tuple[int, ...] = ()  # of the topic; empty: all
    bootstrap: str | None = None  # None: the broker of the profile
    starting: str | FromTimestamp | FromOffsets = "earliest"
    key_format: str = "string"
    value_format: str = "json"
    key_options: tuple[tuple[str, str], ...] = ()  # settings of the format beside its name, sorted
    value_options: tuple[tuple[str, str], ...] = ()
    columns: tuple[Column, ...]
    watermark: Watermark | None = None
    on_bad_record: OnBadRecord = "null"
    rejects: bool = False  # the records that are bad or partly bad, in place of the rows
    options: tuple[tuple[str, str | Reference], ...] = ()  # kafka.* passed through, sorted; secrets are references
    null_rows: bool = False  # a record of which nothing can be decoded is a row of nulls
    backfill: bool = False  # what is there when a stream begins is read in large batches
    registry: tuple[tuple[str, str | Reference], ...] = ()  # a schema registry of its own: url and options, sorted
    key_schema: Schema | None = None
    value_schema: Schema | None = None

    @property
    def topics(self) -> str:
        """What is read, for people."""
        if self.topic_pattern is not None:
            return f"topics {self.topic_pattern!r}"
        some = f", partitions {', '.join(map(str, self.partitions))}" if self.partitions else ""
        return f"topic {self.topic!r}{some}"

    def reads(self, topic: str) -> bool:
        """Whether it reads a topic of that name."""
        if self.topic_pattern is None:
            return topic == self.topic
        return re.fullmatch(self.topic_pattern, topic) is not None

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, _LATER)


_LATER = (
    "topic_pattern", "partitions", "key_options", "value_options", "on_bad_record", "rejects", "null_rows", "registry",
    "key_schema", "value_schema", "backfill",
)  # fmt: skip


def _without_unused(dumped: dict[str, Any], part: Frozen, names: tuple[str, ...]) -> dict[str, Any]:
    """Settings that came later are written only when they are used: a stream without them keeps its hash."""
    unused = {name for name in names if getattr(part, name) == type(part).model_fields[name].default}
    return {name: value for name, value in dumped.items() if name not in unused}


class TableStreamInput(Frozen):
    """A dynamic table. An appending one is read as a stream of its new rows; a full refresh reads any as it stands."""

    kind: Literal["table_stream"] = "table_stream"
    view: str
    relation: str
    watermark: Watermark | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    rows: Literal["append", "upsert", "replace"] = "append"  # how its own stream writes it
    keys: tuple[str, ...] = ()  # of an upsert, whose changes are read

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, ("starting", "rows", "keys"))


class TableInput(Frozen):
    """A table, seed or view, read as it stands at each batch."""

    kind: Literal["table"] = "table"
    relation: str


Input = Annotated[KafkaInput | TableStreamInput | TableInput, Field(discriminator="kind")]


class OutputMode(str, Enum):
    APPEND = "append"
    UPSERT = "upsert"
    REPLACE = "replace"  # full refresh: all rows at once, computed anew


class Changes(Frozen):
    """Columns of rows that are changes of a table: where the message stood, and whether it deletes."""

    partition: str
    offset: str
    timestamp: str
    deleted: str


class Output(Frozen):
    """The table that the stream writes."""

    relation: str
    mode: OutputMode
    keys: tuple[str, ...] = ()
    contract: tuple[tuple[str, str], ...] = ()  # name and type of each column, when a contract is enforced
    checks: tuple[tuple[str, str], ...] = ()  # constraints: name and expression, which holds for every row
    on_schema_change: OnSchemaChange = "fail"
    changes: Changes | None = None
    view: str | None = None  # the table's rows as people read them, without the columns of changes

    @property
    def shown(self) -> str:
        """The relation that people read."""
        return self.view or self.relation

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, ("changes", "view", "contract", "checks", "on_schema_change"))


class Follow(Frozen):
    """A second query, over the rows that changed in a batch: a changed key without a row in its result is deleted."""

    sql: str
    view: str  # the changed rows, in that SQL
    keys: tuple[str, ...]  # of the changed rows, in the order of the output's
    whole: str  # the query in one piece


class Publish(Frozen):
    """A topic that the rows go to, beside the table or in its place."""

    topic: str
    key: tuple[str, ...] = ()  # columns; empty: messages have no key
    key_format: Literal["string", "json", "avro", "protobuf"] = "string"
    value_format: Literal["json", "avro", "protobuf"] = "json"
    key_in_value: bool = True
    table: bool = True  # False: the topic is all there is
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    partitions: int | None = None  # of a topic that is made; None: as many as the broker makes
    real_time: bool = False  # by Spark's real-time trigger and its own sink


class Function(Frozen):
    """A function of the project, as the stream's session knows it."""

    name: str  # schema.identifier, as people call it
    called: str  # its name in the SQL of the spec
    signature: str  # arguments, type and kind
    body: str  # compiled; functions that it calls in turn are called by their names in the session

    @property
    def definition(self) -> str:
        return f"CREATE OR REPLACE TEMPORARY FUNCTION {self.called}{self.signature}\nRETURN {self.body}"


class Trigger(Frozen):
    """When a batch is written, and how large it may be."""

    time_window_ms: int = 1000
    buffer_limit: int = 1
    max_batch_rows: int = 200_000


class Origin(str, Enum):
    """What a stream is compiled from."""

    MODEL = "model"  # a dynamic table
    SOURCE_TABLE = "source_table"
    LIVE_TEST = "live_test"  # the rows that break a data test


_LATER_OF_SPEC = (
    "origin", "follow", "functions", "deduplicate_by", "refresh_mode", "reason", "refused", "warnings", "maintenance",
    "expectations", "publish", "own_key", "event_time", "joined",
)  # fmt: skip


def check_full(
    name: str, reason: str, at: Location, *, own_key: tuple[str, ...], deduplicate_by: tuple[str, ...]
) -> None:
    """PEN-1313 when a table that is refreshed in full for a reason is to take the newest or the first row of a key."""
    told = "', '".join(own_key or deduplicate_by)
    lost = f"'{told}' would be lost: {name} is refreshed in full. {reason}"
    if own_key:
        raise MODEL_KEY_IN_FULL.error(f"unique_key {lost}", at=at)
    if deduplicate_by:
        raise MODEL_KEY_IN_FULL.error(
            f"deduplicate_by {lost}", at=at,
            hint="Deduplicate in a dynamic table in between, and 'ref' it here without deduplicate_by. Or take the "
            "first row of a key in the query: min_by(...) with GROUP BY, or row_number().",
        )  # fmt: skip


class StreamSpec(Frozen):
    """One dynamic table or source table, compiled."""

    format_version: int = FORMAT_VERSION
    name: str  # schema.identifier: the stream's name everywhere
    unique_id: str  # dbt's: model.shop.clicks_clean
    origin: Origin = Origin.MODEL
    path: str  # the model's or source's file, relative to the project
    sql: str  # with the inputs' views in place of the streaming relations
    stateful: bool  # keeps a state store (aggregate, join, dedup)
    inputs: tuple[Input, ...]
    output: Output
    trigger: Trigger = Trigger()
    shuffle_partitions: int = 2  # frozen into a stateful checkpoint
    small_batch_rows: int = 200_000  # up to here a batch passes through the driver, not through Spark's writer
    joined: bool = False  # an upsert of the rows of a join of two streams, which never change
    follow: Follow | None = None
    functions: tuple[Function, ...] = ()  # of the project, each after those that it calls
    maintenance: OwnMaintenance | None = None  # None: as the profile says
    expectations: tuple[Expectation, ...] = ()
    deduplicate_by: tuple[str, ...] = ()  # of rows with the same values here only the first is taken
    publish: Publish | None = None
    # From here on nothing is part of the identity.
    refresh_mode: Literal["auto", "incremental", "full"] = "auto"  # what the model asks for
    reason: str | None = None  # why it is refreshed in full
    refused: bool = False  # the reason is Spark's or that of an input, known to the engine alone
    warnings: tuple[str, ...] = ()
    own_key: tuple[str, ...] = ()  # a unique_key that the query alone does not give its rows
    event_time: str | None = None  # the column of the watermark that its model sets, for those who stream from it
    line_map: tuple[int, ...] = ()  # model file's line of each line of `sql`

    @field_validator("functions", mode="before")
    @classmethod
    def _of_catalog(cls, functions: Any) -> Any:
        """Specs of before had the name and a hash; their SQL calls the functions of the catalog."""
        return tuple(each for each in functions if isinstance(each, dict | Function))

    @property
    def is_full(self) -> bool:
        """Whether the table is computed anew and replaced, in place of being kept by a stream."""
        return self.output.mode is OutputMode.REPLACE

    @property
    def in_order(self) -> bool:
        """Whether the rows of a key are taken one after the other, as they come: the last one stays in the table, or
        they are messages with a key. What a state or a change feed gives is there once a key."""
        if self.is_full or self.stateful or self.follow is not None:
            return False
        return self.output.mode is OutputMode.UPSERT or (self.publish is not None and bool(self.publish.key))

    @property
    def looks_every_ms(self) -> int:
        """Between looks at tables that are read as streams. One file is read at each look where order counts: at the
        pace of its time window the stream would never catch up with who writes as often."""
        window = self.trigger.time_window_ms
        return min(window, IN_ORDER_MS) if self.in_order else window

    @property
    def has_table(self) -> bool:
        return self.publish is None or self.publish.table

    @property
    def is_real_time(self) -> bool:
        return self.publish is not None and self.publish.real_time

    @property
    def whole_sql(self) -> str:
        """The model's query in one piece."""
        return self.follow.whole if self.follow is not None else self.sql

    def streams_from(self, relation: str) -> bool:
        """Whether it has a place in that table's rows; a full refresh has none."""
        return not self.is_full and any(
            isinstance(each, TableStreamInput) and each.relation == relation for each in self.inputs
        )

    def as_full(self, reason: str) -> StreamSpec:
        """The same model, refreshed in full because the engine found a reason that the compiler cannot know."""
        if self.publish is not None:
            raise PUBLISH_UNFIT.error(f"{self.name} cannot be published: {reason}", at=Location(self.path))
        at = Location(self.path)
        check_full(self.name, reason, at, own_key=self.own_key, deduplicate_by=self.deduplicate_by)
        return self.over_all(reason)

    def over_all(self, reason: str) -> StreamSpec:
        """The query over all that its inputs hold, whether or not a table could be kept so."""
        output = self.output.model_copy(update={"mode": OutputMode.REPLACE, "keys": ()})
        told = {"reason": reason, "refused": True, "warnings": (), "own_key": (), "event_time": None}
        return self.model_copy(
            update={"output": output, "stateful": False, "joined": False, "sql": self.whole_sql, "follow": None, **told}
        )

    @property
    def is_source_table(self) -> bool:
        return self.origin is Origin.SOURCE_TABLE

    def canonical(self) -> str:
        """The JSON that is hashed: keys sorted, no white space, nothing that only tells people why."""
        told = {"line_map", "refresh_mode", "reason", "refused", "warnings", "own_key", "event_time"}
        return json.dumps(self.model_dump(mode="json", exclude=told), sort_keys=True, separators=(",", ":"))

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, _LATER_OF_SPEC)

    @property
    def is_quarantine(self) -> bool:
        """Whether it keeps a source's bad records."""
        return any(isinstance(each, KafkaInput) and each.rejects for each in self.inputs)

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> StreamSpec:
        return cls.model_validate_json(text)

    @classmethod
    def if_known(cls, text: str) -> StreamSpec | None:
        """The spec; None when another version of Penstock wrote it."""
        try:
            return cls.from_json(text)
        except ValidationError:
            return None
