"""Publishing a dynamic table: its settings, what the compiler makes of them, schemas, and rows as messages."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from model_files import Project

from penstock.cli.explain_model import explained
from penstock.compiler import StreamSpec, Verdict, plan_change, render_job
from penstock.compiler.publish import (
    Field,
    avro_name,
    avro_schema,
    layout,
    protobuf_name,
    protobuf_schema,
)
from penstock.compiler.spec import Publish
from penstock.engine import encoders
from penstock.engine.changed_rows import GONE
from penstock.engine.publish import Memory, Part, not_published, registered, to_messages
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    BROKER_UNREACHABLE,
    LEASE_LOST,
    MODEL_KEY_UNKNOWN,
    MODEL_VALUE_INVALID,
    PUBLISH_FAILED,
    PUBLISH_KEY,
    PUBLISH_LOOP,
    PUBLISH_NO_TABLE,
    PUBLISH_NULL_KEY,
    PUBLISH_TYPE,
    PUBLISH_UNFIT,
    REAL_TIME_UNFIT,
    REGISTRY_UNREACHABLE,
)
from penstock.kafka.writing import TopicProducer
from penstock.project.protobuf import ProtobufSchema
from penstock.project.protoc import compiled
from penstock.project.publish import KEYS, read_publish

AT = Location("models/m.sql", 3)
COUNTS = "select k, count(*) as n from {events} group by k"


def spec_of(sql: str = COUNTS, publish: object = None, **config: Any) -> StreamSpec:
    project = Project("shop")
    project.source("events", "events", {"k": "string", "v": "bigint"})
    project.model("m", sql, publish={"topic": "out"} if publish is None else publish, **config)
    return project.specs()["m"]


def failure(**arguments: Any) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        spec_of(**arguments)
    return caught.value


# -- settings ---------------------------------------------------------------------------------------------------------
def test_every_setting_is_read_and_has_a_default() -> None:
    found = read_publish(
        {"topic": "out", "key": ["a", "b"], "key_format": "json", "value": {"format": "avro"}, "key_in_value": False,
         "table": False, "delivery": "at_least_once", "partitions": 6}, AT,
    )  # fmt: skip
    assert (found.topic, found.key, found.key_format, found.value_format) == ("out", ("a", "b"), "json", "avro")
    assert (found.key_in_value, found.table, found.delivery, found.partitions) == (False, False, "at_least_once", 6)
    short = read_publish({"topic": "out", "key": "a", "value": "protobuf"}, AT)
    assert (short.key, short.key_format, short.value_format) == (("a",), None, "protobuf")
    assert (short.key_in_value, short.table, short.delivery, short.partitions) == (True, True, "exactly_once", None)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"topc": "out"}, MODEL_KEY_UNKNOWN, "Did you mean 'topic'?"),
        ({"topic": "out", "value": {"fromat": "avro"}}, MODEL_KEY_UNKNOWN, "Did you mean 'format'?"),
        ({"topic": "out", "value": "arvo"}, MODEL_VALUE_INVALID, "Did you mean 'avro'?"),
        ({"topic": "out", "value": {"format": "xml"}}, MODEL_VALUE_INVALID, "json, avro, protobuf"),
        ({"topic": "out", "delivery": "exactly"}, MODEL_VALUE_INVALID, "Did you mean 'exactly_once'?"),
        ({"topic": "out", "key": []}, MODEL_VALUE_INVALID, "name of a column"),
        ({"topic": "out", "table": "no"}, MODEL_VALUE_INVALID, "true or false"),
        ({"topic": "out", "partitions": 0}, MODEL_VALUE_INVALID, "1 or more"),
        ({"topic": "my topic"}, MODEL_VALUE_INVALID, "letters"),
        ({"key": "k"}, MODEL_VALUE_INVALID, "Add 'topic'"),
        ({}, MODEL_VALUE_INVALID, "Add 'topic'"),
        ("out", MODEL_VALUE_INVALID, "a mapping"),
    ],
)
def test_a_mistake_is_told_with_the_right_word_and_the_line(value: object, kind: object, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        read_publish(value, AT)
    assert caught.value.kind is kind
    assert said in str(caught.value)
    assert caught.value.at == AT


def test_the_reference_names_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert not [key for key in KEYS if f"| `{key}` |" not in page]


# -- the compiler -----------------------------------------------------------------------------------------------------
def test_changed_rows_have_the_key_of_their_table() -> None:
    assert spec_of().publish == Publish(topic="out", key=("k",), key_format="string")
    both = spec_of("select k, v, count(*) as n from {events} group by k, v", {"topic": "out", "key": ["v", "K"]})
    assert both.publish == Publish(topic="out", key=("v", "k"), key_format="json")
    avro = spec_of(publish={"topic": "out", "value": "avro"}).publish
    assert avro is not None
    assert avro.key_format == "avro"


def test_appended_rows_have_the_key_that_is_named_or_none() -> None:
    plain = "select k, v from {events}"
    assert spec_of(plain).publish == Publish(topic="out")
    assert spec_of(plain, {"topic": "out", "key": "k"}).publish == Publish(topic="out", key=("k",))


def test_what_does_not_fit_the_query_is_an_error() -> None:
    other = failure(publish={"topic": "out", "key": "n"})
    assert (other.kind, other.at) == (PUBLISH_UNFIT, Location("models/m.sql", 1))
    assert "(k)" in other.message
    missing = failure(sql="select k, v from {events}", publish={"topic": "out", "key": "kk"})
    assert (missing.kind, missing.next_step) == (PUBLISH_KEY, "Did you mean 'k'?")
    full = failure(sql="select k, v from {events} order by v limit 3")
    assert full.kind is PUBLISH_UNFIT
    assert "ORDER BY" in full.message
    assert failure(publish={"topic": "events"}).kind is PUBLISH_LOOP
    gone = failure(sql="select count(*) as n from {events} having count(*) % 2 = 0")
    assert gone.kind is PUBLISH_UNFIT
    with pytest.raises(PenstockError) as refused:
        spec_of().as_full("Spark refuses it.")
    assert refused.value.kind is PUBLISH_UNFIT


def test_a_model_without_a_table_is_read_by_no_other() -> None:
    project = Project("shop")
    project.source("events", "events", {"k": "string"})
    project.model("alone", "select k from {events}", publish={"topic": "out", "table": False})
    project.model("reader", "select k from {alone}")
    with pytest.raises(PenstockError) as caught:
        project.specs()
    assert caught.value.kind is PUBLISH_NO_TABLE


def test_a_spec_that_is_not_published_keeps_its_hash_and_the_job_of_one_that_is_says_so(tmp_path: Path) -> None:
    spec = spec_of()
    assert "publish" not in spec.model_copy(update={"publish": None}).canonical()
    assert StreamSpec.from_json(spec.to_json()) == spec
    spec = spec_of(publish={"topic": "out", "value": "avro", "key_in_value": False, "delivery": "at_least_once"})
    job = render_job(spec)
    assert 'publish=runtime.Publish(topic="out", key=("k",), key_format="avro"' in re.sub(r"\(\s+", "(", job)
    file = tmp_path / "job.py"
    file.write_text(job)
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "format", "--diff", "--isolated", "--no-cache", "--line-length", "120", str(file)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


REAL_TIME = {"topic": "out", "table": False, "delivery": "at_least_once"}


@pytest.mark.parametrize(
    ("changes", "sql", "why"),
    [
        ({"table": True}, None, "it has a table"),
        ({"delivery": "exactly_once"}, None, "exactly once"),
        ({"value": "avro"}, None, "not JSON"),
        ({}, COUNTS, "keeps state"),
        ({}, "select e.k, v from {events} e join {items} i on i.k = e.k", "shop.items is a table"),
        ({}, "select k, v from {history}", "shop_raw.history begins with a backfill"),
    ],
)
def test_what_cannot_run_in_real_time_is_an_error_that_says_why(changes: Any, sql: str | None, why: str) -> None:
    project = Project("shop")
    project.source("events", "events", {"k": "string", "v": "bigint"})
    start = {"from": "2026-01-01T00:00:00Z", "backfill": "batch"}
    project.source("history", "events", {"k": "string", "v": "bigint"}, start=start)
    project.table("items")
    project.model("m", sql or "select k, v from {events}", mode="real_time", publish=REAL_TIME | changes)
    with pytest.raises(PenstockError) as caught:
        project.specs()
    assert caught.value.kind is REAL_TIME_UNFIT
    assert why in caught.value.message


def test_a_job_in_real_time_has_batches_without_limits() -> None:
    sql = "select k, v from {events}"
    spec = spec_of(sql, REAL_TIME, mode="real_time")
    assert spec.is_real_time
    job = render_job(spec)
    assert "OffsetsPerTrigger" not in job
    assert "topics=(SHOP_RAW__EVENTS_TOPIC,)" in job
    assert explained(spec)["when"] == "at once, each message by itself (mode: real_time)"
    other = spec_of(sql, REAL_TIME)
    assert plan_change(other, spec).reasons == ("mode micro_batch -> real_time",)
    project = Project("shop")
    project.source("events", "events", {"k": "string", "v": "bigint"})
    project.model("m", sql, mode="real_time")
    with pytest.raises(PenstockError) as caught:
        project.specs()
    assert caught.value.kind is REAL_TIME_UNFIT
    with pytest.raises(PenstockError) as caught:
        spec_of(sql, REAL_TIME, mode="realtime")
    assert caught.value.kind is MODEL_VALUE_INVALID


# -- the plan ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (None, {}, Verdict.RESTART, "rows are published to topic out from the next batch on"),
        ({}, None, Verdict.RESTART, "rows are no longer published to topic out"),
        ({}, {"topic": "other"}, Verdict.RESTART, "topic out -> other, from the next batch on"),
        ({}, {"value_format": "avro"}, Verdict.RESTART, "publish.value_format json -> avro"),
        ({}, {"delivery": "at_least_once"}, Verdict.RESTART, "publish.delivery exactly_once -> at_least_once"),
        ({}, {"key": ()}, Verdict.RESTART, "key of messages (k) -> ()"),
        ({}, {"partitions": 3}, Verdict.HOT, "publish.partitions None -> 3 (for a topic that is made)"),
        ({}, {"table": False}, Verdict.REBUILD, "the table is gone"),
        ({"table": False}, None, Verdict.REBUILD, "the table is new"),
    ],
)
def test_a_change_of_the_setting_has_its_verdict(before: Any, after: Any, verdict: Verdict, reason: str) -> None:
    base = spec_of()
    assert base.publish is not None
    old, new = (
        base.model_copy(update={"publish": None if each is None else base.publish.model_copy(update=each)})
        for each in (before, after)
    )
    found = plan_change(old, new)
    assert found.verdict is verdict
    assert reason in found.reasons


# -- schemas ----------------------------------------------------------------------------------------------------------
def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}


ALL = struct(
    ("id", "long"), ("small", "short"), ("ok", "boolean"), ("ratio", "double"), ("price", "decimal(10,2)"),
    ("day", "date"), ("at", "timestamp"), ("there", "timestamp_ntz"), ("raw", "binary"),
    ("inner", struct(("a", "string"), ("b", {"type": "array", "elementType": "integer", "containsNull": True}))),
    ("by_name", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
)  # fmt: skip
FIELDS = [Field(each["name"], each["type"]) for each in ALL["fields"]]
ROW: dict[str, Any] = {
    "id": 7, "small": 3, "ok": True, "ratio": 0.5, "price": Decimal("1234567.80"), "day": date(2026, 2, 3),
    "at": datetime(2026, 2, 3, 4, 5, 6, 789000, timezone.utc), "there": datetime(2026, 2, 3, 4, 5, 6, 789012),
    "raw": b"\x00\xff", "inner": {"a": 'ü"', "b": [1, None]}, "by_name": [("x", 1), ("y", None)],
}  # fmt: skip
NOTHING: dict[str, Any] = dict.fromkeys(ROW)


def test_the_avro_schema_of_a_result() -> None:
    made = json.loads(avro_schema(FIELDS, avro_name("shop.brand-metrics", "value")))
    assert (made["type"], made["name"]) == ("record", "shop_brand_metrics")
    assert [(each["name"], each["type"][1]) for each in made["fields"]] == [
        ("id", "long"), ("small", "int"), ("ok", "boolean"), ("ratio", "double"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("there", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("raw", "bytes"),
        ("inner", {"type": "record", "name": "shop_brand_metrics_inner", "fields": [
            {"name": "a", "type": ["null", "string"], "default": None},
            {"name": "b", "type": ["null", {"type": "array", "items": ["null", "int"]}], "default": None}]}),
        ("by_name", {"type": "map", "values": ["null", "long"]}),
    ]  # fmt: skip
    assert all(each["type"][0] == "null" and each["default"] is None for each in made["fields"])
    assert json.loads(avro_schema(FIELDS[:1], "k", bare=True)) == "long"
    assert avro_name("9-lives", "key") == "_9_lives_key"


PROTO = """syntax = "proto3";

