"""`penstock compile`: the project's streams as specs and jobs, without broker, engine or Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import dbt, output
from penstock.cli.manifest import make_manifest
from penstock.cli.session import Session, command
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec

app = typer.Typer()
# dbt must not open a connection: that would start the engine.
_OFFLINE = ("--no-introspect", "--no-populate-cache")


def read_manifest(session: Session) -> dict[str, Any]:
    """dbt's manifest with compiled SQL, made now."""
    return make_manifest(session, ["compile", *_OFFLINE])


def dynamic_tables(manifest: dict[str, Any]) -> list[str]:
    return sorted(
        unique_id
        for unique_id, node in manifest["nodes"].items()
        if node["resource_type"] == "model" and node["config"].get("materialized") == "dynamic_table"
    )


def compile_all(manifest: dict[str, Any], project: Path) -> tuple[list[StreamSpec], list[PenstockError]]:
    """Every stream that compiles and every error: one bad model does not hide another."""
    from penstock.compiler import compile_model

    specs: list[StreamSpec] = []
    problems: list[PenstockError] = []
    for unique_id in dynamic_tables(manifest):
        try:
            specs.append(compile_model(manifest, unique_id, project_dir=project))
        except PenstockError as problem:
            problems.append(problem)
    return specs, problems


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
    }


@command(
    app,
    "compile",
    examples=["penstock compile", "penstock compile --output json", "cat target/penstock/shop.clicks_clean/job.py"],
    codes=(0, 1, 2),
    profile=True,
)
def compile_project(session: Session) -> int:
    """Compile every dynamic table into target/penstock/<schema>.<model>/: spec.json and job.py.

    Needs no broker, no engine and no Java. All models with an error are reported, not only the first.
    """
    from penstock.compiler import write_target

    ui = session.ui
    with ui.working("dbt compiles the project") as step:
        manifest = read_manifest(session)
        step("compiling the streams")
        specs, problems = compile_all(manifest, session.project)
    target = dbt.target_dir(session.project)
    rows = [describe(spec, write_target(spec, target) / "job.py", session.project) for spec in specs]
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
        elif not problems:
            ui.say("The project has no dynamic tables.")
        for problem in problems:
            ui.error(problem)
    return int(problems[0].kind.exit_code) if problems else 0
