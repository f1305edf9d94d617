"""Schemas by id, kept below `.penstock/registry/schemas`: an id means the same schema for ever.

Rules
- One file an id, written whole or not at all; files of several registries do not meet.
- A source's ids are those that were met in its messages; an id that the registry did not know is kept as such, and
  asked for again when a stream starts.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from penstock.paths import ProjectPaths, safe_name
from penstock.registry.client import Registered


class SchemaCache:
    """The schemas of one registry."""

    def __init__(self, paths: ProjectPaths, registry: str) -> None:
        self._home = paths.registry / "schemas" / safe_name(registry)

    def find(self, schema_id: int) -> Registered | None:
        try:
            return Registered(**json.loads((self._home / f"{schema_id}.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # not there, or damaged: it is asked for again

    def keep(self, schema: Registered) -> None:
        _write(self._home / f"{schema.id}.json", json.dumps(asdict(schema), indent=1))

    def versions(self, subject: str) -> dict[int, int]:
        """The versions of a subject that were seen, with their ids."""
        try:
            raw = json.loads(self._versions(subject).read_text(encoding="utf-8"))
            return {int(number): int(schema_id) for number, schema_id in raw.items()}
        except (FileNotFoundError, ValueError, AttributeError):
            return {}

    def keep_versions(self, subject: str, versions: dict[int, int]) -> None:
        if versions and self.versions(subject) != versions:
            _write(self._versions(subject), json.dumps(versions, indent=1))

    def met(self, source: str) -> dict[int, bool | None]:
        """The ids of a source's messages, and whether the registry knew each; None: it has not been asked yet."""
        try:
            raw = json.loads(self._met(source).read_text(encoding="utf-8"))
            return {int(schema_id): None if known is None else bool(known) for schema_id, known in raw.items()}
        except (FileNotFoundError, ValueError, AttributeError):
            return {}

    def meet(self, source: str, ids: dict[int, bool | None]) -> None:
        known = self.met(source)
        if known | ids != known:
            _write(self._met(source), json.dumps(known | ids, indent=1))

    def _versions(self, subject: str) -> Path:
        return self._home / "subjects" / f"{safe_name(subject)}.json"

    def _met(self, source: str) -> Path:
        return self._home / "met" / f"{safe_name(source)}.json"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
