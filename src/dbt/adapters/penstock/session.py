"""A Spark Connect session with the face of a DB-API connection.

Rules
- pyspark is imported when the first session is opened, not before.
- One session per dbt connection: temporary views and `set` of one model are unknown to the next.
- Every statement carries the connection's tag, so that Ctrl-C interrupts it in the engine.
- Values are bound as SQL literals: Delta's parser takes no parameters (UNBOUND_SQL_PARAMETER in Delta 4.4).
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from dbt.adapters.penstock.errors import QueryError, spark_sentence
from penstock.engine import client

CONF = {**client.CONF, "spark.sql.sources.default": "delta"}
Description = list[tuple[str, str, None, None, None, None, bool]]


def open_session(url: str) -> Session:
    """A new session on the engine. `url` carries the token and is not kept."""
    with spark_errors():
        return Session(client.connect(url, CONF))


class Session:
    """What dbt calls the handle of a connection."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.tag = f"dbt-{uuid.uuid4().hex}"

    def cursor(self) -> Cursor:
        return Cursor(self)

    def cancel(self) -> None:
        """Interrupt what this connection runs; called from another thread."""
        self.spark.interruptTag(self.tag)

    def close(self) -> None:
        self.spark.stop()

    @contextmanager
    def tagged(self) -> Iterator[None]:
        self.spark.addTag(self.tag)  # tags belong to the thread
        try:
            with spark_errors():
                yield
        finally:
            self.spark.removeTag(self.tag)


class Cursor:
    """One statement and its rows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frame: Any = None

    def execute(self, sql: str, bindings: Sequence[Any] | None = None) -> None:
        statement = bind(sql, bindings) if bindings else sql
        with self._session.tagged():
            for part in statements(statement):
                self._frame = self._session.spark.sql(part)

    def drain(self) -> None:
        """Run a query whose rows nobody wants: a hook such as `select assert_true(...)` must fail when it fails."""
        if self._frame is not None and not _is_done(self._frame):
            with self._session.tagged():
                self._frame.write.format("noop").mode("overwrite").save()

    @property
    def description(self) -> Description:
        if self._frame is None:
            return []
        with self._session.tagged():
            fields = self._frame.schema.fields
        return [(f.name, f.dataType.simpleString(), None, None, None, None, bool(f.nullable)) for f in fields]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._fetch(self._frame)

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        return self._fetch(None if self._frame is None else self._frame.limit(size))

    def fetchone(self) -> tuple[Any, ...] | None:
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def _fetch(self, frame: Any) -> list[tuple[Any, ...]]:
        if frame is None:
            return []
        with self._session.tagged():
            table = frame.toArrow()
        if table.num_columns == 0:
            return []
        columns = (column.to_pylist() for column in table.columns)
        return [tuple(_plain(value) for value in row) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        self._frame = None


def statements(sql: str) -> list[str]:
    """The statements of a text, in order: a `sql_header` comes before the one it is for. Spark takes one at a time."""
    text = sql.strip().rstrip("; \n")
    if ";" not in text or re.search(r"^\s*begin\b", text, re.IGNORECASE | re.MULTILINE):
        return [text]  # a script of Spark's (BEGIN … END) is one statement
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import TokenError
    from sqlglot.tokenizer_core import TokenType

    try:
        ends = [token.start for token in Spark().tokenize(text) if token.token_type is TokenType.SEMICOLON]
    except TokenError:
        return [text]  # Spark says what is wrong with it
    places = zip([0, *(end + 1 for end in ends)], [*ends, len(text)], strict=True)
    return [part for start, end in places if (part := text[start:end].strip())]


def _is_done(frame: Any) -> bool:
    """A command has run already and its result is local; a query has not run yet."""
    plan = getattr(frame, "_plan", None)
    relation = getattr(plan, "_relation", None)
    return relation is not None and relation.HasField("local_relation")


def _plain(value: Any) -> Any:
    """Arrow's map is a list of pairs, bytes are no text: as agate can hold them."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {str(key): _plain(item) for key, item in value}
    return value


def bind(sql: str, bindings: Sequence[Any]) -> str:
    """The statement with a literal for each `%s`."""
    parts = sql.split("%s")
    if len(parts) != len(bindings) + 1:
        raise QueryError(f"The statement has {len(parts) - 1} places for {len(bindings)} values.")
    pieces = [parts[0]]
    for value, rest in zip(bindings, parts[1:], strict=True):
        pieces += [literal(value), rest]
    return "".join(pieces)


def literal(value: Any) -> str:
    """A Python value as a Spark SQL literal."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return quoted(text_of(value)) if isinstance(value, float) else text_of(value)
    if isinstance(value, dt.datetime):
        return f"timestamp {quoted(text_of(value))}"
    if isinstance(value, dt.date):
        return f"date {quoted(text_of(value))}"
    return quoted(str(value))


def quoted(text: str) -> str:
    """A string literal; Spark reads backslashes in it as escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def text_of(value: Any) -> str:
    """A value as text that Spark casts back without loss."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Spark's failures in Spark's own words."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as problem:
        raise QueryError(spark_sentence(str(problem))) from None


def local_rows(session: Session, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """Rows as a data frame of strings, sent in Arrow's form."""
    import pyarrow as pa

    columns = [
        pa.array([None if row[name] is None else text_of(row[name]) for row in rows], pa.string()) for name in names
    ]
    with session.tagged():
        return session.spark.createDataFrame(pa.Table.from_arrays(columns, names=list(names)))
