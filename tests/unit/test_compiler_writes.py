"""Which relations a statement would change, read from its SQL."""

from __future__ import annotations

import pytest

from penstock.compiler.writes import writes


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("insert into shop.users values (1)", "insert"),
        ("INSERT INTO shop.users (a, b) VALUES (1, 2)", "insert"),
        ("insert overwrite table shop.users select 1", "insert"),
        ("with a as (select 1) insert into shop.users select * from a", "insert"),
        ("from x insert into shop.users select *", "insert"),
        ("insert into spark_catalog.shop.users values (1)", "insert"),
        ("update shop.users set a = 1", "update"),
        ("delete from `shop`.`users` where id = 1", "delete"),
        ("merge into shop.users t using x s on t.a = s.a when matched then delete", "merge"),
        ("truncate table shop.users", "truncate"),
        ("create or replace table shop.users as select 1", "create"),
        ("create or replace view shop.users as select 1", "create"),
        ("create table shop.users (a int) using delta", "create"),
        ("drop view if exists shop.users", "drop"),
        ("drop table shop.users", "drop"),
        ("alter table shop.users add column x int", "alter"),
    ],
)
def test_a_statement_that_writes_names_what_it_writes(sql: str, word: str) -> None:
    assert writes(sql) == {"shop.users": word}


def test_a_name_without_a_schema_is_given_as_it_is() -> None:
    assert writes("insert into users values (1)") == {"users": "insert"}


@pytest.mark.parametrize(
    "sql",
    [
        "select * from shop.users",
        "select * from shop.users where what = 'insert into shop.users'",
        "explain insert into shop.users values (1)",
        "show create table shop.users",
        "describe shop.users",
        "create temporary view users as select 1",
        "create schema shop",
        "optimize shop.users",
        "insert into shop.users values ('not closed",
        "",
    ],
)
def test_a_statement_that_reads_or_cannot_be_read_writes_nothing(sql: str) -> None:
    assert writes(sql) == {}
