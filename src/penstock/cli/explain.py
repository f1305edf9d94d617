"""`penstock explain-error`: the long form of an error."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.session import Session, command
from penstock.errors import Kind, did_you_mean
from penstock.errors.catalogue import ALL, CODE_UNKNOWN

app = typer.Typer()


def find_kind(code: str) -> Kind:
    """The kind of `PEN-1203`, `pen-1203` or `1203`."""
    wanted = code.strip().upper()
    if not wanted.startswith("PEN-"):
        wanted = f"PEN-{wanted}"
    kind = ALL.get(wanted)
    if kind is None:
        raise CODE_UNKNOWN.error(f"There is no error '{code}'.", hint=did_you_mean(wanted, ALL))
    return kind


@command(
    app,
    "explain-error",
    examples=["penstock explain-error PEN-1203", "penstock explain-error 1203"],
    codes=(0, 2),
    project=False,
)
def explain_error(session: Session, code: Annotated[str, typer.Argument(help="The code, such as PEN-1203.")]) -> None:
    """Explain an error: what it means, why it happens and what to do."""
    kind = find_kind(code)
    ui = session.ui
    if ui.is_json:
        ui.data(
            {"code": kind.code, "title": kind.title, "why": kind.why, "fix": kind.fix, "exit_code": int(kind.exit_code)}
        )
        return
    ui.say(Text(f"{kind.code} {kind.title}", style="bold"))
    ui.say("")
    ui.say(f"Why        {kind.why}")
    ui.say(f"What to do {kind.fix}")
    ui.say(f"Exit code  {int(kind.exit_code)}")
