"""Nexmark's events and its queries q0 to q8, for the test that proves them and the measurement that times them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

EVENTS = 2500
START = datetime(2026, 1, 1)
COLUMNS = {
    "person": {"id": "bigint", "name": "string", "city": "string", "state": "string", "date_time": "timestamp"},
    "auction": {
        "id": "bigint", "item_name": "string", "seller": "bigint", "category": "bigint", "date_time": "timestamp",
        "expires": "timestamp",
    },
    "bid": {"auction": "bigint", "bidder": "bigint", "price": "bigint", "date_time": "timestamp"},
}  # fmt: skip
PLACES = [("Portland", "OR"), ("Boise", "ID"), ("Bend", "OR"), ("Los Angeles", "CA"), ("Seattle", "WA"), ("Kent", "WA")]

WINNING = """
    select a.id, a.seller, a.category, a.expires, max(b.price) as price
    from {auction} a join {bid} b on b.auction = a.id and b.date_time between a.date_time and a.expires
    group by a.id, a.seller, a.category, a.expires
"""
# name -> SQL of the model, SQL for DuckDB where its functions differ, whether it is refreshed in full
QUERIES: dict[str, tuple[str, str | None, bool]] = {
    "q0": ("select auction, bidder, price, date_time from {bid}", None, False),
    "q1": ("select auction, bidder, cast(0.908 * price as decimal(20, 3)) as price, date_time from {bid}", None, False),
    "q2": ("select auction, price from {bid} where auction % 123 = 0", None, False),
    "q3": (
        """
        select p.name, p.city, p.state, a.id
        from {auction} a join {person} p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
        """,
        None,
        False,
    ),
    "q4": (
        f"select category, cast(avg(price) as double) as price from ({WINNING}) winning group by category",
        None,
        True,
    ),
    "q5": (
        """
        with counts as (
            select window.start as starts, auction, count(*) as bids
            from {bid} group by window(date_time, '10 seconds', '2 seconds'), auction
        )
        select counts.* from counts
        join (select starts, max(bids) as bids from counts group by starts) most
            on most.starts = counts.starts and most.bids = counts.bids
        """,
        """
        with counts as (
            select starts, auction, count(*) as bids
            from (
                select auction, date_time, unnest(range(
                    time_bucket(interval '2 seconds', date_time) - interval '8 seconds', date_time + interval '1 us',
                    interval '2 seconds'
                )) as starts from bid
            ) where date_time < starts + interval '10 seconds'
            group by starts, auction
        )
        select counts.* from counts
        join (select starts, max(bids) as bids from counts group by starts) most
            on most.starts = counts.starts and most.bids = counts.bids
        """,
        True,
    ),
    "q6": (
        f"""
        select seller, id, avg(price) over (
            partition by seller order by expires, id rows between 9 preceding and current row
        ) as price
        from ({WINNING}) winning
        """,
        None,
        True,
    ),
    "q7": (
        """
        select b.auction, b.bidder, b.price, b.date_time
        from {bid} b join (
            select window.end as ends, max(price) as price from {bid} group by window(date_time, '10 seconds')
        ) most on b.price = most.price and b.date_time >= most.ends - interval 10 seconds and b.date_time < most.ends
        """,
        """
        select auction, bidder, price, date_time from bid
        qualify price = max(price) over (partition by time_bucket(interval '10 seconds', date_time))
        """,
        True,
    ),
    "q8": (
        """
        select distinct p.id, p.name, p.starts
        from (select id, name, window(date_time, '10 seconds').start as starts from {person}) p
        join (select seller, window(date_time, '10 seconds').start as starts from {auction}) a
            on p.id = a.seller and p.starts = a.starts
        """,
        """
        select distinct p.id, p.name, time_bucket(interval '10 seconds', p.date_time) as starts
        from person p join auction a on p.id = a.seller
            and time_bucket(interval '10 seconds', p.date_time) = time_bucket(interval '10 seconds', a.date_time)
        """,
        False,
    ),
}


def events(count: int = EVENTS) -> Iterator[tuple[str, dict[str, Any]]]:
    """One person and three auctions in every fifty events, the rest bids: Nexmark's proportions, always the same."""
    chance = random.Random(2008)
    people, auctions = 0, 0
    for number in range(count):
        at = START + timedelta(milliseconds=100 * number + chance.randrange(100))
        place = number % 50
        if place == 0:
            city, state = chance.choice(PLACES)
            yield "person", {"id": people, "name": f"p{people}", "city": city, "state": state, "date_time": at}
            people += 1
        elif place <= 3:
            yield "auction", {
                "id": auctions, "item_name": f"item {auctions}", "seller": chance.randrange(max(people - 3, 0), people),
                "category": 10 + chance.randrange(5), "date_time": at,
                "expires": at + timedelta(seconds=chance.randrange(5, 40)),
            }  # fmt: skip
            auctions += 1
        else:
            hot = max(auctions - 20, 0)
            yield "bid", {
                "auction": chance.randrange(hot, auctions), "bidder": chance.randrange(people),
                "price": chance.randrange(100, 100_000), "date_time": at,
            }  # fmt: skip
