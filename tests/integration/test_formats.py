"""Avro and Protobuf: what confluent-kafka's serializers write is what a stream's table holds."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from registry_gateway import Gateway
from schema_messages import avro_serializer, messages_of, protobuf_serializer, python_of
from schema_streams import Streams, source
from source_files import entries

from penstock.compiler import compile_source
from penstock.control.locking import Locker, complete
from penstock.control.sources import drop_source, register
from penstock.dev.registry import RegistryService
from penstock.engine.process import read_endpoint
from penstock.project.lockfile import read_lock
from penstock.store import StreamState

MakeTopic = Callable[..., str]
Produce = Callable[..., int]

COMMERCIALS = """
{
  "type": "record",
  "name": "commercialrating",
  "fields": [
    {"name": "brand", "type": {"type": "string", "arg.properties": {"options": ["Acme", "Globex"]}}},
    {"name": "duration", "type": {"type": "int", "arg.properties": {"options": [30, 45, 60]}}},
    {"name": "rating", "type": {"type": "int", "arg.properties": {"range": {"min": 1, "max": 5}}}}
  ]
}
"""


def test_the_commercials_topic_in_avro_from_the_registry(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(name="commercials_avro")
    serialize = avro_serializer(client, name, COMMERCIALS)
    produce(name, [serialize({"brand": brand, "duration": 30 + 15 * (n % 3), "rating": 1 + n % 5})
                   for n, brand in enumerate(["Acme", "Globex"] * 30)])  # fmt: skip
    text = source(name, "{format: avro}")
    stream = streams.deploy(
        text,
        "select brand, count(*) as cnt, avg(duration) as duration_mean, avg(rating) as rating_mean "
        "from shop.events group by brand",
    )
    assert streams.rows(stream, 2) == [("Acme", 30, 45.0, 3.0), ("Globex", 30, 45.0, 3.0)]
    locked = read_lock(streams.project).find("shop.events", "value")
    assert locked is not None
    assert locked.types[0].columns == {"brand": "STRING", "duration": "INT", "rating": "INT"}
    assert (locked.types[0].subject, locked.types[0].version) == (f"{name}-value", 1)

    (entry,) = entries(text, streams.project)
    view = compile_source(entry, project_dir=streams.project).model_copy(update={"relation": f"{streams.schema}.src"})
    register(streams.platform.store, view)
    streams.platform.forget_sessions()  # a session knows the decoding functions that were there when it began
    try:
        query = f"select brand, rating, _offset from {view.relation} order by _offset limit 2"
        assert streams.platform.sql(query) == [("Acme", 1, 0), ("Globex", 2, 1)]
    finally:
        drop_source(streams.platform.store, view.relation)


def test_matrixones_protobuf_user_message_with_a_key_column(
    streams: Streams, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    proto = """
syntax = "proto3";
option go_package = "./proto/test_v1";
package test_v1;

message UserMessage {
  string Name = 1;
  string Email = 2;
  string Phone = 3;
}
"""
    name = topic(name="user")
    user = python_of(proto, tmp_path / "producer", "user_message").UserMessage
    produce(name, [
        ("u1", user(Name="Ada", Email="ada@example.org", Phone="1").SerializeToString()),
        ("u2", user(Name="Grace").SerializeToString()),
        ("u3", b"\xff\xff"),  # no message
        ("u4", None),
    ])  # fmt: skip
    text = source(
        name,
        "\n                format: protobuf\n                message: UserMessage\n                schema: |\n"
        + "".join(f"                  {line}\n" for line in proto.strip().splitlines()),
        "{name: Id, data_type: varchar(64), config: {meta: {stream: {from: key}}}}, {name: Name, data_type: string}, "
        "{name: Email, data_type: string}, {name: Phone, data_type: string}",
    )
    stream = streams.deploy(text)
    assert streams.rows(stream, 2) == [("u1", "Ada", "ada@example.org", "1"), ("u2", "Grace", "", "")]

    (entry,) = entries(text, streams.project)
    view = compile_source(entry, project_dir=streams.project).model_copy(update={"relation": f"{streams.schema}.src"})
    register(streams.platform.store, view)
    streams.platform.forget_sessions()  # a session knows the decoding functions that were there when it began
    try:
        query = f"select Id, Name, Phone, _offset from {view.relation} order by _offset"
        shown = [("u1", "Ada", "1", 0), ("u2", "Grace", "", 1), ("u3", None, None, 2), ("u4", None, None, 3)]
        assert streams.platform.sql(query) == shown
        before = streams.platform.endpoint()
        os.kill(before.pid, signal.SIGKILL)
        look = lambda: (now := read_endpoint(streams.platform.paths)) and now.pid != before.pid  # noqa: E731
        streams.platform.until(look, "a new engine", 180)
        assert streams.platform.sql(query) == shown  # the function that decodes is there again
    finally:
        drop_source(streams.platform.store, view.relation)


ORDER_1 = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"}, {"name": "amount", "type": "int"}, {"name": "old", "type": "string"}]}"""
ORDER_2 = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "note", "type": ["null", "string"], "default": null}, {"name": "amount", "type": "long"},
  {"name": "id", "type": "long"}]}"""
ORDER_3 = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"}, {"name": "amount", "type": "string"},
  {"name": "note", "type": ["null", "string"], "default": null}]}"""


