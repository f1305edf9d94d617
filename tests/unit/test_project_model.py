"""The config of a dynamic table: what it takes, and what a mistake in it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.errors.catalogue import (
    COLUMN_TYPE,
    MODEL_KEY_UNKNOWN,
    MODEL_LANGUAGE,
    MODEL_NOT_FOLLOWED,
    MODEL_VALUE_INVALID,
    WATERMARK_INVALID,
)
from penstock.project.maintenance import OwnMaintenance
from penstock.project.model import OWN_KEYS, DynamicTable, read_model


def node(raw: str = "select 1", **config: object) -> dict[str, Any]:
    return {
        "unique_id": "model.shop.m",
        "name": "m",
        "alias": "m",
        "schema": "shop",
        "resource_type": "model",
        "language": "sql",
        "original_file_path": "models/m.sql",
        "patch_path": "shop://models/schema.yml",
        "raw_code": raw,
        "config": {"materialized": "dynamic_table", "tags": [], "post-hook": [], "lookback": 1, **config},
    }


def read(entry: dict[str, Any], project: Path = Path("nowhere")) -> DynamicTable:
    return read_model(entry, project)


def failure(entry: dict[str, Any], project: Path = Path("nowhere")) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        read_model(entry, project)
    return caught.value


def test_without_settings_all_is_left_to_the_defaults() -> None:
    table = read(node())
    assert table.name == "shop.m"
    assert table.time_window_ms is table.buffer_limit is table.unique_key is table.watermark is None


def test_maintenance_is_read_and_a_mistake_in_it_is_told() -> None:
    assert read(node()).maintenance is None
    assert read(node(maintenance={"keep": "7 days"})).maintenance == OwnMaintenance(keep=604_800_000)
    for value, hint in (
        ("daily", "Write it as {every: '1 hour', keep: '7 days'}."),
        ({"evry": "1 hour"}, "It has no 'evry'; it has every and keep."),
        ({"every": "often"}, "'every': write it as '30 minutes', '1 hour' or '7 days'."),
        ({"keep": "5 minutes"}, "'keep': it is at least an hour."),
    ):
        problem = failure(node(maintenance=value))
        assert (problem.kind, problem.hint) == (MODEL_VALUE_INVALID, hint)


def test_all_settings_are_read() -> None:
    table = read(
        node(
            time_window="2 minutes",
            buffer_limit=10,
            unique_key=["a", "b"],
            watermark={"column": "ts", "delay": "90 seconds"},
            shuffle_partitions=3,
            small_batch_rows=0,
            max_batch_rows=5,
        )
    )
    assert (table.time_window_ms, table.buffer_limit, table.unique_key) == (120_000, 10, ("a", "b"))
    assert (table.shuffle_partitions, table.small_batch_rows, table.max_batch_rows) == (3, 0, 5)
    assert table.watermark is not None
    assert (table.watermark.column, table.watermark.delay) == ("ts", "90 seconds")


def test_one_unique_key_may_be_a_text() -> None:
    assert read(node(unique_key="a")).unique_key == ("a",)


@pytest.mark.parametrize("key", ["persist_docs", "pre-hook", "tblproperties", "partition_by", "event_time", "group"])
def test_keys_of_dbt_are_allowed(key: str) -> None:
    assert read(node(**{key: None})).name == "shop.m"


def test_a_misspelt_key_has_its_line_and_the_right_name() -> None:
    raw = "{{ config(\n    materialized='dynamic_table',\n    bufer_limit=3\n) }}\nselect 1 as bufer_limit"
    problem = failure(node(raw, bufer_limit=3))
    assert problem.kind is MODEL_KEY_UNKNOWN
    assert str(problem.at) == "models/m.sql:3"
    assert "Did you mean 'buffer_limit'?" in str(problem)


def test_a_key_in_a_dictionary_has_its_line() -> None:
    raw = "{{ config({\n  'materialized': 'dynamic_table',\n  'time_windw': 1}) }}\nselect 1"
    assert str(failure(node(raw, time_windw=1)).at) == "models/m.sql:3"


def test_a_key_of_a_yaml_file_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/schema.yml").write_text("models:\n  - name: m\n    config:\n      time_windw: 1 second\n")
    assert str(failure(node(time_windw="1 second"), tmp_path).at) == "models/schema.yml:4"


def test_a_key_of_the_project_file_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nmodels:\n  shop:\n    +time_windw: 1 second\n")
    assert str(failure(node(time_windw="1 second"), tmp_path).at) == "dbt_project.yml:4"


def test_a_key_of_ones_own_is_sent_to_meta() -> None:
    problem = failure(node(owner_of_this="me"))
    assert "time_window" in str(problem)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_window", "soon"), ("time_window", 0), ("time_window", [1]),
        ("max_lag", "soon"), ("max_lag", 0), ("buffer_limit", 0), ("buffer_limit", "3"),
        ("buffer_limit", True), ("unique_key", 3), ("unique_key", ["a", 3]), ("unique_key", [""]),
        ("shuffle_partitions", 0), ("small_batch_rows", -1), ("max_batch_rows", 0), ("max_batch_rows", 1.5),
    ],
)  # fmt: skip
def test_a_wrong_value_has_its_line(key: str, value: object) -> None:
    problem = failure(node(f"{{{{ config(\n  {key}=x) }}}}\nselect 1", **{key: value}))
    assert problem.kind is MODEL_VALUE_INVALID
    assert str(problem.at) == "models/m.sql:2"


def test_a_watermark_needs_a_delay() -> None:
    assert failure(node(watermark={"column": "ts"})).kind is WATERMARK_INVALID


def test_a_python_model_is_no_dynamic_table() -> None:
    assert failure({**node(), "language": "python"}).kind is MODEL_LANGUAGE


@pytest.mark.parametrize(
    ("key", "value"),
    [("partition_by", "day"), ("tblproperties", {"a": "b"}), ("file_format", "orc")],
)
def test_a_key_that_a_stream_cannot_follow_is_refused_with_its_line(key: str, value: object) -> None:
    problem = failure(node(f"{{{{ config(\n  {key}=1) }}}} select 1", **{key: value}))
    assert problem.kind is MODEL_NOT_FOLLOWED
    assert str(problem.at) == "models/m.sql:2"


@pytest.mark.parametrize(
    ("key", "value"), [("lookback", 2), ("begin", "2026-01-01"), ("batch_size", "day"), ("concurrent_batches", True)]
)
def test_a_key_of_microbatches_is_refused_where_somebody_wrote_it(key: str, value: object) -> None:
    filled_in = node(f"{{{{ config(\n  {key}=1) }}}} select 1", **{key: value})
    read(filled_in)
    problem = failure({**filled_in, "unrendered_config": {key: value}})
    assert (problem.kind, str(problem.at)) == (MODEL_NOT_FOLLOWED, "models/m.sql:2")


def test_event_time_is_for_what_reads_the_table() -> None:
    read({**node(event_time="ts"), "unrendered_config": {"event_time": "ts"}})


def test_an_enforced_contract_gives_columns_and_constraints() -> None:
    columns = {
        "id": {"name": "id", "data_type": "bigint", "constraints": [{"type": "not_null"}, {"type": "primary_key"}]},
        "price": {
            "name": "price",
            "data_type": "decimal(10, 2)",
            "constraints": [{"type": "check", "expression": "price > 0"}],
        },
    }
    more = [{"type": "check", "name": "Not too dear", "expression": "price < 1000"}]
    table = read({**node(contract={"enforced": True}), "columns": columns, "constraints": more})
    assert table.contract == (("id", "BIGINT"), ("price", "DECIMAL(10,2)"))
    assert dict(table.checks) == {
        "id_not_null": "`id` is not null", "price_check": "price > 0", "not_too_dear": "price < 1000",
    }  # fmt: skip
    loose = read({**node(contract={"enforced": False}), "columns": columns, "constraints": more})
    assert (loose.contract, loose.checks) == ((), ())


def test_a_contract_with_a_type_that_spark_does_not_have_is_refused() -> None:
    columns = {"id": {"name": "id", "data_type": "bigintt"}}
    problem = failure({**node(contract={"enforced": True}), "columns": columns})
    assert problem.kind is COLUMN_TYPE
    assert "bigint" in str(problem)


def test_columns_change_only_when_somebody_wrote_so() -> None:
    for how in ("fail", "ignore", "append_new_columns", "sync_all_columns"):
        written = {**node(on_schema_change=how), "unrendered_config": {"on_schema_change": "…"}}
        assert read(written).on_schema_change == how
    assert read(node(on_schema_change="ignore")).on_schema_change == "fail"  # dbt's own default
    wrong = {**node(on_schema_change="sync_columns"), "unrendered_config": {"on_schema_change": "…"}}
    assert failure(wrong).kind is MODEL_VALUE_INVALID
    assert "sync_all_columns" in str(failure(wrong))


def test_keys_that_dbt_fills_in_by_itself_are_no_matter() -> None:
    read(node(partition_by=None, contract={"enforced": False}, file_format="delta", column_types={}))


def test_every_setting_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert not [key for key in OWN_KEYS if f"| `{key}` |" not in page]


def test_target_lag_stands_for_time_window_and_buffer_limit() -> None:
    assert read(node(target_lag="10 seconds")).target_lag_ms == 10_000
    problem = failure(node(target_lag="10 seconds", buffer_limit=5))
    assert problem.kind is MODEL_VALUE_INVALID
    assert "twice" in problem.message


def test_of_a_default_and_a_setting_of_the_models_own_the_models_counts() -> None:
    own = "{{ config(target_lag='10 seconds') }} select 1"
    assert read(node(own, target_lag="10 seconds", time_window=500)).target_lag_ms == 10_000
    own = "{{ config(time_window=500) }} select 1"
    assert read(node(own, target_lag="10 seconds", time_window=500)).target_lag_ms is None


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("refresh_mode", "incrementel", "Did you mean 'incremental'?"),
        ("refresh_mode", "never", "auto, incremental, full"),
        ("emit", "finale", "Did you mean 'final'?"),
        ("deduplicate_by", 3, "name of a column"),
        ("target_lag", "soon", "500 ms"),
    ],
)
def test_a_wrong_word_gets_the_right_ones(key: str, value: object, hint: str) -> None:
    problem = failure(node(**{key: value}))
    assert problem.kind is MODEL_VALUE_INVALID
    assert hint in problem.next_step
