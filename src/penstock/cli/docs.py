"""docs/errors.md, docs/cli.md, docs/sources.md and the tables of docs/models.md, written from the catalogue, the
commands and the models of settings.

`python -m penstock.cli.docs` writes them into docs/ below the current directory; a test fails when they are stale.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

from penstock.cli import dbt
from penstock.cli.main import app
from penstock.cli.model_page import models_page
from penstock.cli.session import EXIT_CODES
from penstock.cli.source_page import sources_page
from penstock.errors.catalogue import ALL

_GROUPS = {
    "10": "The machine",
    "11": "Embedded services",
    "12": "Sources",
    "13": "Models",
    "20": "Kafka",
    "21": "Schema registry",
    "30": "Store and deployment",
    "40": "Engine and streams",
    "50": "Command line",
    "60": "Tests",
}
_NOTE = "<!-- Written by python -m penstock.cli.docs: change the code, not this page. -->\n"


def errors_page() -> str:
    lines = [
        _NOTE,
        "# Errors",
        "",
        "Every error has a code that never changes its meaning. `penstock explain-error CODE` prints what is here.",
        "",
    ]
    group = ""
    for code in sorted(ALL):
        kind = ALL[code]
        prefix = code.removeprefix("PEN-")[:2]
        if prefix != group:
            group = prefix
            lines += [f"## {_GROUPS.get(prefix, prefix)}", ""]
        lines += [
            f"### {code}",
            "",
            f"**{kind.title}.** {kind.why}",
            "",
            f"What to do: {kind.fix}",
            "",
            f"Exit code: {int(kind.exit_code)}",
            "",
        ]
    return "\n".join(lines)


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="penstock")
    lines = [_NOTE, "# The command line", "", str(group.help), "", "| command | |", "|---|---|"]
    commands = {
        name: command for name, command in group.commands.items() if name not in dbt.COMMANDS and not command.hidden
    }
    for name, command in commands.items():
        about = str(command.short_help).replace("<", "&lt;")
        lines.append(f"| [`penstock {name}`](#penstock-{name}) | {about} |")
    lines += ["", "## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {int(code)} | {text} |" for code, text in EXIT_CODES.items()]
    for name, command in commands.items():
        lines += ["", f"## penstock {name}", "", *_command(command, context)]
    lines += [
        "",
        "## Commands of dbt",
        "",
        "These are dbt's own, with all their options. The project directory and its profiles are found as for every",
        "other command, and the exit code is dbt's.",
        "",
        "| command | |",
        "|---|---|",
    ]
    commands_of_dbt = {**dbt.COMMANDS, "test --data": "Run the data tests and unit tests: dbt test."}
    lines += [f"| `penstock {name}` | {about} |" for name, about in sorted(commands_of_dbt.items())]
    return "\n".join(lines) + "\n"


def _command(command: Any, parent: Any) -> list[str]:
    context = typer.Context(command, parent=parent, info_name=command.name)
    about, *blocks = inspect.cleandoc(command.help or "").split("\n\n\b\n")
    params = [param for param in command.get_params(context) if "--help" not in param.opts]
    words = ["penstock", command.name, *(_placeholder(param) for param in params if not _is_option(param))]
    lines = [about.replace("<", "&lt;"), "", "```", " ".join([*words, "[OPTIONS]"]), "```"]
    options = [record for param in params if (record := _parameter(param))]
    if options:
        lines += ["", "| option | |", "|---|---|", *options]
    for block in blocks:
        title, _, body = block.partition("\n")
        lines += ["", title, "", "```", inspect.cleandoc(body), "```"]
    return lines


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _placeholder(param: Any) -> str:
    word = str(param.name).upper() + ("..." if param.nargs == -1 else "")
    return word if param.required else f"[{word}]"


def _parameter(param: Any) -> str | None:
    about = getattr(param, "help", None)
    if not about:
        return None
    names = " ".join(f"`{name}`" for name in param.opts) if _is_option(param) else f"`{_placeholder(param)}`"
    default = getattr(param, "default", None)
    if isinstance(default, int | float) and not isinstance(default, bool):
        about += f" Default: {default:g}."
    return f"| {names} | {about} |"


def pages(docs: Path) -> dict[str, str]:
    """File below docs/ -> content."""
    models = (docs / "models.md").read_text(encoding="utf-8")
    return {
        "errors.md": errors_page(),
        "cli.md": cli_page(),
        "sources.md": sources_page(_NOTE),
        "models.md": models_page(models),
    }


def main() -> int:
    docs = Path("docs")
    for name, content in pages(docs).items():
        (docs / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
