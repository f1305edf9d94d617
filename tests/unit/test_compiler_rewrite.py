"""Streaming relations become views; every other sign of the SQL stays."""

from __future__ import annotations

import pytest

from penstock.compiler.statement import parse, rewrite, same_tokens

VIEWS = {"shop.clicks": "shop__clicks", "shop.orders": "shop__orders"}


def rewritten(sql: str) -> str:
    return rewrite(parse(sql, "models/m.sql", ()), VIEWS)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("select * from shop.clicks", "select * from shop__clicks as clicks", id="plain"),
        pytest.param("select * from `shop`.`clicks`", "select * from shop__clicks as clicks", id="backquoted"),
        pytest.param("select * from SHOP.Clicks", "select * from shop__clicks as Clicks", id="another case"),
        pytest.param(
            "select * from spark_catalog.shop.clicks c", "select * from shop__clicks c", id="with the catalog"
        ),
        pytest.param("select * from other.shop.clicks", "select * from other.shop.clicks", id="another catalog"),
        pytest.param("select * from shop.clicks as c", "select * from shop__clicks as c", id="aliased"),
        pytest.param("select * from shop.clicks c", "select * from shop__clicks c", id="aliased without as"),
        pytest.param(
            "select clicks.user_id from shop.clicks where clicks.x > 1",
            "select clicks.user_id from shop__clicks as clicks where clicks.x > 1",
            id="columns qualified by the table",
        ),
        pytest.param(
            "select shop.clicks.user_id from shop.clicks",
            "select clicks.user_id from shop__clicks as clicks",
            id="columns qualified by schema and table",
        ),
        pytest.param(
            "with clicks as (select * from shop.clicks) select * from clicks",
            "with clicks as (select * from shop__clicks as clicks) select * from clicks",
            id="a CTE of the same name",
        ),
        pytest.param(
            "select a.x, b.x from shop.clicks a join shop.clicks b on a.id = b.id",
            "select a.x, b.x from shop__clicks a join shop__clicks b on a.id = b.id",
            id="joined with itself",
        ),
        pytest.param(
            "select * from shop.clicks, shop.orders o, shop.items",
            "select * from shop__clicks as clicks, shop__orders o, shop.items",
            id="comma join",
        ),
        pytest.param(
            "select * from (shop.clicks join shop.items using (item_id))",
            "select * from (shop__clicks as clicks join shop.items using (item_id))",
            id="join in brackets",
        ),
        pytest.param(
            "select * from (select * from shop.clicks where false limit 0) _dbt_limit_subq_clicks",
            "select * from (select * from shop__clicks as clicks where false limit 0) _dbt_limit_subq_clicks",
            id="rendered with --empty",
        ),
        pytest.param(
            "select 'from shop.clicks' as a -- from shop.clicks\n/* shop.clicks */ from shop.clicks",
            "select 'from shop.clicks' as a -- from shop.clicks\n/* shop.clicks */ from shop__clicks as clicks",
            id="texts and comments are left alone",
        ),
        pytest.param(
            "select * from shop\n  .clicks\nwhere x",
            "select * from shop__clicks as clicks\n\nwhere x",
            id="a name over two lines keeps the number of lines",
        ),
        pytest.param(
            "select t.e from shop.clicks lateral view explode(xs) t as e",
            "select t.e from shop__clicks as clicks lateral view explode(xs) t as e",
            id="lateral view",
        ),
        pytest.param(
            "select window.start, count(*) from shop.clicks group by window(ts, '1 minute')",
            "select window.start, count(*) from shop__clicks as clicks group by window(ts, '1 minute')",
            id="the function window",
        ),
        pytest.param(
            "select x is distinct from y, extract(day from ts) from shop.clicks",
            "select x is distinct from y, extract(day from ts) from shop__clicks as clicks",
            id="from in expressions",
        ),
        pytest.param("select * from shop.clicks_clean", "select * from shop.clicks_clean", id="a longer name"),
        pytest.param(
            "select * from shop.clicks union all select * from shop.clicks",
            "select * from shop__clicks as clicks union all select * from shop__clicks as clicks",
            id="union",
        ),
    ],
)
def test_only_the_streaming_relation_is_replaced(sql: str, expected: str) -> None:
    assert rewritten(sql) == expected


def test_an_alias_that_is_no_plain_name_is_quoted() -> None:
    statement = parse("select * from shop.`my-clicks`", "models/m.sql", ())
    assert rewrite(statement, {"shop.my-clicks": "v"}) == "select * from v as `my-clicks`"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("select a from t", "select  a\nfrom t -- why", True),
        ("select a from t", "select /* x */ a from t", True),
        ("select a from t", "select b from t", False),
        ("select 'a' from t", "select 'a ' from t", False),
        ("select 'a' from t", "select a from t", False),
    ],
)
def test_white_space_and_comments_do_not_change_a_statement(one: str, other: str, same: bool) -> None:
    assert same_tokens(one, other) is same
