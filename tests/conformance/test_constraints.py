"""Contracts and constraints, descriptions."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.adapter.constraints import fixtures
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)


def spark(yaml: str) -> str:
    return yaml.replace("data_type: text", "data_type: string")


class SparkTypes:
    """Spark's types, by the names that Spark gives them."""

    @pytest.fixture
    def string_type(self) -> str:
        return "string"

    @pytest.fixture
    def int_type(self) -> str:
        return "int"

    @pytest.fixture
    def data_types(self) -> list[list[str]]:
        return [
            [value, kind, kind]
            for value, kind in (
                ("1", "int"),
                ("'1'", "string"),
                ("true", "boolean"),
                ("array('a', 'b')", "array<string>"),
                ("array(1, 2)", "array<int>"),
                ("map('a', 1)", "map<string,int>"),
                ("date '2019-01-01'", "date"),
                ("timestamp '2019-01-01 00:00:00'", "timestamp"),
                ("cast(1 as decimal(4, 2))", "decimal(4,2)"),
            )
        ]


class Tables(SparkTypes):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "my_model_wrong_order.sql": fixtures.my_model_wrong_order_sql,
            "my_model_wrong_name.sql": fixtures.my_model_wrong_name_sql,
            "constraints_schema.yml": spark(fixtures.model_schema_yml),
        }


class Views(SparkTypes):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "my_model_wrong_order.sql": fixtures.my_model_view_wrong_order_sql,
            "my_model_wrong_name.sql": fixtures.my_model_view_wrong_name_sql,
            "constraints_schema.yml": spark(fixtures.model_schema_yml),
        }


class Incrementals(SparkTypes):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "my_model_wrong_order.sql": fixtures.my_model_incremental_wrong_order_sql,
            "my_model_wrong_name.sql": fixtures.my_model_incremental_wrong_name_sql,
            "constraints_schema.yml": spark(fixtures.model_schema_yml),
        }


class Statement:
    """A constraint of Delta is added when the table is there: the statement that makes it has the columns alone."""

    @pytest.fixture(scope="class")
    def expected_sql(self) -> str:
        return """
            create or replace table <model_identifier> using delta as
            select id, color, date_day from (
                -- depends_on: <foreign_key_model_identifier>
                select 'blue' as color, 1 as id, '2019-01-01' as date_day
            ) as model_subq
        """


def of_foreign_key(model: str, yaml: str) -> dict[str, str]:
    return {"my_model.sql": model, "foreign_key_model.sql": fixtures.foreign_key_model_sql,
            "constraints_schema.yml": spark(yaml)}  # fmt: skip


class TableStatement(Statement):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return of_foreign_key(fixtures.my_model_wrong_order_depends_on_fk_sql, fixtures.model_fk_constraint_schema_yml)


class IncrementalStatement(Statement):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return of_foreign_key(
            fixtures.my_model_incremental_wrong_order_depends_on_fk_sql, fixtures.model_fk_constraint_schema_yml
        )


class ModelStatement(Statement):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return of_foreign_key(fixtures.my_model_wrong_order_depends_on_fk_sql, fixtures.constrained_model_schema_yml)


class QuotedStatement:
    """Spark quotes with backticks."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "my_model.sql": fixtures.my_model_with_quoted_column_name_sql,
            "constraints_schema.yml": spark(fixtures.model_quoted_column_schema_yml).replace('"from"', "`from`"),
        }

    @pytest.fixture(scope="class")
    def expected_sql(self) -> str:
        return """
            create or replace table <model_identifier> using delta as
            select id, `from`, date_day from (
                select 'blue' as `from`, 1 as id, '2019-01-01' as date_day
            ) as model_subq
        """


class Rollback:
    """How Delta says it. A constraint is added to the new table, which is there by then, with the new rows."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"my_model.sql": fixtures.my_model_sql, "constraints_schema.yml": spark(fixtures.model_schema_yml)}

    @pytest.fixture(scope="class")
    def expected_color(self) -> str:
        return "red"

    @pytest.fixture(scope="class")
    def expected_error_messages(self) -> list[str]:
        return ["violate"]

    def assert_expected_error_messages(self, error_message: str, expected_error_messages: list[str]) -> None:
        assert any(message in error_message.lower() for message in expected_error_messages), error_message


class IncrementalRollback(Rollback):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        yaml = spark(fixtures.model_schema_yml)
        return {"my_model.sql": fixtures.my_incremental_model_sql, "constraints_schema.yml": yaml}

    @pytest.fixture(scope="class")
    def expected_color(self) -> str:
        return "blue"


def header(model: str) -> dict[str, str]:
    sql = model.replace("set session time zone", "set time zone").replace(
        "current_setting('timezone')", "current_timezone()"
    )
    return {
        "my_model_contract_sql_header.sql": sql,
        "constraints_schema.yml": spark(fixtures.model_contract_header_schema_yml),
    }


class TableHeader:
    """The same statement in Spark's words."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return header(fixtures.my_model_contract_sql_header_sql)


class IncrementalHeader:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return header(fixtures.my_model_incremental_contract_sql_header_sql)


given: dict[str, Any] = {
    "BaseTableConstraintsColumnsEqual": Tables,
    "BaseViewConstraintsColumnsEqual": Views,
    "BaseIncrementalConstraintsColumnsEqual": Incrementals,
    "BaseConstraintsRuntimeDdlEnforcement": TableStatement,
    "BaseIncrementalConstraintsRuntimeDdlEnforcement": IncrementalStatement,
    "BaseModelConstraintsRuntimeEnforcement": ModelStatement,
    "BaseConstraintQuotedColumn": QuotedStatement,
    "BaseConstraintsRollback": Rollback,
    "BaseIncrementalConstraintsRollback": IncrementalRollback,
    "BaseTableContractSqlHeader": TableHeader,
    "BaseIncrementalContractSqlHeader": IncrementalHeader,
}
globals().update(group("constraints", "persist_docs", **given))