def test_schema_ids_are_decoded_side_by_side_and_a_new_one_is_taken_up_while_the_stream_runs(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce, platform: Any
) -> None:
    name = topic(2, name="orders")
    one = avro_serializer(client, name, ORDER_1)
    two = avro_serializer(client, name, ORDER_2)
    produce(name, [one({"id": 1, "amount": 10, "old": "x"}), two({"id": 2, "amount": 2**40, "note": "big"})])
    declared = (
        "{name: id, data_type: bigint}, {name: amount, data_type: bigint}, {name: note}, "
        "{name: type, data_type: string, config: {meta: {stream: {from: record}}}}"
    )
    stream = streams.deploy(source(name, "{format: avro}", declared))
    assert streams.rows(stream, 2) == [(1, 10, None, "shop.Order"), (2, 2**40, "big", "shop.Order")]
    before = platform.store.actual(stream)

    three = avro_serializer(client, name, ORDER_3)  # the type of amount has changed: it is null, the rest is read
    beyond_all = b"\x00\x00\x0f\xff\xff" + one({"id": 9, "amount": 9, "old": ""})[5:]
    produce(name, [three({"id": 3, "amount": "ten", "note": "new"})])
    produce(name, [beyond_all, b"\x00\x00", b"no frame at all", b"", None, one({"id": 4, "amount": 0, "old": ""})[:7]])
    produce(name, [one({"id": 5, "amount": 50, "old": ""}), three({"id": 6, "amount": "x", "note": None})])

    expected = [
        (1, 10, None, "shop.Order"), (2, 2**40, "big", "shop.Order"), (3, None, "new", "shop.Order"),
        (5, 50, None, "shop.Order"), (6, None, None, "shop.Order"),
    ]  # fmt: skip
    assert streams.rows(stream, 5) == expected
    platform.until(lambda: platform.store.actual(stream).state is StreamState.RUNNING, "the stream to run")
    after = platform.store.actual(stream)
    assert (after.failures, after.error_code) == (0, None), "a new schema is no failure"
    assert after.restarts == before.restarts

    produce(name, [two({"id": 7, "amount": 7, "note": None})])
    assert len(streams.rows(stream, 6)) == 6
    assert len(streams.rows(stream, 6, "select distinct id from {}")) == 6, "no row comes twice"


