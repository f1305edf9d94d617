"""Small files of a table that is appended to, put together in the order in which their rows came.

A stream that begins with a table as it stands takes its files from the oldest to the newest, and the last row of a key
is the one that counts. delta-rs puts the newest rows first.

Rules
- Files are put together with their neighbours alone: in the order in which Delta's stream reads them, by their time and
  then their name. The new file has the time of its newest part, so it stands where the parts stood.
- The commit changes no row, and goes beside appends. It gives up when files or the table itself were changed meanwhile.
- Rows pass through in pieces; a file is never in memory as a whole.
- A table with a feature under which files cannot be copied as they are is left alone: `Unfit` says why.
- New files have the number of their rows as statistics, and of the first columns that are numbers, text, dates or times
  what a reader needs to pass over them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from penstock.engine import appends

_PIECE = 32 << 20  # bytes of rows in memory, and in a group of a file
_INDEXED = 32  # columns with statistics, as Delta has it
_PREFIX = 32  # signs of a text in them
_PLAIN_NAME = re.compile(r"[\w.=-]+")  # in the log as on the disk
_REMOVES = frozenset({"remove", "metaData", "protocol"})


class Unfit(Exception):  # noqa: N818 -- nothing went wrong
    """Why files of a table are not put together."""


class Met(Exception):  # noqa: N818 -- nothing went wrong
    """Somebody else changed the table meanwhile."""


@dataclass(frozen=True)
class File:
    """A file of a table."""

    name: str
    size: int
    at: int  # milliseconds
    rows: int | None


@dataclass(frozen=True)
class _Made:
    file: Path
    parts: tuple[File, ...]
    metadata: pq.FileMetaData


def compact(path: Path, table: DeltaTable, small: int) -> None:
    """Put the small files of the table, as it was loaded, together; nothing is done when no two of them are neighbours
    that fit into one."""
    groups = neighbours(files(table), small)
    if not groups:
        return
    why = _unfit(table, groups)
    if why is not None:
        raise Unfit(why)
    schema = _schema(table)
    made: list[_Made] = []
    try:
        made.extend(_together(path, group, schema) for group in groups)
        actions = _actions(made, table.version())
    except BaseException:
        _forget(made)
        raise
    try:
        _commit(path / "_delta_log", table.version(), actions)
    except Met:  # after anything else the entry may be there; files that nobody needs go with their age
        _forget(made)
        raise


def files(table: DeltaTable) -> list[File]:
    """The files of a table in the order in which a stream that begins with it reads them."""
    found = pa.table(table.get_add_actions(flatten=True)).select(
        ["path", "size_bytes", "modification_time", "num_records"]
    )
    listed = [File(*each.values()) for each in found.to_pylist()]
    return sorted(listed, key=lambda each: (each.at, each.name))


def neighbours(listed: Sequence[File], small: int) -> list[list[File]]:
    """Files below that size that stand beside each other, in groups up to that size."""
    groups: list[list[File]] = [[]]
    for file in listed:
        if file.size >= small or sum(each.size for each in groups[-1]) + file.size > small:
            groups.append([])
        if file.size < small:
            groups[-1].append(file)
    return [group for group in groups if len(group) > 1]


def _unfit(table: DeltaTable, groups: Sequence[Sequence[File]]) -> str | None:
    if not appends.is_known(table.protocol(), without={"deletionVectors"}):
        return "its protocol has a feature that is not known here"
    if table.metadata().partition_columns:
        return "it has partitions"
    if (setting := appends.refused(table.metadata().configuration, appends.BY_FILE)) is not None:
        return f"{setting} is set"
    if any(not _PLAIN_NAME.fullmatch(file.name) for group in groups for file in group):
        return "its files are elsewhere"
    return None


def _schema(table: DeltaTable) -> pa.Schema:
    """The columns, all of which may be null: that they are not was seen to when the rows were written."""
    columns = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(field.name, field.type) for field in columns])


def _forget(made: Sequence[_Made]) -> None:
    for each in made:
        each.file.unlink(missing_ok=True)


# -- rows --------------------------------------------------------------------------------------------------------------
def _together(path: Path, group: Sequence[File], schema: pa.Schema) -> _Made:
    file = path / appends.new_name()
    written = 0
    try:
        with file.open("wb") as target:
            with pq.ParquetWriter(target, schema, compression="snappy") as writer:
                for piece in _pieces(path, group, schema):
                    writer.write_table(piece, row_group_size=max(piece.num_rows, 1))
                    written += piece.num_rows
            target.flush()
            os.fsync(target.fileno())
        counts = [each.rows for each in group]
        told = sum(count for count in counts if count is not None)
        if None not in counts and written != told:
            raise Unfit(f"{written} rows were read of its files, which have {told}")
        return _Made(file, tuple(group), pq.read_metadata(file))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as problem:
        file.unlink(missing_ok=True)
        raise Unfit(f"its files cannot be read: {problem}") from problem
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _pieces(path: Path, group: Sequence[File], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of the files in their order."""
    # Spark writes times as INT96; the usual reading, to the nanosecond, knows the years 1677 to 2262 alone.
    kind = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    local = fs.LocalFileSystem()
    batches: list[pa.RecordBatch] = []
    for file in group:
        fragment = kind.make_fragment(str(path / file.name), local)
        read = ds.FileSystemDataset([fragment], schema, kind, local)
        for batch in read.to_batches(batch_readahead=1, fragment_readahead=1, use_threads=False):
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= _PIECE:
                yield pa.Table.from_batches(batches, schema)
                batches = []
    if batches:
        yield pa.Table.from_batches(batches, schema)


