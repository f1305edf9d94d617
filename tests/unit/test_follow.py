"""Queries that are followed: how they are compiled, and how rows are shown."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from source_files import column, entries, table

from penstock.cli import follow, query
from penstock.cli.output import Ui
from penstock.compiler import render_job
from penstock.compiler.follow import compile_follow, sources_read, tables_read, without_limit
from penstock.compiler.spec import KafkaInput, OutputMode, TableStreamInput
from penstock.errors import PenstockError


def model(name: str, sql: str, *upstream: str) -> dict[str, Any]:
    return {
        "unique_id": f"model.shop.{name}", "resource_type": "model", "name": name, "alias": name, "schema": "shop",
        "original_file_path": f"models/{name}.sql", "raw_code": sql, "compiled_code": sql,
        "config": {"materialized": "dynamic_table"}, "depends_on": {"nodes": list(upstream)},
    }  # fmt: skip


@pytest.fixture
def manifest(tmp_path: Path) -> dict[str, Any]:
    source = entries(table("{topic: clicks, start: earliest}", column("item", "string")), tmp_path)[0]
    models = [
        model("clean", "select item from shop.clicks", source["unique_id"]),
        model("views", "select item, count(*) as views from shop.clicks group by item", source["unique_id"]),
    ]
    return {"sources": {source["unique_id"]: source}, "nodes": {each["unique_id"]: each for each in models}}


def compiled(manifest: dict[str, Any], sql: str, project: Path, *, from_beginning: bool = False) -> Any:
    return compile_follow(manifest, sql, schema="shop", project_dir=project, from_beginning=from_beginning)


def test_a_source_is_followed_from_now_on_as_its_view_shows_it(manifest: dict[str, Any], tmp_path: Path) -> None:
    found = compiled(manifest, "select item, _offset from clicks where item > 'a' limit 3;", tmp_path)
    source = found.spec.inputs[0]
    assert isinstance(source, KafkaInput)
    assert (found.limit, source.starting, source.null_rows) == (3, "latest", True)
    assert [each.name for each in source.columns] == ["item", "_partition", "_offset", "_timestamp"]
    assert found.spec.sql == "select item, _offset from shop__clicks as clicks where item > 'a'"
    assert "is not null" not in render_job(found.spec)


def test_from_the_beginning_means_all_that_is_there(manifest: dict[str, Any], tmp_path: Path) -> None:
    assert (
        compiled(manifest, "select * from clicks", tmp_path, from_beginning=True).spec.inputs[0].starting == "earliest"
    )


def test_an_aggregate_replaces_its_rows(manifest: dict[str, Any], tmp_path: Path) -> None:
    spec = compiled(manifest, "select item, count(*) as n from shop.clicks group by item", tmp_path).spec
    assert (spec.output.mode, spec.output.keys) == (OutputMode.UPSERT, ("item",))


def test_an_append_only_table_is_followed_from_its_latest_version(manifest: dict[str, Any], tmp_path: Path) -> None:
    spec = compiled(manifest, "with c as (select * from clean) select * from c", tmp_path).spec
    assert isinstance(spec.inputs[0], TableStreamInput)
    assert '.option("startingVersion", "latest")' in render_job(spec)
    spec = compiled(manifest, "select * from clean", tmp_path, from_beginning=True).spec
    assert "startingVersion" not in render_job(spec)


def test_a_table_that_replaces_its_rows_is_no_stream(manifest: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        compiled(manifest, "select * from views", tmp_path)
    assert caught.value.kind in follow._NO_STREAM
    assert sources_read(manifest, "select * from views", schema="shop") == []
    assert tables_read("select * from views join other.t using (item)", schema="shop") == ["other.t", "shop.views"]


def test_what_no_stream_can_do_is_refused_as_for_a_model(manifest: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"PEN-13\d\d query"):
        compiled(manifest, "select item, row_number() over (order by item) from clicks", tmp_path)
    assert sources_read(manifest, "select * from clicks", schema="shop") == ["shop.clicks"]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select 1", ("select 1", None)),
        ("select a\nfrom t limit 5", ("select a\nfrom t", 5)),
        ("select a from (select a from t limit 5)", ("select a from (select a from t limit 5)", None)),
        ("select 'open", ("select 'open", None)),
    ],
)
def test_an_outermost_limit_is_taken_off(sql: str, found: tuple[str, int | None]) -> None:
    assert without_limit(sql) == found


# -- showing ----------------------------------------------------------------------------------------------------------
def printer(mode: str, limit: int | None = None) -> follow.Printer:
    return follow.Printer(Ui(mode=mode, out=Console(file=io.StringIO())), limit)


def shown(by: follow.Printer) -> str:
    return str(by.ui.out.file.getvalue())  # type: ignore[attr-defined]


def test_json_is_an_object_a_line() -> None:
    by = printer("json")
    assert by.show(["a", "b"], [(1, None), (2, dt.date(2026, 1, 2))])
    assert [json.loads(line) for line in shown(by).splitlines()] == [{"a": 1, "b": None}, {"a": 2, "b": "2026-01-02"}]


def test_a_table_and_a_csv_file_have_their_columns_once() -> None:
    for mode, text in (("text", "a    b\none  1\ntwo  2\n"), ("csv", "a,b\none,1\ntwo,2\n")):
        by = printer(mode)
        by.show(["a", "b"], [("one", 1)])
        by.show(["a", "b"], [("two", 2)])
        assert shown(by) == text


def test_a_limit_ends_within_a_batch() -> None:
    by = printer("csv", limit=3)
    assert by.show(["a"], [(1,), (2,)])
    assert not by.show(["a"], [(3,), (4,)])
    assert shown(by) == "a\n1\n2\n3\n"


def test_arrow_becomes_what_a_query_gives() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    kinds = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("m", pa.map_(pa.string(), pa.int32())), ("x", pa.list_(pa.int8()))]
    )
    rows = pa.table({"at": [moment], "m": [[("a", 1)]], "x": [[1, 2]]}, schema=kinds)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    columns, found = follow._rows(bytes(out.getvalue()))
    assert (columns, found) == (["at", "m", "x"], [(moment.astimezone().replace(tzinfo=None), {"a": 1}, [1, 2])])


def test_rows_that_were_not_there_before_are_new() -> None:
    before = Counter(map(repr, [("a", 1), ("a", 1), ("b", 1)]))
    assert follow._added([("a", 1), ("b", 2), ("a", 1), ("a", 1)], before) == [("b", 2), ("a", 1)]


def test_a_result_that_is_too_large_to_compare_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Connected:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(query, "connect", lambda _session: Connected())
    monkeypatch.setattr(query, "fetch", lambda *_: query.Result(("a",), ((1,),), more=True))
    session: Any = SimpleNamespace(ui=Ui(), paths=SimpleNamespace(warehouse=tmp_path))
    with pytest.raises(PenstockError, match="PEN-5009"):
        follow.repeat(session, "select 1 as a", ["shop.t"], printer("json"), from_beginning=False)
