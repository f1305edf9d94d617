"""`penstock stop`, `start`, `restart` and `drop`: what an operator wants of a stream.

Rules
- What is wanted is written for all streams first; then the supervisor is waited for, stream by stream.
- Without a supervisor, or with --timeout 0, nothing is waited for: the wish is kept and takes effect with `up`.
- A stream may be named without its schema when only one has that name.
- The query behind a source table is not stopped: it goes with its table, by `drop`. `stop --all` leaves it running.
- One stream that fails does not keep the others from being started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.session import Session, command
from penstock.errors import PenstockError, did_you_mean
from penstock.errors.catalogue import ENGINE_DOWN, STREAM_UNKNOWN, TOPIC_NOT_OWNED, USAGE

if TYPE_CHECKING:
    from penstock.store import Store

app = typer.Typer()

Names = Annotated[list[str] | None, typer.Argument(help="Streams, with or without their schema.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every stream.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for each stream; 0 does not wait.", min=0)]


def resolve(store: Store, names: Sequence[str], *, everything: bool = False) -> list[str]:
    """The full names of the streams that were meant, each once."""
    known = [desired.stream for desired in store.all_desired()]
    if everything and names:
        raise USAGE.error("Give stream names or --all, not both.")
    if everything:
        return known
    if not names:
        raise USAGE.error("No stream was named.", hint="Name one or more, or use --all.")
    found = [_resolve_one(name, known) for name in names]
    return list(dict.fromkeys(found))


def _resolve_one(name: str, known: Sequence[str]) -> str:
    matches = [name] if name in known else [stream for stream in known if stream.rpartition(".")[2] == name]
    if len(matches) > 1:
        raise USAGE.error(f"'{name}' is more than one stream.", hint=f"Use one of {', '.join(matches)}.")
    if not matches:
        short = [stream.rpartition(".")[2] for stream in known]
        hint = did_you_mean(name, known if "." in name else short) if known else "'dbt run' deploys streams."
        raise STREAM_UNKNOWN.error(f"There is no stream '{name}'.", hint=hint)
    return matches[0]


def _apply(session: Session, names: list[str] | None, everything: bool, verb: str, timeout: float) -> int:
    from penstock.control import streams as control
    from penstock.store import Wanted

    act: Callable[..., Any] = {
        "stop": control.stop_stream,
        "start": control.start_stream,
        "restart": control.restart_stream,
    }[verb]
    wanted = Wanted.STOPPED if verb == "stop" else Wanted.RUNNING
    problems: dict[str, PenstockError] = {}
    with session.store() as store:
        streams = resolve(store, names or [], everything=everything)
        if verb == "stop":
            streams = _stoppable(session, store, streams, everything=everything)
        waiting = timeout > 0 and store.live_lease("supervisor") is not None
        for stream in streams:
            control.want(store, stream, wanted)
        if waiting:
            with session.ui.working(f"{verb}: {', '.join(streams)}") as step:
                for stream in streams:
                    try:
                        act(store, stream, wait=timeout, progress=step)
                    except PenstockError as problem:
                        problems[stream] = problem
        elif timeout > 0:
            session.ui.note("No supervisor is running: this takes effect with 'penstock up'.")
        _report(session, store, streams, problems)
    return int(next(iter(problems.values())).kind.exit_code) if problems else 0


def _stoppable(session: Session, store: Store, streams: list[str], *, everything: bool) -> list[str]:
    from penstock.control.source_tables import stoppable

    found = stoppable(store, streams, everything=everything)
    kept = [stream for stream in streams if stream not in found]
    if kept:
        session.ui.note(f"Left running, because source tables are dropped, not stopped: {', '.join(kept)}.")
    return found


def _report(session: Session, store: Store, streams: Sequence[str], problems: dict[str, PenstockError]) -> None:
    ui = session.ui
    rows = [
        {
            "stream": stream,
            "wanted": store.desired(stream).wanted.value,
            "state": store.actual(stream).state.value,
            "error": problems[stream].as_dict() if stream in problems else None,
        }
        for stream in streams
    ]
    if ui.is_json:
        ui.data({"streams": rows})
        return
    table = output.grid("STREAM", "WANTED", "STATE")
    for row in rows:
        table.add_row(str(row["stream"]), str(row["wanted"]), output.state_text(str(row["state"])))
    ui.show(table)
    for problem in problems.values():
        ui.error(problem)


@command(app, "stop", examples=["penstock stop clicks_clean", "penstock stop --all"], codes=(0, 2, 4))
def stop(session: Session, streams: Names = None, everything: All = False, timeout: Timeout = 60) -> int:
    """Stop streams after the batch they are in. They stay stopped until 'penstock start'."""
    return _apply(session, streams, everything, "stop", timeout)


@command(app, "start", examples=["penstock start clicks_clean", "penstock start --all"], codes=(0, 1, 2, 4))
def start(session: Session, streams: Names = None, everything: All = False, timeout: Timeout = 60) -> int:
    """Start stopped streams. They go on from their last committed batch; a quarantine is lifted."""
    return _apply(session, streams, everything, "start", timeout)


@command(app, "restart", examples=["penstock restart clicks_clean", "penstock restart --all"], codes=(0, 1, 2, 4))
def restart(session: Session, streams: Names = None, everything: All = False, timeout: Timeout = 60) -> int:
    """Stop and start streams. They go on from their last committed batch; a quarantine is lifted."""
    return _apply(session, streams, everything, "restart", timeout)


@command(
    app,
    "drop",
    examples=[
        "penstock drop clicks_clean",
        "penstock drop analytics.clicks_clean --yes",
        "penstock drop shop.users --yes",
    ],
    codes=(0, 1, 2, 4, 5),
)
def drop(
    session: Session,
    stream: Annotated[str, typer.Argument(help="The stream, with or without its schema.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    delete_topic: Annotated[
        bool, typer.Option("--delete-topic", help="Refused: a topic is not the project's.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the engine.", min=1)] = 60,
) -> None:
    """Stop a stream and delete its table, checkpoint and state. Asks first on a terminal; needs --yes elsewhere.

    A table that a deployed stream reads is not dropped: its readers go first. Its live tests are dropped with it. A
    source table is dropped like a dynamic table; its topic stays as it is.
    """
    from penstock.control.dropping import dropped_with
    from penstock.control.streams import drop_stream
    from penstock.engine.process import read_endpoint

    ui = session.ui
    if delete_topic:
        _refuse_topic(session, stream)
    with session.store() as store:
        (name,) = resolve(store, [stream])
        tests = dropped_with(store, name)
        more = f" and {len(tests)} live test{'s' if len(tests) > 1 else ''}: {', '.join(tests)}" if tests else ""
        if not yes:
            if not sys.stdin.isatty():
                raise USAGE.error(f"Dropping {name} deletes its table.", hint="Add --yes.")
            typer.confirm(f"Delete {name}, its table and its checkpoint{more}?", abort=True)
        if read_endpoint(session.paths) is None:
            raise ENGINE_DOWN.error("The engine is not running, so the table cannot be dropped.")
        with ui.working(f"dropping {name}") as step:
            for each in (*tests, name):
                drop_stream(store, each, wait=timeout, progress=step)
    if ui.is_json:
        ui.data({"dropped": name, "live_tests": tests})
    else:
        ui.say(f"Dropped {name}{more}.")


def _refuse_topic(session: Session, name: str) -> None:
    """PEN-3021: what produces to a topic owns it, and that is never this project."""
    from penstock.cli.manifest import current_manifest
    from penstock.cli.relations import dynamic_tables, pick, stream_sources

    manifest = current_manifest(session)
    sources = stream_sources(manifest)
    found = pick(name, sorted({*sources, *dynamic_tables(manifest)}))
    if found not in sources:
        raise USAGE.error(f"{found} is a dynamic table and has no topic.", hint="Leave out --delete-topic.")
    raise TOPIC_NOT_OWNED.error(f"The topic of source {found} is not deleted: the project does not own it.")
