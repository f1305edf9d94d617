"""Dirty data against a real broker and real Spark: what is a row, what is counted, what stops a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from schema_messages import avro_serializer, messages_of, protobuf_serializer
from schema_streams import Streams, source
from source_files import column, compiled, table

from penstock.control.streams import drop_stream
from penstock.errors.catalogue import BAD_RECORD
from penstock.store import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable

    Platform = Any

pytestmark = pytest.mark.timeout(600)

JSON = [
    {"a": 1, "b": "good"},
    {"b": "no a, and no fault"},
    None, "", "{}", {"a": None}, {"p": {"c": None}},  # empty
    "{broken", "5", '{"a": 1, "b": "cut', {"other": 1}, {"a": "?"}, {"p": {"other": 1}},  # bad
    {"a": "?", "b": "partly"}, {"a": 2, "b": "partly", "p": 7}, {"a": 3, "b": "partly", "p": {"c": "?"}},
]  # fmt: skip
COLUMNS = (
    column("a", "int"),
    column("b", "string"),
    column("c", "double", **{"from": "value.p.c"}),
    column("at", "bigint", **{"from": "offset"}),
)


def counts(platform: Platform, stream: str, records: int, source: str = "shop.clicks") -> tuple[int, int, int]:
    """Empty, bad and partly bad, once so many records were counted; never more."""

    def look() -> Any:
        found = platform.store.record_counts().get(stream, {}).get(source)
        return found if found and found.records >= records else None

    found = platform.until(look, f"{records} records of {stream}", 120, lambda: platform.store.actual(stream))
    assert found.records == records
    return found.empty, found.bad, found.partly_bad


def test_json_that_does_not_fit_is_null_skipped_or_the_end(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    name = topic(1)
    produce(name, JSON)

    def deploy(stream: str, sql: str = "select * from shop.clicks", **config: Any) -> str:
        spec = compiled(table(f"{{topic: {name}}}", *COLUMNS), tmp_path, name=f"{schema}.{stream}", sql=sql, **config)
        platform.deploy(spec)
        return spec.name

    as_null, skipped, failed = deploy("n"), deploy("s", on_bad_record="skip"), deploy("f", on_bad_record="fail")
    pruned = deploy("p", "select b from shop.clicks")
    assert counts(platform, as_null, len(JSON)) == (5, 6, 3)
    assert counts(platform, skipped, len(JSON)) == (5, 6, 3)
    assert counts(platform, pruned, len(JSON)) == (5, 6, 0)  # `b` fits wherever it is
    assert platform.sql(f"select a, b, c, at from {as_null} order by at") == [
        (1, "good", None, 0), (None, "no a, and no fault", None, 1),
        (None, "partly", None, 13), (2, "partly", None, 14), (3, "partly", None, 15),
    ]  # fmt: skip
    assert platform.sql(f"select a, b from {skipped} order by at") == [(1, "good"), (None, "no a, and no fault")]
    assert len(platform.sql(f"select b from {pruned}")) == 5
    end = platform.state(failed, StreamState.FAILED, StreamState.QUARANTINED)
    assert end.error_code == BAD_RECORD.code
    assert f"topic '{name}', partition 0, offset 7: the value is no readable JSON" in end.error
    produce(name, [{"a": 4, "b": "later"}])  # one poison message stops nobody else
    assert counts(platform, as_null, len(JSON) + 1) == (5, 6, 3)
    assert counts(platform, skipped, len(JSON) + 1) == (5, 6, 3)


def test_text_lines_keys_and_headers_that_do_not_fit(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    lines, numbers, keyed = topic(1, name="csv"), topic(1, name="text"), topic(1, name="keyed")
    produce(lines, ["1,x,2026-01-02", "?,x,soon", "1,x", "1,x,2026-01-02,more", "", None, ",,", "?"])
    produce(numbers, ["1", "?", "", None])
    produce(keyed, [("5", "x"), ("?", "y"), (None, "z"), ("6", None)], headers={"n": "7"})
    produce(keyed, [("8", "h")], headers={"n": "seven"})

    def deploy(stream: str, settings: str, *columns: str, **config: Any) -> str:
        spec = compiled(table(settings, *columns), tmp_path, name=f"{schema}.{stream}", **config)
        platform.deploy(spec)
        return spec.name

    of_lines = (column("n", "int"), column("t", "string"), column("d", "date"))
    of_keys = (
        column("k", "int", **{"from": "key"}),
        column("v", "string", **{"from": "value"}),
        column("n", "int", **{"from": "header(n)"}),
    )
    csv, text = f"{{topic: {lines}, value: {{format: csv}}}}", f"{{topic: {numbers}, value: {{format: string}}}}"
    key = f"{{topic: {keyed}, value: {{format: string}}, on_bad_record: skip}}"
    as_null, skipped = deploy("csv", csv, *of_lines), deploy("csv_skip", csv, *of_lines, on_bad_record="skip")
    number, keys = deploy("number", text, column("n", "int")), deploy("keyed", key, *of_keys)
    failed = deploy("csv_fail", csv, *of_lines, on_bad_record="fail")
    assert counts(platform, as_null, 8) == (3, 1, 3)
    assert counts(platform, skipped, 8) == (3, 1, 3)
    assert counts(platform, number, 4) == (2, 1, 0)
    assert counts(platform, keys, 5) == (1, 0, 2)
    assert [row[:2] for row in platform.sql(f"select n, t from {as_null} order by n, t")] == [
        (None, "x"), (1, "x"), (1, "x"), (1, "x"),
    ]  # fmt: skip
    assert platform.sql(f"select n from {skipped}") == [(1,)]
    assert platform.sql(f"select n from {number}") == [(1,)]
    assert sorted(platform.sql(f"select k, v, n from {keys}"), key=str) == [(5, "x", 7), (None, "z", 7)]
    end = platform.state(failed, StreamState.FAILED, StreamState.QUARANTINED)
    assert f"topic '{lines}', partition 0, offset 1, column 'n': the message does not fit the type of n, d" in end.error


def test_records_are_counted_once_however_often_a_query_reads_them(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    name = topic(2)
    produce(name, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], partition=0)
    produce(name, [{"a": "?", "b": "x"}, "{broken", None], partition=1)
    settings = f"{{topic: {name}, watermark: {{column: ts, delay: 1 minute}}}}"
    text = table(settings, *COLUMNS, column("ts", "timestamp", **{"from": "timestamp"}))
    queries = {
        "union_twice": "select a, b from shop.clicks union all select a, upper(b) as b from shop.clicks",
        "joined": (
            "select l.a, r.b from shop.clicks l join shop.clicks r on l.a = r.a and l.b = r.b "
            "and r.ts between l.ts - interval 1 minute and l.ts + interval 1 minute"
        ),
        "grouped": "select b, count(*) as n, max(a) as most from shop.clicks group by b",
        "limited": "select a, b from shop.clicks",
    }
    streams = []
    for each, sql in queries.items():
        small = {"small_batch_rows": 1} if each == "limited" else {}
        spec = compiled(text, tmp_path, name=f"{schema}.{each}", sql=sql, **small)
        platform.deploy(spec)
        streams.append(spec.name)
    for stream in streams:
        assert counts(platform, stream, 5) == (1, 1, 1), stream
    produce(name, [{"a": "?", "b": "z"}, {"a": 5, "b": "z"}], partition=0)
    for stream in streams:
        assert counts(platform, stream, 7) == (1, 1, 2), stream
    assert sorted(platform.sql(f"select b, n from {schema}.grouped")) == [("x", 2), ("y", 1), ("z", 2)]


AVRO = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}"""
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string note = 2; }'


