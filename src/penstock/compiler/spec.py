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

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from penstock.kafka.security import Reference

FORMAT_VERSION = 1


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
    origin: str  # value.a.b | key.a.b | key | headers | header(x) | topic | partition | offset | timestamp | computed
    expr: str | None = None  # of a computed column, over the other columns

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unused(handler(self), self, ("expr",))


class FromTimestamp(Frozen):
    """Start at the first message of that time or later."""

    timestamp: datetime

    @property
    def milliseconds(self) -> int:
        return int(self.timestamp.timestamp() * 1000)


class FromOffsets(Frozen):
    """Start at these offsets; as in Spark, -2 is the earliest and -1 the latest."""

    offsets: tuple[tuple[int, int], ...]


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
    options: tuple[tuple[str, str | Reference], ...] = ()  # kafka.* passed through, sorted; secrets are references

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
        return _without_unused(handler(self), self, ("topic_pattern", "partitions", "key_options", "value_options"))


def _without_unused(dumped: dict[str, Any], part: Frozen, names: tuple[str, ...]) -> dict[str, Any]:
    """Settings that came later are written only when they are used: a stream without them keeps its hash."""
    unused = {name for name in names if getattr(part, name) == type(part).model_fields[name].default}
    return {name: value for name, value in dumped.items() if name not in unused}


class TableStreamInput(Frozen):
    """An append-only dynamic table, read as a stream of its new rows."""

    kind: Literal["table_stream"] = "table_stream"
    view: str
    relation: str
    watermark: Watermark | None = None


class TableInput(Frozen):
    """A table, seed or view, read as it stands at each batch."""

    kind: Literal["table"] = "table"
    relation: str


Input = Annotated[KafkaInput | TableStreamInput | TableInput, Field(discriminator="kind")]


class OutputMode(str, Enum):
    APPEND = "append"
    UPSERT = "upsert"


class Output(Frozen):
    """The table that the stream writes."""

    relation: str
    mode: OutputMode
    keys: tuple[str, ...] = ()


class Trigger(Frozen):
    """When a batch is written, and how large it may be."""

    time_window_ms: int = 1000
    buffer_limit: int = 1
    max_batch_rows: int = 200_000


class StreamSpec(Frozen):
    """One dynamic table, compiled."""

    format_version: int = FORMAT_VERSION
    name: str  # schema.identifier: the stream's name everywhere
    unique_id: str  # dbt's: model.shop.clicks_clean
    path: str  # the model file, relative to the project
    sql: str  # with the inputs' views in place of the streaming relations
    stateful: bool  # keeps a state store (aggregate, join, dedup)
    inputs: tuple[Input, ...]
    output: Output
    trigger: Trigger = Trigger()
    shuffle_partitions: int = 2  # frozen into a stateful checkpoint
    small_batch_rows: int = 50_000  # up to here a batch is committed by delta-rs
    line_map: tuple[int, ...] = ()  # model file's line of each line of `sql`; not part of the identity

    def canonical(self) -> str:
        """The JSON that is hashed: keys sorted, no white space, nothing that only helps to read errors."""
        return json.dumps(self.model_dump(mode="json", exclude={"line_map"}), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> StreamSpec:
        return cls.model_validate_json(text)
