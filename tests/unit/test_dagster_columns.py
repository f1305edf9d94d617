"""Where columns come from."""

from __future__ import annotations

import pytest

from penstock.dagster.columns import column_lineage

INPUTS = {"shop.clicks": ["user_id", "item_id", "page"], "shop.products": ["item_id", "price"]}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select user_id from shop.clicks", {"user_id": [("shop.clicks", "user_id")]}),
        ("select upper(page) as p from `shop`.`clicks` c", {"p": [("shop.clicks", "page")]}),
        (
            "with c as (select * from shop.clicks) "  # noqa: ISC004 -- one statement
            "select c.item_id, b.price * 2 as twice from c join shop.products b on c.item_id = b.item_id",
            {"item_id": [("shop.clicks", "item_id")], "twice": [("shop.products", "price")]},
        ),
        (
            "select item_id, count(*) as n from shop.clicks group by item_id",
            {"item_id": [("shop.clicks", "item_id")], "n": []},
        ),
        (
            "select item_id from shop.clicks union all select item_id from shop.products",
            {"item_id": [("shop.clicks", "item_id"), ("shop.products", "item_id")]},
        ),
    ],
)  # fmt: skip
def test_columns_of_a_query_have_their_origins(sql: str, expected: dict[str, list[tuple[str, str]]]) -> None:
    assert column_lineage(sql, INPUTS) == expected


def test_a_query_that_cannot_be_followed_has_no_lineage() -> None:
    assert column_lineage("select from from where", INPUTS) == {}
