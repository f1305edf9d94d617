"""`penstock status`: what runs, how far behind it is, and what went wrong."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.cli import output, snapshot
from penstock.cli.session import Session, command
from penstock.cli.snapshot import Snapshot

app = typer.Typer()
_COLUMNS = ("STREAM", "STATE", "GEN", "LAG", "IN/S", "OUT/S", "LAST BATCH", "RESTARTS", "LAST ERROR")
_RIGHT = ("GEN", "LAG", "IN/S", "OUT/S", "LAST BATCH", "RESTARTS")


def header(found: Snapshot) -> Text:
    """One line: supervisor, engine and broker."""
    line = Text()
    for name, part, detail in (
        ("supervisor", found.supervisor, None),
        ("engine", found.engine, found.engine.get("ui")),
        ("broker", found.broker, found.broker.get("address")),
    ):
        if line:
            line.append("   ")
        line.append(f"{name} ")
        line.append_text(output.state_text(part["state"]))
        if detail:
            line.append(f" {detail}")
    return line


def streams_table(found: Snapshot) -> Table:
    table = output.grid(*_COLUMNS, right=_RIGHT, wraps=("LAST ERROR",))
    for stream in found.streams:
        state = output.state_text(stream.state)
        if stream.wanted != "running" and stream.state not in ("stopped", "stopping"):
            state.append(f" (wanted {stream.wanted})", style="yellow")
        problem = output.coded(stream.error_code, stream.error)
        table.add_row(
            Text(stream.name),
            state,
            str(stream.generation),
            output.lag(stream.lag_rows, stream.lag_seconds),
            output.rate(stream.rows_in_per_s),
            output.rate(stream.rows_out_per_s),
            output.ago(stream.last_batch_at, found.at),
            str(stream.restarts),
            Text(problem or "-", style="red" if problem and not stream.healthy else ""),
        )
    return table


def view(found: Snapshot) -> Group:
    body: Any = streams_table(found) if found.streams else Text("No streams are deployed. 'dbt run' deploys them.")
    return Group(header(found), Text(), body)


@command(
    app,
    "status",
    examples=["penstock status", "penstock status --watch", "penstock status --output json | jq '.streams[].lag_rows'"],
    codes=(0, 1, 2),
)
def status(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 unless all that should run is running.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks with --watch.", min=0.1)] = 1.0,
) -> int:
    """Show every stream: state, generation, lag, rows per second, last batch, restarts and last error.

    Lag is in rows, then in seconds that the oldest unread row has waited. Only the deployment store is read, so the
    command answers at once, whatever the engine is doing.
    """
    ui = session.ui
    if watch:
        _watch(session, interval)
        return 0
    found = snapshot.take(session)
    if ui.is_json:
        ui.data(found.as_dict())
    else:
        ui.out.print(view(found))
    return 1 if check and not found.healthy else 0


def _watch(session: Session, interval: float) -> None:
    """A live table on a terminal; one JSON object or one table per look elsewhere."""
    from rich.live import Live

    ui = session.ui
    if ui.out.is_terminal and not ui.is_json:
        with Live(view(snapshot.take(session)), console=ui.out, auto_refresh=False, transient=False) as live:
            while True:
                time.sleep(interval)
                live.update(view(snapshot.take(session)), refresh=True)
    while True:
        found = snapshot.take(session)
        if ui.is_json:
            ui.data(found.as_dict())
        else:
            ui.out.print(view(found))
        time.sleep(interval)