def test_versions_of_a_protobuf_message_are_decoded_side_by_side_and_a_new_one_is_taken_up(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce, platform: Any, tmp_path: Path
) -> None:
    def version(number: int, messages: str) -> tuple[Any, Any]:
        text = f'syntax = "proto3";\npackage shop;\n{messages}\n'
        order = messages_of(text, tmp_path / f"producer{number}", f"orders_{name[-6:]}")("shop.Order")
        return order, protobuf_serializer(client, name, order)

    name = topic(2, name="orders")
    order_1, one = version(1, "message Order { int64 id = 1; int32 amount = 2; string old = 3; }")
    order_2, two = version(2, "message Order { int64 id = 1; int64 amount = 2; optional string note = 4; }")
    produce(name, [one(order_1(id=1, amount=10, old="x")), two(order_2(id=2, amount=2**40, note="big"))])
    declared = (
        "{name: id, data_type: bigint}, {name: amount, data_type: bigint}, {name: note}, "
        "{name: type, data_type: string, config: {meta: {stream: {from: record}}}}"
    )
    stream = streams.deploy(source(name, "{format: protobuf, message: shop.Order}", declared))
    assert streams.rows(stream, 2) == [(1, 10, None, "shop.Order"), (2, 2**40, "big", "shop.Order")]
    before = platform.store.actual(stream)

    # In the next one the message has another place in its file: the indexes before it differ, too.
    order_3, three = version(3, "message Audit { int32 n = 1; } message Order { int64 id = 1; int64 amount = 2; "
                                "optional string note = 4; bool gift = 5; }")  # fmt: skip
    beyond_all = b"\x00\x00\x0f\xff\xff" + one(order_1(id=9))[5:]
    produce(name, [three(order_3(id=3, amount=3, note="new", gift=True))])
    produce(name, [beyond_all, b"\x00\x00", b"no frame at all", b"", None, one(order_1(id=4))[:7]])
    produce(name, [one(order_1(id=5, amount=50)), three(order_3(id=6, amount=6))])
    expected = [
        (1, 10, None, "shop.Order"), (2, 2**40, "big", "shop.Order"), (3, 3, "new", "shop.Order"),
        (5, 50, None, "shop.Order"), (6, 6, None, "shop.Order"),
    ]  # fmt: skip
    assert streams.rows(stream, 5) == expected
    platform.until(lambda: platform.store.actual(stream).state is StreamState.RUNNING, "the stream to run")
    after = platform.store.actual(stream)
    assert (after.failures, after.error_code) == (0, None), "a new schema is no failure"
    assert after.restarts == before.restarts
    produce(name, [two(order_2(id=7, amount=7))])
    assert len(streams.rows(stream, 6)) == 6
    assert len(streams.rows(stream, 6, "select distinct id from {}")) == 6, "no row comes twice"


def test_an_unreachable_registry_is_a_failure_of_its_own_and_the_stream_goes_on_when_it_answers(
    streams: Streams,
    client: SchemaRegistryClient,
    topic: MakeTopic,
    produce: Produce,
    platform: Any,
    registry: RegistryService,
) -> None:
    name = topic(name="orders")
    gateway = Gateway(registry.url)
    try:
        one, two = (avro_serializer(client, name, each) for each in (ORDER_1, ORDER_2))
        produce(name, [one({"id": 1, "amount": 10, "old": "x"})])
        stream = streams.deploy(
            source(name, "{format: avro}", "{name: id, data_type: bigint}", **{"schema.registry.url": gateway.url}),
            "select id from shop.events",
        )
        assert streams.rows(stream, 1) == [(1,)]
        gateway.open = False
        produce(name, [two({"id": 2, "amount": 2, "note": None})])
        platform.until(lambda: platform.store.actual(stream).error_code == "PEN-2102", "the registry to be missed")
        gateway.open = True
        assert streams.rows(stream, 2) == [(1,), (2,)]
    finally:
        gateway.close()


def test_several_event_types_in_one_topic(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce
) -> None:
    payment = """{"type": "record", "name": "Payment", "namespace": "shop", "fields": [
      {"name": "order", "type": "long"}, {"name": "price", "type":
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}]}"""
    name = topic(name="events")
    by_record = {"subject.name.strategy": record_subject_name_strategy}
    order = avro_serializer(client, name, ORDER_1, **by_record)
    paid = avro_serializer(client, name, payment, **by_record)
    produce(name, [order({"id": 1, "amount": 5, "old": ""}), paid({"order": 1, "price": Decimal("9.50")})])
    one = streams.deploy(source(name, "{format: avro, record: shop.Payment, subject: '{record}'}"), name="payments")
    both = streams.deploy(
        source(name, "{format: avro, record: [Order, Payment], subject: 'shop.{record}'}",
               "{name: type, data_type: string, config: {meta: {stream: {from: record}}}}, "
               "{name: amount, config: {meta: {stream: {from: value.Order.amount}}}}"),
        name="all_events",
    )  # fmt: skip
    assert streams.rows(one, 1) == [(1, Decimal("9.50"))]
    assert streams.rows(both, 2, "select type, amount, Payment.price from {}") == [
        ("shop.Order", 5, None), ("shop.Payment", None, Decimal("9.50")),
    ]  # fmt: skip


