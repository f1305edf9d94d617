"""dbt's tests on sources that no model reads, as asset checks.

dagster-dbt makes checks of the tests on sources that are upstream of a model; what people test of a source table does
not depend on that.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    multi_asset_check,
)
from dagster_dbt import DbtCliResource

from penstock.dagster.deploying import Deployment
from penstock.dagster.jobs import TAGS, told
from penstock.dagster.project import Project
from penstock.dagster.translator import PenstockTranslator

UNIQUE_ID = "dagster_dbt/unique_id"


def unread_source_tests(
    project: Project, translator: PenstockTranslator, known: set[AssetCheckKey]
) -> list[AssetCheckSpec]:
    """The checks of tests on sources, beside those that are `known`."""
    manifest = project.manifest
    made = []
    for source in sorted(manifest["sources"]):
        asset = translator.get_asset_spec(manifest, source, project.dbt)
        tests = [each for each in manifest["child_map"].get(source, ()) if each.startswith("test.")]
        specs = [translator.get_asset_check_spec(asset, manifest, each, project.dbt) for each in sorted(tests)]
        made += [spec for spec in specs if spec is not None and spec.key not in known]
    return made


def build_source_tests(
    project: Project, translator: PenstockTranslator, dbt: DbtCliResource, specs: list[AssetCheckSpec]
) -> AssetChecksDefinition:
    """Runs the tests of `specs` with dbt."""
    ids = {spec.key: str(spec.metadata[UNIQUE_ID]) for spec in specs}

    @multi_asset_check(name="penstock_source_tests", specs=specs, can_subset=True, op_tags=TAGS)
    def source_tests(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        names = [ids[key].split(".")[2] for key in sorted(context.selected_asset_check_keys, key=str)]
        with told(context):
            for found in Deployment(project, translator, context.op_execution_context).events(
                dbt, ["test", "--select", *names], assets=False
            ):
                if (
                    isinstance(found, AssetCheckEvaluation)
                    and found.asset_check_key in context.selected_asset_check_keys
                ):
                    yield AssetCheckResult(
                        asset_key=found.asset_key, check_name=found.check_name, passed=found.passed,
                        severity=found.severity, metadata=found.metadata,
                    )  # fmt: skip

    return source_tests
