"""`penstock query --follow`: rows as they come, until Ctrl-C.

Rules
- Over sources and append-only dynamic tables the query becomes a stream of the engine, with the same compiler and the
  same limits as a model. An aggregate shows a group's row anew whenever it changes.
- Over other tables the query is run again whenever one of them has a new version, and the rows that were not in the
  result before are shown. A row that is gone is not shown.
- What comes from now on is shown; with `--from-beginning` also what is there.
- `limit n` in the query ends it after n rows.
- Ctrl-C, a closed pipe or a kill leaves nothing behind: the engine sees the socket close.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.manifest import current_manifest
from penstock.cli.output import Ui
from penstock.cli.session import Session
from penstock.errors import PenstockError
from penstock.errors.catalogue import (
    ENGINE_DOWN,
    FOLLOW_TOO_MANY,
    MODEL_NO_STREAM,
    MODEL_NOT_INCREMENTAL,
    MODEL_UPDATING_INPUT,
)

if TYPE_CHECKING:
    from penstock.compiler.follow import Followed

MOST_ROWS = 100_000  # of a result that is compared with the one before
_POLL = 0.2
_NO_STREAM = (MODEL_NO_STREAM, MODEL_UPDATING_INPUT, MODEL_NOT_INCREMENTAL)
Rows = list[tuple[Any, ...]]


@dataclass
class Printer:
    """Rows in the form that was asked for, each at once; says when enough were shown."""

    ui: Ui
    limit: int | None = None
    shown: int = 0
    widths: list[int] = field(default_factory=list)

    def show(self, columns: Sequence[str], rows: Rows) -> bool:
        """Whether more is wanted."""
        if self.limit is not None:
            rows = rows[: self.limit - self.shown]
        if self.ui.is_json:
            for row in rows:
                self._line(json.dumps(output.plain(dict(zip(columns, row, strict=True))), ensure_ascii=False))
        elif self.ui.mode == output.TableMode.CSV.value:
            output.write_csv_rows(self.ui, columns if not self.shown else None, rows)
        else:
            self._table(columns, rows)
        self.ui.out.file.flush()
        self.shown += len(rows)
        return self.limit is None or self.shown < self.limit

    def _table(self, columns: Sequence[str], rows: Rows) -> None:
        texts = [[output.cell(value) for value in row] for row in rows]
        if not self.widths and texts:
            self.widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
            self._line(self._aligned(columns))
        for text in texts:
            self._line(self._aligned(text))

    def _aligned(self, texts: Sequence[str]) -> str:
        return "  ".join(text.ljust(width) for text, width in zip(texts, self.widths, strict=True)).rstrip()

    def _line(self, text: str) -> None:
        self.ui.out.file.write(text + "\n")


def follow(session: Session, sql: str, *, schema: str, from_beginning: bool) -> None:
    """Show the rows of a query as they come."""
    from penstock.compiler.follow import compile_follow, sources_read, tables_read, without_limit
    from penstock.engine.process import read_endpoint

    if read_endpoint(session.paths) is None:
        raise ENGINE_DOWN.error("The engine is not running.")
    manifest = current_manifest(session)
    try:
        followed = compile_follow(
            manifest, sql, schema=schema, project_dir=session.project, from_beginning=from_beginning
        )
    except PenstockError as problem:
        if problem.kind not in _NO_STREAM or sources_read(manifest, sql, schema=schema):
            raise
        text, limit = without_limit(sql.strip().rstrip(";").rstrip())
        repeat(session, text, tables_read(text, schema=schema), Printer(session.ui, limit), from_beginning)
    else:
        push(session, followed)


# -- a stream of the engine -------------------------------------------------------------------------------------------
def push(session: Session, followed: Followed) -> None:
    """Have the engine run the query as a stream, and show what it sends."""
    printer = Printer(session.ui, followed.limit)
    with _channel(session, followed) as channel:
        for sign, body in _frames(channel):
            if sign == b"R":
                session.ui.note("Following; Ctrl-C ends.")
            elif sign == b"E":
                from penstock.control.requests import rebuilt

                raise rebuilt(json.loads(body))
            elif not printer.show(*_rows(body)):
                return
    raise ENGINE_DOWN.error("The engine ended.")


@contextmanager
def _channel(session: Session, followed: Followed) -> Iterator[socket.socket]:
    """The connection that the engine makes to us; its end is the query's end."""
    from penstock.control.requests import run_command

    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as folder,  # only this user can look into it
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        address = str(Path(folder) / "rows")
        listener.bind(address)
        listener.listen(1)
        with session.store() as store, session.ui.working("starting the query"):
            run_command(store, "follow", "followed query", {"spec": followed.spec.to_json(), "socket": address})
        channel, _ = listener.accept()  # it has connected before it answered
        with channel:
            yield channel


def _frames(channel: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """What the engine sends, as `penstock.engine.follow` has it: a sign, a length, so many bytes."""
    with channel.makefile("rb") as stream:
        while len(header := stream.read(9)) == 9:
            length = int.from_bytes(header[1:], "big")
            body = stream.read(length)
            if len(body) < length:
                return
            yield header[:1], body


def _rows(body: bytes) -> tuple[list[str], Rows]:
    import pyarrow as pa

    table = pa.ipc.open_stream(body).read_all()
    columns = [[_python(value) for value in column.to_pylist()] for column in table.columns]
    return list(table.column_names), list(zip(*columns, strict=True))


def _python(value: Any) -> Any:
    """A value as a query without --follow gives it: local times, and maps as mappings."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {key: _python(each) for key, each in value}
        return [_python(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _python(each) for key, each in value.items()}
    return value


# -- a query that is run again ----------------------------------------------------------------------------------------
def repeat(session: Session, sql: str, tables: list[str], printer: Printer, from_beginning: bool) -> None:
    """Run the query at each new version of its tables and show the rows that were not there before."""
    from penstock.cli.query import connect, fetch

    with connect(session) as spark:
        before: Counter[str] = Counter()
        versions: list[int | None] | None = None
        began = False
        while True:
            now = [_version(session, table) for table in tables]
            if now == versions and None not in now:
                time.sleep(_POLL)
                continue
            versions = now
            result = fetch(spark, sql, MOST_ROWS)
            if result.more:
                raise FOLLOW_TOO_MANY.error(f"The query has more than {MOST_ROWS:,} rows.")
            rows = list(result.rows)
            added = _added(rows, before)
            before = Counter(map(repr, rows))
            if (began or from_beginning) and added and not printer.show(result.columns, added):
                return
            if not began:
                session.ui.note("Following; Ctrl-C ends.")
                began = True
            if None in now:
                time.sleep(1)


def _added(rows: Rows, before: Counter[str]) -> Rows:
    """The rows that are more often there than before."""
    left = Counter(before)
    found = []
    for row in rows:
        key = repr(row)
        if left[key]:
            left[key] -= 1
        else:
            found.append(row)
    return found


def _version(session: Session, table: str) -> int | None:
    """The number of a table's last commit; None for what is not a Delta table of the warehouse."""
    from penstock.compiler.source_table import HIDDEN
    from penstock.control.lag import table_path

    for relation in (table, f"{HIDDEN}{table}"):
        log = table_path(session.paths, relation) / "_delta_log"
        if log.is_dir():
            names = [entry.name for entry in os.scandir(log)]
            return max((int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name)), default=None)
    return None
