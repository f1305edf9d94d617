"""Columns of a source: all types, all origins, formats of key and value, and computed columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_files import FILE, column, read_all, table

from penstock.errors import PenstockError
from penstock.project.source import StreamSource


def read(text: str, tmp_path: Path) -> StreamSource:
    return read_all(text, tmp_path)[0]


def refused(text: str, tmp_path: Path) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        read_all(text, tmp_path)
    return caught.value


@pytest.mark.parametrize(
    ("written", "ddl"),
    [
        ("boolean", "BOOLEAN"),
        ("tinyint", "TINYINT"),
        ("smallint", "SMALLINT"),
        ("int", "INT"),
        ("bigint", "BIGINT"),
        ("float", "FLOAT"),
        ("double", "DOUBLE"),
        ("decimal(38, 18)", "DECIMAL(38,18)"),
        ("string", "STRING"),
        ("binary", "BINARY"),
        ("date", "DATE"),
        ("timestamp", "TIMESTAMP"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("array<array<int>>", "ARRAY<ARRAY<INT>>"),
        ("map<string, array<date>>", "MAP<STRING, ARRAY<DATE>>"),
        (
            "struct<a: int, b: array<struct<c: decimal(9,2), d: map<string, timestamp_ntz>>>>",
            "STRUCT<`a`: INT, `b`: ARRAY<STRUCT<`c`: DECIMAL(9,2), `d`: MAP<STRING, TIMESTAMP_NTZ>>>>",
        ),
    ],
)
def test_every_type_is_a_field_of_json(written: str, ddl: str, tmp_path: Path) -> None:
    assert read(table("{topic: t}", column("a", written)), tmp_path).columns[0].type.ddl == ddl


def test_key_and_value_have_formats_of_their_own(tmp_path: Path) -> None:
    source = read(
        table(
            "{topic: t, key: {format: json}, value: {format: csv, delimiter: ';'}}",
            column("id", "bigint", **{"from": "key.user.id"}),
            column("a", "int"),
            column("whole", "string", **{"from": "value"}),
        ),
        tmp_path,
    )
    assert (source.key.format, source.value.format) == ("json", "csv")
    assert source.value.options() == (("delimiter", ";"),)
    assert [each.origin for each in source.columns] == ["key.user.id", "value.a", "value"]


def test_a_computed_column_may_use_another_one_and_carry_the_watermark(tmp_path: Path) -> None:
    source = read(
        table(
            "{topic: t, watermark: {column: AT, delay: 1 hour}}",
            column("at", "timestamp", expr="timestamp_millis(ms + shift)"),
            column("ms", "bigint"),
            column("shift", "bigint", expr="transform(steps, x -> x * 2)[0]"),
            column("steps", "array<int>"),
        ),
        tmp_path,
    )
    assert [(each.name, each.origin) for each in source.columns][::2] == [("at", "computed"), ("shift", "computed")]
    assert source.watermark is not None
    assert source.watermark.column == "at"


CSV = "{topic: t, value: {format: csv}}"
# settings, columns, code, line, part of the message
MISTAKES = [
    pytest.param("{topic: t}", [column("a", "int", **{"from": "key.id"})], "1207", 7, "has no fields", id="key path"),
    pytest.param("{topic: t, value: {format: string}}", [column("a", "int", **{"from": "value.a"})], "1207", 7,
                 "format string has no fields", id="path in text"),
    pytest.param(CSV, [column("a", "int", **{"from": "value.a.b"})], "1207", 7, "Use 'value.a'", id="deep path in csv"),
    pytest.param(CSV, [column("a", "array<int>")], "1208", 7, "use string", id="array in csv"),
    pytest.param("{topic: t, value: {format: raw}}", [column("a", "int")], "1208", 7, "binary", id="number from bytes"),
    pytest.param("{topic: t}", [column("a", "map<string, int>", **{"from": "header(x)"})], "1208", 7, "simple type",
                 id="map from a header"),
    pytest.param("{topic: t}", [column("a", "int", **{"from": "header( )"})], "1212", 7, "without a name",
                 id="header without a name"),
    pytest.param("{topic: t}", [column("a", "int"), column("b", "int", **{"from": "value.a.b"})], "1213", 8,
                 "two ways", id="part of another field"),
    pytest.param("{topic: t}", [column("a", "int", expr="b +"), column("b", "int")], "1214", 7, "near '+'",
                 id="half an expression"),
    pytest.param("{topic: t}", [column("a", "int", expr="b as c"), column("b", "int")], "1214", 7, "not one expression",
                 id="an alias"),
    pytest.param("{topic: t}", [column("a", "int", expr="pricee * 2"), column("price", "int")], "1215", 7,
                 "Did you mean 'price'?", id="unknown column"),
    pytest.param("{topic: t}", [column("x", "int"), column("a", "int", expr="b"), column("b", "int", expr="A + x")],
                 "1216", 8, "a -> b -> a", id="circle"),
    pytest.param("{topic: t}", [column("a", "int", expr="a + 1")], "1216", 7, "a -> a", id="itself"),
    pytest.param("{topic: t}", [column("a", "int", expr="sum(b)"), column("b", "int")], "1217", 7, "an aggregate",
                 id="aggregate"),
    pytest.param("{topic: t}", [column("a", "int", expr="(select max(x) from t)")], "1217", 7, "a subquery",
                 id="subquery"),
    pytest.param("{topic: t}", [column("a", "int", expr="row_number() over (order by b)"), column("b", "int")], "1217",
                 7, "a window function", id="window function"),
    pytest.param("{topic: t}", [column("a", "int", expr="explode(b)"), column("b", "array<int>")], "1217", 7,
                 "a generator", id="generator"),
    pytest.param("{topic: t}", [column("a", "int", expr="1", **{"from": "key"})], "1202", 7, "both", id="both"),
    pytest.param("{topic: t}", [column("a", "int", exp="1")], "1201", 7, "Did you mean 'expr'?", id="misspelt expr"),
    pytest.param("{topic: t, watermark: {column: a, delay: 1 hour}}", [column("a", "int", expr="1")], "1209", 5,
                 "not a timestamp", id="watermark on a computed number"),
    pytest.param("{topic: t, value: {format: csv, delimeter: ';'}}", [column("a", "int")], "1201", 5,
                 "Did you mean 'delimiter'?", id="misspelt option of a format"),
    pytest.param("{topic: t, value: {format: csv, quote: '<<'}}", [column("a", "int")], "1202", 5, "'value.quote'",
                 id="a long quote"),
    pytest.param("{topic: t, key: {format: yaml}}", [column("a", "int")], "1203", 5, "'yaml'", id="unknown key format"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "columns", "code", "line", "said"), MISTAKES)
def test_a_mistake_has_its_code_and_line(
    settings: str, columns: list[str], code: str, line: int, said: str, tmp_path: Path
) -> None:
    problem = refused(table(settings, *columns), tmp_path)
    assert (problem.code, str(problem.at)) == (f"PEN-{code}", f"{FILE}:{line}")
    assert said in str(problem)
