"""Recorded messages in a file.

Rules
- A fixture is text, compressed: a line of JSON that says what it is and has the schemas, then a line for each message.
- Keys, values and headers that are text are written as text, so that a fixture can be read and compared; others as
  base64.
- The same messages give the same file, byte for byte.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.engine.topic_files import Record
from penstock.errors import Location
from penstock.errors.catalogue import FIXTURE_INVALID
from penstock.registry.client import Registered

VERSION = 1


@dataclass(frozen=True)
class Recorded:
    """A slice of a topic."""

    source: str
    topic: str
    records: tuple[Record, ...]
    schemas: Mapping[int, Registered] = field(default_factory=dict)
    masked: tuple[str, ...] = ()


def write(recorded: Recorded, file: Path) -> int:
    """Write the fixture; its size in bytes."""
    head = {
        "penstock_fixture": VERSION,
        "source": recorded.source,
        "topic": recorded.topic,
        "masked": list(recorded.masked),
        "schemas": [asdict(each) for _, each in sorted(recorded.schemas.items())],
    }
    lines = [json.dumps(head, ensure_ascii=False), *(_line(each, recorded.topic) for each in recorded.records)]
    content = gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.tmp")
    draft.write_bytes(content)
    draft.replace(file)
    return len(content)


def read(file: Path, at: Location | None = None) -> Recorded:
    """The messages of a fixture; FIXTURE_INVALID when it is none."""
    try:
        head, *lines = gzip.decompress(file.read_bytes()).decode().removesuffix("\n").split("\n")
        told: dict[str, Any] = json.loads(head)
        if told.get("penstock_fixture") != VERSION:
            raise FIXTURE_INVALID.error(f"{file.name} is no fixture of this version.", at=at)
        topic = str(told["topic"])
        schemas = [Registered(**each) for each in told["schemas"]]
        return Recorded(
            source=str(told["source"]),
            topic=topic,
            records=tuple(_record(json.loads(line), topic) for line in lines),
            schemas={each.id: each for each in schemas},
            masked=tuple(told.get("masked") or ()),
        )
    except FileNotFoundError:
        raise FIXTURE_INVALID.error(f"there is no file {file.name}.", at=at) from None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as problem:
        raise FIXTURE_INVALID.error(f"{file.name} cannot be read: {problem}.", at=at) from None


def _line(record: Record, topic: str) -> str:
    told: dict[str, Any] = {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}
    if record.topic != topic:
        told["topic"] = record.topic
    told |= _told("key", record.key) | _told("value", record.value)
    if record.headers:
        told["headers"] = [{"name": name, **_told("value", value)} for name, value in record.headers]
    return json.dumps(told, ensure_ascii=False)


def _told(name: str, content: bytes | None) -> dict[str, str]:
    if content is None:
        return {}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _content(told: Mapping[str, Any], name: str) -> bytes | None:
    if name in told:
        return str(told[name]).encode()
    encoded = told.get(f"{name}_base64")
    return None if encoded is None else base64.b64decode(encoded)


def _record(told: Mapping[str, Any], topic: str) -> Record:
    return Record(
        topic=str(told.get("topic", topic)),
        partition=int(told["partition"]),
        offset=int(told["offset"]),
        timestamp=int(told["timestamp"]),
        key=_content(told, "key"),
        value=_content(told, "value"),
        headers=tuple((str(each["name"]), _content(each, "value")) for each in told.get("headers") or ()),
    )
