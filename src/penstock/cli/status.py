"""`penstock status`: what runs, how far behind it is, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli import output, snapshot
from penstock.cli.session import Session, command
from penstock.cli.snapshot import Snapshot

app = typer.Typer()
_COLUMNS = ("STREAM", "STATE", "GEN", "LAG", "IN/S", "OUT/S", "STATE SIZE", "LAST BATCH", "RESTARTS", "LAST ERROR")
_SOURCE_COLUMNS = ("SOURCE", "READ BY", "RECORDS", "EMPTY", "BAD", "PARTLY BAD", "LAST BAD")
_RIGHT = ("GEN", "LAG", "IN/S", "OUT/S", "STATE SIZE", "LAST BATCH", "RESTARTS")


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
        if stream.rebuild is not None:
            state.append(f" ({rebuild_words(stream.rebuild)})", style="red" if _failed(stream.rebuild) else "yellow")
        if stream.waits_for:
            state.append(f" (waits for the rebuild of {', '.join(stream.waits_for)})", style="yellow")
        problem = output.coded(stream.error_code, stream.error)
        if not problem and stream.rebuild is not None:
            problem = output.coded(stream.rebuild["error_code"], stream.rebuild["error"])
        table.add_row(
            Text(stream.name),
            state,
            str(stream.generation),
            output.lag(stream.lag_rows, stream.lag_seconds),
            output.rate(stream.rows_in_per_s),
            output.rate(stream.rows_out_per_s),
            output.size(stream.state_bytes),
            output.ago(stream.last_batch_at, found.at),
            str(stream.restarts),
            Text(problem or "-", style="red" if problem and not stream.healthy else ""),
        )
    return table


def rebuild_words(rebuild: Mapping[str, Any]) -> str:
    """A rebuild beside the running generation, in a few words."""
    if _failed(rebuild):
        return f"rebuild to {rebuild['generation']} failed"
    if rebuild["phase"] != "catching up":
        return f"generation {rebuild['generation']} takes over"
    part = rebuild["progress"]
    return "rebuilding" if part is None else f"rebuilding {int(part * 100)} %"


def _failed(rebuild: Mapping[str, Any]) -> bool:
    return bool(rebuild["phase"] == "failed")


def sources_table(found: Snapshot) -> Table:
    """The records that each stream read of its sources, by how good they were."""
    table = output.grid(*_SOURCE_COLUMNS, right=_SOURCE_COLUMNS[2:])
    rows = sorted((counts.source, stream.name, counts) for stream in found.streams for counts in stream.records)
    for source, name, counts in rows:
        wrong = "yellow" if counts.bad or counts.partly_bad else ""
        table.add_row(
            Text(source),
            Text(name),
            f"{counts.records:,}",
            f"{counts.empty:,}",
            Text(f"{counts.bad:,}", style=wrong),
            Text(f"{counts.partly_bad:,}", style=wrong),
            output.ago(counts.last_at, found.at),
        )
    return table


def expectations_table(found: Snapshot) -> Table:
    """What models expect of their rows, and how many were otherwise."""
    table = output.grid("STREAM", "EXPECTATION", "ON VIOLATION", "ROWS", "LAST", right=("ROWS", "LAST"))
    for stream in found.streams:
        for each in stream.expectations:
            table.add_row(
                Text(stream.name),
                Text(each.name),
                each.on_violation,
                Text(f"{each.violations:,}", style="yellow" if each.violations else ""),
                output.ago(each.last_at, found.at),
            )
    return table


def view(found: Snapshot) -> Group:
    if not found.streams:
        return Group(header(found), Text(), Text("No streams are deployed. 'dbt run' deploys them."))
    parts: list[RenderableType] = [header(found), Text(), streams_table(found)]
    if any(stream.records for stream in found.streams):
        parts += [Text(), sources_table(found)]
    if any(stream.expectations for stream in found.streams):
        parts += [Text(), expectations_table(found)]
    return Group(*parts)


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
    """Show every stream: state, generation, lag, rows per second, size of state, last batch, restarts and last error.

    Below it, for every source that a stream reads: how many records were read, and how many of them were empty, bad
    (nothing could be read) or partly bad; and for every expectation of a model, how many rows did not hold it. Lag is
    in rows, then in seconds that the oldest unread row has waited. Only the deployment store is read, so the command
    answers at once, whatever the engine is doing.
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
