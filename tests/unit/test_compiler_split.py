"""A filter above an aggregate, cut into the aggregate and what is made of its rows."""

from __future__ import annotations

import pytest

from penstock.compiler.shape import Source, analyse
from penstock.compiler.split import KEPT, VIEW, UncutError, split
from penstock.compiler.statement import parse

STREAMS = {"s.clicks": Source(("k", "v", "ts"), "ts")}
FILTERED = f"select * except ({KEPT}) from {VIEW} where {KEPT}"


def cut(sql: str, unique_key: tuple[str, ...] | None = None) -> tuple[str, str]:
    statement = parse(sql, "m.sql", ())
    shape = analyse(statement, STREAMS, unique_key)
    assert shape.aggregate is not None
    found = split(sql, statement.tree, shape.aggregate)
    return found.aggregate, found.rest


@pytest.mark.parametrize(
    ("sql", "aggregate", "rest"),
    [
        pytest.param(
            "select k, count(*) as n\nfrom s.clicks\ngroup by k\nhaving count(*) > 3 -- often",
            f"select k, count(*) as n, (count(*) > 3) as {KEPT}\nfrom s.clicks\ngroup by k\n",
            FILTERED,
            id="HAVING",
        ),
        pytest.param(
            "with c as (select * from s.clicks where v > 0)\nselect k, count(*) n -- how often\nfrom c group by 1 "
            "having n > 3\n  and k <> ')'",
            "with c as (select * from s.clicks where v > 0)\n select k, count(*) n, "
            f"((count(*)) > 3 and k <> ')') as {KEPT} -- how often\nfrom c group by 1\n",
            FILTERED,
            id="HAVING over a CTE, two lines, an alias",
        ),
        pytest.param(
            "with c as (\n  select * from s.clicks\n),\ncounts as (\n  select k, count(*) as n\n  from c group by k\n)"
            "\nselect k as id, n from counts\nwhere n > 3",
            "with c as (\n  select * from s.clicks\n)\n\n \n  select k, count(*) as n\n  from c group by k\n",
            f"\n\n\nwith counts as (select * from {VIEW}\n\n\n)\n select k as id, n from counts\nwhere n > 3",
            id="a filter above a CTE",
        ),
        pytest.param(
            "select * from (select k, sum(v) n from s.clicks group by k having sum(v) > 1) where n < 9",
            f" select k, sum(v) n, (sum(v) > 1) as {KEPT} from s.clicks group by k",
            f"select * from ({FILTERED}) where n < 9",
            id="a subquery without a name, HAVING and WHERE",
        ),
        pytest.param(
            "with good as (select k from s.items), c as (select k, count(*) n from s.clicks group by k) "
            "select c.* from c left semi join good on good.k = c.k",
            " select k, count(*) n from s.clicks group by k",
            f"with good as (select k from s.items), c as (select * from {VIEW}) "
            "select c.* from c left semi join good on good.k = c.k",
            id="a CTE over a table stays",
        ),
        pytest.param(
            "with c(a, n) (select k, count(*) as n from s.clicks group by k) select a, n from c where n > 3",
            " select k, count(*) as n from s.clicks group by k",
            f"with c(a, n) (select * from {VIEW}) select a, n from c where n > 3",
            id="a CTE without AS",
        ),
        pytest.param(
            "select i.k, count(*) as n from s.clicks join (from s.items |> where k > 'a') i using (k)\ngroup by i.k "
            "having count(*) > 3",
            f"select i.k, count(*) as n, (count(*) > 3) as {KEPT} from s.clicks join (from s.items |> where k > 'a') i "
            "using (k)\ngroup by i.k",
            FILTERED,
            id="pipes beside the aggregate",
        ),
        pytest.param(
            "with c as (select k, count(*) as n from s.clicks group by k) select * from (from c |> where n > 3)",
            " select k, count(*) as n from s.clicks group by k",
            f"with c as (select * from {VIEW}) select * from (from c |> where n > 3)",
            id="pipes in brackets above the aggregate",
        ),
    ],
)
def test_the_text_is_cut_at_the_aggregate_and_keeps_its_lines(sql: str, aggregate: str, rest: str) -> None:
    found = cut(sql)
    assert found[0].split() == aggregate.split()
    assert found[1].split() == rest.split()
    assert found[0].rstrip().count("\n") <= sql.count("\n")
    for part in (part for part in found if VIEW not in part or "group by" in part):
        line = next(number for number, text in enumerate(sql.split("\n")) if "group by" in text)
        assert "group by" in part.split("\n")[line]


