"""Conditions that ask the clock are warned of: nobody asks them again when time has passed."""

from __future__ import annotations

import pytest

from penstock.compiler.clock import clock_warnings
from penstock.compiler.shape import Source, analyse
from penstock.compiler.statement import parse

STREAMS = {"shop.clicks": Source(("user_id", "ts")), "shop.orders": Source(("user_id", "at"))}


def warnings(sql: str) -> list[str]:
    return [each for each in analyse(parse(sql, "models/m.sql", ()), STREAMS).warnings if "clock" in each]


@pytest.mark.parametrize(
    ("clock", "name"),
    [
        ("current_timestamp()", "current_timestamp"),
        ("current_timestamp", "current_timestamp"),
        ("NOW()", "now"),
        ("current_date()", "current_date"),
        ("curdate()", "current_date"),
        ("current_time()", "current_time"),
        ("localtimestamp()", "localtimestamp"),
        ("localtimestamp", "localtimestamp"),
        ("timestamp_seconds(unix_timestamp())", "unix_timestamp"),
        ("timestamp 'now'", "'now'"),
        ("cast('today' as date)", "'today'"),
    ],
)
def test_a_filter_that_asks_the_clock_is_warned_of_with_its_cure(clock: str, name: str) -> None:
    (warning,) = warnings(f"select count(*) as n from shop.clicks\nwhere ts > {clock} - interval 1 hour")
    assert warning.startswith(f"models/m.sql:2: WHERE asks the clock ({name}), and a row is asked once, when it comes")
    assert "Cure: a window with a 'watermark:', or a view over the table that filters when it is read." in warning


@pytest.mark.parametrize(
    ("sql", "clause"),
    [
        ("select user_id, max(ts) t from shop.clicks group by 1 having max(ts) > now() - interval 1 day", "HAVING"),
        ("select c.ts from shop.clicks c join shop.orders o on o.user_id = c.user_id and o.at > now()", "ON"),
        ("select c.ts from shop.clicks c join shop.items i on i.until > now()", "ON"),
        ("select count(*) filter (where ts > now()) as n from shop.clicks", "FILTER"),
        ("with c as (select * from shop.clicks where (ts > now() or user_id = 3)) select ts from c", "WHERE"),
        ("select ts from (select * from shop.clicks where date_diff(now(), ts) < 3)", "WHERE"),
        (
            "select sum(case when ts > now() and user_id > 3 then 1 end) as n from shop.clicks",
            "a condition in an aggregate",
        ),
        (
            "select user_id, 1 + sum(if(not (ts > now()), 1, 0)) n from shop.clicks group by 1",
            "a condition in an aggregate",
        ),
        ("select count_if(ts > now()) as n from shop.clicks", "a condition in an aggregate"),
        ("select sum(int((coalesce(ts > now(), false)))) as n from shop.clicks", "a condition in an aggregate"),
        (
            "select count(case date(ts) when current_date() then 1 end) n from shop.clicks",
            "a condition in an aggregate",
        ),
    ],
)
def test_every_condition_over_a_stream_counts(sql: str, clause: str) -> None:
    (warning,) = warnings(sql)
    assert f"{clause} asks the clock" in warning


@pytest.mark.parametrize(
    "sql",
    [
        "select ts, current_timestamp() as seen from shop.clicks",
        "select max(current_timestamp()) as loaded, avg(datediff(now(), ts)) as age from shop.clicks",
        "select ts, case when ts > now() then 1 end as is_early from shop.clicks",
        "select sum(case when user_id > 3 then unix_timestamp() end) as n from shop.clicks",
        "select ts from shop.clicks where unix_timestamp(ts) > 3 and `now` > 3 and c.current_date > 3",
        "select ts from shop.clicks where user_id in ('now', 'today') and cast('2026-01-01' as date) < ts",
        # A table is looked up as it stands at each batch.
        "select c.ts from shop.clicks c join (select * from shop.items where until > now()) i on i.id = c.user_id",
    ],
)
def test_a_clock_that_filters_no_stream_is_none(sql: str) -> None:
    assert warnings(sql.replace("c.current_date", "clicks.current_date")) == []


def test_a_full_refresh_asks_the_clock_when_an_input_changes() -> None:
    statement = parse("select ts from shop.clicks\nwhere ts > now()\norder by ts", "models/m.sql", ())
    (warning,) = clock_warnings(statement, full=True)
    assert warning.startswith("models/m.sql:2: WHERE asks the clock (now), and it is asked when an input changes")


def test_a_condition_in_an_aggregate_is_told_once() -> None:
    sql = "select sum(if(ts > now() or (user_id > 3 and ts < now()), 1, 0)) as n from shop.clicks order by n"
    (warning,) = clock_warnings(parse(sql, "models/m.sql", ()), full=True)
    assert warning.startswith("models/m.sql:1: a condition in an aggregate asks the clock (now)")
