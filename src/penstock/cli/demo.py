"""`penstock demo`: the whole way, from clicks to recommendations, in the current project.

Rules
- It uses the real parts and nothing else: `up`, the generator, `dbt build`, a query.
- What the demo started it stops, however it ends; what ran before it is left running.
- Without a terminal, or with --once, it ends by itself: with rows and exit code 0, or with an error.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from penstock.cli import dbt, lifecycle, output, query, snapshot, status
from penstock.cli import ui as web_interface
from penstock.cli.generate import Feed
from penstock.cli.output import Stopwatch
from penstock.cli.query import Result
from penstock.cli.session import Session, command
from penstock.cli.ui import WebUi
from penstock.errors import PenstockError
from penstock.errors.catalogue import DBT_FAILED, DEMO_EMPTY, STREAM_QUARANTINED

app = typer.Typer()
_PATIENCE = 120.0  # seconds beyond --seconds until the first rows must be there
_LOOK = 1.0
_ROWS = 12
RECOMMENDATIONS = """
with counted as (
    select *, max(times_viewed_together) over (partition by item_id) as popularity from recommendations
)
select
    item_name as item, rank, recommended_name as recommendation, recommended_brand as brand,
    recommended_price as price, times_viewed_together as seen_together, score
from counted
order by popularity desc, item_id, rank
"""


class _Cleanup(ExitStack):
    """Once it has begun, cleaning up is not interrupted."""

    def __exit__(self, *problem: Any) -> bool:
        with lifecycle.unhurried():
            return bool(super().__exit__(*problem))


@command(
    app,
    "demo",
    examples=[
        "penstock demo",
        "penstock demo --once --seconds 10",
        'penstock demo --once --sql "select * from also_viewed"',
    ],
    codes=(0, 1, 2, 3, 4),
    profile=True,
)
def demo(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Stop after --seconds; implied without a terminal.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to stream after the deployment.", min=0)] = 30,
    rate: Annotated[float, typer.Option(help="Clicks per second.", min=0.1)] = 40,
    sql: Annotated[
        str, typer.Option(help="The query to show (default: the top recommendations).", show_default=False)
    ] = RECOMMENDATIONS,
    topic: Annotated[str, typer.Option(help="The topic that clicks are written to.")] = "clicks",
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same clicks (default: new ones).", show_default=False)
    ] = None,
    web_ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Open Dagster's web UI, if it is installed.")] = True,
) -> None:
    """Run the project for real: start all, generate clicks, deploy with dbt and show the result live.

    On a terminal the table stays until Ctrl-C, which is then a good end. What the demo started is stopped at its end.
    """
    ui = session.ui
    watch = Stopwatch()
    live = ui.out.is_terminal and not once and not ui.is_json
    with _Cleanup() as cleanup:
        cleanup.enter_context(lifecycle.ended_by_signals())
        # These JVMs live for a minute or two: quick compilation does more for them than thorough compilation.
        os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        before = snapshot.take(session)
        cleanup.callback(_take_down, session, before, watch)
        with ui.working("starting broker, supervisor and engine") as step:
            found = lifecycle.start_all(session, step, 180)
        ui.note(
            f"up in {output.span(watch.lap('up'))}: broker {found.broker['address']}, Spark UI {found.engine['ui']}"
        )
        feed = cleanup.enter_context(Feed.of(session, topic, rate=rate, seed=seed))
        _deploy(session, watch)
        # After the deployment, so that nothing waits for it.
        web = _open_ui(session, cleanup, live=live) if web_ui and web_interface.installed() else None
        if live:
            _live(session, sql, feed, web)
            return
        spark = cleanup.enter_context(query.connect(session))
        result = _until_rows(session, spark, sql, seconds, watch, web)
        _print(session, result, feed, watch)


def _open_ui(session: Session, cleanup: ExitStack, *, live: bool) -> WebUi:
    """The web UI opens while the streams work; a demo that ends by itself does not wait long for its end, either."""
    web = cleanup.enter_context(web_interface.running(session, 0, patience=web_interface.PATIENCE if live else 2.0))
    session.ui.note(f"web UI {web.url} (opens in a moment)")
    return web


def _take_down(session: Session, before: snapshot.Snapshot, watch: Stopwatch) -> None:
    ui = session.ui
    watch.lap("result")
    with ui.working("stopping what the demo started") as step:
        stopped = lifecycle.take_down(session, before, step)
    ui.note(
        f"stopped in {output.span(watch.lap('down'))}"
        if stopped
        else "The project was up before the demo: left running."
    )


def _deploy(session: Session, watch: Stopwatch) -> None:
    """Seeds and models in one dbt command, as a user would call it."""
    ui = session.ui
    arguments = ["build", "--resource-type", "seed", "--resource-type", "model", "--project-dir", str(session.project)]
    if session.profiles:
        arguments += ["--profiles-dir", str(session.profiles)]
    if session.target:
        arguments += ["--target", session.target]
    with ui.working("dbt build"):
        code, printed = dbt.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if code:
        ui.err.print(Text.from_ansi(printed.rstrip()), soft_wrap=True)
        raise DBT_FAILED.error(f"dbt build failed with exit code {code}.")
    ui.note(f"dbt build in {output.span(watch.lap('dbt build'))}")


def _look(spark: Any, sql: str) -> Result:
    return query.fetch(spark, sql, _ROWS)


def _until_rows(
    session: Session, spark: Any, sql: str, seconds: float, watch: Stopwatch, web: WebUi | None = None
) -> Result:
    """Let it stream for the time given, and on until there are rows."""
    ui = session.ui
    began = time.monotonic()
    first: float | None = None
    result = Result((), (), more=False)
    with ui.working(f"streaming for {seconds:g} s") as step:
        while (passed := time.monotonic() - began) < seconds or not result.rows:
            if passed > seconds + _PATIENCE:
                raise DEMO_EMPTY.error(f"There are no rows {passed:.0f} s after the deployment.")
            time.sleep(_LOOK)
            if web is not None and web.answers():
                step(f"the web UI is open: {web.url}")
                web = None
            result = _look(spark, sql)
            if not result.rows:
                _check_streams(session)
            if result.rows and first is None:
                first = watch.total
                step(f"first rows {first:.0f} s after the start")
    watch.lap("streaming")
    if first is not None:
        watch.phases["first row after"] = first
    return result


def _check_streams(session: Session) -> None:
    """A stream that was taken out brings no rows: say so at once instead of at the deadline."""
    for stream in snapshot.take(session).streams:
        if stream.state == "quarantined":
            why = output.coded(stream.error_code, stream.error)
            raise STREAM_QUARANTINED.error(f"{stream.name} is quarantined: {why}", hint="See 'penstock logs'.")


def _print(session: Session, result: Result, feed: Feed, watch: Stopwatch) -> None:
    ui = session.ui
    found = snapshot.take(session)
    if ui.is_json:
        rows = query.as_objects(result)
        ui.data({"rows": rows, "clicks": feed.delivered, "seconds": watch.phases} | found.as_dict())
        return
    ui.say("")
    ui.show(output.rows_table(result.columns, result.rows))
    ui.say("")
    ui.out.print(status.view(found))
    ui.say("")
    phases = ", ".join(f"{name} {length:g} s" for name, length in watch.phases.items())
    ui.say(f"{feed.delivered:,} clicks delivered; {phases}")


def _live(session: Session, sql: str, feed: Feed, web: WebUi | None) -> None:
    """The live table, until Ctrl-C; an engine that goes away is waited for."""
    from rich.live import Live

    address = ""

    def frame(rows: Any) -> Group:
        nonlocal address
        if not address and web is not None and web.answers():
            address = f"; web UI {web.url}"
        title = Text(f"{feed.delivered:,} clicks delivered{address}; Ctrl-C stops", style="bold")
        return Group(title, Text(), rows, Text(), status.view(snapshot.take(session)))

    last: Any = Text("waiting for the first rows")
    try:
        with Live(frame(last), console=session.ui.out, auto_refresh=False, screen=True) as view:
            while True:
                try:
                    with query.connect(session) as spark:
                        while True:
                            result = _look(spark, sql)
                            if result.rows:
                                last = output.rows_table(result.columns, result.rows)
                            view.update(frame(last), refresh=True)
                            time.sleep(_LOOK)
                except PenstockError as problem:
                    view.update(frame(Group(last, Text(str(problem), style="red"))), refresh=True)
                    time.sleep(_LOOK)
    except KeyboardInterrupt:
        session.ui.out.print(frame(last))  # what was to be seen last stays on the terminal
