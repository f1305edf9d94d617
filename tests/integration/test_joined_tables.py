"""A stream meets tables that other streams keep, and other streams: what is looked up, and what is computed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from model_files import Project

from penstock.control.maintenance import maintain
from penstock.control.streams import start_stream, stop_stream

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)
COLUMNS = {"k": "string", "v": "bigint"}


def test_dynamic_tables_are_looked_up_as_they_stand_and_streams_that_cannot_meet_are_computed_anew(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: prices, which one table keeps by key and another counts anew; clicks, which meet both; two joins of streams
    # that Spark cannot keep: without an equality, and an outer one without a bound in time; and a function that Spark
    # refuses, which the compiler does not know of.
    clicks, prices = topic(1, name="clicks"), topic(1, name="prices")
    project = Project(schema)
    project.source("clicks", clicks, COLUMNS)
    project.source("prices", prices, COLUMNS)
    project.model("price", "select k, v from {prices}", unique_key="k")
    project.model("price_count", "select count(distinct k) as n from {prices}")
    project.model(
        "priced",
        "with p as (select k, v from {price})\n"
        "select c.k, c.v, p.v as price, n.n from {clicks} c join p on p.k = c.k cross join {price_count} n",
    )
    project.model("dearer", "select c.k, p.k as other from {clicks} c left join {prices} p on p.v > c.v * 100")
    project.model("unbounded", "select c.v, p.v as price from {clicks} c left join {prices} p on p.k = c.k")
    project.model("numbered", "select v, monotonically_increasing_id() < 0 as odd from {clicks}")
    specs = project.specs()
    assert {name: spec.is_full for name, spec in specs.items()} == {
        "price": False, "price_count": True, "priced": False, "dearer": True, "unbounded": True,
        "numbered": False,
    }  # fmt: skip
    assert {each.relation: each.kind for each in specs["priced"].inputs} == {
        f"{schema}_raw.clicks": "kafka", f"{schema}.price": "table", f"{schema}.price_count": "table",
    }  # fmt: skip

    def rows(name: str, want: list[tuple[Any, ...]]) -> None:
        platform.until(
            lambda: sorted(platform.sql(f"select * from {schema}.{name}"), key=repr) == sorted(want, key=repr),
            f"{want} in {name}", 90,
            lambda: (platform.sql(f"select * from {schema}.{name}"), platform.store.actual(f"{schema}.{name}")),
        )  # fmt: skip

    produce(prices, [{"k": "a", "v": 10}])
    platform.deploy(specs["price"])
    platform.deploy(specs["price_count"])
    rows("price", [("a", 10)])
    rows("price_count", [(1,)])
    for name in ("priced", "dearer", "unbounded", "numbered"):
        platform.deploy(specs[name])

    # When: a click comes, then the price changes and another one comes, then another click of the first.
    produce(clicks, [{"k": "a", "v": 1}])
    rows("priced", [("a", 1, 10, 1)])
    produce(prices, [{"k": "a", "v": 200}, {"k": "b", "v": 20}])
    rows("price", [("a", 200), ("b", 20)])
    rows("price_count", [(2,)])
    produce(clicks, [{"k": "a", "v": 2}])

    # Then: each click has the price of its time, and what is computed anew has all that there is now.
    rows("priced", [("a", 1, 10, 1), ("a", 2, 200, 2)])
    rows("dearer", [("a", "a"), ("a", None)])
    rows("unbounded", [(1, 10), (1, 200), (2, 10), (2, 200)])
    rows("numbered", [(1, False), (2, False)])
    assert platform.store.desired(f"{schema}.numbered").spec_json.find('"mode": "replace"') > 0, "Spark refused it"

    # And: a table that is made anew is looked up as it is then.
    made = project.model(
        "price", "select k, v + 1 as v from {prices}", unique_key="k", publish={"topic": f"{prices}-out"}
    )
    platform.deploy(project.specs()["price"], full_refresh=True)
    rows(made.rpartition(".")[2], [("a", 201), ("b", 21)])
    produce(clicks, [{"k": "b", "v": 3}])
    rows("priced", [("a", 1, 10, 1), ("a", 2, 200, 2), ("b", 3, 21, 2)])


def test_the_newest_row_of_a_key_is_that_of_the_newest_commit_whatever_the_size_of_the_files(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a table of rows, and one on it that keeps the newest of each key, which is stopped.
    events = topic(1)
    project = Project(schema)
    project.source("events", events, COLUMNS)
    project.model("rows", "select k, v from {events}")
    project.model("newest", "select k, v from {rows}", unique_key="k")
    for spec in project.specs().values():
        platform.deploy(spec)
    produce(events, [{"k": "a", "v": 0}])
    platform.until(lambda: platform.sql(f"select * from {schema}.newest") == [("a", 0)], "the first row", 90)
    stop_stream(platform.store, f"{schema}.newest")

    # When: the key has a small commit, then a large one, of which Spark reads the large one first.
    for count, batch in ((2, [("a", 1)]), (503, [*((f"k{n}", n) for n in range(500)), ("a", 2)])):
        produce(events, [{"k": k, "v": v} for k, v in batch])
        platform.until(
            lambda count=count: platform.sql(f"select count(*) from {schema}.rows") == [(count,)], f"{count} rows", 60
        )
    start_stream(platform.store, f"{schema}.newest")

    # Then: the row of the last commit is the one that stays.
    platform.until(lambda: platform.sql(f"select count(*) from {schema}.newest") == [(501,)], "all keys", 90)
    assert ("a", 2) in platform.sql(f"select * from {schema}.newest")


def test_who_begins_with_a_table_after_its_files_were_put_together_keeps_the_newest_row_of_a_key(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a table with a commit for each of ten rows of a key, whose files were put together, and one of another key.
    events = topic(1)
    project = Project(schema)
    project.source("events", events, COLUMNS)
    project.model("rows", "select k, v from {events}", time_window="100 ms")
    project.model("newest", "select k, v from {rows}", unique_key="k")
    specs = project.specs()
    platform.deploy(specs["rows"])

    def come(first: int, end: int) -> None:
        for v in range(first, end):
            produce(events, [{"k": "a" if v < 10 else "b", "v": v}])
            platform.until(
                lambda v=v: platform.sql(f"select count(*) from {schema}.rows") == [(v + 1,)], f"{v + 1} rows", 60
            )

    come(0, 10)
    (done,) = maintain(platform.store, [f"{schema}.rows"])
    assert (done["files_before"], done["files_after"], done["notes"]) == (10, 1, [])
    come(10, 11)

    # When: a stream begins with the table.
    platform.deploy(specs["newest"])

    # Then: the row that came last is the one that stays.
    platform.until(lambda: platform.sql(f"select count(*) from {schema}.newest") == [(2,)], "both keys", 90)
    assert sorted(platform.sql(f"select * from {schema}.newest")) == [("a", 9), ("b", 10)]


def test_the_newest_row_of_a_key_stays_whatever_place_its_partner_has_in_a_table_that_is_looked_up(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a table that is larger than a batch, so that Spark would look up the rows in the table's order.
    events = topic(1)
    project = Project(schema)
    project.source("events", events, {**COLUMNS, "item": "bigint"})
    items = project.table("items")
    platform.sql(f"create schema if not exists {schema}")
    platform.sql(f"create table {items} as select id as item, concat('item ', id) as name from range(0, 5000, 1, 1)")
    project.model("rows", "select k, v, item from {events}")
    project.model("newest", "select r.k, r.v, i.name from {rows} r join {items} i on i.item = r.item", unique_key="k")
    for spec in project.specs().values():
        platform.deploy(spec)

    # When: a key has several rows in a batch, the last of which meets the first row of the table.
    produce(events, [{"k": "a", "v": v, "item": item} for v, item in enumerate((4000, 3000, 4500, 1))])

    # Then: the last row is the one that stays.
    platform.until(lambda: platform.sql(f"select * from {schema}.newest") != [], "a row", 90)
    platform.until(lambda: platform.sql(f"select * from {schema}.newest") == [("a", 3, "item 1")], "the last row", 20,
                   lambda: platform.sql(f"select * from {schema}.newest"))  # fmt: skip
