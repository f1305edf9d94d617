"""What dbt did outside of Dagster (in a terminal, in CI): told to Dagster from dbt's own results. Pure.

Rules
- Each run of dbt is told once, by its invocation id. Runs of Dagster's own write their results elsewhere.
- Models, seeds and snapshots that were built are materialisations; tests are the results of their checks. Streams are
  left out: their news come from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.project.model import is_dynamic_table

_BUILT = ("model", "seed", "snapshot")
_PASSED = {"pass": True, "warn": False, "fail": False, "error": False}


@dataclass(frozen=True)
class Built:
    """A node that dbt built."""

    unique_id: str
    seconds: float
    message: str


@dataclass(frozen=True)
class Tested:
    """A test that dbt ran."""

    unique_id: str
    passed: bool
    only_warns: bool
    failures: int | None
    message: str


def invocation(results: Mapping[str, Any]) -> str:
    """Which run of dbt wrote the results."""
    return str((results.get("metadata") or {}).get("invocation_id") or "")


def told_by(results: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Built | Tested]:
    """What a run of dbt did, as far as the project knows its nodes."""
    for result in results.get("results") or ():
        node = nodes.get(result.get("unique_id"))
        if node is None:
            continue
        message = str(result.get("message") or "")[:500]
        if node["resource_type"] == "test" and result.get("status") in _PASSED:
            status = str(result["status"])
            yield Tested(str(node["unique_id"]), _PASSED[status], status == "warn", result.get("failures"), message)
        elif node["resource_type"] in _BUILT and result.get("status") == "success" and not is_dynamic_table(node):
            yield Built(str(node["unique_id"]), round(float(result.get("execution_time") or 0), 3), message)
