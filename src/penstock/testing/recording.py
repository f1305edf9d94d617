"""A slice of a real topic becomes a fixture, and a fixture becomes messages of a topic."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from penstock.compiler.messages import schema_of
from penstock.compiler.spec import KafkaInput
from penstock.control.inputs import Access, access, topics_read
from penstock.engine.topic_files import Record
from penstock.errors import PenstockError
from penstock.errors.catalogue import RECORD_RANGE, TOPIC_MISSING, USAGE
from penstock.kafka import slices
from penstock.kafka.admin import check_topic, create_topics, topics
from penstock.kafka.security import Value
from penstock.paths import ProjectPaths
from penstock.project.durations import milliseconds
from penstock.project.profile import RuntimeSettings
from penstock.registry.address import access as registry_access
from penstock.registry.client import Registered, Registry
from penstock.registry.register import Registrar
from penstock.testing.fixtures import Recorded
from penstock.testing.masking import mask
from penstock.testing.values import UnfitError, canonical

_MAGIC = 0


def moment(text: str | None, now: datetime) -> int | None:
    """A time (2026-01-31 10:00, in UTC unless it says otherwise) or a length of time before now, in milliseconds."""
    if text is None:
        return None
    length = milliseconds(text) if not text.strip().isdigit() else None
    if length is not None:
        return int((now - timedelta(milliseconds=length)).timestamp() * 1000)
    try:
        found: datetime = canonical(text, pa.timestamp("us", tz="UTC"))
    except UnfitError:
        raise USAGE.error(
            f"'{text}' is no time.", hint="Write '2026-01-31 10:00:00', or how long ago: '10 minutes'."
        ) from None
    return int(found.timestamp() * 1000)


def record(
    source: KafkaInput,
    settings: RuntimeSettings,
    paths: ProjectPaths,
    *,
    begin: str | None,
    end: str | None,
    limit: int,
    masked: Sequence[str] = (),
    salt: str | None = None,
) -> Recorded:
    """The messages of a source between two times, with the schemas that they name."""
    hide = mask(source, masked, salt.encode() if salt is not None else secrets.token_bytes(32))
    broker = access(source, settings.kafka, paths)
    now = datetime.now(tz=timezone.utc)
    found = slices.read(
        broker.bootstrap,
        topics_read(source, broker),
        broker.options,
        begin=moment(begin, now),
        end=moment(end, now),
        limit=limit,
    )
    if not found:
        raise RECORD_RANGE.error(f"{source.relation} has no message there.")
    records = [Record(m.topic, m.partition, m.offset, m.timestamp, m.key, m.value, m.headers) for m in found]
    schemas = _schemas(source, records, settings.schema_registry.options, paths)
    topic = source.topic or records[0].topic
    return Recorded(source.relation, topic, tuple(hide(each) for each in records), schemas, tuple(masked))


def _schemas(
    source: KafkaInput, records: Iterable[Record], profile: Mapping[str, Value], paths: ProjectPaths
) -> dict[int, Registered]:
    """The schemas of the registry that messages name."""
    parts = [
        part for part in ("key", "value") if (schema := schema_of(source, part)) and schema.framed and schema.subjects
    ]
    wanted = {number for each in records for part in parts if (number := schema_id(getattr(each, part))) is not None}
    if not wanted:
        return {}
    place = registry_access(dict(source.registry), profile, paths)
    registry = Registry(place.url, place.options)
    found: dict[int, Registered] = {}
    for part in parts:
        schema = schema_of(source, part)
        for subject in schema.subjects if schema is not None else ():
            for number in registry.versions(subject):
                version = registry.version(subject, number)
                if version.id in wanted:
                    found[version.id] = version
    for number in wanted - found.keys():
        answer = registry.by_id(number)
        if answer is not None:
            found[number] = answer
    return found


def schema_id(content: bytes | None) -> int | None:
    """The id that a message in Confluent's format begins with."""
    if content is None or len(content) < 5 or content[0] != _MAGIC:
        return None
    return int.from_bytes(content[1:5], "big")


def replay(
    recorded: Recorded,
    topic: str,
    broker: Access,
    registry: Registrar | None,
    *,
    create: bool = False,
) -> int:
    """Write the messages of a fixture into a topic; how many there were.

    A message goes to the partition that it came from, or by its key when there is none of that number. Messages whose
    schemas have other ids in this registry name these.
    """
    if create and topic not in topics(broker.bootstrap, broker.options):
        wanted = max((each.partition for each in recorded.records), default=0) + 1
        create_topics(broker.bootstrap, {topic: wanted}, broker.options)
    try:
        count = check_topic(broker.bootstrap, topic, broker.options)
    except PenstockError as problem:
        if problem.kind is TOPIC_MISSING:
            raise TOPIC_MISSING.error(problem.message, hint="--create makes it.") from None
        raise
    ids = _ids(recorded.schemas, registry, topic)
    messages = (_message(each, topic, count, ids) for each in recorded.records)
    return slices.write(broker.bootstrap, messages, broker.options)


def _ids(schemas: Mapping[int, Registered], registry: Registrar | None, topic: str) -> dict[int, int]:
    if not schemas or registry is None:
        return {}
    return {
        number: registry.register(each.subject or f"{topic}-value", each.text, each.kind)
        for number, each in schemas.items()
    }


def _message(record: Record, topic: str, partitions: int, ids: Mapping[int, int]) -> slices.Message:
    place = record.partition if record.partition < partitions else -1
    key, value = (_renamed(each, ids) for each in (record.key, record.value))
    return slices.Message(topic, place, record.offset, record.timestamp, key, value, record.headers)


def _renamed(content: bytes | None, ids: Mapping[int, int]) -> bytes | None:
    number = schema_id(content)
    if content is None or number is None or number not in ids:
        return content
    return content[:1] + ids[number].to_bytes(4, "big") + content[5:]
