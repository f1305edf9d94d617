"""`python -m bench.unit_tests <project> <count …>`: dbt's unit tests of a project, some counts after one another.

A process of its own: dbt is one of a kind in a process, and so is a Spark session of dbt-spark's. The first count is
for warming up. Prints one line of JSON for each: seconds and CPU seconds, those of Spark's process included.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from dbt.cli.main import dbtRunner

from bench import template_project
from penstock.engine.process import read_endpoint
from penstock.paths import ProjectPaths

_SELECTION = ("--select", "test_type:unit", "--target", "unit", "--quiet")


def main(project: Path, counts: list[int]) -> None:
    os.chdir(project)
    os.environ["DBT_PROFILES_DIR"] = str(project)
    if read_endpoint(ProjectPaths(project)) is None:
        _invoke("run", "--target", "unit", "--quiet")  # dbt-spark takes the types from tables that are there
    for count in counts:
        template_project.have(project, template_project.UNITS, "unit_tests", count)
        before = cpu_seconds(project)
        done = _invoke("test", *_SELECTION)
        used = cpu_seconds(project) - before
        tests = [each for each in done.results if each.node.resource_type == "unit_test"]  # and not what begins a run
        assert len(tests) == count, f"{len(tests)} of {count} unit tests were run"
        print(json.dumps({"tests": count, "seconds": done.elapsed_time, "cpu": used}), flush=True)


def _invoke(*words: str) -> Any:
    done = dbtRunner().invoke(list(words))
    if not done.success:
        raise RuntimeError(f"dbt {' '.join(words)} failed: {done.exception or done.result}")
    return done.result


def cpu_seconds(project: Path | None = None) -> float:
    """Of this process, of what it started, and of the project's engine."""
    roots = [psutil.Process()]
    endpoint = read_endpoint(ProjectPaths(project)) if project else None
    if endpoint is not None:
        roots.append(psutil.Process(endpoint.pid))
    total = 0.0
    for root in roots:
        for each in [root, *(child for child in root.children() if child.name() == "java")]:
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
