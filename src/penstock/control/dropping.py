"""What may be dropped: a table that no deployed stream reads."""

from __future__ import annotations

from penstock.control.deployed import deployed_streams
from penstock.control.planning import table_readers
from penstock.errors.catalogue import SOURCE_TABLE_IN_USE, TABLE_IN_USE
from penstock.store import Store


def refuse_drop(store: Store, stream: str) -> None:
    """PEN-3023 when it is a source table that others read, PEN-3024 when it is a dynamic table that they do."""
    deployed = deployed_streams(store)
    reading = sorted(table_readers(stream, deployed))
    if not reading:
        return
    spec = deployed[stream].spec
    is_source = spec is not None and spec.is_source_table
    kind, what = (SOURCE_TABLE_IN_USE, "Source table") if is_source else (TABLE_IN_USE, "Dynamic table")
    raise kind.error(
        f"{what} '{stream}' is read by {', '.join(reading)}.",
        hint=f"Drop {'it' if len(reading) == 1 else 'them'} first: 'penstock drop {reading[0]}'.",
    )
