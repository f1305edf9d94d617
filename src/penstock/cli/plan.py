"""`penstock plan`: what `penstock run` would do to each stream, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from penstock.cli import dbt, output
from penstock.cli.compile import Variables, dynamic_tables, variable_words, warned
from penstock.cli.manifest import make_manifest
from penstock.cli.output import PlanMode
from penstock.cli.session import Session, command
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.control.planning import Model, Planned, Project

app = typer.Typer()
_OFFLINE = ("--no-introspect", "--no-populate-cache")


def selection(select: Sequence[str] | None, exclude: Sequence[str] | None, selector: str | None) -> list[str]:
    """dbt's words for a part of the project; none for all of it."""
    given = (("--select", select or ()), ("--exclude", exclude or ()), ("--selector", (selector,) if selector else ()))
    return [word for option, values in given for value in values for word in (option, value)]


def chosen(session: Session, words: Sequence[str], more: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and the dynamic tables that dbt's selection names; `more` are words that select nothing.

    A selection leaves the functions that it does not name uncompiled. Those that its tables call and that have
    something to compile are compiled in a second step: most projects have none, and each start of dbt takes seconds.
    """
    from penstock.compiler.functions import uncompiled

    manifest = make_manifest(session, ["compile", *_OFFLINE, *words, *more])
    every = dynamic_tables(manifest)
    if not words:
        return manifest, every
    results = json.loads((dbt.target_dir(session.project) / "run_results.json").read_text(encoding="utf-8"))
    compiled = {result["unique_id"] for result in results["results"]}
    tables = [unique_id for unique_id in every if unique_id in compiled]
    if missing := {str(each["unique_id"]): ".".join(each["fqn"]) for each in uncompiled(manifest, tables)}:
        names = [word for name in missing.values() for word in ("--select", name)]
        made = make_manifest(session, ["compile", *_OFFLINE, *names, *more])["functions"]
        # The others are as the first step left them: the second compiles none of them.
        manifest["functions"] |= {unique_id: made[unique_id] for unique_id in missing}
    return manifest, tables


def project_tables(manifest: dict[str, Any]) -> dict[str, str]:
    """unique id -> relation of every dynamic table, source table and data test that a stream keeps."""
    from penstock.compiler import source_tables
    from penstock.project.live import is_live_test
    from penstock.project.source import relation_of

    tables = {unique_id: relation_of(manifest["nodes"][unique_id]) for unique_id in dynamic_tables(manifest)}
    tables |= {unique_id: relation_of(node) for unique_id, node in manifest["nodes"].items() if is_live_test(node)}
    return tables | {unique_id: relation for relation, unique_id in source_tables(manifest).items()}


def whole_project(manifest: dict[str, Any]) -> Project:
    """What the project writes under the target that dbt made the manifest for."""
    from penstock.control.planning import Project

    models = [node for node in manifest["nodes"].values() if node["resource_type"] == "model"]
    # dbt's own name for a custom schema is <that of the target>_<custom>. The profile may be read for another target.
    of_target = (node["schema"].removesuffix(f"_{node['config'].get('schema')}") for node in models)
    return Project(project_tables(manifest), frozenset({*of_target, *(node["schema"] for node in models)}))


def compiled_models(
    session: Session, manifest: dict[str, Any], unique_ids: Sequence[str], *, everything: bool
) -> tuple[list[Model], list[PenstockError]]:
    """The models, and the source tables that they read, or all of them."""
    from penstock.compiler import compile_model, compile_source_table, source_tables
    from penstock.control.planning import Model
    from penstock.project.model import on_change, own_full_refresh

    models: list[Model] = []
    problems: list[PenstockError] = []
    for unique_id in unique_ids:
        try:
            spec = compile_model(manifest, unique_id, project_dir=session.project)
        except PenstockError as problem:
            problems.append(problem)
        else:
            node = manifest["nodes"][unique_id]
            models.append(Model(spec, on_change(node), full_refresh=own_full_refresh(node)))
    read = {each.relation for model in models for each in model.spec.inputs}
    for relation, unique_id in source_tables(manifest).items():
        if everything or relation in read:
            try:
                spec = compile_source_table(manifest["sources"][unique_id], project_dir=session.project)
            except PenstockError as problem:
                problems.append(problem)
            else:
                models.append(Model(spec))
    return models, problems


def summary(planned: Sequence[Planned]) -> str:
    """`2 NO-OP, 1 REBUILD`."""
    from penstock.compiler import Verdict

    counts = {verdict: sum(each.verdict is verdict for each in planned) for verdict in Verdict}
    return ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items() if number) or "no streams"


def _why(each: Planned) -> list[str]:
    words = list(each.reasons)
    if each.also:
        words.append(f"{' and '.join(each.also)} would be left behind")
    if each.cost is not None and each.cost.inputs:
        words.append(each.cost.words())
    return words


def table(planned: Sequence[Planned]) -> Any:
    made = output.grid("STREAM", "VERDICT", "WHY", "NEXT STEP", wraps=("WHY", "NEXT STEP"))
    for each in planned:
        made.add_row(
            Text(each.stream),
            output.verdict_text(each.verdict.value),
            Text("; ".join(_why(each)) or "-"),
            Text(each.next_step or "-"),
        )
    return made


def markdown(planned: Sequence[Planned], against: str | None = None) -> str:
    """For a pull request."""
    lines = [f"### Streams: {summary(planned)}", ""]
    if against is not None:
        lines += [f"What this would do to streams that run as `{against}` has them.", ""]
    if planned:
        lines += ["| stream | verdict | why | next step |", "|---|---|---|---|"]
    for each in planned:
        cells = (f"`{each.stream}`", f"**{each.verdict.value}**", "<br>".join(map(_cell, _why(each))) or "-",
                 _cell(each.next_step or "-"))  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


@command(
    app,
    "plan",
    examples=[
        "penstock plan",
        "penstock plan --select clicks_clean+ --full-refresh",
        "penstock plan --vars 'keep_bots: false'",
        "penstock plan --output json | jq '.streams[] | select(.verdict == \"REFUSED\")'",
        "penstock plan --against main --output markdown >> $GITHUB_STEP_SUMMARY",
    ],
    codes=(0, 1, 2),
    profile=True,
    modes=PlanMode,
)
def plan(
    session: Session,
    select: Annotated[
        list[str] | None, typer.Option("--select", "-s", help="dbt's selection of models.", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="dbt's exclusion of models.", show_default=False)
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", help="A selection of selectors.yml.", show_default=False)
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="What dbt's state: selections compare with.", show_default=False)
    ] = None,
    variables: Variables = None,
    full_refresh: Annotated[bool, typer.Option("--full-refresh", help="What 'run --full-refresh' would do.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="Compare with a commit, branch or tag, or a kept target/ directory, not with what is deployed.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show what 'penstock run' would do to each stream, and why, without doing it.

    NEW: deployed for the first time. NO-OP: unchanged. HOT: settings that are taken over without a restart. RESTART:
    the stream starts again and keeps its state. REBUILD: state and rows are computed anew; what it would read is
    counted. REFUSED: a rebuild that would leave readers behind, that would lose rows (retention has removed messages
    that were read) and is not confirmed, or that the model's `on_configuration_change: continue` forbids. ORPHAN:
    deployed, and no longer in the project.

    Give it the --select, --vars and --target of the run: it plans the SQL that dbt makes with them. --defer is not
    followed: which tables a run would take from another target only the engine knows.

    Needs no engine; with one, changed queries are analysed, so that changed columns are known, too.

    With `--against` the project is compared with itself, as it was at a commit or when a target directory was kept:
    what a pull request would do. That needs neither engine, broker nor store.
    """
    from penstock.cli.against import streams_before
    from penstock.control.project_plan import plan_against, project_plan
    from penstock.engine.process import read_endpoint

    ui = session.ui
    with ui.working("dbt compiles the project") as step, ExitStack() as stack:
        before = streams_before(session, against, variables) if against is not None else {}
        words = selection(select, exclude, selector)
        of_state = ["--state", state] if state else []
        manifest, unique_ids = chosen(session, words, [*variable_words(variables), *of_state])
        step("comparing with what is deployed")
        models, problems = compiled_models(session, manifest, unique_ids, everything=not words)
        project = None if words else whole_project(manifest)
        if against is not None:
            planned, refused = plan_against(models, before, project=project, full_refresh=full_refresh)
        else:
            store = stack.enter_context(session.store()) if session.has_store() else None
            planned, refused = project_plan(
                store,
                session.paths,
                session.settings().kafka,
                models,
                project=project,
                full_refresh=full_refresh,
                engine=read_endpoint(session.paths) is not None,
            )
        problems += refused
    if ui.is_json:
        specs = {model.spec.name: model.spec for model in models}
        streams = [
            {**each.as_dict(), "full": spec.reason if spec else None, "warnings": list(spec.warnings) if spec else []}
            for each in planned
            for spec in [specs.get(each.stream)]
        ]
        ui.data({"streams": streams, "errors": [each.as_dict() for each in problems]})
    elif ui.mode == PlanMode.MARKDOWN.value:
        ui.out.file.write(markdown(planned, against) + "\n")
        for problem in problems:
            ui.out.file.write(f"\n- {problem.code} {problem.at or ''}: {_cell(problem.message)}\n")
    else:
        if planned:
            ui.show(table(planned))
        ui.say(f"{summary(planned)}.")
        for model in models:
            warned(ui, {"stream": model.spec.name, "reason": model.spec.reason, "warnings": model.spec.warnings})
        for problem in problems:
            ui.error(problem)
    return int(problems[0].kind.exit_code) if problems else 0
