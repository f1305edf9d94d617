"""Where a source's messages are: its broker with credentials, and the topics and partitions that are read.

Rules
- This is the one way from a source to its broker: for deploying, the lag, freshness and `penstock describe` alike.
- What is asked for is there, or the error says which topic or partition is not (PEN-2001, PEN-2002, PEN-2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.compiler.spec import FromOffsets, KafkaInput, StreamSpec
from penstock.errors import PenstockError
from penstock.errors.catalogue import (
    BROKER_NOT_CONFIGURED,
    BROKER_UNREACHABLE,
    PARTITION_MISSING,
    TOPIC_EMPTY,
    TOPIC_MISSING,
)
from penstock.kafka import topics as topic_facts
from penstock.kafka.admin import check_topic, matching, resolve_bootstrap, topics
from penstock.kafka.security import Value, effective
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings, read_settings


class ReadsTopics(Protocol):
    """A source of the project or an input of a spec."""

    @property
    def relation(self) -> str: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def topic_pattern(self) -> str | None: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...
    @property
    def bootstrap(self) -> str | None: ...
    @property
    def options(self) -> tuple[tuple[str, Value], ...]: ...


@dataclass(frozen=True)
class Access:
    """A broker and the options it is spoken to with; secrets are references still."""

    bootstrap: str
    options: dict[str, Value]


def access(source: ReadsTopics, kafka: KafkaSettings, paths: ProjectPaths) -> Access:
    """The broker of a source: its own, or the profile's with the profile's credentials."""
    own = source.bootstrap is not None
    try:
        bootstrap = resolve_bootstrap(source.bootstrap, kafka.bootstrap, paths)
    except PenstockError as problem:
        if kafka.embedded and problem.kind is BROKER_NOT_CONFIGURED:
            raise BROKER_UNREACHABLE.error(
                "The embedded broker was never started.", hint="'penstock up' starts it."
            ) from None
        raise
    return Access(bootstrap, effective(dict(source.options), kafka.options, own_broker=own, base=paths.project))


def topics_read(source: ReadsTopics, broker: Access) -> dict[str, tuple[int, ...]]:
    """Topic -> the partitions of it that the source reads; all of them exist."""
    if source.topic_pattern is not None:
        known = topics(broker.bootstrap, broker.options)
        names = matching(source.topic_pattern, known)
        if not names:
            raise TOPIC_MISSING.error(
                f"The broker at {broker.bootstrap} has no topic that matches '{source.topic_pattern}'.",
                hint="Create one, or correct 'topic_pattern:' in the source.",
            )
        return {name: tuple(range(known[name])) for name in names}
    topic = str(source.topic)
    count = check_topic(broker.bootstrap, topic, broker.options)
    read = source.partitions or tuple(range(count))
    beyond = sorted(number for number in read if number >= count)
    if beyond:
        raise PARTITION_MISSING.error(
            f"{source.relation} reads partition {beyond[0]}, but topic '{topic}' has {count}, counted from 0."
        )
    return {topic: read}


def latest_message_at(source: ReadsTopics, kafka: KafkaSettings, paths: ProjectPaths) -> float:
    """Epoch seconds of the latest message that the source has; TOPIC_EMPTY when there is none."""
    broker = access(source, kafka, paths)
    found = topic_facts.latest_at(broker.bootstrap, topics_read(source, broker), broker.options)
    if found is None:
        what = f"Topic '{source.topic}'" if source.topic is not None else f"Every topic of '{source.topic_pattern}'"
        raise TOPIC_EMPTY.error(f"{what} at {broker.bootstrap} has no message that {source.relation} reads.")
    return found


def check_inputs(spec: StreamSpec, paths: ProjectPaths) -> None:
    """The topics of a spec exist, with their partitions, and their brokers answer; PEN-2001 to PEN-2008 when not."""
    kafka = read_settings(paths).kafka
    for item in spec.inputs:
        if isinstance(item, KafkaInput):
            read = topics_read(item, access(item, kafka, paths))
            if isinstance(item.starting, FromOffsets):
                _check_offsets(item, item.starting, set(read[str(item.topic)]))


def _check_offsets(item: KafkaInput, start: FromOffsets, read: set[int]) -> None:
    given = {partition for partition, _ in start.offsets}
    if given != read:
        wrong = sorted(given ^ read)
        problem = "is not read" if wrong[0] in given else "has no offset to start at"
        raise PARTITION_MISSING.error(
            f"{item.relation}: partition {wrong[0]} of topic '{item.topic}' {problem}.",
            hint="Give an offset, earliest or latest for each partition that is read.",
        )
