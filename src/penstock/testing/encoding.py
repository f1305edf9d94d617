"""Rows of a test as messages of a source. Pure.

Rules
- A row names columns of the source; each goes where the source takes it from: a field of the value or key, a header,
  the time of the message.
- Words with an underscore are of the message itself: `_value`, `_value_base64`, `_key`, `_key_base64`, `_headers`,
  `_timestamp`, `_topic`, `_partition`, `_offset`, `_repeat`. `_value` is taken as it is; null makes a tombstone.
- What is not said is made up, the same each time: partition 0, the next offset, a second later than the message before.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa

from penstock.compiler.spec import Column, KafkaInput
from penstock.engine.topic_files import Record
from penstock.errors import did_you_mean
from penstock.testing.values import UnfitError, canonical

WORDS = (
    "_value", "_value_base64", "_key", "_key_base64", "_headers", "_timestamp", "_topic", "_partition", "_offset",
    "_repeat",
)  # fmt: skip
FIRST = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)  # the time of the first message

# Schema of a key or value, column values by path -> the message. See `penstock.testing.schemas`.
Encoder = Callable[[KafkaInput, str, Mapping[str, Any]], bytes]


@dataclass
class Places:
    """Where the next message of each partition goes."""

    next: dict[tuple[str, int], int] = field(default_factory=dict)
    clock: int = FIRST

    def offset(self, topic: str, partition: int, given: int | None) -> int:
        at = self.next.get((topic, partition), 0) if given is None else given
        self.next[(topic, partition)] = max(at + 1, self.next.get((topic, partition), 0))
        return at

    def time(self, given: int | None) -> int:
        if given is None:
            self.clock += 1000
            return self.clock
        self.clock = max(self.clock, given)
        return given


def encode(source: KafkaInput, row: Mapping[str, Any], places: Places, encoder: Encoder) -> list[Record]:
    """The messages of a row; raises UnfitError."""
    columns = {column.name.lower(): column for column in source.columns if column.origin != "tombstone"}
    words: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name, value in row.items():
        if name in WORDS and name.lower() not in columns:
            words[name] = value
        elif (column := columns.get(str(name).lower())) is None:
            known = [*(each.name for each in source.columns), *WORDS]
            raise UnfitError(f"{source.relation} has no column '{name}'. {did_you_mean(str(name), known)}".rstrip(". "))
        elif column.expr is not None:
            raise UnfitError(f"column '{column.name}' of {source.relation} is computed: give the columns it is made of")
        else:
            given[column.name] = value
    topic = words.get("_topic", _of(source, given, "topic")) or source.topic or _of_pattern(source)
    partition = int(words.get("_partition", _of(source, given, "partition")) or 0)
    made = []
    for _ in range(int(words.get("_repeat", 1))):
        time = words.get("_timestamp", _of(source, given, "timestamp"))
        made.append(
            Record(
                topic=str(topic),
                partition=partition,
                offset=places.offset(str(topic), partition, words.get("_offset", _of(source, given, "offset"))),
                timestamp=places.time(None if time is None else milliseconds(time)),
                key=_part(source, "key", given, words, encoder),
                value=_part(source, "value", given, words, encoder),
                headers=_headers(source, given, words.get("_headers")),
            )
        )
    return made


def _of_pattern(source: KafkaInput) -> str:
    raise UnfitError(f"{source.relation} reads topics of a pattern: say which with '_topic'")


def _of(source: KafkaInput, given: Mapping[str, Any], origin: str) -> Any:
    return next((given[each.name] for each in source.columns if each.origin == origin and each.name in given), None)


def milliseconds(value: Any) -> int:
    """A time as Kafka has it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found: datetime = canonical(value, pa.timestamp("us", tz="UTC"))
    return round(found.timestamp() * 1000)


def _part(
    source: KafkaInput, part: str, given: Mapping[str, Any], words: Mapping[str, Any], encoder: Encoder
) -> bytes | None:
    """The key or value of a message: as it is given, or made of its columns."""
    if f"_{part}" in words:
        value = words[f"_{part}"]
        return None if value is None else value if isinstance(value, bytes) else _plain(value).encode()
    if f"_{part}_base64" in words:
        try:
            return base64.b64decode(str(words[f"_{part}_base64"]), validate=True)
        except binascii.Error:
            raise UnfitError(f"'_{part}_base64' is not base64") from None
    whole = next((each for each in source.columns if each.origin == part and each.read_as is None), None)
    if whole is not None and whole.name in given:
        value = given[whole.name]
        if isinstance(value, Mapping) and set(value) == {"base64"}:
            return base64.b64decode(str(value["base64"]))
        return None if value is None else _plain(value).encode()
    fields = [each for each in source.columns if each.origin.partition(".")[0] == part and each is not whole]
    named = {each.origin.partition(".")[2]: given[each.name] for each in fields if each.name in given}
    if not named:
        return None if part == "key" or not fields else _fields(source, part, {}, fields, encoder)
    return _fields(source, part, named, fields, encoder)


def _fields(source: KafkaInput, part: str, named: Mapping[str, Any], fields: list[Column], encoder: Encoder) -> bytes:
    kind = source.key_format if part == "key" else source.value_format
    if kind == "json":
        return json.dumps(_nested(named), default=_json, ensure_ascii=False).encode()
    if kind == "csv":
        options = dict(source.key_options if part == "key" else source.value_options)
        return _csv([named.get(each.origin.partition(".")[2]) for each in fields], options)
    return encoder(source, part, _nested(named))


def _nested(named: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in named.items():
        *above, last = path.split(".")
        place = made
        for step in above:
            place = place.setdefault(step, {})
        place[last] = value
    return made


def _csv(values: list[Any], options: Mapping[str, str]) -> bytes:
    between, quote, escape = options.get("delimiter", ","), options.get("quote", '"'), options.get("escape", "\\")
    texts = []
    for value in values:
        text = options.get("null_value", "") if value is None else _plain(value)
        if quote and (between in text or quote in text or "\n" in text):
            text = f"{quote}{text.replace(escape, escape * 2).replace(quote, escape + quote)}{quote}"
        texts.append(text)
    return between.join(texts).encode()


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return zoned.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    return str(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return str(_json(value)) if isinstance(value, datetime) else value.isoformat()
    return json.dumps(value, default=_json) if isinstance(value, dict | list) else str(value)


def _headers(source: KafkaInput, given: Mapping[str, Any], words: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs: list[tuple[str, Any]] = []
    for column in source.columns:
        if column.origin.startswith("header(") and column.name in given:
            pairs.append((column.origin[len("header(") : -1], given[column.name]))
        elif column.origin == "headers" and isinstance(given.get(column.name), Mapping):
            pairs += given[column.name].items()
    if isinstance(words, Mapping):
        pairs += words.items()
    elif words is not None:
        pairs += [(str(pair[0]), pair[1]) for pair in words]
    return tuple((str(name), None if value is None else _plain(value).encode()) for name, value in pairs)
