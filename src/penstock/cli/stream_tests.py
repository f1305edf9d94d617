"""`penstock test`: the stream tests of the project, without a broker and without the project's engine."""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree as ET

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import output
from penstock.cli.session import Session, command
from penstock.errors.catalogue import STREAM_TEST_NONE

if TYPE_CHECKING:
    from penstock.testing.cases import Case
    from penstock.testing.lab import Failure, Lab, Outcome

app = typer.Typer()
_SHOWN = 20  # rows of a difference
AT_ONCE = min(os.cpu_count() or 1, 4)  # tests at the same time: a test is most often busy with one core


class TestMode(str, Enum):
    """What `--output` of `test` takes."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"


@command(
    app,
    "test",
    examples=[
        "penstock test",
        "penstock test item_views_per_minute",
        "penstock test -k late --fail-fast",
        "penstock test --output junit > report.xml",
        "penstock test --data --select clicks_clean",
    ],
    codes=(0, 1, 2, 3),
    profile=True,
    modes=TestMode,
)
def run_tests(
    session: Session,
    names: Annotated[list[str] | None, typer.Argument(help="Tests, models or files; all when none is named.")] = None,
    keyword: Annotated[str | None, typer.Option("-k", help="Only tests with this in their name.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", "-x", help="Stop at the first test that fails.")] = False,
    at_once: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="How many tests run at the same time (default: one a core, at most 4)."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory of the run, and say where it is.")] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Run dbt's tests in their place: 'dbt test' with all other options.")
    ] = False,
) -> int:
    """Run the stream tests: records in, steps, rows out, on the engine's own code.

    Stream tests are YAML files below tests/streams/ or stream_tests/ of the project (docs/stream-tests.md). They need
    Java, and nothing else: no broker, no registry, no running project. Nothing of the project's own tables is touched,
    and several runs may go on at the same time. Tests run side by side in one JVM (--threads) and are told of in their
    order.

    dbt's data tests and unit tests need the engine: they are 'dbt test', or 'penstock test --data', which takes every
    option of 'dbt test'. A selection of dbt's (--select, --exclude, --selector) means them as well.
    """
    from penstock.testing.cases import chosen, read_all

    del data  # told before: `Penstock.resolve_command` hands such a line to dbt
    ui = session.ui
    if not ui.debug:
        logging.getLogger().addHandler(logging.NullHandler())  # failures are told in the outcome of their test
    known = read_all(session.project)
    cases = chosen(known, names or [], keyword)
    if not cases:
        told = "The project has no stream tests." if not known else "No stream test is chosen."
        raise STREAM_TEST_NONE.error(told)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with laboratory(session, keep=keep) as lab, ui.working("running stream tests") as step:
        ready = time.monotonic() - began
        for outcome in lab.run_all(cases, at_once=at_once or AT_ONCE, fail_fast=fail_fast):
            outcomes.append(outcome)
            step(f"{len(outcomes)} of {len(cases)}: {outcome.case.name}")
            if ui.mode == TestMode.TEXT.value:
                _tell(ui, outcome)
    _report(ui, outcomes, len(cases), ready, time.monotonic() - began)
    return 0 if all(each.passed for each in outcomes) else 1


@contextmanager
def laboratory(session: Session, *, keep: bool = False) -> Iterator[Lab]:
    """A place for tests of the session's project; Spark starts while dbt compiles."""
    from penstock.cli.compile import OFFLINE
    from penstock.cli.manifest import make_manifest

    home = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    words = ["compile", *OFFLINE, "--target-path", str(home / "target"), "--log-path", str(home)]
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        with session.ui.working("dbt compiles the project, Spark starts"):
            said = io.StringIO()  # what dbt says meanwhile, for afterwards
            aside = replace(session, ui=replace(session.ui, err=Console(file=said, markup=False, soft_wrap=True)))
            compiling = pool.submit(make_manifest, aside, words)
            try:
                spark = _start(home)
            finally:
                compiling.exception()  # neither leaves the other running
        try:
            from penstock.testing.lab import Lab

            if said.getvalue():
                session.ui.note(said.getvalue().rstrip())
            yield Lab(spark, home, compiling.result(), session.project)
        finally:
            spark.stop()
    finally:
        pool.shutdown(wait=True)
        if keep:
            session.ui.note(f"Kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


def _start(home: Path) -> Any:
    from penstock.engine import session
    from penstock.paths import ProjectPaths

    # What the JVM has to say belongs into a file; it keeps the standard error that it is started with.
    terminal = os.dup(2)
    try:
        with (home / "spark.log").open("wb") as log:
            os.dup2(log.fileno(), 2)
        return session.for_tests(ProjectPaths(home))
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


# -- what is shown ----------------------------------------------------------------------------------------------------
def _tell(ui: output.Ui, outcome: Outcome) -> None:
    word, style = ("ok", "green") if outcome.passed else ("FAILED", "bold red")
    line = Text.assemble((f"{word:<6}", style), f"  {outcome.case.name}  ", (output.span(outcome.seconds), "dim"))
    ui.say(line)
    if outcome.failure is not None:
        _tell_failure(ui, outcome.failure)


def _tell_failure(ui: output.Ui, failure: Failure) -> None:
    where = f"{failure.place}: " if failure.place else ""
    step = f"step {failure.step}, {failure.what}: " if failure.step is not None else ""
    code = f"{failure.code} " if failure.code else ""
    ui.say(Text(f"  {where}{step}{code}{failure.message}", style="red"))
    if failure.hint:
        ui.say(Text(f"  {failure.hint}"))
    if failure.diff is not None:
        ui.show(difference(failure))
        if len(failure.diff.lines) > _SHOWN:
            ui.say(f"  … and {len(failure.diff.lines) - _SHOWN} more rows")


_STYLES = {"-": "red", "+": "green", "~": "yellow"}
_WORDS = {"-": "missing", "+": "unexpected", "~": "different"}


def difference(failure: Failure) -> Table:
    """The rows that are not as expected, one below the other; a different cell shows what was expected and found."""
    assert failure.diff is not None
    table = output.grid("", "", *failure.diff.columns, wraps=tuple(failure.diff.columns))
    for line in failure.diff.lines[:_SHOWN]:
        style = _STYLES[line.sign]
        cells = [
            Text(one, style="" if line.sign == "~" else style)
            if one == other
            else Text.assemble((one, "red"), " → ", (other, "green"))
            for one, other in line.cells
        ]
        table.add_row(Text(f"  {line.sign}", style=style), Text(_WORDS[line.sign], style=style), *cells)
    return table


def _report(ui: output.Ui, outcomes: Sequence[Outcome], chosen: int, ready: float, seconds: float) -> None:
    failed = sum(not each.passed for each in outcomes)
    if ui.mode == TestMode.JUNIT.value:
        ET.ElementTree(junit(outcomes)).write(sys.stdout, encoding="unicode", xml_declaration=True)
        sys.stdout.write("\n")
        return
    if ui.is_json:
        ui.data(
            {
                "tests": [each.as_dict() for each in outcomes],
                "passed": len(outcomes) - failed,
                "failed": failed,
                "not_run": chosen - len(outcomes),
                "ready_seconds": round(ready, 2),
                "seconds": round(seconds, 2),
            }
        )
        return
    left = f", {chosen - len(outcomes)} not run" if chosen > len(outcomes) else ""
    words = f"{len(outcomes) - failed} passed, {failed} failed{left}" if failed else f"{len(outcomes)} passed"
    ui.say(f"{words} in {output.span(seconds)} ({output.span(ready)} until the first)")


def junit(outcomes: Sequence[Outcome]) -> ET.Element:
    """The report that CI systems read."""
    failed = sum(not each.passed for each in outcomes)
    suite = ET.Element(
        "testsuite", name="stream tests", tests=str(len(outcomes)), failures=str(failed), errors="0",
        time=f"{sum(each.seconds for each in outcomes):.3f}",
    )  # fmt: skip
    for each in outcomes:
        case = ET.SubElement(
            suite, "testcase", classname=each.case.file, name=each.case.name, time=f"{each.seconds:.3f}"
        )
        if each.failure is not None:
            found = ET.SubElement(case, "failure", message=each.failure.message)
            found.text = _plain(each.case, each.failure)
    return suite


def _plain(case: Case, failure: Failure) -> str:
    lines = [f"{failure.place or case.file}: {failure.message}"]
    if failure.diff is not None:
        lines.append("  ".join(["", *failure.diff.columns]))
        for line in failure.diff.lines:
            cells = [one if one == other else f"{one} → {other}" for one, other in line.cells]
            lines.append("  ".join([line.sign, *cells]))
    return "\n".join(lines)
