"""The database below the store: opening, versions, and the two kinds of transaction.

Rules
- A read is a snapshot and takes no lock; it never waits for a writer and no writer waits for it.
- Writes are one after the other, on SQLite (BEGIN IMMEDIATE) and on PostgreSQL (an advisory lock) alike, so that a
  write may decide by what it just read. They are short; nothing is asked of the network inside one.
- Whatever the database says reaches a user as PEN-3004, a full disk as PEN-1006.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, select, update
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import PenstockError
from penstock.errors.catalogue import DISK_FULL, STORE_UNUSABLE
from penstock.store import schema

BUSY_SECONDS = 30.0
_WRITERS = 0x70656E73746F636B  # the advisory lock's number: "penstock"
_WRITE = "penstock_write"
_FAULTS = (SQLAlchemyError, sqlite3.Error)  # what fails in `_begin_sqlite` is not wrapped


class Database:
    """One store, opened. Safe to share between threads; each process opens its own."""

    def __init__(self, engine: Engine) -> None:
        self._readers = engine
        self._writers = engine.execution_options(**{_WRITE: True})

    @classmethod
    def _connect(cls, where: Path | str) -> Engine:
        if isinstance(where, Path) or "://" not in where:
            Path(where).parent.mkdir(parents=True, exist_ok=True)
            engine = create_engine(f"sqlite:///{where}", connect_args={"timeout": BUSY_SECONDS})
            event.listen(engine, "connect", _tune_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            url = make_url(where)
            if url.drivername in ("postgresql", "postgres"):  # the driver that the extra 'postgres' installs
                url = url.set(drivername="postgresql+psycopg")
            engine = create_engine(url, pool_pre_ping=True)
            event.listen(engine, "begin", _begin_postgres)
        return engine

    def close(self) -> None:
        self._readers.dispose()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        try:
            with self._readers.begin() as tx:
                yield tx
        except _FAULTS as problem:
            raise _named(problem) from problem

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        try:
            with self._writers.begin() as tx:
                yield tx
        except _FAULTS as problem:
            raise _named(problem) from problem

    def _migrate(self) -> None:
        """Make the tables that are missing, also in an older store; refuse a store that a newer Penstock made."""
        if self._version_found() == schema.SCHEMA_VERSION:
            return
        with self._write() as tx:  # one writer at a time: two processes that start together make the tables once
            schema.metadata.create_all(tx)
            version = str(schema.SCHEMA_VERSION)
            if tx.execute(_version_query()).scalar() is None:
                tx.execute(insert(schema.meta).values(key="schema_version", value=version))
            else:
                tx.execute(update(schema.meta).where(schema.meta.c.key == "schema_version").values(value=version))

    def _version_found(self) -> int | None:
        with self._read() as tx:
            if not self._readers.dialect.has_table(tx, "meta"):
                return None
            found = tx.execute(_version_query()).scalar()
        if found is not None and int(found) > schema.SCHEMA_VERSION:
            raise STORE_UNUSABLE.error(
                f"The deployment store has version {found}; this Penstock knows {schema.SCHEMA_VERSION}.",
                hint="Install the newer Penstock.",
            )
        return None if found is None else int(found)


def _version_query() -> Any:
    return select(schema.meta.c.value).where(schema.meta.c.key == "schema_version")


def _named(problem: Exception) -> PenstockError:
    cause = str(getattr(problem, "orig", None) or problem).strip().splitlines()[0]
    if "disk is full" in cause or "No space left" in cause:
        return DISK_FULL.error("The deployment store could not be written: the disk is full.")
    return STORE_UNUSABLE.error(f"The deployment store cannot be used: {cause}.")


def _tune_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions on its own: `_begin_sqlite` does, so that a read that turns into a write
    # waits at its start instead of failing in its middle.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
    _patiently(lambda: cursor.execute("PRAGMA journal_mode=WAL"))
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _patiently(action: Callable[[], object]) -> None:
    # Turning WAL on, and the moment another process closes the file as its last user, answer "locked" at once instead
    # of waiting for the busy timeout.
    deadline = time.monotonic() + BUSY_SECONDS
    while not _unlocked(action, last=time.monotonic() > deadline):
        time.sleep(0.01)


def _unlocked(action: Callable[[], object], *, last: bool) -> bool:
    try:
        action()
    except sqlite3.OperationalError as problem:
        if last or "locked" not in str(problem):
            raise
        return False
    return True


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE)
    driver: Any = connection.connection.driver_connection
    _patiently(lambda: driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN"))


def _begin_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITE):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
