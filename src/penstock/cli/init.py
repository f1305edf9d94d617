"""`penstock init`: a small project that works.

The files are in `project_template/`; `@NAME@` in them is the project's name, `@VERSION@` that of Penstock, and a
leading `dot-` of a file or folder a dot. The schema that an editor checks source files by is made, not copied.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.session import Session, command
from penstock.errors.catalogue import TARGET_EXISTS, USAGE

app = typer.Typer()
_TEMPLATE = Path(__file__).parent.parent / "project_template"
_EDITOR_SCHEMA = ".vscode/penstock-sources.json"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def check_name(name: str) -> str:
    """dbt's rule for the name of a project."""
    if not _NAME.match(name):
        raise USAGE.error(
            f"'{name}' is no name for a project.", hint="Use letters, digits and underscores; no digit at the start."
        )
    return name


def template_files() -> dict[str, str]:
    """Path in the new project -> content."""
    from penstock.project.schema import source_file_schema

    found: dict[str, str] = {}
    for file in sorted(_TEMPLATE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            parts = [re.sub(r"^dot-", ".", part) for part in file.relative_to(_TEMPLATE).parts]
            found["/".join(parts)] = file.read_text(encoding="utf-8")
    found[_EDITOR_SCHEMA] = json.dumps(source_file_schema(), indent=2) + "\n"
    return found


def create(directory: Path, name: str) -> list[Path]:
    """Write the project; TARGET_EXISTS when something is there already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise TARGET_EXISTS.error(f"{directory.name} exists and is not empty.")
    written = []
    for relative, content in template_files().items():
        file = directory / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.replace("@NAME@", name).replace("@VERSION@", __version__), encoding="utf-8")
        written.append(file)
    return written


@command(
    app,
    "init",
    examples=["penstock init shop", "penstock init shop && cd shop && penstock up && dbt run"],
    codes=(0, 2),
    project=False,
)
def init(
    session: Session, name: Annotated[str, typer.Argument(help="Name of the project and of its directory.")]
) -> None:
    """Make a new project: a source, two dynamic tables, unit and data tests, profiles, CI workflow, editor settings."""
    directory = Path.cwd() / check_name(name)
    written = create(directory, name)
    ui = session.ui
    if ui.is_json:
        ui.data({"project": str(directory), "files": [str(file.relative_to(directory)) for file in written]})
        return
    ui.say(f"Made {name}/ with {len(written)} files.")
    ui.say("")
    ui.say("Next:")
    for line in (f"cd {name}", "penstock up", "penstock run", "penstock generate clicks --rate 50", "penstock status"):
        ui.say(f"  {line}")
