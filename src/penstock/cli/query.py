"""`penstock query`: SQL on the tables while the streams write them.

Rules
- The engine answers, over Spark Connect; nothing is started for a query.
- Names without a schema are looked up in the profile's schema; ANSI mode is off, as for dbt and the streams.
- A failed query shows Spark's sentence, not its plan and not its stack. Ctrl-C ends it in the engine too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.session import Session, command
from penstock.errors.catalogue import ENGINE_DOWN, QUERY_FAILED

if TYPE_CHECKING:
    from penstock.errors import PenstockError

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
    return QUERY_FAILED.error(spark_message(text))


def spark_message(text: str) -> str:
    """What Spark says is wrong: its first line, without plan and stack trace."""
    first = text.strip().splitlines()[0] if text.strip() else "Spark gave no reason"
    return first.rstrip(";. ") + "."


def fetch(spark: Any, sql: str, limit: int) -> Result:
    """Run a statement; `limit` 0 is every row."""
    with spark_errors():
        frame = spark.sql(sql.strip().rstrip(";"))
        columns = tuple(frame.columns)
        rows = [tuple(row) for row in (frame.limit(limit + 1) if limit else frame).collect()]
    more = bool(limit) and len(rows) > limit
    return Result(columns, tuple(rows[:limit] if limit else rows), more)


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
        'penstock query "show tables" --output json',
        'penstock query "select * from clicks_clean" --limit 0 --output csv > clicks.csv',
    ],
    codes=(0, 2, 4),
    profile=True,
    table=True,
)
def query(
    session: Session,
    sql: Annotated[str, typer.Argument(help="One SQL statement.")],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many rows; 0 is all.", min=0)] = 100,
) -> None:
    """Run a SQL statement in the engine and print its rows."""
    with connect(session) as spark, session.ui.working("asking the engine"):
        result = fetch(spark, sql, limit)
    show(session, result)
