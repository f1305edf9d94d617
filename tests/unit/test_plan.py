"""What a change of a spec means: nothing, a restart that keeps the state, or a rebuild, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from penstock.compiler import Plan, StreamSpec, Verdict, compile_project, plan_change
from penstock.compiler.plan import FROM_NOW_ON, KNOWN_FIELDS
from penstock.compiler.source_table import CHANGES
from penstock.compiler.spec import (
    Column,
    Function,
    KafkaInput,
    Origin,
    Output,
    OutputMode,
    Publish,
    TableInput,
    TableStreamInput,
    Trigger,
    Watermark,
)
from penstock.kafka.security import Reference
from penstock.project.maintenance import OwnMaintenance

HERE = Path(__file__).parent
SPECS = {
    spec.name: spec
    for spec in compile_project(
        json.loads((HERE / "fixtures" / "manifest.json").read_text()), project_dir=HERE / "fixtures" / "shop"
    )
}
STATELESS = SPECS["shop.clicks_clean"]
STATEFUL = SPECS["shop.clicks_by_category"]
WINDOWED = STATEFUL.model_copy(
    update={"sql": "select window(c.Clicked_At, '1 hour') as w, count(*) as n from shop__clicks as c group by 1"}
)


def changed(spec: StreamSpec, **changes: object) -> Plan:
    return plan_change(spec, spec.model_copy(update=changes))


def input_changed(spec: StreamSpec, **changes: object) -> Plan:
    inputs = tuple(each.model_copy(update=changes) if isinstance(each, KafkaInput) else each for each in spec.inputs)
    return changed(spec, inputs=inputs)


def kafka(spec: StreamSpec) -> KafkaInput:
    return next(each for each in spec.inputs if isinstance(each, KafkaInput))


def test_maintenance_is_taken_over_by_the_running_stream() -> None:
    plan = changed(STATEFUL, maintenance=OwnMaintenance(keep="7 days"))  # type: ignore[arg-type]
    assert plan == Plan(Verdict.HOT, ("maintenance as the profile says -> keep 7 days",))


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
        ({"trigger": Trigger(buffer_limit=7)}, " -> 7"),
    ],
)
def test_a_setting_of_the_trigger_restarts_and_keeps_the_state(
    spec: StreamSpec, changes: dict[str, object], reason: str
) -> None:
    plan = changed(spec, **changes)
    assert plan.verdict is Verdict.RESTART
    assert any(reason in each for each in plan.reasons)


@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"small_batch_rows": 7}, "small_batch_rows 200000 -> 7"),
        ({"path": "models/sub/m.sql"}, "models/sub/m.sql"),
        ({"unique_id": "model.other.m"}, "model.other.m"),
    ],
)
def test_what_the_running_query_does_not_hold_is_taken_over_without_a_restart(
    spec: StreamSpec, changes: dict[str, object], reason: str
) -> None:
    plan = changed(spec, **changes)
    assert plan.verdict is Verdict.HOT
    assert any(reason in each for each in plan.reasons)
    assert changed(spec, trigger=Trigger(max_batch_rows=7), **changes).verdict is Verdict.RESTART


@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        ("fail", Verdict.HOT),
        ("sync_all_columns", Verdict.HOT),
        ("ignore", Verdict.RESTART),  # what was left out is looked at again
        ("append_new_columns", Verdict.RESTART),
    ],
)
@pytest.mark.parametrize("spec", [STATELESS, STATEFUL])
def test_what_becomes_of_columns_matters_at_once_where_the_table_may_have_others(
    spec: StreamSpec, before: str, verdict: Verdict
) -> None:
    old, new = (
        spec.model_copy(update={"output": spec.output.model_copy(update={"on_schema_change": how})})
        for how in (before, "append_new_columns" if before != "append_new_columns" else "fail")
    )
    plan = plan_change(old, new)
    assert plan.verdict is verdict
    assert plan.reasons == (f"on_schema_change {before} -> {new.output.on_schema_change}",)


def test_a_full_refresh_with_another_word_on_columns_is_still_no_rebuild() -> None:
    old = STATELESS.as_full("so")
    output = old.output.model_copy(update={"on_schema_change": "sync_all_columns"})
    new = old.model_copy(update={"output": output, "deduplicate_by": ("item_id",)})
    assert plan_change(old, new).verdict is Verdict.RESTART


def test_the_rules_know_every_field_of_a_spec() -> None:
    parts: dict[str, type[BaseModel]] = {
        "spec": StreamSpec, "kafka": KafkaInput, "table_stream": TableStreamInput, "table": TableInput,
        "column": Column, "output": Output, "function": Function, "trigger": Trigger,
        "publish": Publish,
    }  # fmt: skip
    for name, part in parts.items():
        assert set(part.model_fields) == KNOWN_FIELDS[name], f"compiler/plan.py has no rule for a field of {name}"


def test_a_field_that_no_rule_knows_rebuilds(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: fields - {"path", "bootstrap", "type", "delivery"} for name, fields in KNOWN_FIELDS.items()}
    monkeypatch.setattr("penstock.compiler.plan.KNOWN_FIELDS", without)
    assert changed(STATELESS, path="models/other.sql") == Plan(Verdict.REBUILD, ("path changed",))
    assert "bootstrap of shop.clicks changed" in input_changed(STATELESS, bootstrap="b:1").reasons
    published = STATELESS.model_copy(update={"publish": Publish(topic="t")})
    assert changed(published, publish=Publish(topic="t", delivery="at_least_once")).reasons == ("delivery changed",)


def test_the_sql_of_a_stateless_stream_restarts() -> None:
    plan = changed(STATELESS, sql="select 1 from shop__clicks as clicks")
    assert plan == Plan(Verdict.RESTART, (f"the SQL changed, {FROM_NOW_ON}",))


def test_all_rows_of_a_full_refresh_and_no_rows_of_a_topic_alone_follow_the_new_sql() -> None:
    topic = STATELESS.model_copy(update={"publish": Publish(topic="out", table=False)})
    for spec in (STATELESS.as_full("so"), topic):
        plan = changed(spec, sql="select 1 from shop__clicks as clicks")
        assert plan == Plan(Verdict.RESTART, ("the SQL changed",))


def test_into_real_time_and_back_a_stream_restarts() -> None:
    batches = Publish(topic="out", table=False, delivery="at_least_once")
    at_once = batches.model_copy(update={"real_time": True})
    both = (batches, at_once, "micro_batch -> real_time"), (at_once, batches, "real_time -> micro_batch")
    for before, after, told in both:
        spec = STATELESS.model_copy(update={"publish": before})
        assert changed(spec, publish=after) == Plan(Verdict.RESTART, (f"mode {told}",))


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


def test_the_name_of_a_view_is_nobodys_choice() -> None:
    other = kafka(STATELESS).model_copy(update={"view": "shop__clicks_2"})
    sql = STATELESS.sql.replace("from shop__clicks ", "from shop__clicks_2 ")
    plan = changed(STATELESS, sql=sql, inputs=(other,))
    assert plan == Plan(Verdict.RESTART, (f"the SQL changed, {FROM_NOW_ON}",))


def test_inputs_in_another_order_are_the_same_query() -> None:
    orders = kafka(STATELESS).model_copy(update={"relation": "shop.orders", "view": "shop__orders", "topic": "orders"})
    inputs = (*STATELESS.inputs, orders)
    spec = STATELESS.model_copy(update={"inputs": inputs, "sql": CLICKS_THEN_ORDERS})
    assert changed(spec, inputs=inputs[::-1]) == Plan(Verdict.RESTART, ("the inputs are listed in another order",))


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
    plan = input_changed(STATELESS, starting="latest")
    assert plan == Plan(Verdict.HOT, ("start of shop.clicks earliest -> latest (for the next rebuild)",))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # Which of two kinds of definitions has the name: what differs besides is performed, this alone cannot occur.
        ({"origin": Origin.SOURCE_TABLE}, "kind model -> source_table"),
        ({"output": {"view": "shop.shown"}}, "view none -> shop.shown"),
        ({"output": {"changes": CHANGES}}, "how the table's changes are told apart"),
        # There is one format as yet; a release that changes the meaning of a field has another.
        ({"format_version": 2}, "the format of specs changed"),
    ],
)
def test_another_kind_of_definition_rebuilds(changes: dict[str, object], reason: str) -> None:
    if "output" in changes:
        changes = {"output": STATELESS.output.model_copy(update=changes["output"])}  # type: ignore[arg-type]
    assert changed(STATELESS, **changes) == Plan(Verdict.REBUILD, (reason,))


def test_the_output_mode_rebuilds() -> None:
    plan = changed(STATELESS, output=Output(relation=STATELESS.name, mode=OutputMode.UPSERT, keys=("user_id",)))
    assert plan == Plan(Verdict.REBUILD, ("output mode append -> upsert",))


def test_the_key_rebuilds() -> None:
    plan = changed(STATEFUL, output=Output(relation=STATEFUL.name, mode=OutputMode.UPSERT, keys=("a", "b")))
    assert plan == Plan(Verdict.REBUILD, ("key (category) -> (a, b)",))


def test_shuffle_partitions_are_frozen_into_state_alone() -> None:
    assert changed(STATEFUL, shuffle_partitions=8) == Plan(Verdict.REBUILD, ("shuffle_partitions 2 -> 8",))
    assert changed(STATELESS, shuffle_partitions=8) == Plan(Verdict.RESTART, ("shuffle_partitions 2 -> 8",))


@pytest.mark.parametrize(
    ("spec", "column", "verdict"),
    [
        (STATEFUL, "item_id", Verdict.REBUILD),
        (STATEFUL, "price", Verdict.RESTART),  # nobody reads it
        (STATEFUL, "clicked_at", Verdict.RESTART),  # its watermark is of no state
        (WINDOWED, "clicked_at", Verdict.REBUILD),
        (STATELESS, "item_id", Verdict.RESTART),
        (STATEFUL.model_copy(update={"sql": "select max(struct(*)) from shop__clicks"}), "price", Verdict.REBUILD),
        (STATEFUL.model_copy(update={"sql": "select max(PRICE) from shop__clicks"}), "price", Verdict.REBUILD),
    ],
)  # fmt: skip
def test_the_type_and_the_origin_of_a_column_that_a_state_reads_rebuild(
    spec: StreamSpec, column: str, verdict: Verdict
) -> None:
    for field, value in (("type", "BIGINT"), ("origin", "value.other")):
        (old,) = (each for each in kafka(spec).columns if each.name == column)
        columns = tuple(each.model_copy(update={field: value}) if each is old else each for each in kafka(spec).columns)
        plan = input_changed(spec, columns=columns)
        assert plan == Plan(verdict, (f"{field} of shop.clicks.{column} {getattr(old, field)} -> {value}",))


def test_a_column_that_another_one_is_computed_from_is_read() -> None:
    source = kafka(STATEFUL)
    half = Column(name="half", type="DECIMAL(10,2)", origin="computed", expr="Price / 2")
    inputs = (source.model_copy(update={"columns": (*source.columns, half)}),)
    columns = tuple(
        each.model_copy(update={"type": "DOUBLE"}) if each.name == "price" else each for each in inputs[0].columns
    )
    for sql, verdict in (("select max(half) from shop__clicks", Verdict.REBUILD), (STATEFUL.sql, Verdict.RESTART)):
        spec = STATEFUL.model_copy(update={"inputs": inputs, "sql": sql})
        assert input_changed(spec, columns=columns).verdict is verdict


def test_a_column_in_another_case_is_the_same_one() -> None:
    columns = tuple(each.model_copy(update={"name": each.name.upper()}) for each in kafka(STATEFUL).columns[:2])
    columns += kafka(STATEFUL).columns[2:]
    reasons = ("name of shop.clicks.item_id item_id -> ITEM_ID", "name of shop.clicks.user_id user_id -> USER_ID")
    assert input_changed(STATEFUL, columns=columns) == Plan(Verdict.RESTART, reasons)
    other = (columns[0], columns[1].model_copy(update={"origin": "value.other"}), *columns[2:])
    assert input_changed(STATEFUL, columns=other).verdict is Verdict.REBUILD, "it is the one that the SQL reads"


@pytest.mark.parametrize(
    ("sql", "verdict"),
    [
        ("select sum(n) from (select i.price * 2 as twice, twice + 1 as n from shop__clicks as i)", Verdict.REBUILD),
        ("select sum(n) from (select i.price * 2 as twice, i.twice as n from shop__clicks as i)", Verdict.RESTART),
        ("select sum(n) from (select i.price * 2 as twice, 1 as n from shop__clicks as i)", Verdict.RESTART),
        ("select sum(twice) from (select i.price * 2 as twice from shop__clicks as i)", Verdict.RESTART),
        (
            "select sum(t.n) from shop__clicks join (select id, twice as n from shop.items) as t on t.id = item_id",
            Verdict.RESTART,
        ),
    ],
)
def test_a_column_takes_the_name_of_an_alias_and_leaves_it(sql: str, verdict: Verdict) -> None:
    spec = STATEFUL.model_copy(update={"sql": sql})
    source = kafka(spec)
    more = source.model_copy(
        update={"columns": (*source.columns, Column(name="Twice", type="INT", origin="value.twice"))}
    )
    one, other = (spec.model_copy(update={"inputs": (each,)}) for each in (source, more))
    assert plan_change(one, other) == Plan(verdict, ("column shop.clicks.Twice is new",))
    assert plan_change(other, one) == Plan(verdict, ("column shop.clicks.Twice is gone",))


def test_a_column_of_csv_is_a_place() -> None:
    source = kafka(STATEFUL).model_copy(update={"value_format": "csv"})
    spec = STATEFUL.model_copy(update={"inputs": (source,)})
    user, item, *others = source.columns
    first = Column(name="first", type="INT", origin="value.first")
    moved = "origin of shop.clicks.item_id value.item_id (field 1) -> value.item_id (field 2)"
    assert input_changed(spec, columns=(user, first, item, *others)) == Plan(Verdict.REBUILD, (moved,))
    assert input_changed(spec, columns=(user, others[0], item, *others[1:])) == Plan(Verdict.REBUILD, (moved,))
    last = input_changed(spec, columns=(*source.columns, first))
    assert last == Plan(Verdict.RESTART, ("column shop.clicks.first is new",))


def test_how_a_key_or_value_is_decoded_matters_to_a_state_where_a_column_comes_from_it() -> None:
    source = kafka(STATEFUL)
    assert input_changed(STATEFUL, key_format="json").verdict is Verdict.REBUILD
    assert input_changed(STATELESS, key_format="json").verdict is Verdict.RESTART
    parts = {part: tuple(each for each in source.columns if each.origin.startswith(part)) for part in ("key", "value")}
    of_values, of_keys = (
        STATEFUL.model_copy(update={"inputs": (source.model_copy(update={"columns": parts[part]}),)})
        for part in ("value", "key")
    )
    assert input_changed(of_values, key_format="json").verdict is Verdict.RESTART
    assert input_changed(of_values, value_format="csv").verdict is Verdict.REBUILD
    assert input_changed(of_keys, value_format="csv").verdict is Verdict.RESTART
    assert input_changed(of_keys, value_format="avro").verdict is Verdict.REBUILD, "what is no Avro is no row"


def test_a_new_column_that_the_sql_does_not_read_restarts() -> None:
    columns = (*kafka(STATELESS).columns, Column(name="extra", type="INT", origin="value.extra"))
    assert input_changed(STATELESS, columns=columns) == Plan(Verdict.RESTART, ("column shop.clicks.extra is new",))


def test_a_column_that_a_state_does_not_read_may_go() -> None:
    source = kafka(STATEFUL)
    more = (*source.columns, Column(name="more", type="string", origin="value.more"))
    wide = STATEFUL.model_copy(update={"inputs": (source.model_copy(update={"columns": more}),)})
    every = wide.model_copy(update={"sql": "select max(x.item_id) from (select * from clicks) x"})
    assert input_changed(wide, columns=source.columns) == Plan(Verdict.RESTART, ("column shop.clicks.more is gone",))
    assert input_changed(every, columns=source.columns).verdict is Verdict.REBUILD


def test_a_count_of_all_rows_takes_no_column() -> None:
    source = kafka(STATEFUL)
    more = (*source.columns, Column(name="more", type="string", origin="value.more"))
    counted = STATEFUL.model_copy(update={"sql": "select count(*) as n from clicks group by 1"})
    every = STATEFUL.model_copy(update={"sql": "select count(*) as n, max(x.item_id) from (select * from clicks) x"})
    assert input_changed(counted, columns=more).verdict is Verdict.RESTART
    assert input_changed(every, columns=more).verdict is Verdict.REBUILD


def test_a_watermark_column_rebuilds_a_state_and_its_delay_does_not() -> None:
    other = input_changed(WINDOWED, watermark=Watermark(column="arrived_at", delay="10 minutes"))
    later = input_changed(WINDOWED, watermark=Watermark(column="clicked_at", delay="1 hour"))
    assert other == Plan(Verdict.REBUILD, ("watermark of shop.clicks clicked_at -> arrived_at",))
    assert later == Plan(Verdict.RESTART, ("watermark delay of shop.clicks 10 minutes -> 1 hour",))


@pytest.mark.parametrize(
    ("spec", "verdict"),
    [
        (STATEFUL, Verdict.RESTART),
        (WINDOWED, Verdict.REBUILD),
        (STATEFUL.model_copy(update={"deduplicate_by": ("category",)}), Verdict.REBUILD),
        (STATEFUL.model_copy(update={"sql": f"{STATEFUL.sql} union all select 1 from shop__clicks"}), Verdict.REBUILD),
        (STATEFUL.model_copy(update={"sql": "select max(struct(c.*)) from shop__clicks as c"}), Verdict.REBUILD),
        (STATEFUL.model_copy(update={"output": STATELESS.output}), Verdict.REBUILD),
        (STATELESS, Verdict.RESTART),
    ],
)
def test_groups_that_are_kept_for_ever_know_no_watermark(spec: StreamSpec, verdict: Verdict) -> None:
    plan = input_changed(spec, watermark=None)
    assert plan == Plan(verdict, ("watermark of shop.clicks clicked_at -> none",))
    without = spec.model_copy(update={"inputs": tuple(each for each in spec.inputs if isinstance(each, TableInput))})
    table = TableStreamInput(view="shop__clicks", relation="shop.clicks")
    timed = table.model_copy(update={"watermark": Watermark(column="clicked_at", delay="1 hour")})
    old = without.model_copy(update={"inputs": (*without.inputs, table)})
    assert changed(old, inputs=(*without.inputs, timed)).verdict is verdict


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


def test_a_pattern_in_place_of_a_topic_goes_on_when_it_has_the_topic_and_else_rebuilds() -> None:
    other = input_changed(STATELESS, topic=None, topic_pattern="clicks_.*")
    assert other == Plan(Verdict.REBUILD, ("topic clicks -> clicks_.*",))
    wider = input_changed(STATELESS, topic=None, topic_pattern="clicks(_.*)?")
    assert wider == Plan(Verdict.RESTART, ("topic clicks -> clicks(_.*)?",))
    late = input_changed(WINDOWED, topic=None, topic_pattern="clicks(_.*)?")
    assert late.verdict is Verdict.REBUILD, "what the other topics have had is behind the watermark"
    assert input_changed(STATEFUL, topic=None, topic_pattern="clicks(_.*)?").verdict is Verdict.RESTART
    back = STATELESS.model_copy(
        update={"inputs": (kafka(STATELESS).model_copy(update={"topic": None, "topic_pattern": "clicks.*"}),)}
    )
    assert input_changed(back, topic="clicks", topic_pattern=None).verdict is Verdict.REBUILD


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
