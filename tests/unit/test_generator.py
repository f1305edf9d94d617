"""The clicks: what they look like, and that a seed repeats them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.dev.catalogue import as_csv, catalogue
from penstock.dev.clicks import Clicks, Message, iso

SEEDS = Path(__file__).parents[2] / "seeds"


def clicks(n: int, *, seed: int | None = 7, users: int = 500, dirty: float = 0.0) -> list[Message]:
    ticks = count()
    clock = lambda: 1_767_225_600.0 + next(ticks) * 0.01  # noqa: E731
    return list(islice(Clicks(seed=seed, users=users, clock=clock, dirty=dirty), n))


def rows(messages: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(message.value) for message in messages]


def test_the_seed_of_the_demo_is_the_catalogue() -> None:
    assert (SEEDS / "products.csv").read_text(encoding="utf-8") == as_csv()


def test_the_catalogue_has_unique_items_in_eight_categories_with_prices() -> None:
    products = catalogue()
    assert len({product.item_id for product in products}) == len(products) >= 55
    assert len({product.category for product in products}) == 8
    assert all(product.price > 0 for product in products)


def test_the_same_seed_gives_the_same_messages_and_another_seed_others() -> None:
    assert clicks(500, seed=3) == clicks(500, seed=3)
    assert clicks(500, seed=3) != clicks(500, seed=4)


def test_without_a_seed_two_runs_share_no_event() -> None:
    first, second = rows(clicks(200, seed=None)), rows(clicks(200, seed=None))
    assert not {row["event_id"] for row in first} & {row["event_id"] for row in second}


def test_a_click_has_the_declared_fields_and_the_user_as_its_key() -> None:
    items = {product.item_id for product in catalogue()}
    for message, row in zip(clicks(300), rows(clicks(300)), strict=True):
        assert list(row) == ["event_id", "user_id", "session_id", "item_id", "event_type", "page", "clicked_at"]
        assert message.key == row["user_id"].encode()
        assert row["item_id"] in items
        assert row["event_type"] in {"view", "add_to_cart", "purchase"}
        assert len(message.trace_id) == 32
        assert datetime.fromisoformat(row["clicked_at"].replace("Z", "+00:00")).utcoffset() is not None


def test_event_ids_are_unique() -> None:
    found = rows(clicks(20_000))
    assert len({row["event_id"] for row in found}) == len(found)


def test_a_session_belongs_to_one_user_and_stays_mostly_in_one_category() -> None:
    category = {product.item_id: product.category for product in catalogue()}
    users: dict[str, set[str]] = {}
    seen: dict[str, Counter[str]] = {}
    for row in rows(clicks(20_000)):
        users.setdefault(row["session_id"], set()).add(row["user_id"])
        seen.setdefault(row["session_id"], Counter())[category[row["item_id"]]] += 1
    assert all(len(of) == 1 for of in users.values())
    main = sum(counted.most_common(1)[0][1] for counted in seen.values())
    assert main / 20_000 > 0.8
    assert 3 < 20_000 / len(seen) < 12, "a session views several items"


def test_a_few_users_and_items_make_up_most_of_the_clicks() -> None:
    found = rows(clicks(20_000))
    items, users = Counter(row["item_id"] for row in found), Counter(row["user_id"] for row in found)
    assert sum(n for _, n in items.most_common(6)) / len(found) > 0.3
    assert sum(n for _, n in users.most_common(50)) / len(found) > 0.5
    assert len(items) > 50, "the long tail is clicked too"


def test_what_is_bought_was_put_into_the_cart_in_the_same_session() -> None:
    carts: set[tuple[str, str]] = set()
    bought = 0
    for row in rows(clicks(20_000)):
        visit = (row["session_id"], row["item_id"])
        if row["event_type"] == "add_to_cart":
            carts.add(visit)
        elif row["event_type"] == "purchase":
            assert visit in carts
            bought += 1
    assert 0.01 < bought / 20_000 < 0.1


def test_a_small_share_of_the_clicks_is_out_of_order_by_a_few_seconds() -> None:
    times = [datetime.fromisoformat(row["clicked_at"].replace("Z", "+00:00")) for row in rows(clicks(5000))]
    steps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    back = [step for step in steps if step < 0]
    assert 0.005 < len(back) / len(steps) < 0.05
    assert min(back) > -6


def test_clean_messages_are_the_default_and_dirt_comes_in_the_share_that_was_asked_for() -> None:
    clean, soiled = clicks(4000), clicks(4000, dirty=0.1)
    changed = [(a, b) for a, b in zip(clean, soiled, strict=True) if a.value != b.value]
    assert 0.07 < len(changed) / 4000 < 0.13
    assert all(a.key == b.key for a, b in changed), "dirt changes a message, not the clicks around it"


@pytest.mark.parametrize(("users", "dirty"), [(0, 0.0), (10, 1.5), (10, -0.1)])
def test_impossible_parameters_are_refused(users: int, dirty: float) -> None:
    with pytest.raises(ValueError, match=r"user|dirty"):
        clicks(1, users=users, dirty=dirty)


def test_a_time_is_written_with_milliseconds_in_utc() -> None:
    assert iso(1_767_225_600.1234) == "2026-01-01T00:00:00.123Z"
