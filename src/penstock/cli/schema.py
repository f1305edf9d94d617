"""`penstock schema`: the JSON Schema of source files, for editors."""

from __future__ import annotations

import json

import typer

from penstock.cli.session import Session, command

app = typer.Typer()


@command(
    app,
    "schema",
    examples=["penstock schema > .vscode/penstock-sources.json"],
    codes=(0,),
    project=False,
)
def schema(session: Session) -> None:
    """Print the JSON Schema of source files, so that an editor completes and checks them.

    docs/sources.md shows how to tell VS Code about it.
    """
    from penstock.project.schema import source_file_schema

    found = source_file_schema()
    if session.ui.is_json:
        session.ui.data(found)
    else:
        typer.echo(json.dumps(found, indent=2))
