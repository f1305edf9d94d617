"""Sources against a real broker and real Spark: types, formats, computed columns, starts, partitions, patterns."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from schema_streams import Streams, source
from source_files import column, compiled, table

from penstock.errors import PenstockError
from penstock.errors.catalogue import SOURCE_ANALYSIS
from penstock.kafka.admin import client_config

if TYPE_CHECKING:
    from collections.abc import Callable

    Platform = Any

pytestmark = pytest.mark.timeout(600)
UTC = dt.timezone.utc


@pytest.fixture
def rows_of(platform: Platform, schema: str, tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """`rows_of(count, settings, *columns)`: the rows of a source once there are so many, sorted."""

    def read(count: int, stream: str, *columns: str) -> list[tuple[Any, ...]]:
        name = f"{schema}.t{uuid.uuid4().hex[:6]}"
        platform.deploy(compiled(table(stream, *columns), tmp_path, name=name))

        def look() -> list[tuple[Any, ...]]:
            found = platform.sql(f"select * from {name}")
            return found if len(found) >= count else []

        found = platform.until(look, f"{count} rows", 120, lambda: platform.store.actual(name))
        return sorted(found, key=repr)

    return read


def test_every_type_comes_out_of_json_and_what_does_not_fit_is_null(
    rows_of: Callable[..., list[tuple[Any, ...]]], topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    good = {
        "n": 1, "flag": True, "tiny": 7, "big": 2**60, "d": 1.5, "money": 12.34, "text": "é", "bytes": "aGk=",
        "day": "2026-01-02", "at": "2026-01-02T03:04:05Z", "local": "2026-01-02T03:04:05",
        "xs": [[1], [2, None]], "m": {"a": ["2026-01-02"]}, "s": {"a": 1, "b": [{"c": 9.99}]},
    }  # fmt: skip
    name = topic(1)
    produce(
        name, [good, {"n": 2, "flag": "maybe", "big": "x", "day": "soon", "xs": 5, "s": {"a": "?"}}, None, "{broken"]
    )
    kinds = {
        "n": "int", "flag": "boolean", "tiny": "tinyint", "big": "bigint", "d": "double", "money": "decimal(10,2)",
        "text": "string", "bytes": "binary", "day": "date", "at": "timestamp", "local": "timestamp_ntz",
        "xs": "array<array<int>>", "m": "map<string, array<date>>",
        "s": "struct<a: int, b: array<struct<c: decimal(4,2)>>>",
    }  # fmt: skip
    first, second = rows_of(2, f"{{topic: {name}}}", *(column(each, kind) for each, kind in kinds.items()))
    values = dict(zip(kinds, first, strict=True))
    assert (values["n"], values["flag"], values["tiny"], values["big"], values["d"]) == (1, True, 7, 2**60, 1.5)
    assert (values["money"], values["text"], bytes(values["bytes"])) == (Decimal("12.34"), "é", b"hi")
    assert (values["day"], values["local"]) == (dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5))
    assert values["at"].astimezone(UTC) == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (values["xs"], values["m"]) == ([[1], [2, None]], {"a": [dt.date(2026, 1, 2)]})
    assert (values["s"].a, values["s"].b[0].c) == (1, Decimal("9.99"))
    assert second[:4] == (2, None, None, None)


def test_a_row_stays_when_only_columns_that_the_model_does_not_use_could_be_read(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    name = topic(1)
    produce(name, [{"a": 1, "b": "x"}, {"b": "only b"}, {"p": {"c": 1.5}}, {"other": 1}, "{broken", None, {"a": "?"}])
    text = table(
        f"{{topic: {name}}}", column("a", "int"), column("b", "string"), column("c", "double", **{"from": "value.p.c"})
    )
    spec = compiled(text, tmp_path, name=f"{schema}.of_a", sql="select a from shop.clicks")
    platform.deploy(spec)
    platform.until(lambda: platform.store.actual(spec.name).total_rows_out >= 3, "three rows", 120)
    assert sorted(platform.sql(f"select a from {spec.name}"), key=repr) == [(1,), (None,), (None,)]


def test_an_expression_that_spark_cannot_read_is_a_fault_of_the_source(
    platform: Platform, schema: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    text = table(f"{{topic: {topic(1)}}}", column("a", "int"), column("b", "int", expr="no_such_function(a)"))
    with pytest.raises(PenstockError) as caught:
        platform.deploy(compiled(text, tmp_path, name=f"{schema}.bad"))
    assert caught.value.kind is SOURCE_ANALYSIS
    assert "source shop.clicks" in str(caught.value)
    assert "no_such_function" in str(caught.value)


def test_a_json_key_a_csv_value_headers_and_computed_columns(
    rows_of: Callable[..., list[tuple[Any, ...]]], topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    name = topic(1)
    key = {"user": {"id": 5}}
    produce(name, [(key, "1000|9.50|'a|b'"), (key, "x|-|z"), (key, "")], headers={"unit": "EUR"})
    csv = "value: {format: csv, delimiter: '|', quote: \"'\", null_value: '-'}"
    found = rows_of(
        2,
        f"{{topic: {name}, key: {{format: json}}, {csv}, watermark: {{column: at, delay: 1 minute}}}}",
        column("at", "timestamp", expr="timestamp_millis(later)"),
        column("id", "bigint", **{"from": "key.user.id"}),
        column("ms", "bigint"),
        column("price", "decimal(10, 2)"),
        column("text", "string"),
        column("later", "bigint", expr="ms + 500"),
        column("unit", "string", **{"from": "header(unit)"}),
        column("tags", "map<string, string>", **{"from": "headers"}),
        column("line", "string", **{"from": "value"}),
    )
    whole = next(row for row in found if row[2] is not None)
    assert whole[0].astimezone(UTC) == dt.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)
    assert whole[1:] == (5, 1000, Decimal("9.50"), "a|b", 1500, "EUR", {"unit": "EUR"}, "1000|9.50|'a|b'")
    partly = next(row for row in found if row[2] is None)
    assert partly[:5] == (None, 5, None, None, "z")


def test_a_stream_starts_at_a_time_at_offsets_and_in_some_partitions(
    rows_of: Callable[..., list[tuple[Any, ...]]], topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    name = topic(3)
    for partition in range(3):
        produce(name, [f"old-{partition}-{n}" for n in range(3)], partition=partition)
    time.sleep(0.05)  # the next messages have a later time
    moment = dt.datetime.now(UTC)
    for partition in (0, 2):
        produce(name, [f"new-{partition}"], partition=partition)
    text = f"topic: {name}, value: {{format: string}}"
    line = column("line", "string")
    assert rows_of(2, f"{{{text}, start: {{timestamp: '{moment.isoformat(timespec='milliseconds')}'}}}}", line) == [
        ("new-0",), ("new-2",),
    ]  # fmt: skip
    assert rows_of(3, f"{{{text}, start: {{offsets: {{0: 2, 1: latest, 2: 3}}}}}}", line) == [
        ("new-0",), ("new-2",), ("old-0-2",),
    ]  # fmt: skip
    assert rows_of(4, f"{{{text}, partitions: [2]}}", line) == [("new-2",), ("old-2-0",), ("old-2-1",), ("old-2-2",)]


def test_a_stream_that_starts_at_the_end_has_what_comes_after_its_start_and_nothing_else(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    name = topic(2)
    produce(name, [f"old-{n}" for n in range(4)])
    text = table(f"{{topic: {name}, value: {{format: string}}, start: latest}}", column("line", "string"))
    spec = compiled(text, tmp_path, name=f"{schema}.from_now")
    platform.deploy(spec)
    want = platform.store.find_desired(spec.name)
    begun = platform.paths.checkpoint(spec.name, want.checkpoint_id) / "sources" / "0" / "0"
    platform.until(begun.exists, "the stream to have its start", 120, lambda: platform.store.actual(spec.name))
    for partition in (0, 1):
        produce(name, [f"new-{partition}"], partition=partition)
    platform.until(lambda: platform.store.actual(spec.name).total_rows_out >= 2, "two rows", 120)
    assert sorted(platform.sql(f"select line from {spec.name}")) == [("new-0",), ("new-1",)]


def test_a_pattern_reads_all_its_topics_also_one_that_comes_later_and_has_a_lag(
    platform: Platform,
    rows_of: Callable[..., list[tuple[Any, ...]]],
    topic: Callable[..., str],
    produce: Callable[..., int],
) -> None:
    mark = f"p{uuid.uuid4().hex[:6]}"
    names = [topic(1, name=f"{mark}_{letter}") for letter in "ab"]
    for name in names:
        produce(name, ["x"])
    stream = f"{{topic_pattern: '{mark}_.*', value: {{format: string}}}}"
    found = rows_of(2, stream, column("line", "string"), column("of", "string", **{"from": "topic"}))
    assert found == [("x", name) for name in sorted(names)]
    deployed = next(want for want in platform.store.all_desired() if mark in want.spec_json)
    platform.until(lambda: platform.store.actual(deployed.stream).lag_rows == 0, "no lag", 60)
    later = topic(1, name=f"{mark}_c")
    produce(later, ["y", "z"])
    platform.until(lambda: platform.store.actual(deployed.stream).total_rows_out >= 4, "the new topic's rows", 60)
    rows = sorted(platform.sql(f"select of, line from {deployed.stream}"))
    assert rows == [(names[0], "x"), (names[1], "x"), (later, "y"), (later, "z")]
    platform.until(lambda: platform.store.actual(deployed.stream).lag_rows == 0, "no lag", 60)


ORDER = """syntax = "proto3";
package shop;
import "common/money.proto";
message Order { int64 id = 1; common.Money price = 2; }
"""
MONEY = 'syntax = "proto3"; package common; message Money { int64 cents = 1; string currency = 2; }'


def test_raw_bytes_a_proto_file_and_an_option_of_the_kafka_client(
    platform: Platform, schema: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "schemas" / "common").mkdir(parents=True)
    (tmp_path / "schemas" / "order.proto").write_text(ORDER)
    (tmp_path / "schemas" / "common" / "money.proto").write_text(MONEY)
    name = topic(1)
    # By hand: field 1 is a number, field 2 a message of a number and a text.
    aborted, first, second = b"\x08\x07", b"\x08\x01\x12\x07\x08\x63\x12\x03EUR", b"\x08\x02"
    settings = {"transactional.id": f"{name}-writer", "transaction.timeout.ms": 60_000}
    producer = Producer(client_config(platform.bootstrap) | settings)
    producer.init_transactions(60)
    for end, values in ((producer.abort_transaction, [aborted]), (producer.commit_transaction, [first, second])):
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value, key=b"\xff\x00")
        assert producer.flush(30) == 0
        end(30)
    streams = Streams(platform, tmp_path, schema)
    key = "{name: k, data_type: binary, config: {meta: {stream: {from: key}}}}"
    by_file = "{format: protobuf, schema_file: schemas/order.proto}"
    committed = {"kafka.isolation.level": "read_committed", "key": "{format: raw}"}
    orders = streams.deploy(source(name, by_file, key, **committed), name="orders")
    lines = streams.deploy(source(name, "{format: raw}", "{name: line, data_type: binary}"), name="lines")
    found = streams.rows(orders, 2, "select hex(k), id, price.cents, price.currency from {}")
    assert found == [("FF00", 1, 99, "EUR"), ("FF00", 2, None, None)], "what was aborted is not read"
    everything = {(each.hex().upper(),) for each in (aborted, first, second)}
    assert set(streams.rows(lines, 3, "select hex(line) from {}")) == everything, "without the option all is read"
