"""`penstock run` and every other dbt command."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from penstock.cli import dbt, output, run_sources
from penstock.cli.output import Ui
from penstock.cli.session import Session, find_project, help_text
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.store import Store

app = typer.Typer()
_PANEL = "dbt"
DATA_TEST = "data-test"  # `penstock test --data`
DBT_WORDS = frozenset(
    {"--data", "--select", "-s", "--exclude", "--selector", "--resource-type", "--indirect-selection"}
)


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
    """Deploy the dynamic tables and build the other models: `dbt run`, then tables of the sources and streams.

    Every option of `dbt run` is taken (--select, --full-refresh, --vars, --target ...; see 'dbt run --help'). Streams
    are deployed and the command returns; running it again on an unchanged project changes nothing. Source tables are
    deployed before the models that read them; without a selection, those that no model reads are, too. With
    `--output json` dbt's messages go to standard error and the sources and streams to standard output. The exit code
    is dbt's.

    `penstock plan` shows beforehand what happens to each stream. With `--prune`, streams whose models are no longer in
    the project (ORPHAN in the plan) are stopped after a run without errors, unless a stream that goes on reads them;
    their tables stay until `penstock drop`. The views of sources that are gone are dropped.
    """,
    [
        "penstock run",
        "penstock run --prune",
        "penstock run --select clicks_clean+",
        "penstock run --full-refresh --select views_per_item",
    ],
    [0, 1, 2, 130],
)


@app.command(
    "run", cls=UntouchedWithHelp, help=_RUN_HELP, short_help="Deploy the streams and build the models: dbt run."
)
def run(ctx: typer.Context) -> None:
    ui = ctx.obj if isinstance(ctx.obj, Ui) else Ui()
    args = _take_output(ui, ctx.args)
    prune = "--prune" in args
    args = [arg for arg in args if arg != "--prune"]
    given = dbt.option(args, "--project-dir")
    project = find_project(Path(given) if given else None)
    target = dbt.target_dir(project, args)
    began = time.time()
    code, _ = dbt.run(["run", *args], stdout=dbt.STDERR if ui.is_json else None)
    results = answers(target / "run_results.json", began)
    streams, sources = deployed(results), run_sources.found(results)
    problems: list[PenstockError] = []
    profiles = dbt.option(args, "--profiles-dir")
    session = Session(ui, project, Path(profiles) if profiles else None, dbt.option(args, "--target"))
    sources = run_sources.with_left_behind(session, sources)
    if code in (0, 1) and not run_sources.is_selection(args):
        sources, problems = run_sources.with_others(session, target / "manifest.json", args, sources, began)
    code = code or int(bool(problems))
    if prune and not code:
        streams += pruned(ui, project, target / "manifest.json")
    elif prune:
        ui.note("Nothing is pruned after a run with errors.")
    if ui.is_json:
        errors = [problem.as_dict() for problem in problems]
        ui.data({"exit_code": code, "sources": sources, "streams": streams, "errors": errors})
    else:
        for table in (run_sources.grid(sources) if sources else None, streams_table(streams) if streams else None):
            if table is not None:
                ui.say("")
                ui.show(table)
        for problem in problems:
            ui.error(problem)
    if code:
        raise typer.Exit(code)


def pruned(ui: Ui, project: Path, manifest: Path) -> list[dict[str, Any]]:
    """Stop the streams that the project no longer has and nothing reads; their tables stay."""
    from penstock.cli.plan import whole_project
    from penstock.control.deployed import deployed_streams
    from penstock.control.planning import orphans
    from penstock.control.streams import stop_stream

    session = Session(ui, project)
    found = []
    content = json.loads(manifest.read_text(encoding="utf-8"))
    with session.store() as store:
        _prune_sources(ui, store, content)
        for each in orphans(deployed_streams(store), whole_project(content)):
            began = time.monotonic()
            if each.read_by:
                ui.note(f"Left running, because it is still read by {' and '.join(each.read_by)}: {each.stream}.")
            else:
                with ui.working(f"stopping {each.stream}") as step:
                    stop_stream(store, each.stream, progress=step)
            done = "left running" if each.read_by else "stopped; its table stays until 'penstock drop'"
            found.append(
                {
                    "stream": each.stream,
                    "verdict": each.verdict.value,
                    "generation": each.generation,
                    "checkpoint": None,
                    "reasons": [*each.reasons, done],
                    "status": "kept" if each.read_by else "pruned",
                    "seconds": round(time.monotonic() - began, 2),
                }
            )
    return found


def _prune_sources(ui: Ui, store: Store, manifest: dict[str, Any]) -> None:
    """Drop the views of sources that the project no longer has; the topics are not its own."""
    from penstock.cli.relations import stream_sources
    from penstock.control.sources import drop_source

    for relation in sorted(set(store.sources()) - set(stream_sources(manifest))):
        drop_source(store, relation)
        ui.note(f"Source {relation} is no longer in the project: its view is dropped, its topic stays.")


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


def answers(results: Path, since: float) -> list[dict[str, Any]]:
    """The results of dbt's run_results.json, unless the file is an older run's."""
    try:
        if results.stat().st_mtime < since - 1:
            return []
        content = json.loads(results.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return list(content.get("results", []))


def deployed(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The streams among dbt's results."""
    streams = []
    for result in results:
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


@app.command(DATA_TEST, cls=Untouched, hidden=True, add_help_option=False)
def data_test(ctx: typer.Context) -> None:
    dbt.replace_process(["test", *ctx.args])
