"""Columns of recorded messages made unrecognisable. Pure.

Rules
- Equal values get equal masks within a recording, so that keys still meet in joins and groups. The masks of two
  recordings differ, unless both are made with the same salt.
- A text becomes a text, a number a number of as many digits; true, false and null stay what they are. Of a list or an
  object every value in it is masked.
- A message that should be JSON and is not is masked as a whole: nobody can tell where in it the column would be.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.compiler.spec import Column, KafkaInput
from penstock.engine.topic_files import Record
from penstock.errors import did_you_mean
from penstock.errors.catalogue import MASK_REFUSED

Mask = Callable[[Record], Record]


def mask(source: KafkaInput, columns: Sequence[str], salt: bytes) -> Mask:
    """What masks these columns of a message; MASK_REFUSED when one cannot be."""
    known = {column.name.lower(): column for column in source.columns}
    masks: list[Mask] = []
    for name in columns:
        column = known.get(name.lower())
        if column is None:
            hint = did_you_mean(name, [each.name for each in source.columns])
            raise MASK_REFUSED.error(f"{source.relation} has no column '{name}'.", hint=hint)
        masks.append(_mask(source, column, salt))

    def all_of_them(record: Record) -> Record:
        for each in masks:
            record = each(record)
        return record

    return all_of_them


def _mask(source: KafkaInput, column: Column, salt: bytes) -> Mask:
    origin = column.origin
    if origin.startswith("header("):
        header = origin[len("header(") : -1]
        return lambda record: replace(
            record,
            headers=tuple((n, _whole(v, salt) if n == header else v) for n, v in record.headers),
        )
    if origin == "headers":
        return lambda record: replace(record, headers=tuple((n, _whole(v, salt)) for n, v in record.headers))
    part, _, path = origin.partition(".")
    if part not in ("key", "value"):
        raise MASK_REFUSED.error(f"column '{column.name}' is the message's {origin}, which cannot be masked.")
    kind = source.key_format if part == "key" else source.value_format
    if column.read_as is None and not path and kind != "raw":
        return _of_part(part, lambda content: _whole(content, salt))
    if column.read_as is None and path and kind == "json":
        return _of_part(part, lambda content: _field(content, path.split("."), salt))
    raise MASK_REFUSED.error(f"column '{column.name}' is in a {part} of the format {kind}, which cannot be masked.")


def _of_part(part: str, change: Callable[[bytes | None], bytes | None]) -> Mask:
    if part == "key":
        return lambda record: replace(record, key=change(record.key))
    return lambda record: replace(record, value=change(record.value))


def _whole(content: bytes | None, salt: bytes) -> bytes | None:
    return None if content is None else _text(content, salt).encode()


def _text(content: bytes, salt: bytes) -> str:
    return f"masked-{hmac.new(salt, content, hashlib.sha256).hexdigest()[:16]}"


def _field(content: bytes | None, steps: Sequence[str], salt: bytes) -> bytes | None:
    if not content:
        return content
    try:
        message = json.loads(content)
    except (ValueError, UnicodeDecodeError):
        return _whole(content, salt)
    if not isinstance(message, dict):
        return _whole(content, salt)
    place: Any = message
    for step in steps[:-1]:
        place = place.get(_right(place, step)) if isinstance(place, dict) else None
    last = _right(place, steps[-1]) if isinstance(place, dict) else None
    if last is None:
        return content
    place[last] = _masked(place[last], salt)
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _right(place: dict[str, Any], step: str) -> str | None:
    """A field's own spelling: Spark takes fields whatever their case."""
    return step if step in place else next((each for each in place if each.lower() == step.lower()), None)


def _masked(value: Any, salt: bytes) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return _text(value.encode(), salt)
    if isinstance(value, int):
        digits = len(str(abs(value)))
        number = int(hmac.new(salt, str(value).encode(), hashlib.sha256).hexdigest(), 16)
        return 10 ** (digits - 1) + number % (9 * 10 ** (digits - 1))
    if isinstance(value, float):
        whole, _, part = f"{value:f}".rstrip("0").partition(".")
        return float(f"{_masked(int(whole), salt)}.{_masked(int(part or 0), salt)}")
    if isinstance(value, list):
        return [_masked(each, salt) for each in value]
    return {name: _masked(each, salt) for name, each in value.items()}
