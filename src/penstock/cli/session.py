"""What every command has in common: its options, its project and how its help is written.

`@command(app, "status", ...)` registers a function whose first parameter is a `Session`. The options that all commands
share (--project-dir, --profiles-dir, --target, --output, --debug, -q) are added here and end up in that session.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from penstock.cli.output import Mode, Ui
from penstock.errors import ExitCode
from penstock.errors.catalogue import NOT_A_PROJECT
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from penstock.project.profile import RuntimeSettings
    from penstock.store import Store

EXIT_CODES: dict[int, str] = {
    ExitCode.OK: "all went well",
    ExitCode.FAILED: "the work was tried and failed",
    ExitCode.BAD_INPUT: "the project, the profile or the command line is wrong",
    ExitCode.ENVIRONMENT: "the machine is not ready (Java, jars, ports, disk)",
    ExitCode.UNAVAILABLE: "a broker or the engine does not answer",
    ExitCode.CONFLICT: "somebody else holds what the command needs",
    130: "stopped with Ctrl-C",
}

ProjectDir = Annotated[
    Path | None, typer.Option("--project-dir", help="The project (default: here or above).", show_default=False)
]
ProfilesDir = Annotated[
    Path | None,
    typer.Option(
        "--profiles-dir", help="Where profiles.yml is (default: the project or its profiles/).", show_default=False
    ),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", help="Target of the profile (default: the profile's).", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results and errors.")]


@dataclass
class Session:
    """One command at work: its terminal and its project."""

    ui: Ui
    project_dir: Path | None = None
    profiles_dir: Path | None = None
    target: str | None = None

    @cached_property
    def project(self) -> Path:
        return find_project(self.project_dir)

    @property
    def paths(self) -> ProjectPaths:
        return ProjectPaths(self.project)

    @property
    def profiles(self) -> Path | None:
        """Where profiles.yml is; None leaves it to dbt's own search."""
        return find_profiles(self.project, self.profiles_dir)

    def settings(self) -> RuntimeSettings:
        """The profile, read now."""
        from penstock.project.profile import load_profile

        return load_profile(self.project, profiles_dir=self.profiles, target=self.target)

    def saved(self) -> dict[str, Any]:
        """The settings that the project was last started with; empty before the first start.

        Read as plain JSON: checking them again would double the time of `penstock status`.
        """
        try:
            found = json.loads((self.paths.home / "settings.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextmanager
    def store(self) -> Iterator[Store]:
        from penstock.store import Store

        store = Store.open(self.saved().get("store") or self.paths.store)
        try:
            yield store
        finally:
            store.close()

    def has_store(self) -> bool:
        """Whether anything was ever deployed or started here; looking must not create it."""
        return self.paths.store.exists() or bool(self.saved().get("store"))


def find_project(start: Path | None) -> Path:
    """The directory with dbt_project.yml: the given one, or the nearest from here upwards."""
    if start is not None:
        given = start.expanduser().resolve()
        if not (given / "dbt_project.yml").is_file():
            raise NOT_A_PROJECT.error(f"There is no dbt_project.yml in {start}.")
        return given
    here = Path.cwd()
    for directory in (here, *here.parents):
        if (directory / "dbt_project.yml").is_file():
            return directory
    raise NOT_A_PROJECT.error("There is no dbt_project.yml in this directory or above it.")


def find_profiles(project: Path, given: Path | None) -> Path | None:
    """The directory of profiles.yml that a user did not have to name; None leaves the search to dbt."""
    if given is not None:
        return given.expanduser().resolve()
    if os.environ.get("DBT_PROFILES_DIR"):
        return None
    for directory in (project, project / "profiles"):
        if (directory / "profiles.yml").is_file():
            return directory
    return None


def help_text(about: str, examples: Sequence[str], codes: Sequence[int]) -> str:
    """Description, examples and exit codes, each on lines of its own."""
    # Paragraphs are one line each: the terminal wraps them to its own width.
    parts = [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(about).split("\n\n")]
    if examples:
        parts.append("\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples))
    parts.append("\b\nExit codes:\n" + "\n".join(f"  {int(code):<3} {EXIT_CODES[code]}" for code in codes))
    return "\n\n".join(parts)


def first_sentence(about: str) -> str:
    return " ".join(re.split(r"(?<=[.])\s", about.strip(), maxsplit=1)[0].split())


def command(
    app: typer.Typer,
    name: str,
    *,
    examples: Sequence[str],
    codes: Sequence[int] = (0, 1, 2),
    project: bool = True,
    profile: bool = False,
    modes: type[Enum] = Mode,
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a command; the function may return an exit code."""
    common: dict[str, tuple[Any, Any]] = {}
    if project:
        common["project_dir"] = (ProjectDir, None)
    if profile:
        common["profiles_dir"] = (ProfilesDir, None)
        common["target"] = (Target, None)
    common["output"] = (
        Annotated[
            modes, typer.Option("--output", "-o", metavar="|".join(m.value for m in modes), help="Form of the result.")
        ],
        modes("text"),
    )
    common["debug"] = (Debug, False)
    common["quiet"] = (Quiet, False)

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("ctx", keyword, annotation=typer.Context)]
        parameters += [inspect.Parameter(p.name, keyword, default=p.default, annotation=hints[p.name]) for p in own]
        parameters += [
            inspect.Parameter(key, keyword, default=default, annotation=kind) for key, (kind, default) in common.items()
        ]

        def run(ctx: typer.Context, **values: Any) -> None:
            ui = ctx.obj if isinstance(ctx.obj, Ui) else Ui()
            ui.mode = values.pop("output").value
            ui.debug = values.pop("debug") or ui.debug
            ui.quiet = values.pop("quiet")
            session = Session(
                ui, values.pop("project_dir", None), values.pop("profiles_dir", None), values.pop("target", None)
            )
            code = function(session, **values)
            if code:
                raise typer.Exit(int(code))

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        text = help_text(function.__doc__ or "", examples, [*codes, 130])
        app.command(name, help=text, short_help=first_sentence(function.__doc__ or ""))(run)
        return function

    return register
