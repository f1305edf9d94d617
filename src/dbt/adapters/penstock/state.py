"""What `state:modified` has to know of a source: dbt compares its config, and not its columns.

The columns of a stream, with what each is read from, and the schemas that penstock.lock has pinned for it, go as a
fingerprint into the part of the manifest that dbt compares. Descriptions and tests do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

KEY = "penstock_schema"


def mark_sources(manifest: Any, project: Path) -> None:
    """Put the fingerprints into the sources of a manifest that are streams."""
    sources = getattr(manifest, "sources", {})
    if not sources:
        return
    from penstock.project.source import is_stream

    pinned = _pinned(project)
    for source in sources.values():
        entry = source.to_dict(omit_none=False)
        if is_stream(entry):
            name = f"{source.source_name}.{source.name}"
            source.unrendered_config[KEY] = fingerprint(entry, pinned.get(name))


def _pinned(project: Path) -> dict[str, Any]:
    """The schemas of the lock file by source; a registry's numbers for them do not count."""
    from penstock.project.lockfile import read_lock

    try:
        lock = read_lock(project)
    except PenstockError:
        return {}  # whoever needs it says what is wrong with it
    return {
        name: {part: [(each.name, each.fingerprint) for each in parts[part].types] for part in sorted(parts)}
        for name, parts in lock.sources.items()
    }


def fingerprint(source: Mapping[str, Any], pinned: object = None) -> str:
    """Equal for sources with the same columns, of the same types, from the same places."""
    from penstock.project.source import own_settings

    columns = [
        [column.get("name", name), str(column.get("data_type") or "").lower(), own_settings(column)]
        for name, column in (source.get("columns") or {}).items()
    ]
    settings = (source.get("source_meta") or {}).get("stream")
    text = json.dumps([columns, settings, pinned], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
