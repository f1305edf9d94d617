"""`penstock compile`: the project's streams as specs and jobs, without broker, engine or Java."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import dbt, output
from penstock.cli.manifest import make_manifest
from penstock.cli.session import Session, command
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec

app = typer.Typer()
# dbt must not open a connection: that would start the engine.
OFFLINE = ("--no-introspect", "--no-populate-cache")


Variables = Annotated[
    str | None, typer.Option("--vars", help="Variables of the project, in YAML, as 'dbt run' has.", show_default=False)
]


def variable_words(variables: str | None) -> list[str]:
    """The variables among the words of a dbt command."""
    return ["--vars", variables] if variables else []


def read_manifest(session: Session, variables: str | None = None) -> dict[str, Any]:
    """dbt's manifest with compiled SQL, made now."""
    return make_manifest(session, ["compile", *OFFLINE, *variable_words(variables)])


def dynamic_tables(manifest: dict[str, Any]) -> list[str]:
    return sorted(
        unique_id
        for unique_id, node in manifest["nodes"].items()
        if node["resource_type"] == "model" and node["config"].get("materialized") == "dynamic_table"
    )


def compile_all(
    manifest: dict[str, Any], project: Path, prepare: Callable[[str], None] | None = None
) -> tuple[list[StreamSpec], list[PenstockError]]:
    """Every source table and dynamic table that compiles and every error: one bad model does not hide another.

    `prepare` is called before each, with its unique id.
    """
    from penstock.compiler import compile_model, compile_source_table, quarantines, source_tables

    specs: list[StreamSpec] = []
    problems: list[PenstockError] = []
    for unique_id in source_tables(manifest).values():
        try:
            if prepare is not None:
                prepare(unique_id)
            specs.append(compile_source_table(manifest["sources"][unique_id], project_dir=project))
        except PenstockError as problem:
            problems.append(problem)
    for unique_id in dynamic_tables(manifest):
        try:
            if prepare is not None:
                prepare(unique_id)
            specs.append(compile_model(manifest, unique_id, project_dir=project))
        except PenstockError as problem:
            problems.append(problem)
    kept = {each.name: each for spec in specs for each in quarantines(spec)}
    return [*specs, *kept.values()], problems


def pinning(session: Session, manifest: dict[str, Any], pinned: list[str]) -> Callable[[str], None]:
    """What adds to penstock.lock the schemas that a model or source table needs and that are not in it."""
    from penstock.compiler import sources_of
    from penstock.control.locking import complete

    def pin(unique_id: str) -> None:
        nodes = sources_of(manifest, unique_id)
        sources = [each for each in nodes if each["resource_type"] == "source"]
        changes = complete(sources, session.project, lambda: session.settings().schema_registry.options)
        pinned.extend(change.source for change in changes)

    return pin


def describe(spec: StreamSpec, job: Path, project: Path) -> dict[str, Any]:
    shown = job.relative_to(project) if job.is_relative_to(project) else job
    return {
        "stream": spec.name,
        "mode": spec.output.mode.value,
        "keys": list(spec.output.keys),
        "inputs": [source.relation for source in spec.inputs],
        "job": str(shown),
        "hash": spec.hash,
        "path": spec.path,
        "refresh": "full" if spec.is_full else "incremental",
        "reason": spec.reason,
        "warnings": list(spec.warnings),
    }


def warned(ui: output.Ui, row: dict[str, Any]) -> None:
    """Why a table is refreshed in full, and the warnings on it."""
    if row["reason"]:
        ui.note(f"{row['stream']} is refreshed in full: {row['reason']}")
    for warning in row["warnings"]:
        ui.note(f"Warning: {row['stream']}: {warning}")


@command(
    app,
    "compile",
    examples=["penstock compile", "penstock compile --output json", "cat target/penstock/shop.clicks_clean/job.py"],
    codes=(0, 1, 2),
    profile=True,
)
def compile_project(session: Session, variables: Variables = None) -> int:
    """Compile every dynamic table and source table into target/penstock/<schema>.<name>/: spec.json and job.py.

    Needs no broker, no engine and no Java. A schema registry is asked for schemas that penstock.lock does not have yet.
    All models with an error are reported, not only the first.
    """
    from penstock.compiler import write_target

    ui = session.ui
    with ui.working("dbt compiles the project") as step:
        manifest = read_manifest(session, variables)
        step("compiling the streams")
        pinned: list[str] = []
        specs, problems = compile_all(manifest, session.project, pinning(session, manifest, pinned))
    target = dbt.target_dir(session.project)
    rows = [describe(spec, write_target(spec, target) / "job.py", session.project) for spec in specs]
    if pinned and not ui.is_json:
        ui.note(f"penstock.lock has new schemas of {', '.join(dict.fromkeys(pinned))}: commit it.")
    if ui.is_json:
        ui.data({"streams": rows, "errors": [problem.as_dict() for problem in problems]})
    else:
        if rows:
            table = output.grid("STREAM", "MODE", "KEYS", "INPUTS", "JOB", wraps=("KEYS", "INPUTS"))
            for row in rows:
                table.add_row(
                    row["stream"], row["mode"], ", ".join(row["keys"]) or "-", ", ".join(row["inputs"]), row["job"]
                )
            ui.show(table)
            for row in rows:
                warned(ui, row)
        elif not problems:
            ui.say("The project has no dynamic tables.")
        for problem in problems:
            ui.error(problem)
    return int(problems[0].kind.exit_code) if problems else 0
