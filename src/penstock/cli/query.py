"""`penstock query`: SQL on the tables while the streams write them, and on the topics behind the sources.

Rules
- The engine answers, over Spark Connect; nothing is started for a query.
- Names without a schema are looked up in the profile's schema; ANSI mode is off, as for dbt and the streams.
- What would write into a source is refused before Spark is asked; the project's sources are looked up only then.
- A failed query shows Spark's sentence, not its plan and not its stack. Ctrl-C ends it in the engine too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.cli import output, source_views
from penstock.cli.manifest import current_manifest
from penstock.cli.relations import stream_sources
from penstock.cli.session import Session, command
from penstock.errors import PenstockError
from penstock.errors.catalogue import ENGINE_DOWN, QUERY_FAILED, SOURCE_READ_ONLY, USAGE

app = typer.Typer()


@dataclass(frozen=True)
class Result:
    """Rows of a query, at most as many as were asked for."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool  # the query has rows beyond these


@contextmanager
def connect(session: Session) -> Iterator[Any]:
    """A Spark Connect session on the project's engine; ENGINE_DOWN when none runs."""
    from penstock.engine.client import connect as open_session
    from penstock.engine.process import read_endpoint

    endpoint = read_endpoint(session.paths)
    if endpoint is None:
        raise ENGINE_DOWN.error("The engine is not running.")
    schema = _schema(session)
    with spark_errors():
        spark = open_session(endpoint.url)
        try:
            if spark.catalog.databaseExists(schema):
                spark.catalog.setCurrentDatabase(schema)
            yield spark
        except KeyboardInterrupt:
            spark.interruptAll()  # nobody waits for the answer: the engine need not work on it
            raise
        finally:
            spark.stop()


def _schema(session: Session) -> str:
    saved = session.saved().get("schema") if session.target is None else None
    return str(saved or session.settings().schema)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Failures of Spark and of the connection, as errors of the catalogue."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as problem:
        raise _translated(str(problem)) from problem


def _translated(text: str) -> PenstockError:
    if "UNAVAILABLE" in text or "RETRIES_EXCEEDED" in text:
        return ENGINE_DOWN.error("The engine does not answer.")
    from penstock.engine.causes import cause

    found = cause(text)
    if found is not None:
        kind, message = found
        return kind.error(f"The query failed: {message}")
    return QUERY_FAILED.error(spark_message(text))


def spark_message(text: str) -> str:
    """What Spark says is wrong: its first line, without plan and stack trace."""
    first = text.strip().splitlines()[0] if text.strip() else "Spark gave no reason"
    return first.rstrip(";. ") + "."


def refuse_writes(session: Session, sql: str) -> None:
    """PEN-3020 when the statement would change a source or source table."""
    from penstock.compiler.source_table import HIDDEN
    from penstock.compiler.writes import writes

    written = writes(sql)
    if not written:
        return
    schema = _schema(session)
    full = {(name if "." in name else f"{schema}.{name}").lower(): word for name, word in written.items()}
    for relation in stream_sources(current_manifest(session)):
        for name in (relation, f"{HIDDEN}{relation}"):
            if name.lower() not in full:
                continue
            if full[name.lower()] in ("drop", "alter"):
                raise SOURCE_READ_ONLY.error(
                    f"{name} belongs to a source and cannot be changed with {full[name.lower()].upper()}.",
                    hint=f"Change the source's YAML file, or use 'penstock drop {relation}'.",
                )
            raise SOURCE_READ_ONLY.error(f"{name}: insertion into source stream/table is not allowed.")


def fetch(spark: Any, sql: str, limit: int) -> Result:
    """Run a statement; `limit` 0 is every row."""
    with spark_errors():
        frame = spark.sql(sql.strip().rstrip(";"))
        columns = tuple(frame.columns)
        rows = [tuple(row) for row in (frame.limit(limit + 1) if limit else frame).collect()]
    more = bool(limit) and len(rows) > limit
    return Result(columns, tuple(rows[:limit] if limit else rows), more)


def fetch_registered(session: Session, spark: Any, sql: str, limit: int) -> Result:
    """The same; a source of the project that the catalog does not have yet is registered on the way."""
    done: set[str] = set()
    while True:
        try:
            return fetch(spark, sql, limit)
        except PenstockError as problem:
            missing = source_views.unknown_relation(problem)
            if missing is None or missing in done or not source_views.registered(session, missing):
                raise
            done.add(missing)


def as_objects(result: Result) -> list[dict[str, Any]]:
    """A JSON object a row; a column name that comes twice gets a number."""
    names: list[str] = []
    for name in result.columns:
        candidate, number = name, 2
        while candidate in names:
            candidate, number = f"{name}_{number}", number + 1
        names.append(candidate)
    return [dict(zip(names, row, strict=True)) for row in result.rows]


def show(session: Session, result: Result) -> None:
    ui = session.ui
    if ui.is_json:
        ui.data(as_objects(result))
    elif ui.mode == output.TableMode.CSV.value:
        output.write_csv(ui, result.columns, result.rows)
    elif not result.columns:
        ui.say("Done.")
    else:
        ui.show(output.rows_table(result.columns, result.rows))
        ui.note(f"{len(result.rows)} row{'' if len(result.rows) == 1 else 's'}")
    if result.more:
        ui.note("There are more rows: raise --limit, or use --limit 0 for all.")


@command(
    app,
    "query",
    examples=[
        'penstock query "select * from views_per_item order by views desc"',
        'penstock query "select * from shop.clicks limit 10 offset 5"',
        "penstock query --follow \"select item_id, ts from shop.clicks where category = 'books'\"",
        'penstock query "show tables" --output json',
        'penstock query "select * from clicks_clean" --limit 0 --output csv > clicks.csv',
    ],
    codes=(0, 2, 4),
    profile=True,
    modes=output.TableMode,
)
def query(
    session: Session,
    sql: Annotated[str, typer.Argument(help="One SQL statement.")],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many rows; 0 is all.", min=0)] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show rows as they come, until Ctrl-C.")] = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="With --follow: begin with the rows that are there.")
    ] = False,
) -> None:
    """Run a SQL statement in the engine and print its rows. Sources and source tables are read-only.

    A source is read from its topic, as far as the query needs it: the declared columns, then `_partition`, `_offset`
    and `_timestamp` of each message. An empty or unreadable message is a row of nulls.

    With `--follow` rows are shown as they come (EMIT CHANGES): of sources and append-only dynamic tables by a stream of
    the engine, where a changed group of an aggregate is shown anew; of other tables by asking again at each new
    version. `limit n` in the query ends it after n rows; --limit does not count. JSON is one object a line.
    """
    refuse_writes(session, sql)
    if follow:
        from penstock.cli.follow import follow as follow_query

        follow_query(session, sql, schema=_schema(session), from_beginning=from_beginning)
        return
    if from_beginning:
        raise USAGE.error("--from-beginning goes with --follow.")
    with connect(session) as spark, session.ui.working("asking the engine"):
        result = fetch_registered(session, spark, sql, limit)
    show(session, result)
