"""The command `penstock`: its commands in order, and what becomes of a failure.

Rules
- A failure with a code is one red line and a hint; a stack trace is shown with --debug only.
- Anything else is a bug of ours: one line, and how to see more.
- Ctrl-C ends with 130.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from penstock import __version__
from penstock.cli import compile as compile_command
from penstock.cli import (
    demo,
    describe,
    explain,
    explain_model,
    generate,
    init,
    jars,
    lifecycle,
    listing,
    lock,
    logs,
    maintain,
    plan,
    query,
    record,
    replay,
    run,
    schema,
    status,
    stream_tests,
    streams,
    ui,
)
from penstock.cli.output import Ui
from penstock.cli.session import EXIT_CODES
from penstock.errors import PenstockError
from penstock.errors.catalogue import USAGE

INTERRUPTED = 130


class Penstock(TyperGroup):
    """The group of all commands, with one place for failures."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of a project's life, dbt's own last."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """`list` of sources, tables or queries is ours; any other is dbt's, which takes options only. `test` is ours
        unless it says --data or chooses as dbt does."""
        if args[:1] == ["list"]:
            words = args[1:]
            ours = any(word in (*listing.WORDS, "--help", "-h") for word in words)
            if not ours and all(word.startswith("-") for word in words[:1]):
                args = ["ls", *words]
        if args[:1] == ["test"] and not run.DBT_WORDS.isdisjoint(word.partition("=")[0] for word in args):
            args = [run.DATA_TEST, *(word for word in args[1:] if word != "--data")]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        ui = ctx.obj = Ui(debug="--debug" in sys.argv[1:])
        args = [*getattr(ctx, "_protected_args", []), *ctx.args]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            ui.note("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has seen enough (`| head`); nothing more can be said to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except PenstockError as problem:
            if ui.debug:
                ui.err.print_exception()
            ui.error(problem)
            raise typer.Exit(int(problem.kind.exit_code)) from None
        except Exception as problem:  # the last place where a bug can be told to the user in one line
            if hasattr(problem, "format_message"):  # a wrong option: Typer prints its usage
                if not _wants_json(args):
                    raise
                ui.mode = "json"
                ui.error(USAGE.error(problem.format_message()))
                raise typer.Exit(int(USAGE.exit_code)) from None
            _unexpected(ui, problem)
            raise typer.Exit(1) from None


def _wants_json(args: list[str]) -> bool:
    pairs = zip(args, [*args[1:], ""], strict=True)
    return "--output=json" in args or any(a in ("--output", "-o") and b == "json" for a, b in pairs)


def _unexpected(ui: Ui, problem: Exception) -> None:
    if ui.debug:
        ui.err.print_exception()
    text = f"Unexpected {type(problem).__name__}: {problem}".splitlines()[0]
    if ui.is_json:
        ui.data(
            {"error": {"code": None, "message": text, "file": None, "line": None, "hint": "Run again with --debug."}}
        )
        return
    ui.err.print(Text(text, style="red"), soft_wrap=True)
    ui.err.print("  This is a bug in Penstock. Run again with --debug to see where.", soft_wrap=True)


_EPILOG = "Exit codes: " + " · ".join(f"{int(code)} {text}" for code, text in EXIT_CODES.items())

app = typer.Typer(
    name="penstock",
    cls=Penstock,
    help="Streaming for people who know dbt: SQL models become Spark streams that stay alive.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _part in (
    init, lifecycle, lock, compile_command, stream_tests, plan, run, status, logs, listing, describe, streams, record,
    replay, maintain, query, ui, generate, demo, schema, jars, explain_model, explain,
):  # fmt: skip
    app.registered_commands.extend(_part.app.registered_commands)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit(0)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
