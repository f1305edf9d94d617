"""Hooks, clones, --empty, show, functions."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.adapter.empty import _models as empty
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)

# What a hook writes down; a target of Penstock has no host, user or password.
FIELDS = {
    "test_state": "string", "target_dbname": "string", "target_host": "string", "target_name": "string",
    "target_schema": "string", "target_type": "string", "target_user": "string", "target_pass": "string",
    "target_threads": "int", "run_started_at": "string", "invocation_id": "string", "thread_id": "string",
}  # fmt: skip


def make_table(project: Any, name: str) -> None:
    columns = ", ".join(f"{field} {kind}" for field, kind in FIELDS.items())
    project.run_sql(f"drop table if exists {project.test_schema}.{name}")
    project.run_sql(f"create table {project.test_schema}.{name} ({columns}) using delta")


def check(project: Any, table: str, state: str, count: int) -> None:
    rows = project.run_sql(
        f"select {', '.join(FIELDS)} from {project.test_schema}.{table} where test_state = '{state}'", fetch="all"
    )
    assert len(rows) == count
    for row in rows:
        found = dict(zip(FIELDS, row, strict=True))
        assert found["target_name"] == "default"
        assert found["target_schema"] == project.test_schema
        assert found["target_threads"] == 4
        assert found["target_type"] == "penstock"
        assert found["run_started_at"]
        assert found["invocation_id"]
        assert found["thread_id"].startswith("Thread-") or found["thread_id"] == "MainThread"


class ModelHooks:
    """The table of the hooks in Spark's types, and the values of a target of Penstock."""

    @pytest.fixture(scope="class", autouse=True)
    def setUp(self, project: Any) -> None:
        make_table(project, "on_model_hook")

    def check_hooks(self, state: str, project: Any, host: str | None, count: int = 1) -> None:
        check(project, "on_model_hook", state, count)


class RunHooks:
    @pytest.fixture
    def setUp(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        make_table(project, "on_run_hook")
        project.run_sql(f"drop table if exists {project.test_schema}.schemas")
        project.run_sql(f"drop table if exists {project.test_schema}.db_schemas")
        monkeypatch.setenv("TERM_TEST", "TESTING")

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        pairs = (
            "{% for db, schema in database_schemas %}('{{ db }}', '{{ schema }}'){{ ',' if not loop.last }}{% endfor %}"
        )
        names = "{% for schema in schemas %}('{{ schema }}'){{ ',' if not loop.last }}{% endfor %}"

        def hook(state: str) -> list[str]:
            table = f"{{{{ target.schema }}}}.{state}_hook_order_test"
            call = f"{{{{ custom_run_hook('{state}', target, run_started_at, invocation_id) }}}}"
            return [call, f"create table {table} (id int)", f"drop table {table}"]

        return {
            "on-run-start": [*hook("start"), "{{ log(env_var('TERM_TEST'), info=True) }}"],
            "on-run-end": [
                *hook("end"),
                "create table {{ target.schema }}.schemas (schema string)",
                "insert into {{ target.schema }}.schemas (schema) values " + names,
                "create table {{ target.schema }}.db_schemas (db string, schema string)",
                "insert into {{ target.schema }}.db_schemas (db, schema) values " + pairs,
            ],
            "seeds": {"quote_columns": False},
        }

    def check_hooks(self, state: str, project: Any, host: str | None) -> None:
        check(project, "on_run_hook", state, 1)

    def assert_used_schemas(self, project: Any) -> None:
        assert project.run_sql(f"select * from {project.test_schema}.schemas", fetch="all") == [(project.test_schema,)]
        pairs = project.run_sql(f"select * from {project.test_schema}.db_schemas", fetch="all")
        assert pairs == [(str(project.database), project.test_schema)]


class ParseError:
    """How Spark says it."""

    DATABASE_ERROR_MESSAGE = "PARSE_SYNTAX_ERROR"


class Deterministic:
    def check_function_volatility(self, sql: str) -> None:
        assert "DETERMINISTIC" in sql
        assert "NOT DETERMINISTIC" not in sql


class NotDeterministic:
    def check_function_volatility(self, sql: str) -> None:
        assert "NOT DETERMINISTIC" in sql


class Unsaid:
    """Spark has no word for it: dbt warns, and nothing is said."""

    def check_function_volatility(self, sql: str) -> None:
        assert "DETERMINISTIC" not in sql


class Strings:
    """Spark's varchar has a length; its string has none."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        names = ("control", "get_columns_in_relation", "alter_column_type", "alter_relation_comment",
                 "alter_column_comment", "alter_relation_add_remove_columns", "truncate_relation")  # fmt: skip
        found = {f"{name}.sql": getattr(empty, name.upper()).replace('"varchar"', '"string"') for name in names}
        return {"schema.yml": empty.SCHEMA, **found}


class SessionCatalog:
    """The package writes a database before each name; Spark's is the session's catalog."""

    def test_clone_same_source_and_target(self, project: Any, unique_schema: str) -> None:
        project.database = "spark_catalog"
        try:
            super().test_clone_same_source_and_target(project, unique_schema)  # type: ignore[misc]
        finally:
            project.database = None


globals().update(
    group(
        "hooks", "dbt_clone", "dbt_show", "empty", "functions",
        BasePrePostModelHooks=ModelHooks,
        BaseHookRefs=ModelHooks,
        BasePrePostModelHooksInConfig=ModelHooks,
        BasePrePostModelHooksInConfigWithCount=ModelHooks,
        BasePrePostModelHooksInConfigKwargs=ModelHooks,
        BasePrePostRunHooks=RunHooks,
        BaseShowDoesNotHandleDoubleLimit=ParseError,
        MetadataWithEmptyFlag=Strings,
        BaseCloneSameSourceAndTarget=SessionCatalog,
        DeterministicUDF=Deterministic,
        NonDeterministicUDF=NotDeterministic,
        StableUDF=Unsaid,
    )
)  # fmt: skip