def test_protobuf_from_the_registry_with_nested_messages_and_several_types(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    proto = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Ping { int32 n = 1; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string sku = 1; int32 n = 2; }
  int64 id = 1;
  optional string note = 2;
  repeated Line lines = 3;
  map<string, int32> tags = 4;
  State state = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.DoubleValue rebate = 7;
  oneof paid { string card = 8; int64 cash = 9; }
  Line first = 10;
  uint64 big = 11;
}
"""
    name = topic(name="proto")
    module = python_of(proto, tmp_path / "producer", f"shop_{name[-6:]}")
    order = module.Order(id=1, note="", lines=[module.Order.Line(sku="a", n=2)], tags={"x": 1}, state=1, card="v",
                         first=module.Order.Line(sku="z"), big=2**64 - 1)  # fmt: skip
    order.at.FromJsonString("2026-01-02T03:04:05.678901Z")
    order.rebate.value = 0.5
    serialize = protobuf_serializer(client, name, module.Order)
    ping = protobuf_serializer(client, name, module.Ping)
    produce(name, [serialize(order), ping(module.Ping(n=7)), serialize(module.Order(id=2, cash=3)),
                   serialize(module.Order(id=3))[:6] + b"\xff", b"\x00\x00"])  # fmt: skip
    stream = streams.deploy(source(name, "{format: protobuf, message: shop.Order}"))
    query = (
        "select id, note, lines[0].n, size(lines), tags['x'], state, date_format(at, 'yyyy-MM-dd HH:mm:ss.SSSSSS'), "
        "rebate, card, cash, first.sku, big from {}"
    )
    assert streams.rows(stream, 2, query) == [
        (1, "", 2, 1, 1, "PAID", "2026-01-02 03:04:05.678901", 0.5, "v", None, "z", Decimal(2**64 - 1)),
        (2, None, None, 0, None, "NEW", None, None, None, 3, None, Decimal(0)),
    ]
    pings = streams.deploy(source(name, "{format: protobuf, message: Ping}"), "select n from shop.events", "pings")
    assert streams.rows(pings, 1) == [(7,)]
    (entry,) = entries(source(name, "{format: protobuf, message: Ping}"), streams.project)
    view = compile_source(entry, project_dir=streams.project).model_copy(update={"relation": f"{streams.schema}.src"})
    register(streams.platform.store, view)
    streams.platform.forget_sessions()  # a session knows the decoding functions that were there when it began
    try:
        found = streams.platform.sql(f"select n from {view.relation} where _offset >= 0 limit 5")
        assert sorted(found, key=repr) == [(7,), (None,), (None,)]  # what nobody can read is a row of nulls
    finally:
        drop_source(streams.platform.store, view.relation)


def test_avro_of_a_file_without_frames_and_keys_of_a_simple_type(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic, produce: Produce
) -> None:
    import io

    import fastavro

    name = topic(name="plain")
    (streams.project / "schemas").mkdir()
    (streams.project / "schemas" / "order.avsc").write_text(ORDER_1)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(ORDER_1)), {"id": 1, "amount": 2, "old": "x"})
    key = avro_serializer(client, name, '"long"', **{"subject.name.strategy": lambda ctx, record: f"{ctx.topic}-key"})
    produce(name, [(key(42), written.getvalue()), (key(43), b"\x01")])
    stream = streams.deploy(
        source(name, "{format: avro, schema_file: schemas/order.avsc}",
               "{name: account, data_type: bigint, config: {meta: {stream: {from: key}}}}", key="{format: avro}")
    )  # fmt: skip
    assert streams.rows(stream, 1) == [(42, 1, 2, "x")]
    assert {"key", "value"} == set(read_lock(streams.project).sources["shop.events"])


def test_a_changed_registry_schema_shows_up_as_a_difference_and_is_taken_when_asked_for(
    streams: Streams, client: SchemaRegistryClient, topic: MakeTopic
) -> None:
    name = topic(name="locked")
    avro_serializer(client, name, ORDER_1)({"id": 1, "amount": 1, "old": ""})
    text = source(name, "{format: avro}")
    sources = entries(text, streams.project)
    assert [each.what for each in complete(sources, streams.project, dict)] == ["new"]
    assert complete(sources, streams.project, dict) == ()

    avro_serializer(client, name, ORDER_2)({"id": 1, "amount": 1, "note": None})
    assert complete(sources, streams.project, dict) == (), "what is pinned stays"
    found = Locker(streams.project, {}).locking(sources, update=True)
    (change,) = found.changes
    assert (change.what, change.source, change.part) == ("changed", "shop.events", "value")
    assert change.after is not None
    assert change.after.types[0].columns == {"note": "STRING", "amount": "BIGINT", "id": "BIGINT"}
