"""What a sensor remembers between two looks, kept in its cursor.

Rules
- The memory is small (a line for each subject), has a version, and an unreadable one is an empty one.
- What is no longer there is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

VERSION = 1
T = TypeVar("T")


class Cursor(Generic[T]):
    """Turns a memory of one kind of entries into text and back."""

    def __init__(self, entry: type[T]) -> None:
        self._kind: TypeAdapter[dict[str, T]] = TypeAdapter(dict[str, entry])  # type: ignore[valid-type]

    def read(self, text: str | None) -> dict[str, T]:
        if not text:
            return {}
        try:
            content: Any = json.loads(text)
            if not isinstance(content, dict) or content.get("version") != VERSION:
                return {}
            return self._kind.validate_python(content["entries"])
        except (ValueError, KeyError, ValidationError):
            return {}

    def write(self, memory: Mapping[str, T]) -> str:
        entries = self._kind.dump_python(dict(memory), mode="json")
        return json.dumps({"version": VERSION, "entries": entries}, separators=(",", ":"))
