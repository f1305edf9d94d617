"""From the manifest to specs: which inputs a model has, and what is wrong with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.compiler import StreamSpec, Verdict, compile_model, compile_project, plan_change, render_job
from penstock.compiler.plan import told_anew
from penstock.compiler.spec import KafkaInput, OutputMode, TableInput, TableStreamInput, Watermark
from penstock.errors import Kind, PenstockError
from penstock.errors.catalogue import (
    DBT_FAILED,
    FUNCTION_UNFIT,
    MODEL_KEY_IN_FULL,
    MODEL_KEY_UNKNOWN,
    MODEL_NO_STREAM,
    MODEL_NOT_INCREMENTAL,
    MODEL_SETTING,
    MODEL_SYNTAX,
    MODEL_UPDATING_INPUT,
    SOURCE_NOT_STREAM,
    WATERMARK_INVALID,
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
    spec = compile_model(manifest, CLEAN, "select user_id, clicked_at from shop.clicks", project_dir=PROJECT)
    assert spec.sql == "select user_id, clicked_at from shop__clicks as clicks"


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


@pytest.mark.parametrize("end", [";", " ;;", "\n;\n", "; -- done;"])
def test_a_semicolon_at_the_end_is_no_part_of_the_query(manifest: Manifest, end: str) -> None:
    sql = "select item_id, count(*) n\nfrom shop.clicks group by 1 having n > 1"
    plain = compiled(manifest, add_model(manifest, "often", sql, [CLICKS]))
    assert plain.follow is not None
    spec = compiled(manifest, add_model(manifest, "often", sql + end, [CLICKS]))
    assert spec.sql == plain.sql
    assert spec.follow is not None
    assert ";" not in spec.follow.whole.partition("--")[0]


def test_an_error_in_the_sql_has_the_line_of_the_model_file(manifest: Manifest) -> None:
    sql = str(manifest["nodes"][CLEAN]["compiled_code"]).replace("price,", "price price price,")
    problem = fails_with(MODEL_SYNTAX, manifest, CLEAN, sql)
    assert str(problem.at) == "models/clicks_clean.sql:11"


def test_what_a_stream_cannot_keep_is_refreshed_in_full_for_a_reason_with_its_line(manifest: Manifest) -> None:
    sql = "select item_id, count(*) n\nfrom shop.clicks group by 1\norder by n desc limit 3"
    spec = compiled(manifest, add_model(manifest, "top", sql, [CLICKS]))
    assert (spec.output.mode, spec.is_full, spec.stateful) == (OutputMode.REPLACE, True, False)
    assert spec.reason == "ORDER BY cannot be kept up to date by a stream (models/top.sql:3)."
    assert "from its beginning" in spec.warnings[0]
    assert "spark.readStream" not in render_job(spec)


def test_the_reason_for_a_full_refresh_has_what_would_help(manifest: Manifest) -> None:
    sql = "select item_id, count(distinct user_id) n from shop.clicks group by 1"
    reason = compiled(manifest, add_model(manifest, "buyers", sql, [CLICKS])).reason
    assert reason is not None
    assert reason.endswith("(models/buyers.sql:1). Use approx_count_distinct(...).")


def test_incremental_makes_an_error_of_that_reason(manifest: Manifest) -> None:
    sql = "select item_id, count(*) n\nfrom shop.clicks group by 1\norder by n desc limit 3"
    top = add_model(manifest, "top", sql, [CLICKS], refresh_mode="incremental")
    assert str(fails_with(MODEL_NOT_INCREMENTAL, manifest, top).at) == "models/top.sql:3"


@pytest.mark.parametrize(
    ("mode", "cure"),
    [
        ("auto", "Leave 'emit: final' out: the table is then recomputed"),
        ("incremental", "Leave 'emit: final' out and refresh_mode at 'auto': the table is then recomputed"),
    ],
)
def test_what_cannot_be_final_is_recomputed_only_without_emit(manifest: Manifest, mode: str, cure: str) -> None:
    sql = "select window.start s, count(*) n\nfrom shop.clicks group by window(clicked_at, '1 minute')\norder by n"
    top = add_model(manifest, "top", sql, [CLICKS], refresh_mode=mode, emit="final")
    problem = fails_with(MODEL_NOT_INCREMENTAL, manifest, top)
    assert (str(problem.at), cure in str(problem)) == ("models/top.sql:3", True)
    sql = "select window.start s, count(distinct item_id) n from shop.clicks group by window(clicked_at, '1 minute')"
    buyers = add_model(manifest, "buyers", sql, [CLICKS], refresh_mode=mode, emit="final")
    assert "approx_count_distinct" in str(fails_with(MODEL_NOT_INCREMENTAL, manifest, buyers))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("from shop.clicks |> aggregate count(*) as n group by item_id |> where n > 3", "in a query with pipes"),
        ("(select item_id, count(*) n from shop.clicks group by 1 having n > 3)", "brackets around the whole query"),
        ("select * from (with c as (select 1) select item_id, count(*) n from shop.clicks group by 1) where n > 3",
         "in a WITH of its own"),
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_cut_off_is_refreshed_in_full_and_says_why(
    manifest: Manifest, sql: str, reason: str
) -> None:
    spec = compiled(manifest, add_model(manifest, "often", sql, [CLICKS]))
    assert spec.is_full
    assert reason in str(spec.reason)


def test_a_join_whose_rows_are_kept_by_a_key_is_told_to_the_engine(manifest: Manifest) -> None:
    sql = "select c.user_id from shop.clicks c join shop.clicks_clean d on d.user_id = c.user_id"
    spec = compiled(manifest, add_model(manifest, "both", sql, [CLICKS, CLEAN], unique_key="user_id"))
    assert (spec.output.mode, spec.joined) == (OutputMode.UPSERT, True)
    assert "joined=True" in render_job(spec)
    plain = compiled(manifest, add_model(manifest, "both", sql, [CLICKS, CLEAN]))
    assert "joined" not in plain.to_json() + render_job(plain), "what is there is as it was"
    before = spec.model_copy(update={"joined": False})
    assert plan_change(before, spec).verdict is Verdict.RESTART
    assert not spec.over_all("for a test").joined


def test_full_is_full_whatever_the_query_is(manifest: Manifest) -> None:
    spec = compiled(manifest, add_model(manifest, "all", "select * from shop.clicks", [CLICKS], refresh_mode="full"))
    assert spec.is_full
    assert spec.reason == "refresh_mode is full."


def test_a_full_refresh_that_asks_the_clock_is_warned_of(manifest: Manifest) -> None:
    sql = "select * from shop.clicks where ts > now() - interval 1 hour"
    asked = compiled(manifest, add_model(manifest, "asked", sql, [CLICKS], refresh_mode="full"))
    found = compiled(manifest, add_model(manifest, "found", f"{sql} order by ts", [CLICKS]))
    for spec in (asked, found):
        assert "WHERE asks the clock (now), and it is asked when an input changes" in spec.warnings[0]


def test_the_reason_and_the_mode_asked_for_are_not_part_of_the_identity(manifest: Manifest) -> None:
    spec = compiled(manifest, add_model(manifest, "all", "select * from shop.clicks", [CLICKS], refresh_mode="full"))
    assert spec.model_copy(update={"reason": "another", "refresh_mode": "auto", "refused": True}).hash == spec.hash


def test_an_updating_table_is_streamed_by_no_query_that_must_be_incremental(manifest: Manifest) -> None:
    above = ["model.shop.views_per_minute"]
    sql = "select count(*) n\nfrom shop.views_per_minute"
    name = add_model(manifest, "busy", sql, above, refresh_mode="incremental")
    assert str(fails_with(MODEL_UPDATING_INPUT, manifest, name).at) == "models/busy.sql:1"
    spec = compiled(manifest, add_model(manifest, "busy", sql, above))
    assert "a table that replaces its rows cannot follow its changes (models/busy.sql:1)" in str(spec.reason)


def test_a_projection_with_the_key_follows_the_changes_of_an_updating_table(manifest: Manifest) -> None:
    sql = "select item_id, minute as at, views from shop.views_per_minute where views > 3"
    spec = compiled(manifest, add_model(manifest, "busy", sql, ["model.shop.views_per_minute"]))
    assert (spec.output.mode, spec.output.keys, spec.stateful) == (OutputMode.UPSERT, ("at", "item_id"), False)
    assert spec.sql == "select * from shop__views_per_minute"
    assert spec.follow is not None
    assert spec.follow.keys == ("minute", "item_id")
    assert spec.as_full("why not").sql == spec.follow.whole == spec.follow.sql
    assert "runtime.changes_of" in render_job(spec)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select item_id, views from shop.views_per_minute", "the key 'minute' is not in the result"),
        ("select v.*, i.name from shop.views_per_minute v join shop.items i using (item_id)", "Set unique_key"),
        ("select * from shop.views_per_minute union all select * from shop.views_per_minute", "a UNION with a table"),
    ],
)
def test_what_loses_the_key_of_an_updating_table_is_refreshed_in_full(
    manifest: Manifest, sql: str, reason: str
) -> None:
    above = ["model.shop.views_per_minute", "seed.shop.items"]
    assert reason in str(compiled(manifest, add_model(manifest, "busy", sql, above)).reason)


def test_a_table_that_is_recomputed_is_not_streamed(manifest: Manifest) -> None:
    top = add_model(manifest, "top", "select * from shop.clicks limit 3", [CLICKS])
    spec = compiled(manifest, add_model(manifest, "next", "select * from shop.top", [top]))
    assert "shop.top is recomputed as a whole" in str(spec.reason)


@pytest.mark.parametrize("upstream", ["model.shop.views_per_minute", "model.shop.clicks_by_category"])
def test_an_updating_table_is_seen_before_dbt_has_compiled_it(manifest: Manifest, upstream: str) -> None:
    del manifest["nodes"][upstream]["compiled_code"]
    relation = upstream.replace("model.", "")
    name = add_model(manifest, "busy", f"select count(*) n from {relation}", [upstream], refresh_mode="incremental")
    fails_with(MODEL_UPDATING_INPUT, manifest, name)


def test_an_appending_table_is_seen_before_dbt_has_compiled_it(manifest: Manifest) -> None:
    del manifest["nodes"][CLEAN]["compiled_code"]
    assert isinstance(compiled(manifest, "model.shop.views_per_minute").inputs[0], TableStreamInput)


def test_a_unique_key_makes_a_table_an_updating_one(manifest: Manifest) -> None:
    latest = add_model(manifest, "latest", "select * from shop.clicks", [CLICKS], unique_key="user_id")
    assert compiled(manifest, latest).output.mode is OutputMode.UPSERT
    assert compiled(manifest, latest).output.keys == ("user_id",)
    assert compiled(manifest, add_model(manifest, "b", "select count(*) n from shop.latest", [latest])).is_full


LATEST = "select user_id, item_id from shop.clicks"
COUNTED = "select item_id, count(*) n from shop.clicks group by item_id"
NUMBERED = "select *, row_number() over (partition by user_id order by clicked_at desc) nth from shop.clicks"


@pytest.mark.parametrize(
    ("sql", "key", "mode", "reason"),
    [
        (LATEST, "user_id", "full", "refresh_mode is full."),
        (f"{LATEST} where user_id in (select user_id from shop.latest)", "user_id", "auto", "a subquery over a stream"),
        (f"{LATEST} order by item_id limit 3", "user_id", "auto", "ORDER BY"),
        ("select * from shop.items", "item_id", "auto", "reads tables alone"),
        (f"{COUNTED} order by n limit 3", ["item_id", "n"], "auto", "ORDER BY"),
        (f"select item_id as user_id, max(n) n from ({COUNTED}) group by 1, n % 2", "user_id", "auto", "an aggregate"),
        (f"select * from ({NUMBERED}) where nth = 1", "user_id", "auto", "OVER"),
        (f"select explode(array(1, 2)) x, item_id from ({COUNTED}) order by x", "item_id", "auto", "ORDER BY"),
        (f"select * from ({COUNTED}) c join shop.items i using (item_id) order by n", "item_id", "auto", "ORDER BY"),
        (f"{COUNTED} union all {COUNTED}", "item_id", "auto", "a UNION"),
    ],
)  # fmt: skip
def test_a_unique_key_is_not_lost_in_a_full_refresh(
    manifest: Manifest, sql: str, key: str | list[str], mode: str, reason: str
) -> None:
    latest = add_model(manifest, "latest", LATEST, [CLICKS])
    above = [CLICKS, latest, "seed.shop.items"]
    problem = fails_with(
        MODEL_KEY_IN_FULL, manifest, add_model(manifest, "m", sql, above, unique_key=key, refresh_mode=mode)
    )
    assert "would be lost: shop.m is refreshed in full. " in problem.message
    assert reason in problem.message


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        (f"{COUNTED} order by n desc limit 3", "ITEM_ID"),
        (f"with c as ({COUNTED}) select item_id as id, n from c where n > 3 order by n", ["id"]),
        (f"select c.* from ({COUNTED}) c left semi join shop.items i on i.item_id = c.item_id order by n", "item_id"),
        ("select distinct user_id, item_id from shop.clicks order by 1", ["item_id", "user_id"]),
        ("select user_id as u from shop.clicks union select item_id from shop.clicks order by 1", "u"),
        ("select minute as at, item_id from shop.views_per_minute order by 1", ["item_id", "at"]),
    ],
)
def test_a_full_refresh_may_have_the_key_that_its_query_gives_the_rows(
    manifest: Manifest, sql: str, key: str | list[str]
) -> None:
    above = [CLICKS, "seed.shop.items", "model.shop.views_per_minute"]
    spec = compiled(manifest, add_model(manifest, "top", sql, above, unique_key=key))
    assert (spec.is_full, spec.own_key) == (True, ())


def test_rows_by_key_are_not_joined_to_a_join_of_tables(manifest: Manifest) -> None:
    join = "(shop.items i\njoin shop.items o on o.item_id = i.item_id) on i.item_id = c.item_id"
    sql = f"select c.user_id, i.price from shop.clicks c\nleft join {join}"
    above = [CLICKS, "seed.shop.items"]
    problem = fails_with(MODEL_SETTING, manifest, add_model(manifest, "m", sql, above, unique_key="user_id"))
    assert str(problem).startswith("PEN-1311 models/m.sql:2: rows that replace each other by a key keep their order")
    assert compiled(manifest, add_model(manifest, "m", sql, above)).output.mode is OutputMode.APPEND


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_a_unique_key_that_the_result_lacks_is_an_error_in_a_full_refresh_too(manifest: Manifest, mode: str) -> None:
    sql = f"{LATEST} order by user_id"
    fails_with(MODEL_SETTING, manifest, add_model(manifest, "m", sql, [CLICKS], unique_key="nope", refresh_mode=mode))


def test_what_spark_refuses_as_a_stream_keeps_no_unique_key_either(manifest: Manifest) -> None:
    spec = compiled(manifest, add_model(manifest, "latest", LATEST, [CLICKS], unique_key="user_id"))
    with pytest.raises(PenstockError, match=r"shop\.latest is refreshed in full\. Spark refuses it") as caught:
        spec.as_full("Spark refuses it.")
    assert (caught.value.kind, str(caught.value.at)) == (MODEL_KEY_IN_FULL, "models/latest.sql")
    assert spec.hash == spec.model_copy(update={"own_key": ()}).hash, (
        "it tells people why, and is no part of the stream"
    )
    assert spec.over_all("looked into").is_full, "a record at fault can be looked for"
    counted = compiled(manifest, add_model(manifest, "counted", COUNTED, [CLICKS], unique_key="item_id"))
    assert counted.as_full("Spark refuses it.").is_full


@pytest.mark.parametrize(
    ("sql", "mode", "reason"),
    [
        (LATEST, "full", "refresh_mode is full."),
        (f"{LATEST} order by item_id", "auto", "ORDER BY"),
        ("select * from shop.items", "auto", "reads tables alone"),
        (f"{LATEST} where user_id in (select nope from shop.clicks)", "auto", "a subquery over a stream"),
    ],
)
def test_a_full_refresh_does_not_know_the_first_row_of_a_key(
    manifest: Manifest, sql: str, mode: str, reason: str
) -> None:
    name = add_model(manifest, "m", sql, [CLICKS, "seed.shop.items"], deduplicate_by="user_id", refresh_mode=mode)
    problem = fails_with(MODEL_KEY_IN_FULL, manifest, name)
    assert "deduplicate_by 'user_id' would be lost: shop.m is refreshed in full. " in problem.message
    assert reason in problem.message
    assert "min_by(...) with GROUP BY, or row_number()" in str(problem.hint)


def test_what_spark_refuses_as_a_stream_is_not_deduplicated_either(manifest: Manifest) -> None:
    sql = "select user_id, item_id, clicked_at from shop.clicks"
    spec = compiled(manifest, add_model(manifest, "m", sql, [CLICKS], deduplicate_by=["user_id", "item_id"]))
    with pytest.raises(PenstockError, match=r"deduplicate_by 'user_id', 'item_id' would be lost: shop\.m is") as caught:
        spec.as_full("Spark refuses it.")
    assert caught.value.kind is MODEL_KEY_IN_FULL
    assert spec.over_all("looked into").is_full, "a record at fault can be looked for"


def test_rows_are_told_apart_by_columns_of_the_result(manifest: Manifest) -> None:
    sql = "select user_id, clicked_at from shop.clicks"
    problem = fails_with(MODEL_SETTING, manifest, add_model(manifest, "m", sql, [CLICKS], deduplicate_by=["usr_id"]))
    assert "deduplicate_by 'usr_id' is not among the columns of the model. Did you mean 'user_id'?" in str(problem)
    spec = compiled(manifest, add_model(manifest, "m", sql, [CLICKS], deduplicate_by="USER_ID"))
    assert spec.deduplicate_by == ("USER_ID",)
    unknown = add_model(manifest, "m", "select * from shop.clicks_clean", [CLEAN], deduplicate_by="nope")
    assert compiled(manifest, unknown).deduplicate_by == ("nope",), "Spark knows the columns, and says it"


PER_USER = "select user_id, max(item_id) it, count(*) n from shop.clicks group by user_id"


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        (PER_USER, "IT"),
        (PER_USER, ["user_id", "n"]),
        ("select concat('x', max(item_id)) as it from shop.clicks group by user_id", "it"),
        (f"select user_id, lower(it) as item from ({PER_USER})", "item"),
        (f"with c (u, i, n) as ({PER_USER}), d as (select * from c) select d.*, 1 as x from d", "i"),
        (f"select * from ({PER_USER}) as c (u, i, n)", "i"),
        (f"select c.*, s.name from ({PER_USER}) c join shop.items s on s.item_id = c.it", ["it", "name"]),
        (f"select s.item_id, c.n from shop.items s join ({PER_USER}) c on s.item_id = c.it", "n"),
        (f"select c.user_id, c.n from (({PER_USER}) c join shop.items s on s.item_id = c.it)", "n"),
        ("select count(*) n from (select user_id from shop.clicks union all select user_id from shop.clicks)", "n"),
    ],
)
def test_rows_of_an_aggregate_have_no_key_that_it_computes(manifest: Manifest, sql: str, key: str | list[str]) -> None:
    name = add_model(manifest, "m", sql, [CLICKS, "seed.shop.items"], unique_key=key)
    problem = fails_with(MODEL_SETTING, manifest, name)
    named = key if isinstance(key, str) else key[-1] if key[-1] == "n" else key[0]
    assert f"unique_key '{named}' is computed by an aggregate" in problem.message
    assert "Take the GROUP BY columns in its place" in str(problem.hint)


@pytest.mark.parametrize(
    ("sql", "key", "left_out"),
    [
        (PER_USER, "user_id", None),
        (PER_USER.replace("group by user_id", "group by user_id, page_id").replace("max(item_id)", "page_id"),
         "user_id", "it"),
        ("select upper(item_id) as item, count(*) n from shop.clicks group by item_id", "item", None),
        (f"select c.user_id, s.item_id, c.n from ({PER_USER}) c join shop.items s on s.item_id = c.it",
         ["user_id", "item_id"], None),
        (f"select c.user_id, s.n from ({PER_USER}) c join (select item_id as n from shop.items) s on s.n = c.it",
         ["user_id", "n"], None),
        ("select user_id, explode(s) as item from (select user_id, collect_set(item_id) s from shop.clicks group by 1)",
         ["user_id", "item"], None),
        (("select c.user_id, c.item_id, i.n from shop.clicks c join (select item_id, count(*) n from shop.items "
          "group by item_id) i on i.item_id = c.item_id"), "n", None),
        ("select distinct user_id, item_id from shop.clicks", "user_id", None),
    ],
)  # fmt: skip
def test_a_unique_key_of_an_aggregate_is_of_what_stays_with_a_group(
    manifest: Manifest, sql: str, key: str | list[str], left_out: str | None
) -> None:
    spec = compiled(manifest, add_model(manifest, "m", sql, [CLICKS, "seed.shop.items"], unique_key=key))
    assert spec.output.mode is OutputMode.UPSERT
    warnings = [each for each in spec.warnings if "unique_key" in each]
    assert len(warnings) == (left_out is not None)
    if left_out is not None:
        assert warnings[0].startswith(f"models/m.sql:1: unique_key leaves out {left_out} of the GROUP BY columns")


def test_the_column_of_a_models_own_watermark_is_one_of_its_columns(manifest: Manifest) -> None:
    def clicks(sql: str, column: str) -> str:
        raw = f"-- {{{{ config(watermark='…') }}}}\n{sql}"
        return add_model(manifest, "m", raw, [CLICKS, CLEAN], watermark={"column": column, "delay": "1 minute"})

    spec = compiled(manifest, clicks("select user_id, clicked_at from shop.clicks", "CLICKED_AT"))
    assert spec.event_time == "CLICKED_AT"
    assert spec.hash == spec.model_copy(update={"event_time": None}).hash
    problem = fails_with(WATERMARK_INVALID, manifest, clicks("select clicked_at as at from shop.clicks", "att"))
    assert str(problem) == "PEN-1209 models/m.sql:1: the watermark's column 'att' does not exist. Did you mean 'at'?"
    final = "select window, count(*) n from shop.clicks group by window(clicked_at, '1 minute')"
    assert compiled(manifest, clicks(f"select window from ({final})", "window")).warnings, "it is an upsert"
    unknown = compiled(manifest, clicks("select * from shop.clicks_clean", "nope"))
    assert unknown.event_time == "nope", "the engine knows the columns, and says it"
    assert unknown.as_full("Spark refuses it.").event_time is None


def test_a_watermark_of_the_whole_project_is_of_the_tables_that_have_its_column(manifest: Manifest) -> None:
    watermark = {"column": "clicked_at", "delay": "1 minute"}

    def below(sql: str) -> Watermark | None:
        above = add_model(manifest, "m", sql, [CLICKS], watermark=watermark)
        assert compiled(manifest, above).event_time is None, "whoever set it set it for others, too"
        (read,) = compiled(manifest, add_model(manifest, "n", "select * from shop.m", [above])).inputs
        assert isinstance(read, TableStreamInput)
        return read.watermark

    assert below("select user_id, CLICKED_AT from shop.clicks") == Watermark(**watermark)
    assert below("select user_id from shop.clicks") is None


@pytest.mark.parametrize("end", ["", " order by n"])
def test_a_watermark_on_rows_that_are_replaced_is_a_warning(manifest: Manifest, end: str) -> None:
    sql = f"-- {{{{ config(watermark='…') }}}}\n{COUNTED}{end}"
    watermark = {"column": "nope", "delay": "1 minute"}
    spec = compiled(manifest, add_model(manifest, "m", sql, [CLICKS], watermark=watermark))
    assert spec.warnings[-1].startswith("models/m.sql:1: 'watermark' has no effect on a table that replaces its rows")
    assert spec.event_time is None


def test_a_relation_that_only_a_comment_names_is_no_input(manifest: Manifest) -> None:
    sql = "-- depends on shop.views_per_minute\nselect * from shop.clicks"
    name = add_model(manifest, "fine", sql, [CLICKS, "model.shop.views_per_minute"])
    assert [each.relation for each in compiled(manifest, name).inputs] == ["shop.clicks"]


def test_a_model_over_tables_alone_is_refreshed_in_full(manifest: Manifest) -> None:
    name = add_model(manifest, "still", "select * from shop.items", ["seed.shop.items"])
    assert "reads tables alone" in str(compiled(manifest, name).reason)
    name = add_model(manifest, "still", "select * from shop.items", ["seed.shop.items"], refresh_mode="incremental")
    fails_with(MODEL_NO_STREAM, manifest, name)
    fails_with(MODEL_NO_STREAM, manifest, add_model(manifest, "one", "select 1 as one", []))


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


def add_function(manifest: Manifest, name: str, body: str, depends_on: tuple[str, ...] = (), **more: object) -> str:
    """A function of the project that dbt has compiled to this body."""
    unique_id = f"function.shop.{name}"
    manifest.setdefault("functions", {})[unique_id] = {
        "unique_id": unique_id,
        "name": name,
        "alias": name,
        "schema": "shop",
        "resource_type": "function",
        "language": "sql",
        "original_file_path": f"functions/{name}.sql",
        "depends_on": {"nodes": list(depends_on)},
        "raw_code": "{{ rendered() }}",
        "compiled_code": body,
        "arguments": [{"name": "price", "data_type": "double"}],
        "returns": {"data_type": "double"},
        **more,
    }
    return unique_id


TAXED = "select shop.with_tax(price) as price from shop.clicks"


def test_a_stream_calls_functions_of_its_own_session(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2", config={"volatility": "deterministic"})
    sql = """select `Shop`.`with_tax`(shop
      .with_tax(price)) as price, 'shop.with_tax(price)' as text, other.shop.with_tax(price) as other,
      spark_catalog.shop.with_tax(price) as again from shop.clicks"""
    spec = compiled(manifest, add_model(manifest, "taxed", sql, [CLICKS, function]))
    assert (
        spec.sql
        == """select shop__with_tax(shop__with_tax
(price)) as price, 'shop.with_tax(price)' as text, other.shop.with_tax(price) as other,
      shop__with_tax(price) as again from shop__clicks as clicks"""
    )
    assert [each.name for each in spec.functions] == ["shop.with_tax"]
    assert spec.functions[0].definition == (
        "CREATE OR REPLACE TEMPORARY FUNCTION shop__with_tax(price double) RETURNS double DETERMINISTIC\n"
        "RETURN price * 1.2"
    )
    assert "functions=FUNCTIONS" in render_job(spec)
    assert compiled(manifest, CLEAN).functions == ()


def test_a_query_that_is_kept_in_two_pieces_calls_them_in_both(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2")
    sql = (
        "select * from (select item_id, shop.with_tax(sum(1)) as n from shop.clicks group by item_id) as t "
        "where shop.with_tax(n) > 1"
    )
    spec = compiled(manifest, add_model(manifest, "taxed", sql, [CLICKS, function]))
    assert spec.follow is not None
    assert "shop.with_tax" not in spec.sql + spec.follow.sql + spec.follow.whole


HAVING = "select item_id, count(*) as n\nfrom shop.clicks\ngroup by item_id\nhaving n > 2"


@pytest.mark.parametrize(
    ("above", "sql"),
    [
        (None, HAVING),
        (
            None,
            "select *\nfrom (\n  select item_id, count(*) as n from shop.clicks group by item_id\n) as t\nwhere n > 2",
        ),
        (HAVING, "select item_id,\n  n * 2 as twice\nfrom shop.above\nwhere n > 5"),
    ],
)
def test_a_comment_is_no_change_of_a_query_that_is_kept_in_two_pieces(
    manifest: Manifest, above: str | None, sql: str
) -> None:
    reads = [CLICKS if above is None else add_model(manifest, "above", above, [CLICKS])]
    before = compiled(manifest, add_model(manifest, "kept", sql, reads))
    first, *rest = sql.split("\n")
    told = "\n".join([f"{first}  -- said better", "-- twice", *rest])
    retold = compiled(manifest, add_model(manifest, "kept", told, reads))
    assert before.follow is not None
    assert before.hash != retold.hash
    plan = plan_change(before, retold)
    assert (plan.verdict, plan.reasons) == (Verdict.NO_OP, ("only comments or white space changed",))
    running = told_anew(before, retold)
    assert running.hash == before.hash
    assert running.line_map == (1, *range(3, len(rest) + 3)), "the running query's lines are those of the file now"
    other = compiled(manifest, add_model(manifest, "kept", told.replace("n > ", "n > 1"), reads))
    assert plan_change(before, other).verdict is (Verdict.RESTART if above else Verdict.REBUILD)
    assert told_anew(before, other) is before


def test_a_changed_function_of_the_project_is_a_change_of_the_models_that_call_it(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2")
    name = add_model(manifest, "taxed", TAXED, [CLICKS, function])
    before = compiled(manifest, name)
    add_function(manifest, "with_tax", "price  * 1.2 -- of before")
    retold = compiled(manifest, name)
    plan = plan_change(before, retold)
    assert (plan.verdict, plan.reasons) == (Verdict.NO_OP, ("only comments or white space changed",))
    assert told_anew(before, retold).hash == before.hash
    add_function(manifest, "with_tax", "price * 1.3")  # as raw as it was: a macro or a variable changed
    plan = plan_change(before, compiled(manifest, name))
    assert (plan.verdict, plan.reasons) == (Verdict.RESTART, ("function shop.with_tax changed",))
    add_function(manifest, "with_tax", "price * 1.2", config={"volatility": "non-deterministic"})
    assert plan_change(before, compiled(manifest, name)).verdict is Verdict.RESTART


def test_a_changed_function_needs_the_rebuild_of_a_stream_with_state(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2")
    sql = "select item_id, sum(shop.with_tax(price)) as price from shop.clicks group by item_id"
    name = add_model(manifest, "taxed", sql, [CLICKS, function])
    before = compiled(manifest, name)
    add_function(manifest, "with_tax", "price * 1.3")
    plan = plan_change(before, compiled(manifest, name))
    assert (plan.verdict, plan.reasons) == (Verdict.REBUILD, ("function shop.with_tax changed",))


def test_a_changed_function_that_an_ephemeral_model_calls_is_seen(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2")
    inner = add_model(manifest, "inner", TAXED, [CLICKS, function], materialized="ephemeral")
    sql = f"with __dbt__cte__inner as ({TAXED}) select price from __dbt__cte__inner"
    name = add_model(manifest, "taxed", sql, [inner])
    before = compiled(manifest, name)
    add_function(manifest, "with_tax", "price * 1.3")
    assert plan_change(before, compiled(manifest, name)).reasons == ("function shop.with_tax changed",)


def test_a_changed_function_that_a_function_calls_is_seen_and_made_before_it(manifest: Manifest) -> None:
    rate = add_function(manifest, "z_rate", "1.2")
    with_tax = add_function(manifest, "with_tax", "with_tax.price * shop.z_rate(price)", (rate,))
    name = add_model(manifest, "taxed", TAXED, [CLICKS, with_tax])
    before = compiled(manifest, name)
    assert [each.name for each in before.functions] == ["shop.z_rate", "shop.with_tax"]
    assert before.functions[1].body == "shop__with_tax.price * shop__z_rate(price)"
    add_function(manifest, "z_rate", "1.3")
    assert plan_change(before, compiled(manifest, name)).reasons == ("function shop.z_rate changed",)


def test_functions_whose_names_meet_are_two_functions(manifest: Manifest) -> None:
    one = add_function(manifest, "with_tax", "1.0")
    other = add_function(manifest, "With-Tax", "2.0")
    sql = "select shop.with_tax(price) as a, shop.`With-Tax`(price) as b from shop.clicks"
    spec = compiled(manifest, add_model(manifest, "taxed", sql, [CLICKS, one, other]))
    called = {each.name: each.called for each in spec.functions}
    assert len(set(called.values())) == 2
    assert spec.sql.startswith(
        f"select {called['shop.with_tax']}(price) as a, {called['shop.With-Tax']}(price) as b from"
    )


def test_a_function_that_is_not_compiled_is_taken_as_it_is_when_there_is_nothing_to_compile(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "", compiled_code=None, raw_code="price * 1.2\n")
    name = add_model(manifest, "taxed", TAXED, [CLICKS, function])
    assert compiled(manifest, name).functions[0].body == "price * 1.2"
    manifest["functions"][function]["raw_code"] = "price * {{ var('rate') }}"
    fails_with(DBT_FAILED, manifest, name)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"language": "python"}, "shop.with_tax is a python function."),
        ({"config": {"type": "aggregate"}}, "shop.with_tax is an aggregate function."),
    ],
)
def test_a_function_that_is_no_sql_for_a_row_is_refused(manifest: Manifest, more: dict[str, object], told: str) -> None:
    function = add_function(manifest, "with_tax", "price", **more)
    problem = fails_with(FUNCTION_UNFIT, manifest, add_model(manifest, "taxed", TAXED, [CLICKS, function]))
    assert (problem.message, str(problem.at)) == (told, "functions/with_tax.sql")


def test_a_spec_of_before_has_no_functions_of_its_own(manifest: Manifest) -> None:
    function = add_function(manifest, "with_tax", "price * 1.2")
    spec = compiled(manifest, add_model(manifest, "taxed", TAXED, [CLICKS, function]))
    text = json.loads(spec.to_json()) | {"functions": [["shop.with_tax", "0123456789abcdef"]]}
    assert StreamSpec.from_json(json.dumps(text)).functions == ()
    assert StreamSpec.from_json(spec.to_json()) == spec