@pytest.mark.parametrize(
    ("columns", "condition", "flag"),
    [
        pytest.param("k, sum(v) as v", "v > 9", "(sum(v)) > 9", id="the alias shadows a column of the input"),
        pytest.param("k, sum(v) as `V`", "v > 9", "(sum(v)) > 9", id="quotes and case"),
        pytest.param("k, max(ts) as d, sum(v) -- all\n  as v", "v > 9", "(sum(v)) > 9", id="over two lines"),
        pytest.param("/*+ hint(c) */ sum(v) as v, k", "v > 9", "(sum(v)) > 9", id="the first column, after a hint"),
        pytest.param("k, sum(v) as v", "max(v) > 9", "max(v) > 9", id="in an aggregate it is the column"),
        pytest.param("k, sum(v) as v", "exists(a, v -> v > 9)", "exists(a, v -> v > 9)", id="a variable"),
        pytest.param("k, sum(v) as v", "k in (select v from s.t)", "k in (select v from s.t)", id="another query's"),
        pytest.param("max(ts) as k, k as id", "k <> 'a'", "k <> 'a'", id="the column is grouped by"),
        pytest.param("max(ts) as k, k as id", "clicks.k <> 'a'", "clicks.k <> 'a'", id="a column of a table"),
        pytest.param("k, named_struct('z', v) as a", "a.z > 9", "(named_struct('z', v)).z > 9", id="a field"),
    ],
)
def test_an_alias_in_having_is_written_out_where_the_result_would_take_it_for_a_column(
    columns: str, condition: str, flag: str
) -> None:
    found = cut(f"select {columns}, count(*) as n from s.clicks group by k having {condition}")
    assert found[0].rstrip() == f"select {columns}, count(*) as n, ({flag}) as {KEPT} from s.clicks group by k"


@pytest.mark.parametrize("group", ["group by 1", "group by upper(k)", "group by all"])
def test_an_alias_of_what_is_grouped_is_written_out_as_well(group: str) -> None:
    found = cut(f"select upper(k) as k, count(*) n from s.clicks {group} having k = 'A'")
    assert f"((upper(k)) = 'A') as {KEPT}" in found[0]


def test_having_over_all_groups_takes_the_columns_that_are_grouped_by() -> None:
    found = cut("select v as k, k as v, count(*) as n from s.clicks group by all having v > 1 and n > 3")
    assert f"(v > 1 and (count(*)) > 3) as {KEPT}" in found[0]


def test_a_comparison_with_from_is_not_taken_for_the_clause() -> None:
    found = cut("select k, v is distinct from 3 as d, count(*) n from s.clicks group by 1, 2 having count(*) > 3")
    assert found[0].rstrip() == (
        f"select k, v is distinct from 3 as d, count(*) n, (count(*) > 3) as {KEPT} from s.clicks group by 1, 2"
    )


COUNTS = "select k, count(*) as n from s.clicks group by k"


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        (f"select * from (with c as (select 1) {COUNTS}) where n > 3", "in a WITH of its own"),
        (f"({COUNTS} having n > 3)", "in brackets around the whole query"),
        (f"with c as (select 1) ({COUNTS} having n > 3)", "in brackets around the whole query"),
        ("from s.clicks select k, count(*) n group by k having n > 3", "does not begin with SELECT"),
        (f"with c as ({COUNTS}) from c select k, n where n > 3", "does not begin with SELECT"),
        ("from s.clicks |> aggregate count(*) as n group by k |> where n > 3", "in a query with pipes"),
        ("select k, v from s.clicks |> aggregate sum(v) as n group by k |> where n > 3", "in a query with pipes"),
        (f"with c as ({COUNTS}) select * from c |> where n > 3", "in a query with pipes"),
        (f"select * from ({COUNTS} |> where n > 3) where n > 1", "in a query with pipes"),
        ("select n from (select count(*) from (select * from s.clicks)) t(n) where n > 3", "cannot be told from"),
    ],
)
def test_what_cannot_be_cut_says_why(sql: str, what: str) -> None:
    with pytest.raises(UncutError, match=what):
        cut(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select k, count(*) n from s.clicks group by k",
        "with c as (select k, count(*) n from s.clicks group by k) select k, n + 1 as n from c",
        "select * from (select distinct k from s.clicks) where k <> ''",
    ],
)
def test_a_query_without_a_filter_above_its_aggregate_needs_no_cut(sql: str) -> None:
    assert analyse(parse(sql, "m.sql", ()), STREAMS).changed is None
