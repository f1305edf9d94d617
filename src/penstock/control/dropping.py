"""What may be dropped: a table that no deployed stream reads.

Its live tests are no readers: they are nothing without it, and are dropped with it.
"""

from __future__ import annotations

from penstock.compiler.spec import Origin
from penstock.control.deployed import deployed_streams
from penstock.control.planning import table_readers
from penstock.errors.catalogue import SOURCE_TABLE_IN_USE, TABLE_IN_USE
from penstock.store import Store


def dropped_with(store: Store, stream: str) -> list[str]:
    """The live tests of a table, to be dropped before it; PEN-3023 when it is a source table that others read, PEN-3024
    when it is a dynamic table that they do."""
    deployed = deployed_streams(store)
    reading = table_readers(stream, deployed)
    tests = {name for name in reading if (spec := deployed[name].spec) and spec.origin is Origin.LIVE_TEST}
    others = sorted(reading - tests)
    if not others:
        return sorted(tests)
    spec = deployed[stream].spec
    is_source = spec is not None and spec.is_source_table
    kind, what = (SOURCE_TABLE_IN_USE, "Source table") if is_source else (TABLE_IN_USE, "Dynamic table")
    raise kind.error(
        f"{what} '{stream}' is read by {', '.join(others)}.",
        hint=f"Drop {'it' if len(others) == 1 else 'them'} first: 'penstock drop {others[0]}'.",
    )
