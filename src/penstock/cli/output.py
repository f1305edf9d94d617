"""How things look on a terminal, in a pipe and as JSON: the only place that formats.

Rules
- Nothing is coloured or cut off when the output is piped; `NO_COLOR` is honoured by Rich itself.
- What users wrote is never read as markup.
- A table has no borders: it can be read by eyes and by `awk`.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from enum import Enum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError

PIPED_WIDTH = 10_000  # a pipe has no width: never wrap, never cut

STATE_STYLES = {
    "running": "green",
    "up": "green",
    "starting": "cyan",
    "pending": "cyan",
    "stopping": "yellow",
    "stopped": "yellow",
    "down": "red",
    "failed": "red",
    "quarantined": "bold red",
}
VERDICT_STYLES = {
    "NEW": "green",
    "NO-OP": "dim",
    "HOT": "green",
    "RESTART": "cyan",
    "REBUILD": "yellow",
    "REFUSED": "bold red",
    "ORPHAN": "magenta",
}


class Mode(str, Enum):
    """What `--output` takes."""

    TEXT = "text"
    JSON = "json"


class TableMode(str, Enum):
    """What `--output` of `query` takes."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


class PlanMode(str, Enum):
    """What `--output` of `plan` takes."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def _console(*, stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        width=None if terminal else PIPED_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


@dataclass
class Ui:
    """The terminal of one command."""

    mode: str = Mode.TEXT.value
    debug: bool = False
    quiet: bool = False
    out: Console = field(default_factory=lambda: _console(stderr=False))
    err: Console = field(default_factory=lambda: _console(stderr=True))

    @property
    def is_json(self) -> bool:
        return self.mode == Mode.JSON.value

    def say(self, text: str | Text) -> None:
        """A line of the result."""
        if not self.is_json:
            self.out.print(text, soft_wrap=True)

    def note(self, text: str | Text) -> None:
        """A line about the work: on standard error, silent with -q."""
        if not self.quiet:
            self.err.print(text, soft_wrap=True)

    def data(self, value: Any) -> None:
        """The result as JSON."""
        self.out.file.write(to_json(value) + "\n")
        self.out.file.flush()

    def show(self, table: Table) -> None:
        self.out.print(table)

    def error(self, problem: PenstockError) -> None:
        if self.is_json:
            self.data({"error": problem.as_dict()})
            return
        where = f"{problem.at}: " if problem.at else ""
        self.err.print(Text(f"{problem.code} {where}{problem.message}", style="red"), soft_wrap=True)
        if problem.next_step:
            self.err.print(Text(f"  {problem.next_step}"), soft_wrap=True)

    @contextmanager
    def working(self, first: str) -> Iterator[Callable[[str], None]]:
        """Progress of something that takes a while: a spinner on a terminal, a line a step elsewhere."""
        if self.quiet:
            yield lambda _text: None
        elif self.err.is_terminal:
            with self.err.status(Text(first)) as status:
                yield lambda text: status.update(Text(text))
        else:
            self.note(first)
            seen = first

            def step(text: str) -> None:
                nonlocal seen
                if text != seen:
                    seen = text
                    self.note(text)

            yield step


# -- tables -----------------------------------------------------------------------------------------------------------
def grid(*columns: str, right: Sequence[str] = (), wraps: Sequence[str] = ()) -> Table:
    """An empty table in the house style; on a narrow terminal only the columns in `wraps` give way."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name not in wraps)
    return table


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A result set: numbers to the right."""
    numeric = [
        name for i, name in enumerate(columns) if rows and all(_is_number(row[i]) or row[i] is None for row in rows)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(Text(name), justify="right" if name in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text("null", style="dim") if value is None else Text(cell(value)) for value in row])
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def state_text(state: str) -> Text:
    return Text(state, style=STATE_STYLES.get(state, ""))


def verdict_text(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def ago(at: float | None, now: float) -> str:
    """`3 s ago`; `-` for never."""
    return "-" if at is None else f"{span(max(now - at, 0))} ago"


def span(seconds: float) -> str:
    """A length of time in its natural unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def rate(value: float) -> str:
    return "0" if value == 0 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def size(count: int | None) -> str:
    """`512 B`, `1.4 MiB`; `-` for nothing."""
    if not count:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min((count.bit_length() - 1) // 10, len(units) - 1)
    return f"{count} B" if step == 0 else f"{count / (1 << (10 * step)):.1f} {units[step]}"


def lag(rows: int | None, seconds: float | None) -> str:
    if rows is None:
        return "-"
    return f"{rows:,} / {span(seconds)}" if rows and seconds is not None else f"{rows:,}"


def one_line(text: str | None, width: int = 80) -> str:
    first = (text or "").strip().splitlines()[:1]
    line = first[0] if first else ""
    return line if len(line) <= width else line[: width - 1] + "…"


def coded(code: str | None, text: str | None) -> str:
    """A recorded error on one line, with its code once."""
    line = one_line(text)
    return line if not code or line.startswith(code) else f"{code} {line}".rstrip()


# -- values -----------------------------------------------------------------------------------------------------------
def cell(value: Any) -> str:
    """A value of a result set as a person reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if value == int(value or 0) and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date | clock):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(plain(value), ensure_ascii=False)
    return str(value)


def plain(value: Any) -> Any:
    """The value in JSON's types. A decimal stays exact, as text; what JSON lacks (NaN) becomes text too."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, datetime | date | clock):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "asDict"):  # a struct as Spark hands it out
        return plain(value.asDict())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def to_json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_csv(ui: Ui, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """RFC 4180 with a header; null is the empty field."""
    write_csv_rows(ui, columns, rows)


def write_csv_rows(ui: Ui, columns: Sequence[str] | None, rows: Sequence[Sequence[Any]]) -> None:
    """The same in parts: the first has the columns."""
    out = csv.writer(ui.out.file, lineterminator="\n")
    if columns is not None:
        out.writerow(columns)
    out.writerows([["" if value is None else cell(value) for value in row] for row in rows])


class Stopwatch:
    """How long the phases of something took."""

    def __init__(self) -> None:
        self._last = self.begin = time.monotonic()
        self.phases: dict[str, float] = {}

    def lap(self, name: str) -> float:
        now = time.monotonic()
        self.phases[name] = round(now - self._last, 1)
        self._last = now
        return self.phases[name]

    @property
    def total(self) -> float:
        return round(time.monotonic() - self.begin, 1)