# -- the log -----------------------------------------------------------------------------------------------------------
def _actions(made: Sequence[_Made], version: int) -> list[dict[str, Any]]:
    now = int(time.time() * 1000)
    parts = [part for each in made for part in each.parts]
    told = {
        "timestamp": now, "operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"}, "readVersion": version,
        "isBlindAppend": False, "engineInfo": "Penstock",
        "operationMetrics": {"numAddedFiles": str(len(made)), "numRemovedFiles": str(len(parts))},
    }  # fmt: skip
    removed = [
        {"remove": {
            "path": part.name, "dataChange": False, "deletionTimestamp": now, "extendedFileMetadata": True,
            "partitionValues": {}, "size": part.size,
        }} for part in parts
    ]  # fmt: skip
    added = [
        {"add": {
            "path": each.file.name, "partitionValues": {}, "size": each.file.stat().st_size,
            "modificationTime": max(part.at for part in each.parts), "dataChange": False,
            "stats": json.dumps(statistics(each.metadata)),
        }} for each in made
    ]  # fmt: skip
    return [{"commitInfo": told}, *removed, *added]


def _commit(log: Path, read: int, actions: list[dict[str, Any]]) -> None:
    """Commit behind what was appended since that version was read."""
    version = read + 1
    while True:
        try:
            appends.commit(log, version, actions)
        except FileExistsError:
            if _changes_files(log / f"{version:020d}.json"):
                raise Met from None
            version += 1
        else:
            return


def _changes_files(commit: Path) -> bool:
    lines = commit.read_text(encoding="utf-8").splitlines()
    return any(not _REMOVES.isdisjoint(json.loads(line)) for line in lines if line.strip())


# -- statistics --------------------------------------------------------------------------------------------------------
def statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """What the log tells of a file. A column that is not named may have any value."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for at, field in _flat(metadata):
        found = [group.column(at).statistics for group in groups]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        empty = sum(each.null_count for each in found if not each.has_min_max)
        if not bounds or empty + sum(each.num_values + each.null_count for each in bounds) != metadata.num_rows:
            continue  # in some group nobody knows them
        try:
            low = _low(min(each.min for each in bounds), field.type)
            high = _high(max(each.max for each in bounds), field.type)
        except (OverflowError, ValueError):  # a time that Python does not know
            continue
        lowest |= {} if low is None else {field.name: low}
        highest |= {} if high is None else {field.name: high}
    return {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _flat(metadata: pq.FileMetaData) -> Iterator[tuple[int, pa.Field]]:
    """The first columns that are not nested, with their place in the file."""
    schema = metadata.schema.to_arrow_schema()
    if any("." in name for name in schema.names):
        return  # which looks like a field of a nested one
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for field in list(schema)[:_INDEXED]:
        if field.name in places and not pa.types.is_nested(field.type):
            yield places[field.name], field


def _low(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _time(value, kind)
    return value[:_PREFIX] if isinstance(value, str) else _plain(value, kind)


def _high(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _time(value + dt.timedelta(microseconds=999), kind)
    return value if isinstance(value, str) and len(value) <= _PREFIX else _plain(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Not so for floats: Parquet says nothing of their NaN, which is larger than all numbers."""
    if pa.types.is_integer(kind):
        return value
    return value.isoformat() if pa.types.is_date(kind) else None


def _time(value: dt.datetime, kind: pa.TimestampType) -> str | None:
    """To the millisecond below."""
    if kind.tz is None or value.year < 1000:
        return None
    return f"{value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
