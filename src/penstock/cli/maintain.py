"""`penstock maintain`: compact and clean up tables now, instead of at their next time."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.session import Session, command
from penstock.cli.streams import resolve
from penstock.errors.catalogue import ENGINE_DOWN

app = typer.Typer()


@command(
    app,
    "maintain",
    examples=["penstock maintain", "penstock maintain clicks_clean", "penstock maintain --output json"],
    codes=(0, 1, 2, 4),
)
def maintain(
    session: Session,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, with or without their schema; all without one.")
    ] = None,
) -> int:
    """Put small files of tables together, and delete old versions and old commits.

    The engine does the same by itself every hour, or as 'maintenance' of the profile or the model says. Streams go on,
    and what a deployed stream has still to read is kept.
    """
    from penstock.control.maintenance import maintain as run
    from penstock.engine.process import read_endpoint

    ui = session.ui
    with session.store() as store:
        streams = resolve(store, tables or [], everything=not tables)
        if streams and read_endpoint(session.paths) is None:
            raise ENGINE_DOWN.error("The engine is not running, so no table can be maintained.")
        with ui.working("maintaining") as step:
            done = run(store, streams, step)
    if ui.is_json:
        ui.data({"tables": done})
        return 0
    if not done:
        ui.say("There are no tables yet.")
        return 0
    grid = output.grid("TABLE", "FILES", "SIZE", "DELETED", "LOG", "NOTE", wraps=("NOTE",))
    for each in done:
        gone = (
            f"{each['deleted_files']:,} files, {output.size(each['deleted_bytes'])}" if each["deleted_files"] else "-"
        )
        grid.add_row(
            each["table"],
            _change(f"{each['files_before']:,}", f"{each['files_after']:,}"),
            _change(output.size(each["bytes_before"]), output.size(each["bytes_after"])),
            gone,
            _change(f"{each['log_before']:,}", f"{each['log_after']:,}"),
            "; ".join(each["notes"]) or "-",
        )
    ui.show(grid)
    return 0


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
