"""`penstock logs`: what the processes wrote.

Rules
- A stream has no file of its own: its lines are those of the engine and the supervisor that name it, each with the
  stack trace that follows.
- `-f` follows the files through rotation and before they exist; Ctrl-C ends it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.session import Session, command
from penstock.cli.streams import resolve
from penstock.paths import ProjectPaths

app = typer.Typer()
_POLL = 0.2
_TAIL_BYTES = 4_000_000  # the end of a log that is looked through


def log_files(paths: ProjectPaths) -> dict[str, Path]:
    return {
        "engine": paths.logs / "engine.log",
        "supervisor": paths.logs / "supervisor.log",
        "kafka": paths.kafka / "kafka.log",
    }


def about_stream(lines: Iterable[str], stream: str) -> Iterator[str]:
    """Lines that name the stream, with the indented lines and causes that belong to them."""
    taken = False
    for line in lines:
        belongs = line[:1] in (" ", "\t") or line.startswith(("Caused by:", "Traceback ", "During handling"))
        if not belongs:
            taken = stream in line
        if taken:
            yield line


def tail(file: Path) -> list[str]:
    """The last lines of a file; none when it is not there."""
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            size = log.tell()
            log.seek(max(size - _TAIL_BYTES, 0))
            lines = log.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[1:] if size > _TAIL_BYTES else lines


class Follower:
    """New lines of a file, whole ones only."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.position = file.stat().st_size if file.exists() else 0
        self.rest = b""

    def new_lines(self) -> list[str]:
        try:
            size = self.file.stat().st_size
        except FileNotFoundError:
            return []
        if size < self.position:  # a new file under the old name
            self.position, self.rest = 0, b""
        if size == self.position:
            return []
        with self.file.open("rb") as log:
            log.seek(self.position)
            data = self.rest + log.read()
            self.position = log.tell()
        *whole, self.rest = data.split(b"\n")
        return [line.decode(errors="replace") for line in whole]


@command(
    app,
    "logs",
    examples=["penstock logs engine -n 100", "penstock logs clicks_clean -f", "penstock logs supervisor"],
    codes=(0, 2),
)
def logs(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="A stream, 'engine', 'supervisor' or 'kafka' (default: engine and supervisor).")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.", min=0)] = 50,
) -> None:
    """Show the logs of a stream or a process. With --output json one object a line."""
    files = log_files(session.paths)
    stream: str | None = None
    if name is None:
        chosen = ["supervisor", "engine"]
    elif name in files:
        chosen = [name]
    else:
        with session.store() as store:
            (stream,) = resolve(store, [name])
        chosen = ["supervisor", "engine"]
    followers = {source: Follower(files[source]) for source in chosen}
    for source in chosen:
        found: Iterable[str] = tail(files[source])
        if stream:
            found = about_stream(found, stream)
        for line in list(found)[-lines:] if lines else []:
            _print(session, source, line, prefix=len(chosen) > 1)
    if not follow and not any(files[source].exists() for source in chosen):
        session.ui.note(f"There is no log yet at {', '.join(str(files[source]) for source in chosen)}.")
    while follow:
        for source, follower in followers.items():
            fresh: Iterable[str] = follower.new_lines()
            for line in about_stream(fresh, stream) if stream else fresh:
                _print(session, source, line, prefix=len(chosen) > 1)
        time.sleep(_POLL)


def _print(session: Session, source: str, line: str, *, prefix: bool) -> None:
    ui = session.ui
    if ui.is_json:
        import json

        ui.out.file.write(json.dumps({"source": source, "line": line}, ensure_ascii=False) + "\n")
        ui.out.file.flush()
        return
    text = Text(f"{source:<10} | ", style="dim") if prefix else Text()
    text.append(line, style="red" if " ERROR " in line else "yellow" if " WARN" in line else "")
    ui.out.print(text, soft_wrap=True)
