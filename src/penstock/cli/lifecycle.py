"""`penstock up` and `penstock down`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli import output, snapshot
from penstock.cli.session import Session, command
from penstock.cli.snapshot import Snapshot
from penstock.errors import PenstockError

app = typer.Typer()


@contextmanager
def unhurried() -> Iterator[None]:
    """Clean up to the end: a second Ctrl-C does not leave half of it behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A closed terminal or a SIGTERM is as good as Ctrl-C: everything is stopped."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_all(session: Session, progress: Callable[[str], None], timeout: float) -> Snapshot:
    """Bring the project up; what an interrupted or failed start began is taken down again."""
    from penstock.control.up import ensure_up

    settings = session.settings()
    before = snapshot.take(session)
    try:
        ensure_up(session.paths, settings, progress=progress, timeout=timeout)
    except (KeyboardInterrupt, PenstockError):
        with unhurried():
            take_down(session, before, progress)
        raise
    return snapshot.take(session)


def take_down(session: Session, before: Snapshot, progress: Callable[[str], None]) -> bool:
    """Stop what was not running `before`; False when that was everything."""
    from penstock.control.up import down

    if before.engine_side_up:
        return False
    down(
        session.paths,
        progress=progress,
        keep_broker=before.embedded_broker_up,
        keep_registry=before.embedded_registry_up,
    )
    return True


@command(
    app,
    "up",
    examples=["penstock up", "penstock up --target cluster", "penstock up --output json"],
    codes=(0, 2, 3, 4, 5),
    profile=True,
)
def up(
    session: Session,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the engine answers.", min=1)] = 120,
) -> None:
    """Start the project: embedded broker and schema registry (if the profile has them), supervisor and engine.

    What runs already is left as it is, so the command may be repeated. Streams that were deployed before go on from
    their last committed batch.
    """
    watch = output.Stopwatch()
    with session.ui.working("starting") as step:
        found = start_all(session, step, timeout)
    ui = session.ui
    if ui.is_json:
        ui.data({"seconds": watch.total} | found.as_dict())
        return
    running = sum(stream.state == "running" for stream in found.streams)
    ui.say(f"Up in {output.span(watch.total)}.")
    table = output.grid("PART", "STATE", "ADDRESS")
    table.add_row("broker", output.state_text(found.broker["state"]), found.broker["address"] or "-")
    registry = found.schema_registry
    if registry["state"] != "none":
        table.add_row("schema registry", output.state_text(registry["state"]), registry["address"] or "-")
    table.add_row(
        "engine", output.state_text(found.engine["state"]), f"127.0.0.1:{found.engine['port']} (Spark Connect)"
    )
    table.add_row("spark ui", output.state_text(found.engine["state"]), found.engine["ui"] or "-")
    table.add_row("supervisor", output.state_text(found.supervisor["state"]), "-")
    ui.show(table)
    ui.say(f"{len(found.streams)} streams deployed, {running} running.")


@command(app, "down", examples=["penstock down"], codes=(0, 1, 2))
def down(session: Session) -> None:
    """Stop supervisor, engine, embedded broker and schema registry. Tables, checkpoints, topics and schemas stay."""
    from penstock.control.up import down as stop_all

    before = snapshot.take(session)
    watch = output.Stopwatch()
    with session.ui.working("stopping") as step, unhurried():
        stop_all(session.paths, progress=step)
    ui = session.ui
    if ui.is_json:
        ui.data({"was_up": before.anything_up, "seconds": watch.total})
    elif before.anything_up:
        ui.say(f"Down in {output.span(watch.total)}.")
    else:
        ui.say("Nothing was running.")
