"""docs/conformance.md, from the results of runs: `python tests/conformance/report.py results.xml … > page`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from xml.etree import ElementTree as ET

from dbt_suite import OUTSIDE, found

HEAD = """\
# Conformance

dbt publishes the tests that an adapter has to pass (`dbt-tests-adapter`). `make conformance` runs them against an
engine and writes this page. A class is run as it is; where the package leaves something to the adapter (names of types,
a dialect's SQL) `tests/conformance/` fills it in. A sample runs in `make test-deep`.

dbt-tests-adapter {tests}, dbt-core {core}, dbt-spark {spark}: **{passed} of {run} classes pass**
({cases} tests){failed}; {left} classes are not run, each with its reason.
"""


def outcomes(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """Test class -> test -> passed, skipped or failed; a later file goes before an earlier one."""
    results: dict[str, dict[str, str]] = {}
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            how = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            tests = results.setdefault(str(case.get("classname")).rpartition(".")[2], {})
            tests[str(case.get("name"))] = how
    return results


def verdict(tests: Mapping[str, str]) -> str:
    counts = {how: sum(each == how for each in tests.values()) for how in ("passed", "failed", "skipped")}
    return ", ".join(f"{number} {how}" for how, number in counts.items() if number) or "not run"


def page(results: Mapping[str, Mapping[str, str]]) -> str:
    run, left = [], []
    for path, base in found():
        folder, name = path.split(".")[0], base.__name__
        if path in OUTSIDE:
            left.append(f"| {folder} | `{name}` | {OUTSIDE[path]} |")
            continue
        tests = results.get(f"Test{name}", {})
        run.append((f"| {folder} | `{name}` | {verdict(tests)} |", tests))
        left += [
            f"| {folder} | `{name}`, `{test}` | {reason} |"
            for place, reason in OUTSIDE.items()
            for _, _, test in [place.partition("::")]
            if place.startswith(f"{path}::")
        ]
    good = [tests for _, tests in run if tests and "failed" not in tests.values()]
    bad = [line for line, tests in run if "failed" in tests.values()]
    open_ = [line for line, tests in run if not tests]
    head = HEAD.format(
        tests=version("dbt-tests-adapter"), core=version("dbt-core"), spark=version("dbt-spark"), passed=len(good),
        run=len(run), cases=sum(how == "passed" for _, tests in run for how in tests.values()),
        failed=(f", {len(bad)} do not yet" if bad else "") + (f", {len(open_)} were not in the run" if open_ else ""),
        left=sum(path in OUTSIDE for path, _ in found()),
    )  # fmt: skip
    table = ["| folder | class | tests |", "|---|---|---|", *(line for line, _ in run)]
    reasons = ["| folder | class | why it is not run |", "|---|---|---|", *left]
    return "\n".join([head, "## Run", "", *table, "", "## Not run", "", *reasons, ""])


if __name__ == "__main__":
    sys.stdout.write(page(outcomes(sys.argv[1:])))
