"""The sensor that tells Dagster what dbt did in a terminal or in CI.

Rules
- Runs of dbt have a budget like everything that is told: what cannot be paid for now is told later, with what the last
  run of dbt did by then.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetMaterialization,
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from penstock.dagster.budget import RESULTS, Purse
from penstock.dagster.builds import Built, Tested, invocation, told_by
from penstock.dagster.memory import Cursor
from penstock.dagster.project import Project
from penstock.dagster.translator import PenstockTranslator

EVERY = 15


_LAST = "last"


@dataclass(frozen=True)
class Run:
    """The run of dbt that was told last."""

    invocation: str
    purse: Purse


_runs = Cursor(Run)


def build_dbt_sensor(
    project: Project,
    translator: PenstockTranslator,
    tests: Mapping[str, AssetCheckKey],
    now: Callable[[], float] = time.time,
) -> SensorDefinition:
    """`tests` has the check of each dbt test, by its unique id."""

    @sensor(
        name="penstock_dbt",
        minimum_interval_seconds=EVERY,
        description="What dbt built and tested outside of Dagster.",
        default_status=DefaultSensorStatus.RUNNING,
    )
    def dbt_results(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        file = project.directory / project.target_path / "run_results.json"
        try:
            results: Any = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return SkipReason("dbt has not run yet.")
        except ValueError:
            return SkipReason("dbt is writing its results.")
        before = _runs.read(context.cursor).get(_LAST)
        if before is not None and invocation(results) == before.invocation:
            return SkipReason("dbt has not run since.")
        purse = before.purse.filled(RESULTS, now()) if before else Purse.full(RESULTS, now())
        if not purse.can_pay:
            return SkipReason("dbt runs more often than can be told; what it did last is told later.")
        told = [_event(each, project, translator, tests) for each in told_by(results, project.manifest["nodes"])]
        after = _runs.write({_LAST: Run(invocation(results), purse.paid())})
        return SensorResult(asset_events=[each for each in told if each is not None], cursor=after)

    return dbt_results


def _event(
    told: Built | Tested, project: Project, translator: PenstockTranslator, tests: Mapping[str, AssetCheckKey]
) -> AssetMaterialization | AssetCheckEvaluation | None:
    if isinstance(told, Built):
        spec = translator.get_asset_spec(project.manifest, told.unique_id, project.dbt)
        facts: dict[str, float | str] = {"seconds": told.seconds, "message": told.message}
        return AssetMaterialization(asset_key=spec.key, description="built by dbt outside of Dagster", metadata=facts)
    key = tests.get(told.unique_id)
    if key is None:
        return None
    return AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=told.passed,
        severity=AssetCheckSeverity.WARN if told.only_warns else AssetCheckSeverity.ERROR,
        description=told.message or None,
        metadata={} if told.failures is None else {"failures": told.failures},
    )
