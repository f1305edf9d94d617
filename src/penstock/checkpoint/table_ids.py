"""Which table an offset of Delta belongs to: it names the table's id alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.compiler.spec import Input, TableStreamInput


def table_id(table: Path | str) -> str | None:
    """The id that offsets name a table by; None when there is no table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return str(DeltaTable(str(table)).metadata().id)
    except (DeltaError, FileNotFoundError):  # or one that is just being made
        return None


def relations(inputs: Sequence[Input], where: Callable[[str], Path | str]) -> dict[str, str]:
    """Id -> relation of the tables that a stream reads as streams. Of a single one nobody has to ask."""
    names = {item.relation for item in inputs if isinstance(item, TableStreamInput)}
    if len(names) < 2:
        return {}
    return {found: name for name in names if (found := table_id(where(name))) is not None}
