"""The checks that sensors evaluate, also for a person who does not want to wait for them: "Execute" looks at once."""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    multi_asset_check,
)

from penstock.control.world import read_world
from penstock.dagster import findings as f
from penstock.dagster.jobs import told
from penstock.dagster.project import Project
from penstock.dagster.sensors import Keys, evaluation, given_up_last
from penstock.dagster.translator import part_key

_HEALTH = "Whether the stream runs, and if not, why. Told on a change, and every hour."
_LAG = "Lag against max_lag of the model: a warning above it, an error above twice of it."


def build_checks(project: Project, keys: Keys) -> AssetChecksDefinition:
    """`health` and `lag` of every stream, `health` of every part."""
    specs = [AssetCheckSpec(f.HEALTH, asset=key, description=_HEALTH) for key in keys.values()]
    specs += [AssetCheckSpec(f.LAG, asset=key, description=_LAG) for key in keys.values()]
    specs += [AssetCheckSpec(f.HEALTH, asset=part_key(name), description="Whether it is there.") for name in f.PARTS]
    specs.append(
        AssetCheckSpec(f.RESTARTS, asset=part_key(f.SUPERVISOR), description="Fails when Dagster gave up restarting.")
    )

    @multi_asset_check(name="penstock_checks", specs=specs, can_subset=True)
    def look(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        wanted = {(each.asset_key, each.name) for each in context.selected_asset_check_keys}
        with told(context):
            store = project.store()
            found = []
            if store is not None:
                world = read_world(store)
                found = [*f.health_findings(world, project.limits_of), *f.lag_findings(world, project.limits_of)]
                # Whether it gave up is known to the restart sensor alone.
                found.append(given_up_last(context.instance) or f.restarts_finding([]))
        for each in filter(None, (evaluation(finding, keys) for finding in found)):
            if (each.asset_key, each.check_name) in wanted:
                wanted.discard((each.asset_key, each.check_name))
                yield AssetCheckResult(
                    asset_key=each.asset_key, check_name=each.check_name, passed=each.passed, severity=each.severity,
                    description=each.description, metadata=each.metadata,
                )  # fmt: skip
        for key, name in sorted(wanted, key=str):
            yield AssetCheckResult(
                asset_key=key, check_name=name, passed=True, severity=AssetCheckSeverity.WARN,
                description="not deployed, or not in use",
            )  # fmt: skip

    return look
