"""Tests of the template project: unit tests beside dbt-spark's on equal models, stream tests, and how either grows.

Rules
- The tests are those of `penstock init`, again and again under other names; the project has nothing else.
- Warm: what runs the tests has run each of them before. Starts of dbt, Spark and the engine are not in the figures.
- Unit tests of both sides run in four threads of dbt, in a Spark of two cores with the same jars and settings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import template_project
from bench.report import load, note, table
from bench.site import scratch
from bench.unit_tests import cpu_seconds
from penstock.cli.output import Ui
from penstock.cli.session import Session
from penstock.cli.stream_tests import AT_ONCE, laboratory
from penstock.control import up
from penstock.paths import ProjectPaths
from penstock.testing.cases import read_all

_UNITS, _QUICK_UNITS = (10, 50, 100), (10, 20)
_STREAMS, _QUICK_STREAMS = (5, 25, 50), (5, 10)
_WARM = 4  # tests before the first that counts


@dataclass(frozen=True)
class Taken:
    """What some tests took, all together."""

    tests: int
    seconds: float
    cpu: float

    def per_test(self) -> list[str]:
        return [f"{self.seconds / self.tests:.2f} s", f"{self.cpu / self.tests:.2f} s"]


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print the time per test by the number of tests. `rows` is the largest number of unit tests; `rounds` means
    nothing: tests repeat each other.
    """
    units = tuple(count for count in (_QUICK_UNITS if quick else _UNITS) if rows is None or count <= rows)
    streams = _QUICK_STREAMS if quick else _STREAMS
    ours, theirs = _ours(units), _plain(units)
    _print_units(ours, theirs)
    _print_streams([_streams(streams, 1), _streams(streams, AT_ONCE)])


def _print_units(ours: list[Taken], theirs: list[Taken]) -> None:
    lines = [[str(one.tests), *one.per_test(), *other.per_test()] for one, other in zip(ours, theirs, strict=True)]
    lines.append(["growth, last / first", _growth(ours), "", _growth(theirs), ""])
    table(
        f"Unit tests, time per test once warm, load {load():.0f}",
        ["tests", "Penstock", "CPU", "dbt-spark", "CPU"],
        lines,
    )


def _print_streams(found: list[list[Taken]]) -> None:
    alone, beside = found
    lines = [[str(one.tests), *one.per_test(), *other.per_test()] for one, other in zip(alone, beside, strict=True)]
    lines.append(["growth, last / first", _growth(alone), "", _growth(beside), ""])
    table(
        f"Stream tests, time per test once warm, load {load():.0f}",
        ["tests", "one at a time", "CPU", f"{AT_ONCE} at a time", "CPU"],
        lines,
    )


def _growth(found: list[Taken]) -> str:
    """Of the CPU seconds per test: 1.00 is linear growth of the whole."""
    first, last = found[0], found[-1]
    return f"{(last.cpu / last.tests) / (first.cpu / first.tests):.2f} (CPU)"


def _ours(counts: tuple[int, ...]) -> list[Taken]:
    with scratch() as directory:
        project = directory / template_project.NAME
        template_project.make(project)
        try:
            _call(project, str(Path(sys.executable).with_name("penstock")), "up", "--target", "unit")
            return _unit_tests(project, counts, "Penstock")
        finally:
            up.down(ProjectPaths(project))


def _plain(counts: tuple[int, ...]) -> list[Taken]:
    with scratch() as directory:
        project = directory / template_project.NAME
        template_project.make_plain(project)
        return _unit_tests(project, counts, "dbt-spark")


def _unit_tests(project: Path, counts: tuple[int, ...], who: str) -> list[Taken]:
    words = [str(count) for count in (_WARM, *counts)]
    said = _call(project, sys.executable, "-m", "bench.unit_tests", str(project), *words)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"tests"')]
    found = [Taken(line["tests"], line["seconds"], line["cpu"]) for line in lines]
    for each in found[1:]:
        note(f"{who}, {each.tests} unit tests: {' '.join(each.per_test())} of a core, load {load():.1f}")
    return found[1:]


def _streams(counts: tuple[int, ...], at_once: int) -> list[Taken]:
    found = []
    with scratch() as directory:
        project = directory / template_project.NAME
        template_project.make(project)
        template_project.have(project, template_project.STREAMS, "stream_tests", max(counts))
        os.environ["DBT_PROFILES_DIR"] = str(project)
        with laboratory(Session(Ui(quiet=True), project)) as lab:
            for count in (_WARM * at_once, *counts):
                cases = read_all(project)[:count]
                began, before = time.perf_counter(), cpu_seconds()
                outcomes = list(lab.run_all(cases, at_once=at_once))
                found.append(Taken(len(cases), time.perf_counter() - began, cpu_seconds() - before))
                assert all(each.passed for each in outcomes), [each.as_dict() for each in outcomes if not each.passed]
                note(f"{count} stream tests, {at_once} at a time: {' '.join(found[-1].per_test())}, load {load():.1f}")
    return found[1:]


def _call(project: Path, *command: str) -> str:
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"DBT_PROFILES_DIR": str(project), "NO_COLOR": "1", "PYTHONPATH": path}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout
