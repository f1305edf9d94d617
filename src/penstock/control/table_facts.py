"""A Delta table as its commit log describes it: columns, rows, size, version. No engine is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


@dataclass(frozen=True)
class TableFacts:
    """What the newest version of a table holds."""

    columns: tuple[tuple[str, str], ...]  # name, Spark type
    version: int
    files: int
    bytes: int
    rows: int | None  # None: a writer kept no statistics
    changed_at: float | None  # epoch seconds of the newest commit


def table_facts(path: Path) -> TableFacts | None:
    """The table at the path; None when there is none (yet)."""
    if not (path / "_delta_log").is_dir():
        return None
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return None
    files = pa.table(table.get_add_actions(flatten=True)).select(["size_bytes", "num_records"]).to_pydict()
    rows = files["num_records"]
    newest = table.history(1)
    fields = json.loads(table.schema().to_json())["fields"]
    return TableFacts(
        columns=tuple((field["name"], spark_type(field["type"])) for field in fields),
        version=table.version(),
        files=len(rows),
        bytes=sum(files["size_bytes"]),
        rows=None if None in rows else sum(rows),
        changed_at=newest[0]["timestamp"] / 1000 if newest and "timestamp" in newest[0] else None,
    )


def spark_type(kind: Any) -> str:
    """A type of Delta's schema as Spark SQL writes it."""
    if isinstance(kind, str):
        return _NAMES.get(kind, kind.upper())
    match kind["type"]:
        case "array":
            return f"ARRAY<{spark_type(kind['elementType'])}>"
        case "map":
            return f"MAP<{spark_type(kind['keyType'])}, {spark_type(kind['valueType'])}>"
        case _:
            fields = ", ".join(f"`{field['name']}`: {spark_type(field['type'])}" for field in kind["fields"])
            return f"STRUCT<{fields}>"
