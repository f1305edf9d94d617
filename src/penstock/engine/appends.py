"""Appending rows to a Delta table at a cost that does not grow with the table.

Before it commits, delta-rs goes through the commits since the log's last checkpoint and the files of the table, every
time: 10 ms for a young table, 70 ms after 300 small batches. An append needs neither. It is a Parquet file and one
entry of the log, which nobody may have written before.

Rules
- The entry of version N + 1 is written whole beside the log and linked to its name: the link fails where there is one
  already. That is how Delta tells writers of a local disk apart, and what fences this writer, too.
- Rows and entry are on the disk before the entry has its name.
- Only for tables to which rows can be appended without looking at them: no constraint, no column that may not be null
  or is made by the writer, no partitions, no feature of the protocol that is not known here. All others are left to
  delta-rs, and so are rows whose columns are not those of the table.
- Files have the number of their rows as their statistics; whoever puts them together later (`engine.compaction`) writes
  the rest.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.table import ProtocolVersions

# Features of Delta's protocol that ask nothing of an append, or only what is looked up below.
_FEATURES = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
        "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
    }
)  # fmt: skip
_PLAIN_VERSION, _FEATURES_VERSION = 4, 7  # of writers: constraints and a change feed at most; features by name
BY_FILE = ("delta.columnMapping.mode", "delta.enableInCommitTimestamps", "delta.enableRowTracking")
_BY_ROW = ("delta.constraints.",)
_CHECKPOINT_EVERY = "delta.checkpointInterval"


@dataclass(frozen=True)
class Layout:
    """What rows have to look like to be appended to a table as it is now."""

    columns: pa.Schema
    checkpoint_every: int  # commits

    def fitted(self, rows: pa.Table) -> pa.Table | None:
        """The rows with the types of the table; None when they are none of this table."""
        if sorted(rows.column_names) != sorted(self.columns.names):
            return None
        try:
            return rows.cast(pa.schema([self.columns.field(name) for name in rows.column_names]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None


def layout(table: DeltaTable) -> Layout | None:
    """How rows are appended to the table, as it was loaded; None when that is delta-rs's to do."""
    metadata = table.metadata()
    settings = metadata.configuration
    if not is_known(table.protocol()) or metadata.partition_columns or refused(settings, (*BY_FILE, *_BY_ROW)):
        return None
    schema = json.loads(table.schema().to_json())
    if any(_asks(field) for field in _fields(schema)):
        return None
    return Layout(pa.schema(table.schema().to_arrow()), int(settings.get(_CHECKPOINT_EVERY) or 100))


def is_known(protocol: ProtocolVersions, *, without: Set[str] = frozenset()) -> bool:
    """Whether all that the protocol asks of a writer is known here, and no feature of these is in it."""
    writer = protocol.min_writer_version
    if writer <= _PLAIN_VERSION:
        return True
    return writer == _FEATURES_VERSION and set(protocol.writer_features or ()) <= _FEATURES - without


def refused(settings: Mapping[str, str | None], names: tuple[str, ...]) -> str | None:
    """The setting of a table that begins with one of these names and is on."""
    found = (name for name, value in settings.items() if name.startswith(names) and value not in ("none", "false"))
    return next(found, None)


def _asks(field: Mapping[str, Any]) -> bool:
    return not field["nullable"] or any(name.startswith("delta.") for name in field["metadata"])


def _fields(kind: Any) -> Iterator[Mapping[str, Any]]:
    """The fields of a type and of all types in it; elements that may not be null count as fields that may not."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield field
        yield from _fields(field["type"])
    for part, may_be_null in (("elementType", "containsNull"), ("keyType", ""), ("valueType", "valueContainsNull")):
        if part in kind:
            yield {"nullable": kind.get(may_be_null, True), "metadata": {}}
            yield from _fields(kind[part])


def append(path: Path, rows: pa.Table, version: int, app: str, app_version: int) -> None:
    """Append rows as a version of the table; FileExistsError when somebody else has made that version."""
    file = path / new_name()
    try:
        with file.open("wb") as target:
            pq.write_table(rows, target, compression="snappy")
            target.flush()
            os.fsync(target.fileno())
        actions = _actions(file, rows.num_rows, {"appId": app, "version": app_version})
        commit(path / "_delta_log", version, actions)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _actions(file: Path, rows: int, txn: dict[str, Any]) -> list[dict[str, Any]]:
    now = int(time.time() * 1000)
    told = {
        "timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "isBlindAppend": True, "engineInfo": "Penstock",
        "operationMetrics": {"numFiles": "1", "numOutputRows": str(rows)},
    }  # fmt: skip
    added = {
        "path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": now,
        "dataChange": True, "stats": json.dumps({"numRecords": rows}),
    }  # fmt: skip
    return [{"commitInfo": told}, {"txn": txn | {"lastUpdated": now}}, {"add": added}]


def new_name() -> str:
    """The name of a new file of rows."""
    return f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"


def commit(log: Path, version: int, actions: list[dict[str, Any]]) -> None:
    """Write an entry of the log; FileExistsError when there is one of that version."""
    draft = log / f".{version:020d}.{uuid.uuid4().hex}.tmp"
    try:
        with draft.open("w", encoding="utf-8") as target:
            target.writelines(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
            target.flush()
            os.fsync(target.fileno())
        os.link(draft, log / f"{version:020d}.json")
    finally:
        draft.unlink(missing_ok=True)
