"""Spark's types and lengths of time, read without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.project.durations import interval, milliseconds
from penstock.project.sparktypes import TypeSyntaxError, parse_type

SIMPLE = st.sampled_from(["string", "INT", "bigint", "timestamp", "decimal(10, 2)", "varchar(5)", "binary"])
NAMES = st.text("abcXYZ_09", min_size=1, max_size=5)
TYPES = st.recursive(
    SIMPLE,
    lambda below: (
        st.builds("array<{}>".format, below)
        | st.builds("map<{}, {}>".format, SIMPLE, below)
        | st.builds(
            lambda fields: f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields)}>",
            st.lists(st.tuples(NAMES, below), min_size=1, max_size=3, unique_by=lambda field: field[0].lower()),
        )
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("string", "STRING"),
        (" Integer ", "INT"),
        ("long", "BIGINT"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("decimal", "DECIMAL(10,0)"),
        ("decimal(12)", "DECIMAL(12,0)"),
        ("DECIMAL( 38 , 18 )", "DECIMAL(38,18)"),
        ("varchar(20)", "STRING"),
        ("array<int>", "ARRAY<INT>"),
        ("map<string,array<double>>", "MAP<STRING, ARRAY<DOUBLE>>"),
        ("struct<a:int,b string,`odd ``name`: date>", "STRUCT<`a`: INT, `b`: STRING, `odd ``name`: DATE>"),
        ("struct<>", "STRUCT<>"),
    ],
)
def test_a_type_is_read(text: str, ddl: str) -> None:
    assert parse_type(text).ddl == ddl


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("strin", "'strin' is no type"),
        ("interval", "'interval' is no type"),
        ("varchar", "'(' is missing"),
        ("decimal(39, 2)", "from 1 to 38"),
        ("decimal(3, 4)", "from 0 to 3"),
        ("array<int", "'>' is missing"),
        ("array<>", "a type was expected"),
        ("map<int>", "',' was expected"),
        ("struct<a:int, A:string>", "there twice"),
        ("int int", "'int' was not expected"),
        ("int;", "cannot be read"),
        ("", "a type is missing"),
    ],
)
def test_what_is_no_type_says_why(text: str, reason: str) -> None:
    with pytest.raises(TypeSyntaxError) as caught:
        parse_type(text)
    assert reason in caught.value.reason


@given(TYPES)
def test_the_ddl_of_a_type_is_the_same_type(text: str) -> None:
    once = parse_type(text)
    assert parse_type(once.ddl) == once


@given(st.text(max_size=20))
def test_any_text_is_a_type_or_a_reason(text: str) -> None:
    try:
        found = parse_type(text).ddl
    except TypeSyntaxError as problem:
        found = problem.reason
    assert found


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (250, 250), ("500 ms", 500), ("1 second", 1000), ("2 minutes", 120_000), ("1.5 s", 1500), ("1h", 3_600_000),
        ("2 Days", 172_800_000), ("soon", None), ("1 fortnight", None), ("", None), (True, None), (-1, None),
        (None, None), ("0.1 ms", None), ("-1 second", None),
    ],
)  # fmt: skip
def test_a_length_of_time(value: object, length: int | None) -> None:
    assert milliseconds(value) == length


@given(st.integers(0, 10**10))
def test_sparks_interval_is_the_same_length(length: int) -> None:
    assert milliseconds(interval(length)) == length
