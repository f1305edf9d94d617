"""dbt's own tests: stored failures and unit tests."""

from __future__ import annotations

import pytest
from dbt.tests.adapter.unit_testing import test_quoted_reserved_word_column_names as reserved
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)


class SparkTypes:
    """Spark's types; an array, a map or a struct as SQL in a string, or as YAML has it."""

    @pytest.fixture
    def data_types(self) -> list[list[str]]:
        return [
            ["1", "1"],
            ["2.0", "2.0"],
            ["'1'", "1"],
            ["'text'", "text"],
            ["true", "true"],
            ["date '2020-01-02'", "2020-01-02"],
            ["timestamp '2013-11-03 00:00:00-0'", "2013-11-03 00:00:00-0"],
            ["array(1, 2, 3)", "'array(1, 2, 3)'"],
            ["array(1, 2, 3)", "[1, 2, 3]"],
            ["map('a', 1, 'b', null)", """'map("a", 1, "b", NULL)'"""],
            ["named_struct('a', 1, 'b', 'x')", "{a: 1, b: x}"],
        ]


class Backticks:
    """Spark quotes with backticks."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "my_model.sql": reserved.my_model_sql,
            "my_upstream_model.sql": "select 1 as `GROUP`",
            "unit_tests.yml": reserved.test_my_model_csv_fixtures_yml,
        }


globals().update(
    group(
        "store_test_failures_tests", "unit_testing",
        BaseUnitTestingTypes=SparkTypes,
        BaseUnitTestQuotedReservedWordColumnNames=Backticks,
    )
)  # fmt: skip
