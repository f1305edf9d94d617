"""Properties of Kafka's clients, at a path where they are looked up when a client is made.

Rules
- The path is a link that stays the same; what it leads to is replaced as a whole, so a reader sees all or nothing.
- The properties hold secrets. They live in the memory of this process and end with it; where the system cannot do that
  they are a file that its owner alone can read, removed when the engine ends.
- Properties of clients have no line ends of their own: those of certificates and keys are written as escapes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


class PropertiesFile:
    """A file of Java properties that is somewhere safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: int | None = None

    def write(self, values: Mapping[str, str]) -> None:
        content = "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in sorted(values.items()))
        draft = self._path.with_suffix(".tmp")
        draft.unlink(missing_ok=True)
        memory = None
        if sys.platform == "linux":
            memory = os.memfd_create("kafka.properties")
            os.write(memory, content.encode("ascii"))
            draft.symlink_to(f"/proc/{os.getpid()}/fd/{memory}")
        else:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(content)
        draft.replace(self._path)
        self._memory, old = memory, self._memory
        if old is not None:
            os.close(old)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None


def _escaped(text: str) -> str:
    """As `java.util.Properties` reads it, in ASCII."""
    signs = []
    for sign in text:
        if sign in _ESCAPES:
            signs.append(_ESCAPES[sign])
        elif sign in " =:#!":
            signs.append(f"\\{sign}")
        elif " " < sign <= "~":
            signs.append(sign)
        else:
            units = sign.encode("utf-16-be")
            signs += [f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
    return "".join(signs)
