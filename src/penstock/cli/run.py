"""`penstock run` and every other dbt command."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from penstock.cli import dbt, output
from penstock.cli.output import Ui
from penstock.cli.session import find_project, help_text

app = typer.Typer()
_PANEL = "dbt"


class Untouched(TyperCommand):
    """A command that leaves its arguments alone, --help included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


class UntouchedWithHelp(Untouched):
    """The same with a --help of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help" in args or "-h" in args:
            return list(TyperCommand.parse_args(self, ctx, ["--help"]))
        return super().parse_args(ctx, args)


_RUN_HELP = help_text(
    """Deploy the dynamic tables and build the other models: `dbt run`, then a table of the streams.

    Every option of `dbt run` is taken (--select, --full-refresh, --vars, --target ...; see 'dbt run --help'). Streams
    are deployed and the command returns; running it again on an unchanged project changes nothing. With
    `--output json` dbt's messages go to standard error and the streams to standard output. The exit code is dbt's.
    """,
    ["penstock run", "penstock run --select clicks_clean+", "penstock run --full-refresh --select views_per_item"],
    [0, 1, 2, 130],
)


@app.command(
    "run", cls=UntouchedWithHelp, help=_RUN_HELP, short_help="Deploy the streams and build the models: dbt run."
)
def run(ctx: typer.Context) -> None:
    ui = ctx.obj if isinstance(ctx.obj, Ui) else Ui()
    args = _take_output(ui, ctx.args)
    given = dbt.option(args, "--project-dir")
    project = find_project(Path(given) if given else None)
    results = dbt.target_dir(project, args) / "run_results.json"
    began = time.time()
    code, _ = dbt.run(["run", *args], stdout=dbt.STDERR if ui.is_json else None)
    streams = deployed(results, began)
    if ui.is_json:
        ui.data({"exit_code": code, "streams": streams})
    elif streams:
        ui.say("")
        ui.show(streams_table(streams))
    if code:
        raise typer.Exit(code)


def _take_output(ui: Ui, args: list[str]) -> list[str]:
    """`--output json` is ours; `dbt run` has no such option."""
    left: list[str] = []
    words = iter(args)
    for word in words:
        if word in ("--output", "-o"):
            ui.mode = next(words, "text")
        elif word.startswith("--output="):
            ui.mode = word.partition("=")[2]
        else:
            left.append(word)
    if ui.mode not in ("text", "json"):
        from penstock.errors.catalogue import USAGE

        wrong, ui.mode = ui.mode, "text"
        raise USAGE.error(f"--output takes text or json, not '{wrong}'.")
    ui.quiet = "-q" in left or "--quiet" in left
    return left


def deployed(results: Path, since: float) -> list[dict[str, Any]]:
    """The streams of dbt's run_results.json, unless the file is an older run's."""
    try:
        if results.stat().st_mtime < since - 1:
            return []
        content = json.loads(results.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    streams = []
    for result in content.get("results", []):
        response = result.get("adapter_response") or {}
        if "stream" in response:
            streams.append(
                {
                    "stream": response["stream"],
                    "verdict": response.get("verdict"),
                    "generation": response.get("generation"),
                    "checkpoint": response.get("checkpoint"),
                    "reasons": response.get("reasons") or [],
                    "status": result.get("status"),
                    "seconds": round(float(result.get("execution_time") or 0), 2),
                }
            )
    return streams


def streams_table(streams: list[dict[str, Any]]) -> Any:
    table = output.grid("STREAM", "VERDICT", "GEN", "TIME", "WHY", right=("GEN", "TIME"), wraps=("WHY",))
    for row in streams:
        reasons = row["reasons"] if isinstance(row["reasons"], list) else [row["reasons"]]
        table.add_row(
            row["stream"],
            str(row["verdict"] or row["status"] or "-"),
            str(row["generation"] or "-"),
            output.span(row["seconds"]),
            "; ".join(str(reason) for reason in reasons) or "-",
        )
    return table


def _register(name: str, about: str) -> None:
    text = f"{about}\n\ndbt's own command; 'penstock {name} --help' shows its options. The exit code is dbt's."

    @app.command(name, cls=Untouched, help=text, short_help=about, rich_help_panel=_PANEL, add_help_option=False)
    def passed(ctx: typer.Context) -> None:
        dbt.replace_process([name, *ctx.args])


for _name, _about in dbt.COMMANDS.items():
    _register(_name, _about)
