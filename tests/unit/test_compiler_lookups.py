"""Tables are brought to the rows of a stream by a hint; every other sign of the SQL stays."""

from __future__ import annotations

import re

import pytest

from penstock.compiler.lookups import broadcast


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
        pytest.param("select c.k, d.k from clicks c join clicks d using (k)", id="streams alone"),
    ],
)
def test_each_select_that_joins_a_stream_to_tables_has_its_hint(expected: str) -> None:
    assert broadcast(re.sub(r" /\*\+.*?\*/", "", expected), ["clicks"]) == expected
