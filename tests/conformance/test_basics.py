"""What every adapter does: materializations, aliases, copies, ephemeral models, the cache, docs."""

from __future__ import annotations

import getpass
import re
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.adapter.aliases import fixtures as aliases
from dbt.tests.adapter.basic import expected_catalog
from dbt.tests.util import check_relations_equal, run_dbt
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)


class Strings:
    """`text` is no type of Spark; the package lets an adapter say how a string is written."""

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        own = "{% macro penstock__string_literal(s) %}cast('{{ s }}' as string){% endmacro %}"
        return {
            "cast.sql": aliases.MACROS__CAST_SQL,
            "expect_value.sql": aliases.MACROS__EXPECT_VALUE_SQL,
            "penstock_cast.sql": own,
        }


class NoDatabase:
    """A relation of Spark has a schema and no database above it; the rest is compared as the package does."""

    def run_and_inspect_cache(self, project: Any, run_args: list[str] | None = None) -> None:
        found = []
        for _ in range(2):
            run_dbt(list(run_args or ()))
            (relation,) = project.adapter.cache.relations
            assert relation.schema == project.test_schema == project.test_schema.lower()
            found.append((relation.database, relation.schema, relation.identifier.lower()))
        assert found[0] == found[1]
        assert found[0][0] is None


class Target:
    """The package's own target is one of PostgreSQL."""

    @pytest.fixture(scope="class")
    def dbt_profile_target(self) -> dict[str, Any]:
        return {"type": "penstock", "threads": 4, "kafka": {"embedded": True}}


class Listed:
    """The catalog of the engine has no information_schema; the adapter knows what is there."""

    @pytest.fixture(scope="class")
    def project(self, project: Any) -> Any:
        def tables() -> dict[str, str]:
            schema = project.adapter.Relation.create(schema=project.test_schema)
            with project.adapter.connection_named("_tables"):
                relations = project.adapter.list_relations_without_caching(schema)
            return {each.identifier: str(each.type) for each in relations}

        project.get_tables_in_schema = tables
        return project


def statement_of(model: str) -> str:
    text = (Path("target") / "run" / "test" / "models" / f"{model}.sql").read_text()
    return "".join(re.sub(r"\d+", "", text).split())


class SparkViews:
    """The same graph of CTEs in Spark's statement, in place of PostgreSQL's."""

    def test_ephemeral_multi(self, project: Any) -> None:
        run_dbt(["seed"])
        assert len(run_dbt(["run"])) == 3
        for model in ("dependent", "double_dependent", "super_dependent"):
            check_relations_equal(project.adapter, ["seed", model])
        schema = re.sub(r"\d+", "", project.test_schema)
        expected = (
            f"create or replace view {schema}.double_dependent as with __dbt__cte__base as ("
            f"select * from {schema}.seed), __dbt__cte__base_copy as (select * from __dbt__cte__base)"
            "-- base_copy just pulls from base. Make sure the listed"
            "-- graph of CTEs all share the same dbt_cte__base cte"
            "select * from __dbt__cte__base where gender = 'Male' union all "
            "select * from __dbt__cte__base_copy where gender = 'Female'"
        )
        assert statement_of("double_dependent") == "".join(expected.split())


class SparkNestedViews:
    def test_ephemeral_nested(self, project: Any) -> None:
        assert len(run_dbt(["run"])) == 2
        schema = re.sub(r"\d+", "", project.test_schema)
        expected = (
            f"create or replace view {schema}.root_view as with __dbt__cte__ephemeral_level_two as ("
            f"select * from {schema}.source_table), __dbt__cte__ephemeral as ("
            "select * from __dbt__cte__ephemeral_level_two) select * from __dbt__cte__ephemeral"
        )
        assert statement_of("root_view") == "".join(expected.split())


_TYPES = {
    "id_type": "bigint", "text_type": "string", "time_type": "timestamp", "view_type": "view", "table_type": "table",
}  # fmt: skip


class SparkCatalog:
    """Spark's names of types."""

    @pytest.fixture(scope="class")
    def profile_user(self) -> str:
        return getpass.getuser()

    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any, profile_user: str) -> Any:
        stats = expected_catalog.no_stats()
        return expected_catalog.base_expected_catalog(project, role=profile_user, model_stats=stats, **_TYPES)


class SparkReferences(SparkCatalog):
    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any, profile_user: str) -> Any:
        stats = expected_catalog.no_stats()
        return expected_catalog.expected_references_catalog(
            project, role=profile_user, model_stats=stats, bigint_type="bigint", **_TYPES
        )


globals().update(
    group(
        "aliases", "basic", "caching", "concurrency", "ephemeral", "query_comment", "relations", "simple_copy",
        BaseAliases=Strings,
        BaseSameAliasDifferentSchemas=Strings,
        BaseCachingLowercaseModel=NoDatabase,
        BaseCachingUppercaseModel=NoDatabase,
        BaseCachingSelectedSchemaOnly=NoDatabase,
        BaseNoPopulateCache=NoDatabase,
        BaseSimpleCopyUppercase=Target,
        EmptyModelsArentRunBase=Listed,
        BaseEphemeralMulti=SparkViews,
        BaseEphemeralNested=SparkNestedViews,
        BaseDocsGenerate=SparkCatalog,
        BaseDocsGenReferences=SparkReferences,
    )
)  # fmt: skip
