"""The setting `publish: {topic, key, value, …}` of a dynamic table: its rows go to a Kafka topic.

Rules
- An unknown key is an error with the nearest right one, as everywhere in a model's config.
- What the setting means for the query (which key, whether it fits) is for the compiler: only the setting is read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import MODEL_KEY_UNKNOWN, MODEL_VALUE_INVALID
from penstock.project.model_settings import DELIVERIES, FORMATS, KEY_FORMATS, PUBLISH, keys
from penstock.project.watermark import said

KEYS = keys(PUBLISH)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class PublishSetting:
    """Where a model's rows are published, and how."""

    topic: str
    key: tuple[str, ...] | None  # None: the table's own, or none
    key_format: str | None  # None: what suits the value's
    value_format: str
    key_in_value: bool
    table: bool  # whether there is a table beside the topic
    delivery: str
    partitions: int | None  # of a topic that is made
    at: Location = field(compare=False)


def read_publish(value: object, at: Location) -> PublishSetting:
    """The setting; raises the first thing that is wrong with it."""
    return _Reader(value, at).read()


class _Reader:
    def __init__(self, value: object, at: Location) -> None:
        self.at = at
        if not isinstance(value, Mapping):
            raise self._wrong("publish", value, "It is a mapping such as {topic: totals, value: {format: json}}.")
        self.value = value

    def read(self) -> PublishSetting:
        self._known(self.value, KEYS, "publish")
        return PublishSetting(
            topic=self._topic(),
            key=self._key(),
            key_format=self._word("key_format", KEY_FORMATS, None),
            value_format=self._value(),
            key_in_value=self._flag("key_in_value"),
            table=self._flag("table"),
            delivery=str(self._word("delivery", DELIVERIES, DELIVERIES[0])),
            partitions=self._partitions(),
            at=self.at,
        )

    def _topic(self) -> str:
        topic = self.value.get("topic")
        if topic is None:
            raise MODEL_VALUE_INVALID.error("'publish' names no topic.", at=self.at, hint="Add 'topic'.")
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise self._wrong("publish.topic", topic, "A topic has letters, digits, '.', '_' and '-', 249 at most.")
        return topic

    def _key(self) -> tuple[str, ...] | None:
        key = self.value.get("key")
        if key is None:
            return None
        names = [key] if isinstance(key, str) else key
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.strip() for n in names):
            raise self._wrong("publish.key", key, "It is the name of a column, or a list of them.")
        return tuple(name.strip() for name in names)

    def _value(self) -> str:
        """`value: avro` is short for `value: {format: avro}`."""
        value = self.value.get("value", "json")
        if isinstance(value, Mapping):
            self._known(value, ("format",), "publish.value")
            value = value.get("format", "json")
            return self._one_of("publish.value.format", value, FORMATS)
        return self._one_of("publish.value", value, FORMATS)

    def _word(self, key: str, words: Sequence[str], default: str | None) -> str | None:
        value = self.value.get(key)
        return default if value is None else self._one_of(f"publish.{key}", value, words)

    def _flag(self, key: str) -> bool:
        value = self.value.get(key, True)
        if not isinstance(value, bool):
            raise self._wrong(f"publish.{key}", value, "It is true or false.")
        return value

    def _partitions(self) -> int | None:
        value = self.value.get("partitions")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong("publish.partitions", value, "It is a whole number, 1 or more.")
        return value

    def _known(self, value: Mapping[object, object], keys: Sequence[str], name: str) -> None:
        for key in value:
            if key not in keys:
                hint = did_you_mean(str(key), keys)
                raise MODEL_KEY_UNKNOWN.error(
                    f"setting '{name}.{key}' is unknown.", at=self.at,
                    hint=hint if hint.startswith("Did") else f"Its settings: {', '.join(keys)}.",
                )  # fmt: skip

    def _one_of(self, name: str, value: object, words: Sequence[str]) -> str:
        if value not in words:
            hint = did_you_mean(str(value), words)
            raise self._wrong(name, value, hint if hint.startswith("Did") else f"It is one of {', '.join(words)}.")
        return str(value)

    def _wrong(self, name: str, value: object, hint: str) -> PenstockError:
        return MODEL_VALUE_INVALID.error(f"'{name}' cannot be {said(value)}.", at=self.at, hint=hint)
