"""A source as a relation of the catalog: a view over its topic, for SQL that is no stream.

Rules
- `shop.clicks` shows the declared columns, then `_partition`, `_offset` and `_timestamp` of each record unless the
  source declares columns of these names. It shows the whole topic: where a stream starts does not matter here.
- A record of which nothing could be decoded is a row of nulls; so is one of a schema that came a moment ago.
- The view reads a table of Spark's Kafka source. Neither holds an address or a credential: every property of the client
  is a reference into a file that the engine keeps (`PROPERTIES`), which Kafka's client resolves when it connects.
- `fingerprint` says whether a source is the same relation still.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from penstock.compiler.decoding import needs_headers, select
from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.sqltext import indented, listed, text
from penstock.project.sparktypes import quoted

VERSION = 1  # rises when the relations of an unchanged source come out differently
SCHEMA = "penstock_records"
OWNER = "penstock.source"
PROPERTIES = ".penstock/engine/kafka.properties"  # below the project, which is where the engine runs
PREFIX = "kafka."

_POSITION = {"partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP"}
_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
# A query has somebody waiting: a broker that does not answer is an error soon. And a small fetch is all that a small
# LIMIT reads.
_CLIENT = {
    "kafka.default.api.timeout.ms": "15000",
    "kafka.request.timeout.ms": "10000",
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.partition.fetch.bytes": str(256 * 1024),
}
_READER = {
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "failOnDataLoss": "false",  # what retention takes away while the query runs is not there any more
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "30000",
}


def fingerprint(source: KafkaInput) -> str:
    """Equal for sources that are the same relation."""
    shape = source.model_dump(mode="json", exclude={"view", "starting", "watermark", "on_bad_record"})
    return hashlib.sha256(json.dumps([VERSION, shape], sort_keys=True).encode()).hexdigest()


def position_columns(source: KafkaInput) -> tuple[Column, ...]:
    """The record's place in the topic, as far as the source has no columns of these names."""
    declared = {column.name.lower() for column in source.columns}
    return tuple(
        Column(name=f"_{name}", type=kind, origin=name)
        for name, kind in _POSITION.items()
        if f"_{name}" not in declared
    )


def records_table(relation: str) -> str:
    """The table of the raw records."""
    return f"{quoted(SCHEMA)}.{quoted(relation.replace('.', '__'))}"


def key(relation: str, option: str) -> str:
    """Where in `PROPERTIES` the value of a client's property is."""
    return f"{hashlib.sha256(relation.encode()).hexdigest()[:16]}.{option}"


def subscription(source: KafkaInput) -> dict[str, str]:
    """The option that names what is read."""
    if source.topic_pattern is not None:
        return {"subscribePattern": source.topic_pattern}
    if source.partitions:
        return {"assign": json.dumps({source.topic: source.partitions})}
    return {"subscribe": str(source.topic)}


def reader_options(source: KafkaInput, properties: Iterable[str]) -> dict[str, str]:
    """The options of Spark's Kafka source; `properties` are those of the client, with their prefix."""
    options = {**_READER, **_CLIENT, **subscription(source)}
    if needs_headers(source):
        options["includeHeaders"] = "true"
    options["kafka.config.providers"] = "file"
    options["kafka.config.providers.file.class"] = _PROVIDER
    for name in properties:
        options[name] = f"${{file:{PROPERTIES}:{key(source.relation, name.removeprefix(PREFIX))}}}"
    return options


def create_records(source: KafkaInput, properties: Iterable[str]) -> str:
    """The statement that makes the table of the raw records."""
    options = [f"{text(name)} {text(value)}" for name, value in sorted(reader_options(source, properties).items())]
    return (
        f"create table {records_table(source.relation)} using kafka\noptions (\n{indented(listed(options))}\n)\n"
        f"comment {text(f'The records of source {source.relation}: {source.topics}.')}"
    )


def create_view(source: KafkaInput, records: str | None = None) -> str:
    """The statement that makes the view of the source's name, over its records or what was made of them."""
    shown = source.model_copy(update={"columns": (*source.columns, *position_columns(source))})
    name = ".".join(quoted(part) for part in source.relation.split("."))
    return (
        f"create or replace view {name}\n"
        f"comment {text(f'Source {source.relation}: {source.topics}.')}\n"
        f"tblproperties ({text(OWNER)} = {text(source.relation)})\n"
        f"as {select(shown, records or records_table(source.relation), nulls=True)}"
    )