import "google/protobuf/timestamp.proto";

message BrandMetrics {
  message InnerValue {
    optional string a = 1;
    repeated int32 b = 2;
  }
  optional int64 id = 1;
  optional int32 small = 2;
  optional bool ok = 3;
  optional double ratio = 4;
  optional string price = 5;
  optional string day = 6;
  optional google.protobuf.Timestamp at = 7;
  optional string there = 8;
  optional bytes raw = 9;
  optional InnerValue inner = 10;
  map<string, int64> by_name = 11;
}
"""


def message(text: str, name: str = "BrandMetrics") -> Any:
    return ProtobufSchema.read(compiled(text, "published.proto", {}).encoded).message(name)


def test_the_protobuf_schema_of_a_result() -> None:
    assert protobuf_schema(FIELDS, protobuf_name("brand-metrics", "value")) == PROTO
    assert protobuf_name("brand_metrics", "key") == "BrandMetricsKey"
    assert protobuf_name("9lives", "value") == "T9lives"


def test_a_field_keeps_its_number_and_a_number_is_never_given_to_another() -> None:
    first = protobuf_schema([Field("a", "long"), Field("b", "long"), Field("c", struct(("x", "long")))], "M")
    second = protobuf_schema(
        [Field("new", "string"), Field("c", struct(("y", "long"), ("x", "long"))), Field("a", "long")],
        "M", message(first, "M"),
    )  # fmt: skip
    assert "reserved 2;" in second
    assert [line.strip() for line in second.splitlines() if "=" in line and "syntax" not in line] == [
        "optional int64 x = 1;", "optional int64 y = 2;", "optional int64 a = 1;", "optional CValue c = 3;",
        "optional string new = 4;",
    ]  # fmt: skip
    third = protobuf_schema([Field("a", "long"), Field("later", "long")], "M", message(second, "M"))
    assert "later = 5;" in third
    assert "reserved 2, 3, 4;" in third


@pytest.mark.parametrize(
    ("format_", "kind", "said"),
    [
        ("json", "interval day to second", "interval day to second"),
        ("avro", {"type": "map", "keyType": "long", "valueType": "long"}, "keys that are texts"),
        ("protobuf", {"type": "array", "elementType": {"type": "array", "elementType": "long"}}, "a list in a list"),
        ("avro", struct(("a b", "long")), "'a b' is no name there"),
    ],
)
def test_what_a_format_cannot_say_is_an_error_of_its_column(format_: Any, kind: Any, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        layout(Publish(topic="out", value_format=format_), struct(("c", kind)), AT)
    assert (caught.value.kind, caught.value.at) == (PUBLISH_TYPE, AT)
    assert "column 'c'" in caught.value.message
    assert said in caught.value.message


def test_key_and_value_of_messages() -> None:
    columns = struct(("k", "string"), ("n", "long"))
    found = layout(Publish(topic="out", key=("K",), key_in_value=False), columns)
    assert ([each.name for each in found.key], [each.name for each in found.value]) == (["k"], ["n"])
    assert len(layout(Publish(topic="out", key=("k",)), columns).value) == 2
    with pytest.raises(PenstockError) as caught:
        layout(Publish(topic="out", key=("k", "n"), key_format="json", key_in_value=False), columns)
    assert caught.value.kind is PUBLISH_UNFIT
    with pytest.raises(PenstockError) as caught:
        layout(Publish(topic="out", key=("m",)), columns)
    assert caught.value.kind is PUBLISH_KEY


@pytest.mark.parametrize(
    ("sql", "key"), [("select k, v from {events}", ["V", "k"]), ("select distinct k, v from {events}", None)]
)
def test_a_value_without_columns_is_refused_when_the_model_is_compiled(sql: str, key: list[str] | None) -> None:
    publish = {"topic": "out", "key_in_value": False} | ({"key": key} if key else {})
    problem = failure(sql=sql, publish=publish)
    assert (problem.kind, problem.hint) == (PUBLISH_UNFIT, "Set key_in_value: true.")
    assert spec_of(sql, publish | {"key_in_value": True}).publish is not None
    assert spec_of(
        sql.replace(" k,", " k, 1 as n,"), {**publish, "key": ["k", "v"]} if key else {"topic": "out"}
    ).publish


# -- messages ---------------------------------------------------------------------------------------------------------
def test_a_row_as_json() -> None:
    encode = encoders.json_encoder(FIELDS)
    assert encode(ROW).decode() == (
        '{"id":7,"small":3,"ok":true,"ratio":0.5,"price":1234567.80,"day":"2026-02-03","at":"2026-02-03T04:05:06.789Z",'
        '"there":"2026-02-03T04:05:06.789012","raw":"AP8=","inner":{"a":"ü\\"","b":[1,null]},"by_name":{"x":1,"y":null}}'
    )
    assert json.loads(encode(NOTHING)) == NOTHING
    number = encoders.json_encoder([Field("x", "double")])
    assert [number({"x": x}).decode() for x in (float("nan"), float("-inf"), 1e300)] == [
        '{"x":"NaN"}', '{"x":"-Infinity"}', '{"x":1e+300}'
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "Zoë", "Zoë"), ("long", 12, "12"), ("date", date(2026, 1, 2), "2026-01-02"),
        ("decimal(5,2)", Decimal("1.50"), "1.50"), ("boolean", True, "true"),
    ],
)  # fmt: skip
def test_a_key_of_one_column_as_text(kind: str, value: object, text: str) -> None:
    assert encoders.text_encoder(Field("k", kind))(value) == text.encode()


def test_a_row_as_avro_in_confluents_wire_format() -> None:
    schema = avro_schema(FIELDS, "t")
    encode = encoders.avro_encoder(schema, 258, FIELDS)
    for row, want in ((ROW, {**ROW, "by_name": {"x": 1, "y": None}}), (NOTHING, NOTHING)):
        raw = encode(row)
        assert raw[:5] == b"\x00\x00\x00\x01\x02"
        assert fastavro.schemaless_reader(io.BytesIO(raw[5:]), json.loads(schema), None) == want
    bare = encoders.avro_encoder(avro_schema([Field("k", "string")], "k", bare=True), 1, [Field("k", "string")])
    assert fastavro.schemaless_reader(io.BytesIO(bare("a")[5:]), "string", None) == "a"


def test_a_row_as_protobuf_in_confluents_wire_format() -> None:
    from google.protobuf.message_factory import GetMessageClass

    kind = message(PROTO)
    encode = encoders.protobuf_encoder(kind, 258, FIELDS)
    raw = encode(ROW)
    assert raw[:6] == b"\x00\x00\x00\x01\x02\x00"
    read = GetMessageClass(kind).FromString(raw[6:])
    assert (read.id, read.ok, read.price, read.day, read.raw) == (7, True, "1234567.80", "2026-02-03", b"\x00\xff")
    assert read.at.ToDatetime(timezone.utc) == ROW["at"]
    assert (read.inner.a, list(read.inner.b), dict(read.by_name)) == ('ü"', [1], {"x": 1})
    empty = GetMessageClass(kind).FromString(encode(NOTHING)[6:])
    assert not empty.ListFields()


def test_rows_that_are_gone_are_tombstones_and_rows_by_key_have_one() -> None:
    rows = pa.table({"k": ["a", "b", None], GONE: [False, True, False], "n": [1, None, 3]}).to_batches()
    encode = encoders.json_encoder([Field("n", "long")])

    def key(row: Mapping[str, Any]) -> bytes | None:
        return None if row["k"] is None else str(row["k"]).encode()

    made = to_messages(rows, key, encode, named=(), stream="shop.m")
    assert list(made) == [(b"a", b'{"n":1}'), (b"b", None), (None, b'{"n":3}')]
    with pytest.raises(PenstockError) as caught:
        list(to_messages(rows, key, encode, named=("k",), stream="shop.m"))
    assert caught.value.kind is PUBLISH_NULL_KEY


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, PUBLISH_FAILED), (KafkaError._FENCED, LEASE_LOST),
        (KafkaError.INVALID_PRODUCER_EPOCH, LEASE_LOST), (KafkaError._TRANSPORT, BROKER_UNREACHABLE),
    ],
)  # fmt: skip
def test_what_the_broker_has_against_a_batch_is_told_by_its_kind(code: int, kind: object) -> None:
    producer = TopicProducer("127.0.0.1:1", "out", {})
    producer._delivered(KafkaError(code), None)
    with pytest.raises(PenstockError) as caught:
        producer._check()
    assert caught.value.kind is kind
    assert "'out'" in caught.value.message


def test_the_schema_that_is_known_will_do_while_the_registry_does_not_answer(tmp_path: Path) -> None:
    before = 'syntax = "proto3";\n\nmessage Out {\n  optional int64 n = 4;\n}\n'
    memory = Memory(tmp_path, "out")
    memory.schemas["out-value"], memory.told = (before, 9), True
    memory.save()
    assert Memory(tmp_path, "other").schemas == {}
    again = Memory(tmp_path, "out")
    assert again.told

    def down() -> Any:
        raise REGISTRY_UNREACHABLE.error("It does not answer.")

    fields = (Field("n", "long"),)
    part = Part("out-value", "PROTOBUF", protobuf_schema(fields, "Out"), fields)
    assert registered(down, part, again.schemas) == (before, 9)
    fields = (Field("n", "string"),)
    part = Part("out-value", "PROTOBUF", protobuf_schema(fields, "Out"), fields)
    with pytest.raises(PenstockError) as caught:
        registered(down, part, again.schemas)
    assert caught.value.kind is REGISTRY_UNREACHABLE


def test_a_topic_is_complete_by_the_settings_by_which_every_row_was_published(tmp_path: Path) -> None:
    def complete(publish: Publish) -> bool:
        return Memory(tmp_path, publish.topic).is_complete(publish)

    by_k, by_n = Publish(topic="out", key=("k",)), Publish(topic="out", key=("n",))
    not_published(tmp_path)  # and never was
    assert not complete(by_k)
    Memory(tmp_path, "out").complete(by_k)
    assert complete(by_k)
    assert not complete(by_n)
    assert not complete(Publish(topic="other", key=("k",)))
    not_published(tmp_path)  # rows of now on are missing, also when it is published again
    assert not complete(by_k)


# -- those who look at it ---------------------------------------------------------------------------------------------
def test_explain_says_where_rows_go() -> None:
    rare = spec_of(f"{COUNTS} having count(*) < 3", {"topic": "out", "table": False})
    assert explained(rare)["published"] == (
        "topic 'out', key k as string, value as json, exactly once; a row that is gone is a message without a value; "
        "there is no table"
    )
    assert explained(rare.model_copy(update={"publish": None}))["published"] is None


def test_dagster_shows_a_published_topic_below_its_model() -> None:
    from dagster import AssetKey, AssetSpec

    from penstock.dagster.translator import published_specs

    node = {
        "unique_id": "model.shop.m", "resource_type": "model", "schema": "shop", "name": "m", "alias": "m",
        "config": {"materialized": "dynamic_table", "publish": {"topic": "brand.metrics", "value": "avro"}},
    }  # fmt: skip
    plain = {**node, "unique_id": "model.shop.n", "config": {"materialized": "dynamic_table"}}
    manifest = {"nodes": {each["unique_id"]: each for each in (node, plain)}}
    translator = SimpleNamespace(get_asset_spec=lambda _manifest, unique_id, _dbt: AssetSpec(unique_id.split(".")))
    project: Any = SimpleNamespace(manifest=manifest, dbt=None)
    (found,) = published_specs(project, translator)  # type: ignore[arg-type]
    assert found.key == AssetKey(["topics", "brand.metrics"])
    assert [each.asset_key for each in found.deps] == [AssetKey(["model", "shop", "m"])]
    assert (found.kinds, found.metadata["penstock/format"].value) == ({"kafka"}, "avro")
