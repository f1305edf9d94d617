"""Tables are brought to the rows of a stream by a hint; every other sign of the SQL stays."""

from __future__ import annotations

import re

import pytest

from penstock.compiler.lookups import broadcast, refuse_joined_tables
from penstock.compiler.statement import parse
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_SETTING


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param("select /*+ BROADCAST(i) */ c.k, i.name from clicks c join shop.items i on i.id = c.k", id="join"),
        pytest.param("select /*+ BROADCAST(items) */ * from shop.items join clicks using (k)", id="the table first"),
        pytest.param("select /*+ BROADCAST(`n-x`) */ * from clicks cross join shop.`n-x`", id="backquoted"),
        pytest.param("select /*+ BROADCAST(i) */ 1 from Clicks c, shop.i where c.k = i.k", id="comma"),
        pytest.param(
            "with p as (select k from shop.price), s as (select * from clicks)\n"
            "select /*+ BROADCAST(p, o) */ distinct (select max(x) from shop.m) as m, s.k\n"
            "from s left join p on p.k = s.k join shop.o o on o.k = s.k",
            id="CTEs",
        ),
        pytest.param(
            "select /*+ BROADCAST(y) */ a from (select /*+ BROADCAST(i) */ c.* from clicks c, shop.i i) x "
            "join (select b from shop.t) y on x.a = y.b",
            id="subqueries",
        ),
        pytest.param("select /*+ BROADCAST(a) */ k from (clicks c join shop.a a using (k))", id="in brackets"),
        pytest.param(
            "select /*+ BROADCAST(a) */ k from clicks join shop.a using (k) union all select k from clicks", id="union"
        ),
        pytest.param(
            "select /*+ BROADCAST(i) */ window(c.ts, '1 minute') w, concat('select', x) from clicks c "
            "lateral view explode(c.xs) t as x join shop.i i on i.id = x",
            id="texts and functions",
        ),
        pytest.param("select k from clicks where k in (select k from shop.a join shop.b using (k))", id="tables alone"),
        pytest.param(
            "select /*+ BROADCAST(looked_up_1) */ c.k from clicks c join (select max(x) as x, k from shop.items "
            "where x > (select 1)) looked_up_1 using (k)",
            id="a subquery without a name",
        ),
        pytest.param(
            "select /*+ BROADCAST(looked_up_2, looked_up_3) */ k as looked_up_1 from (select k from clicks where k in "
            "(1, (2)))\njoin (with a as (select * from shop.a) select k from a) looked_up_2 using (k)\n"
            "join ((select k from shop.b) looked_up_3) using (k)",
            id="subqueries without names alone",
        ),
        pytest.param(
            "select /*+ BROADCAST(a, b) */ k from ((clicks c join shop.a a using (k)) join shop.b b using (k))",
            id="within brackets",
        ),
        pytest.param("select c.k, d.k from clicks c join clicks d using (k)", id="streams alone"),
        pytest.param(
            "select /*+ BROADCAST(a) */ k from clicks c join shop.a a using (k) join (values (1, 'x')) on col1 = k",
            id="values without a name",
        ),
    ],
)
def test_each_select_that_joins_a_stream_to_tables_has_its_hint(expected: str) -> None:
    plain = re.sub(r" /\*\+.*?\*/|(?<=\)) looked_up_\d", "", expected)
    assert broadcast(plain, ["clicks"]) == expected


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("select 1 from clicks c\njoin (shop.a a join shop.b b on a.k = b.k) on c.k = a.k", 2),
        ("select 1 from clicks c\njoin shop.a a join shop.b b on a.k = b.k on c.k = a.k", 2),
        ("select 1 from shop.a a join shop.b b using (k)\njoin clicks using (k)", 2),
        ("select 1 from (select * from ((shop.a a join shop.b b using (k))\njoin clicks using (k)))", 2),
        ("select 1 from clicks c join shop.a using (k) join (shop.b b join shop.d d using (k)) using (k)", 1),
    ],
)
def test_a_join_of_tables_alone_cannot_be_brought_to_the_rows_of_a_stream(sql: str, line: int) -> None:
    with pytest.raises(PenstockError, match=rf"models/m\.sql:{line}: .* a join of tables alone") as caught:
        refuse_joined_tables(parse(sql, "models/m.sql", (1, 2)), ["clicks"])
    assert caught.value.kind is MODEL_SETTING


@pytest.mark.parametrize(
    "sql",
    [
        "select 1 from (clicks c join shop.a using (k)) join shop.b using (k)",
        "select 1 from shop.a join (clicks c join shop.b using (k)) using (k)",
        "select 1 from clicks join (select k from shop.a join shop.b using (k)) using (k) join (shop.d) using (k)",
        "with t as (select k from shop.a join shop.b using (k)) select 1 from t join clicks using (k)",
        "select 1 from clicks where k in (select k from shop.a join shop.b using (k)) and exists (select 1)",
    ],
)
def test_tables_that_are_joined_one_after_the_other_can(sql: str) -> None:
    refuse_joined_tables(parse(sql, "models/m.sql", (1, 2)), ["clicks"])