@pytest.mark.parametrize("kind", ["Avro", "Protobuf"])
def test_messages_with_a_schema_that_do_not_fit_are_skipped_kept_or_the_end(
    kind: str,
    platform: Platform,
    streams: Streams,
    client: SchemaRegistryClient,
    topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    name, shop = topic(1), f"{streams.schema}_raw"
    if kind == "Avro":
        written = avro_serializer(client, name, AVRO)({"id": 1, "note": "x"})
    else:
        order = messages_of(PROTO, tmp_path / "producer", f"order_{name[-6:]}")("shop.Order")
        written = protobuf_serializer(client, name, order)(order(id=1, note="x"))
    # Good, partly bad by its key, bad twice, empty twice.
    produce(name, [("1", written), ("?", written), ("2", b"no frame"), ("3", written[:7]), ("4", None), ("5", b"")])
    text = source(
        name, f"{{format: {kind.lower()}}}", "{name: k, data_type: int, config: {meta: {stream: {from: key}}}}"
    )
    text = text.replace("name: shop", f"name: {shop}")

    def deploy(choice: str) -> str:
        return streams.deploy(text, f"select * from {shop}.events", f"of_{choice}", on_bad_record=choice)

    failed, skipped, quarantined = deploy("fail"), deploy("skip"), deploy("quarantine")
    kept = f"{shop}.events__quarantine"
    try:
        for stream in (skipped, quarantined):
            assert counts(platform, stream, 6, f"{shop}.events") == (2, 2, 1)
            assert streams.rows(stream, 1) == [(1, 1, "x")]
        fit, unreadable = "the message does not fit the type of k", f"the value is no readable {kind}"
        assert streams.rows(kept, 3, "select offset, error, column_at_fault, value from {}") == [
            (1, fit, "k", bytearray(written)),
            (2, unreadable, None, bytearray(b"no frame")),
            (3, unreadable, None, bytearray(written[:7])),
        ]
        end = platform.state(failed, StreamState.FAILED, StreamState.QUARANTINED)
        assert end.error_code == BAD_RECORD.code
        assert f"topic '{name}', partition 0, offset 1, column 'k': {fit}" in end.error
        produce(name, [("6", written)])  # one poison message stops nobody else
        for stream in (skipped, quarantined):
            assert counts(platform, stream, 7, f"{shop}.events") == (2, 2, 1)
    finally:
        drop_stream(platform.store, kept)
