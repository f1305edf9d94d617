"""Asking the engine what a query makes of its table.

Plan and deployment ask the same question, so that what was planned is what is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.compiler.spec import StreamSpec
from penstock.control.requests import COMMAND_TIMEOUT, run_command
from penstock.store import Store

_REWRITTEN = 1800.0  # seconds for a table whose rows may have to be copied


@dataclass(frozen=True)
class Columns:
    """How the columns of a query differ from those of its table, and what becomes of that."""

    changes: tuple[str, ...] = ()  # what needs a rebuild
    followed: tuple[str, ...] = ()  # what happens without one
    replaced: bool = False  # columns of the table go, or change their type


class NotIncrementalError(Exception):
    """Spark cannot keep the query as a stream, and the model leaves it open how its table is refreshed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def ask_columns(store: Store, spec: StreamSpec, *, full_refresh: bool = False, dry: bool) -> Columns:
    """Have the engine read the model and, unless `dry`, make its table or change its columns."""
    copies = spec.output.on_schema_change == "sync_all_columns" and not dry
    found = run_command(
        store,
        "prepare",
        spec.name,
        {"spec": spec.to_json(), "full_refresh": full_refresh, "dry": dry},
        _REWRITTEN if copies else COMMAND_TIMEOUT,
    )
    if found.get("full"):
        raise NotIncrementalError(str(found["full"]))
    changes, followed = (tuple(found.get(name) or ()) for name in ("changes", "followed"))
    return Columns(changes, followed, bool(found.get("replaced")))
