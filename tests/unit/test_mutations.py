"""A query is broken in one place at a time, and each result is still a query."""

from __future__ import annotations

import sqlglot
from mutations import mutations

SQL = """\
select lower(a.name) as name, count(*) as n, sum(a.x + 1) as total
from shop.a as a inner join shop.b as b on a.id = b.id and a.at <= b.at + interval 10 minutes
where a.kind in ('x', 'y') and a.name is not null
group by a.name, window(a.at, '1 minute')
"""


def test_each_operator_is_broken_once_and_the_rest_stays() -> None:
    found = mutations(SQL)
    original = sqlglot.parse_one(SQL, dialect="spark").sql(dialect="spark")
    assert {each.operator for each in found} == {
        "comparison", "arithmetic", "negation", "filter dropped", "function dropped", "aggregate", "join type",
        "interval", "window size", "constant", "list",
    }  # fmt: skip
    assert len({each.sql for each in found}) == len(found)
    for each in found:
        assert each.sql != original
        sqlglot.parse_one(each.sql, dialect="spark")
    changed = {each.name for each in found}
    assert "comparison: a.id = b.id -> a.id <> b.id" in changed
    assert "window size: '1 minute' -> '2 minutes'" in changed
    assert "list: a.kind IN ('x', 'y') -> a.kind IN ('y')" in changed


def test_every_condition_that_has_to_hold_is_left_out_once() -> None:
    dropped = [each.what for each in mutations(SQL) if each.operator == "filter dropped"]
    assert [each.removesuffix(" -> TRUE") for each in dropped] == [
        "a.id = b.id", "a.at <= b.at + INTERVAL '10' MINUTES", "a.kind IN ('x', 'y')", "NOT a.name IS NULL",
    ]  # fmt: skip
