"""Sources against a real broker and real Spark: types, formats, computed columns, starts, partitions, patterns."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from source_files import column, compiled, table

if TYPE_CHECKING:
    from collections.abc import Callable

    Platform = Any

pytestmark = [pytest.mark.needs_engine, pytest.mark.timeout(600)]
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


def test_a_pattern_reads_all_its_topics_and_has_a_lag(
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
