"""What a change of a spec means: nothing, a restart that keeps the state, or a rebuild, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.compiler import Plan, StreamSpec, Verdict, compile_project, plan_change
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, TableInput, Trigger, Watermark
from penstock.kafka.security import Reference

HERE = Path(__file__).parent
SPECS = {
    spec.name: spec
    for spec in compile_project(
        json.loads((HERE / "fixtures" / "manifest.json").read_text()), project_dir=HERE / "fixtures" / "shop"
    )
}
STATELESS = SPECS["shop.clicks_clean"]
STATEFUL = SPECS["shop.clicks_by_category"]


def changed(spec: StreamSpec, **changes: object) -> Plan:
    return plan_change(spec, spec.model_copy(update=changes))


def input_changed(spec: StreamSpec, **changes: object) -> Plan:
    inputs = tuple(each.model_copy(update=changes) if isinstance(each, KafkaInput) else each for each in spec.inputs)
    return changed(spec, inputs=inputs)


def kafka(spec: StreamSpec) -> KafkaInput:
    return next(each for each in spec.inputs if isinstance(each, KafkaInput))


def test_nothing_deployed_is_new() -> None:
    assert plan_change(None, STATELESS) == Plan(Verdict.NEW)


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
def test_the_same_spec_is_no_change(spec: StreamSpec) -> None:
    assert plan_change(spec, StreamSpec.from_json(spec.to_json())) == Plan(Verdict.NO_OP)


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
def test_comments_and_white_space_are_no_change(spec: StreamSpec) -> None:
    plan = changed(spec, sql=f"-- better said\n{spec.sql}  ")
    assert plan == Plan(Verdict.NO_OP, ("only comments or white space changed",))


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trigger": Trigger(time_window_ms=9000)}, "time_window"),
        ({"trigger": Trigger(max_batch_rows=7)}, "max_batch_rows 200000 -> 7"),
        ({"small_batch_rows": 7}, "small_batch_rows 50000 -> 7"),
        ({"path": "models/sub/m.sql"}, "models/sub/m.sql"),
    ],
)
def test_a_setting_restarts_and_keeps_the_state(spec: StreamSpec, changes: dict[str, object], reason: str) -> None:
    plan = changed(spec, **changes)
    assert plan.verdict is Verdict.RESTART
    assert any(reason in each for each in plan.reasons)


def test_the_sql_of_a_stateless_stream_restarts() -> None:
    assert changed(STATELESS, sql="select 1 from shop__clicks as clicks") == Plan(Verdict.RESTART, ("the SQL changed",))


def test_the_sql_of_a_stateful_stream_rebuilds() -> None:
    plan = changed(STATEFUL, sql=STATEFUL.sql.replace("count(*)", "sum(1)"))
    assert plan == Plan(Verdict.REBUILD, ("the SQL of a stateful query changed",))


CTES = "with orders as (select * from shop__orders as o), clicks as (select * from shop__clicks as c)"
CLICKS_THEN_ORDERS = "select user_id from shop__clicks as a union all select user_id from shop__orders as b"


@pytest.mark.parametrize(
    ("sql", "verdict"),
    [
        (f"{CLICKS_THEN_ORDERS} where user_id > ''", Verdict.RESTART),
        ("select user_id from shop__orders as b union all select user_id from shop__clicks as a", Verdict.REBUILD),
        (f"{CLICKS_THEN_ORDERS} union all select user_id from shop__clicks as c", Verdict.REBUILD),
        (f"{CTES} select user_id from clicks union all select user_id from orders", Verdict.RESTART),
        (f"{CTES} select user_id from orders union all select user_id from clicks", Verdict.REBUILD),
    ],
)  # fmt: skip
def test_offsets_belong_to_the_order_of_the_streams(sql: str, verdict: Verdict) -> None:
    orders = kafka(STATELESS).model_copy(update={"relation": "shop.orders", "view": "shop__orders", "topic": "orders"})
    spec = STATELESS.model_copy(update={"inputs": (*STATELESS.inputs, orders), "sql": CLICKS_THEN_ORDERS})
    assert changed(spec, sql=sql).verdict is verdict


def test_a_query_that_begins_to_keep_state_rebuilds() -> None:
    plan = changed(STATELESS, sql="select distinct user_id from shop__clicks as clicks", stateful=True)
    assert plan == Plan(Verdict.REBUILD, ("the query keeps state now",))


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
def test_another_topic_rebuilds(spec: StreamSpec) -> None:
    plan = input_changed(spec, topic="clicks2")
    assert plan.verdict is Verdict.REBUILD
    assert "topic clicks -> clicks2" in plan.reasons


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
def test_another_address_of_the_broker_restarts(spec: StreamSpec) -> None:
    plan = input_changed(spec, bootstrap="b:9092")
    assert plan == Plan(Verdict.RESTART, ("bootstrap.servers of shop.clicks none -> b:9092",))


def test_where_a_new_stream_starts_does_not_matter_to_a_running_one() -> None:
    assert input_changed(STATELESS, starting="latest").verdict is Verdict.RESTART


def test_the_output_mode_rebuilds() -> None:
    plan = changed(STATELESS, output=Output(relation=STATELESS.name, mode=OutputMode.UPSERT, keys=("user_id",)))
    assert plan == Plan(Verdict.REBUILD, ("output mode append -> upsert",))


def test_the_key_rebuilds() -> None:
    plan = changed(STATEFUL, output=Output(relation=STATEFUL.name, mode=OutputMode.UPSERT, keys=("a", "b")))
    assert plan == Plan(Verdict.REBUILD, ("key (category) -> (a, b)",))


def test_shuffle_partitions_are_frozen_into_state_alone() -> None:
    assert changed(STATEFUL, shuffle_partitions=8) == Plan(Verdict.REBUILD, ("shuffle_partitions 2 -> 8",))
    assert changed(STATELESS, shuffle_partitions=8) == Plan(Verdict.RESTART, ("shuffle_partitions 2 -> 8",))


def test_the_type_of_a_column_rebuilds_a_state() -> None:
    for spec, verdict in ((STATEFUL, Verdict.REBUILD), (STATELESS, Verdict.RESTART)):
        columns = tuple(
            column.model_copy(update={"type": "BIGINT"}) if column.name == "item_id" else column
            for column in kafka(spec).columns
        )
        assert input_changed(spec, columns=columns) == Plan(verdict, ("type of shop.clicks.item_id STRING -> BIGINT",))


def test_a_new_column_that_the_sql_does_not_read_restarts() -> None:
    columns = (*kafka(STATELESS).columns, Column(name="extra", type="INT", origin="value.extra"))
    assert input_changed(STATELESS, columns=columns) == Plan(Verdict.RESTART, ("column shop.clicks.extra is new",))


def test_a_watermark_column_rebuilds_a_state_and_its_delay_does_not() -> None:
    other = input_changed(STATEFUL, watermark=Watermark(column="arrived_at", delay="10 minutes"))
    later = input_changed(STATEFUL, watermark=Watermark(column="clicked_at", delay="1 hour"))
    assert other == Plan(Verdict.REBUILD, ("watermark of shop.clicks clicked_at -> arrived_at",))
    assert later == Plan(Verdict.RESTART, ("watermark delay of shop.clicks 10 minutes -> 1 hour",))


def test_another_streaming_input_rebuilds() -> None:
    more = kafka(STATELESS).model_copy(update={"relation": "shop.more", "view": "shop__more", "topic": "more"})
    plan = changed(STATELESS, inputs=(*STATELESS.inputs, more))
    assert plan == Plan(Verdict.REBUILD, ("input shop.more is new",))


def test_another_table_beside_a_stateless_stream_restarts() -> None:
    plan = changed(STATELESS, inputs=(*STATELESS.inputs, TableInput(relation="shop.items")))
    assert plan == Plan(Verdict.RESTART, ("table shop.items is new",))


def test_all_reasons_of_a_rebuild_are_told() -> None:
    plan = changed(
        STATEFUL, shuffle_partitions=8, sql="select count(*) from shop__clicks as clicks",
    )  # fmt: skip
    assert plan.reasons == ("the SQL of a stateful query changed", "shuffle_partitions 2 -> 8")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((), (0, 2), Verdict.REBUILD),
        ((0, 2), (0,), Verdict.REBUILD),
        ((0,), (0, 2), Verdict.RESTART),
        ((0,), (), Verdict.RESTART),
    ],
)
def test_a_checkpoint_goes_on_with_more_partitions_and_not_with_fewer(
    before: tuple[int, ...], after: tuple[int, ...], verdict: Verdict
) -> None:
    old = STATELESS.model_copy(update={"inputs": (kafka(STATELESS).model_copy(update={"partitions": before}),)})
    plan = input_changed(old, partitions=after)
    assert plan.verdict is verdict
    assert plan.reasons[0].startswith("partitions of shop.clicks")


def test_a_pattern_in_place_of_a_topic_is_a_rebuild() -> None:
    plan = input_changed(STATELESS, topic=None, topic_pattern="clicks_.*")
    assert plan == Plan(Verdict.REBUILD, ("topic clicks -> clicks_.*",))


@pytest.mark.parametrize(("spec", "verdict"), [(STATELESS, Verdict.RESTART), (STATEFUL, Verdict.REBUILD)])
def test_options_of_a_format_and_expressions_are_in_the_state_of_a_stateful_query(
    spec: StreamSpec, verdict: Verdict
) -> None:
    assert input_changed(spec, value_options=(("delimiter", ";"),)).verdict is verdict
    first, *others = kafka(spec).columns
    computed = first.model_copy(update={"origin": "computed", "expr": "1"})
    plan = input_changed(spec, columns=(computed, *others))
    assert plan == Plan(verdict, (f"origin of shop.clicks.{first.name} {first.origin} -> 1",))


def test_a_changed_reference_to_a_secret_is_a_restart_that_names_the_option_alone() -> None:
    plan = input_changed(STATELESS, options=(("kafka.sasl.password", Reference(env_var="NEW")),))
    assert plan == Plan(Verdict.RESTART, ("options of shop.clicks: kafka.sasl.password",))
