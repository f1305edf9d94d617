"""The progress of a fetch for a person: a bar on a terminal, plain lines in a pipe, nothing when all is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from penstock.jars.fetch import Progress

_LINE_EVERY = 10  # files per line in a pipe


@contextmanager
def shown(title: str, console: Console | None = None) -> Iterator[Progress]:
    """A `Progress` to hand to `fetch`."""
    out = console or Console(stderr=True)
    if out.is_terminal:
        bar = _bar(out)
        try:
            yield _BarProgress(bar, title)
        finally:
            bar.stop()
    else:
        yield _LineProgress(out, title)


def _bar(out: Console) -> Bar:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bar(*columns, TextColumn("[dim]{task.fields[what]}"), console=out)


class _BarProgress:
    def __init__(self, bar: Bar, title: str) -> None:
        self._bar, self._title = bar, title
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._task is None:  # at the first step, so that a full cache shows nothing
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=total, what=what)
        self._bar.update(self._task, completed=done, total=total, what=what)


class _LineProgress:
    def __init__(self, out: Console, title: str) -> None:
        self._out, self._title = out, title

    def __call__(self, done: int, total: int, what: str) -> None:
        if done % _LINE_EVERY == 0 or done == total or what.startswith("the repository"):
            self._out.print(f"{self._title}: {done}/{total} {what}", markup=False, highlight=False, soft_wrap=True)
