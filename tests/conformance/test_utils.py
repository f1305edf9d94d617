"""The macros that hide the dialects of SQL."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.adapter.utils import fixture_get_intervals_between
from dbt.tests.adapter.utils.data_types import test_type_float, test_type_int
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)


def seed_types(**types: str) -> str:
    columns = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    return f"seeds:\n  - name: expected\n    config: {{column_types: {{{columns}}}}}\n"


class Ints:
    """A whole number of a seed is a bigint unless it says otherwise."""

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"expected.csv": test_type_int.seeds__expected_csv, "expected.yml": seed_types(int_col="int")}


class Floats:
    """A number of a seed is a double unless it says otherwise."""

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"expected.csv": test_type_float.seeds__expected_csv, "expected.yml": seed_types(float_col="float")}


class Decimals:
    def numeric_fixture_type(self) -> str:
        return "decimal(28,6)"


class Now:
    """Spark's statement and type."""

    @pytest.fixture(scope="class")
    def expected_schema(self) -> dict[str, str]:
        names = ("current_timestamp", "current_timestamp_in_utc_backcompat", "current_timestamp_backcompat")
        return dict.fromkeys(names, "timestamp")

    @pytest.fixture(scope="class")
    def expected_sql(self) -> str:
        return (
            "select current_timestamp() as current_timestamp,"
            " current_timestamp::timestamp as current_timestamp_in_utc_backcompat,"
            " current_timestamp::timestamp as current_timestamp_backcompat"
        )


class IsoDates:
    """Spark reads a date as ISO 8601 writes it."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        sql = fixture_get_intervals_between.models__test_get_intervals_between_sql
        return {
            "test_get_intervals_between.yml": fixture_get_intervals_between.models__test_get_intervals_between_yml,
            "test_get_intervals_between.sql": sql.replace("'09/01/2023'", "'2023-09-01'").replace(
                "'09/12/2023'", "'2023-09-12'"
            ),
        }


Fillings: dict[str, Any] = {
    "BaseTypeInt": Ints,
    "BaseTypeFloat": Floats,
    "BaseTypeNumeric": Decimals,
    "BaseCurrentTimestamps": Now,
    "BaseGetIntervalsBetween": IsoDates,
}
globals().update(group("utils", **Fillings))
