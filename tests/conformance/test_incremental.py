"""Incremental models."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.adapter.incremental import test_incremental_predicates as predicates
from dbt_suite import group

pytestmark = pytest.mark.timeout(600)


class Merged:
    """MERGE in place of delete and insert; its condition names the table by its alias."""

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {
            "models": {
                "+incremental_predicates": ["dbt_internal_dest.id != 2"],
                "+incremental_strategy": "merge",
            }
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        # A whole number of a seed is a bigint, one of a query an int.
        sql = predicates.models__delete_insert_incremental_predicates_sql
        for number in (1, 2, 3):
            sql = sql.replace(f"select {number} as id", f"select cast({number} as bigint) as id")
        return {"delete_insert_incremental_predicates.sql": sql}


class Partitioned:
    """A batch replaces the partitions that it has rows of, so that the model says how the table is partitioned."""

    @pytest.fixture(scope="class")
    def microbatch_model_sql(self) -> str:
        return (
            "{{ config(materialized='incremental', incremental_strategy='microbatch', event_time='event_time',"
            " batch_size='day', begin=modules.datetime.datetime(2020, 1, 1, 0, 0, 0), partition_by=['date_day']) }}\n"
            "select *, cast(event_time as date) as date_day from {{ ref('input_model') }}"
        )


globals().update(group("incremental", "sample_mode", BaseIncrementalPredicates=Merged, BaseMicrobatch=Partitioned))
