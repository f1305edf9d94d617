"""From the manifest to specs: which inputs a model has, and what is wrong with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.compiler import StreamSpec, compile_model, compile_project
from penstock.compiler.spec import KafkaInput, OutputMode, TableInput, TableStreamInput, Watermark
from penstock.errors import Kind, PenstockError
from penstock.errors.catalogue import (
    DBT_FAILED,
    MODEL_KEY_UNKNOWN,
    MODEL_NO_STREAM,
    MODEL_SYNTAX,
    MODEL_UPDATING_INPUT,
    SOURCE_NOT_STREAM,
)

HERE = Path(__file__).parent
PROJECT = HERE / "fixtures" / "shop"
CLEAN = "model.shop.clicks_clean"
CLICKS = "source.shop.shop.clicks"
Manifest = dict[str, Any]


@pytest.fixture
def manifest() -> Manifest:
    return copy.deepcopy(json.loads((HERE / "fixtures" / "manifest.json").read_text()))


def add_model(manifest: Manifest, name: str, sql: str, depends_on: list[str], **config: object) -> str:
    """A dynamic table that dbt has compiled to this SQL."""
    unique_id = f"model.shop.{name}"
    manifest["nodes"][unique_id] = {
        "unique_id": unique_id,
        "name": name,
        "alias": name,
        "schema": "shop",
        "resource_type": "model",
        "language": "sql",
        "original_file_path": f"models/{name}.sql",
        "config": {"materialized": "dynamic_table", **config},
        "depends_on": {"nodes": depends_on},
        "raw_code": sql,
        "compiled_code": sql,
    }
    return unique_id


def compiled(manifest: Manifest, unique_id: str) -> StreamSpec:
    return compile_model(manifest, unique_id, project_dir=PROJECT)


def fails_with(kind: Kind, manifest: Manifest, unique_id: str, sql: str | None = None) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        compile_model(manifest, unique_id, sql, project_dir=PROJECT)
    assert caught.value.kind is kind
    return caught.value


def test_the_callers_sql_beats_the_manifests(manifest: Manifest) -> None:
    spec = compile_model(manifest, CLEAN, "select user_id from shop.clicks", project_dir=PROJECT)
    assert spec.sql == "select user_id from shop__clicks as clicks"


def test_a_source_becomes_a_kafka_input_with_the_defaults_of_its_source(manifest: Manifest) -> None:
    (source,) = compiled(manifest, CLEAN).inputs
    assert isinstance(source, KafkaInput)
    assert (source.topic, source.starting, source.bootstrap) == ("clicks", "earliest", None)
    assert source.watermark == Watermark(column="clicked_at", delay="10 minutes")


def test_an_append_only_dynamic_table_is_streamed_with_its_watermark(manifest: Manifest) -> None:
    (source,) = compiled(manifest, "model.shop.views_per_minute").inputs
    assert source == TableStreamInput(
        view="shop__clicks_clean",
        relation="shop.clicks_clean",
        watermark=Watermark(column="clicked_at", delay="10 minutes"),
    )


def test_inputs_of_an_ephemeral_model_are_the_models_own(manifest: Manifest) -> None:
    inputs = compiled(manifest, "model.shop.clicks_by_category").inputs
    assert TableInput(relation="shop.items") in inputs
    assert len(inputs) == 2


def test_an_error_in_the_sql_has_the_line_of_the_model_file(manifest: Manifest) -> None:
    sql = str(manifest["nodes"][CLEAN]["compiled_code"]).replace("price,", "price price price,")
    problem = fails_with(MODEL_SYNTAX, manifest, CLEAN, sql)
    assert str(problem.at) == "models/clicks_clean.sql:11"


def test_an_updating_table_cannot_be_streamed_yet(manifest: Manifest) -> None:
    name = add_model(manifest, "busy", "select *\nfrom shop.views_per_minute", ["model.shop.views_per_minute"])
    problem = fails_with(MODEL_UPDATING_INPUT, manifest, name)
    assert str(problem.at) == "models/busy.sql:2"


@pytest.mark.parametrize("upstream", ["model.shop.views_per_minute", "model.shop.clicks_by_category"])
def test_an_updating_table_is_seen_before_dbt_has_compiled_it(manifest: Manifest, upstream: str) -> None:
    del manifest["nodes"][upstream]["compiled_code"]
    relation = upstream.replace("model.", "")
    name = add_model(manifest, "busy", f"select * from {relation}", [upstream])
    fails_with(MODEL_UPDATING_INPUT, manifest, name)


def test_an_appending_table_is_seen_before_dbt_has_compiled_it(manifest: Manifest) -> None:
    del manifest["nodes"][CLEAN]["compiled_code"]
    assert isinstance(compiled(manifest, "model.shop.views_per_minute").inputs[0], TableStreamInput)


def test_a_unique_key_makes_a_table_an_updating_one(manifest: Manifest) -> None:
    latest = add_model(manifest, "latest", "select * from shop.clicks", [CLICKS], unique_key="user_id")
    assert compiled(manifest, latest).output.mode is OutputMode.UPSERT
    assert compiled(manifest, latest).output.keys == ("user_id",)
    fails_with(MODEL_UPDATING_INPUT, manifest, add_model(manifest, "b", "select * from shop.latest", [latest]))


def test_a_relation_that_only_a_comment_names_is_no_input(manifest: Manifest) -> None:
    sql = "-- depends on shop.views_per_minute\nselect * from shop.clicks"
    name = add_model(manifest, "fine", sql, [CLICKS, "model.shop.views_per_minute"])
    assert [each.relation for each in compiled(manifest, name).inputs] == ["shop.clicks"]


def test_a_model_over_tables_alone_is_no_stream(manifest: Manifest) -> None:
    name = add_model(manifest, "still", "select * from shop.items", ["seed.shop.items"])
    fails_with(MODEL_NO_STREAM, manifest, name)


def test_a_source_without_stream_settings_is_no_stream(manifest: Manifest) -> None:
    source = manifest["sources"][CLICKS]
    source["source_meta"] = source["meta"] = {}
    source["config"]["meta"] = {}
    problem = fails_with(SOURCE_NOT_STREAM, manifest, CLEAN)
    assert str(problem.at) == "models/clicks_clean.sql:14"


def test_a_model_that_dbt_has_not_compiled_is_an_error(manifest: Manifest) -> None:
    del manifest["nodes"][CLEAN]["compiled_code"]
    fails_with(DBT_FAILED, manifest, CLEAN)


def test_a_misspelt_key_stops_the_whole_project(manifest: Manifest) -> None:
    manifest["nodes"][CLEAN]["config"]["bufer_limit"] = 3
    with pytest.raises(PenstockError) as caught:
        compile_project(manifest, project_dir=PROJECT)
    assert caught.value.kind is MODEL_KEY_UNKNOWN


def test_a_view_never_meets_a_name_of_the_model(manifest: Manifest) -> None:
    sql = "with shop__clicks as (select * from shop.clicks) select * from shop__clicks"
    spec = compiled(manifest, add_model(manifest, "odd", sql, [CLICKS]))
    assert spec.sql == "with shop__clicks as (select * from shop__clicks_2 as clicks) select * from shop__clicks"


def test_a_spec_does_not_depend_on_where_the_project_is(manifest: Manifest, tmp_path: Path) -> None:
    here = compiled(manifest, CLEAN)
    assert compile_model(manifest, CLEAN, project_dir=tmp_path).hash == here.hash


def test_compiling_with_empty_gives_a_spec(manifest: Manifest) -> None:
    sql = "select item_id, count(*) n from (select * from shop.clicks where false limit 0) _dbt_limit_subq group by 1"
    spec = compile_model(manifest, CLEAN, sql, project_dir=PROJECT)
    assert spec.output.keys == ("item_id",)
