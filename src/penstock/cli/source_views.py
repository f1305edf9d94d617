"""Sources as relations of the catalog, for the commands that ask for them.

Rules
- A dbt command that reaches the engine registers every source. A query that names a source before that registers it, so
  that what is written in YAML can be read at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.cli.manifest import current_manifest
from penstock.cli.relations import stream_sources
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock.errors import PenstockError

CURRENT, OUTDATED, MISSING = "current", "outdated", "missing"
_UNKNOWN = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view ((?:`[^`]+`\.)*`[^`]+`) cannot be found")


def state(session: Session, entry: Mapping[str, Any]) -> str:
    """Whether the catalog has the source as the project has it now."""
    from penstock.compiler import compile_source
    from penstock.compiler.topic_view import fingerprint
    from penstock.project.source import relation_of

    if not session.has_store():
        return MISSING
    with session.store() as store:
        known = store.sources().get(relation_of(entry))
    if known is None:
        return MISSING
    return CURRENT if known.hash == fingerprint(compile_source(entry, project_dir=session.project)) else OUTDATED


def unknown_relation(problem: PenstockError) -> str | None:
    """The relation that a query named in vain: `shop.clicks`."""
    found = _UNKNOWN.search(problem.message)
    return found.group(1).replace("`", "") if found else None


def registered(session: Session, relation: str) -> bool:
    """Make the source of that name known to the catalog; False when the project has none."""
    from penstock.compiler import compile_source
    from penstock.control.sources import register
    from penstock.project.source import is_source_table

    sources = {name.lower(): entry for name, entry in stream_sources(current_manifest(session)).items()}
    entry = sources.get(relation.lower().removeprefix("spark_catalog."))
    if entry is None or is_source_table(entry):
        return False
    with session.store() as store:
        register(store, compile_source(entry, project_dir=session.project))
    return True
