"""Append or upsert, by which key, with state or not; and what a stream cannot keep up to date."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.compiler.shape import Shape, Source, analyse
from penstock.compiler.spec import OutputMode
from penstock.compiler.statement import parse
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_KEYS, MODEL_NOT_INCREMENTAL, MODEL_SETTING, MODEL_SYNTAX

STREAMS = {"shop.clicks": Source(("user_id", "item_id", "ts")), "shop.orders": Source()}


def shape(sql: str, unique_key: tuple[str, ...] | None = None) -> Shape:
    return analyse(parse(sql, "models/m.sql", ()), STREAMS, unique_key)


def failure(sql: str, unique_key: tuple[str, ...] | None = None) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        shape(sql, unique_key)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "stateful"),
    [
        pytest.param("select * from shop.clicks where item_id is not null", False, id="filter"),
        pytest.param("select c.x, i.name from shop.clicks c join shop.items i on i.id = c.id", False, id="table join"),
        pytest.param("select c.x from shop.clicks c left join shop.items i on i.id = c.id", False, id="left join"),
        pytest.param("select i.x from shop.items i right join shop.clicks c on i.id = c.id", False, id="right join"),
        pytest.param("select user_id from shop.clicks union all select user_id from shop.orders", False, id="union"),
        pytest.param("select explode(split(item_id, ',')) as part from shop.clicks", False, id="explode"),
        pytest.param("select * from (select * from shop.clicks where false limit 0) x", False, id="--empty"),
        pytest.param(
            "select c.x from shop.clicks c join (select id, row_number() over (order by n) r from shop.items "
            "order by n limit 3) i on i.id = c.id",
            False,
            id="anything over tables",
        ),
        pytest.param("select * from shop.clicks where item_id in (select id from shop.items)", False, id="in a table"),
        pytest.param("select c.x from shop.clicks c join shop.orders o on o.id = c.id", True, id="stream join"),
        pytest.param("select 1 x from shop.clicks c join shop.orders o using (id)", True, id="stream join by name"),
        pytest.param("select * from shop.clicks unpivot (x for k in (user_id, item_id))", False, id="unpivot"),
        pytest.param(
            "with i as (select * from shop.items tablesample (10 rows)), "
            "p as (select * from shop.items pivot (max(n) for k in ('a', 'b'))) "
            "select c.x from shop.clicks c join i on i.id = c.id join p on p.id = c.id",
            False,
            id="a sample and a pivot of tables",
        ),
        pytest.param(
            "select c.x from shop.clicks c join shop.orders o on (o.id <=> c.id and o.at > c.ts)",
            True,
            id="stream join with more",
        ),
        pytest.param("select c.x from shop.clicks c, shop.orders o where o.id = c.id", True, id="stream join by comma"),
        pytest.param(
            "with a as (select * from shop.clicks), b as (select * from a) select a.x from a join b on a.x = b.x",
            True,
            id="stream join through CTEs",
        ),
    ],
)
def test_rows_are_appended(sql: str, stateful: bool) -> None:
    assert shape(sql) == Shape(OutputMode.APPEND, (), stateful)


@pytest.mark.parametrize(
    ("sql", "keys"),
    [
        pytest.param("select item_id, count(*) n from shop.clicks group by item_id", ("item_id",), id="name"),
        pytest.param("select item_id as item, count(*) n from shop.clicks group by item_id", ("item",), id="renamed"),
        pytest.param("select c.item_id, count(*) n from shop.clicks c group by item_id", ("item_id",), id="qualified"),
        pytest.param(
            "select item_id, user_id, count(*) from shop.clicks group by 1, 2", ("item_id", "user_id"), id="pos"
        ),
        pytest.param("select date(ts) as day, count(*) n from shop.clicks group by day", ("day",), id="alias"),
        pytest.param("select date(ts) as day, count(*) n from shop.clicks group by date(ts)", ("day",), id="same expr"),
        pytest.param("select `Item_Id`, count(*) n from shop.clicks group by item_id", ("Item_Id",), id="case"),
        pytest.param("select user_id, count(*) n from shop.clicks group by all", ("user_id",), id="all"),
        pytest.param("select count(*) n from shop.clicks", (), id="one row"),
        pytest.param("select item_id, count(*) n from shop.clicks group by item_id, 'x'", ("item_id",), id="constant"),
        pytest.param("select distinct user_id, item_id from shop.clicks", ("user_id", "item_id"), id="distinct"),
        pytest.param("select distinct * from shop.clicks", ("user_id", "item_id", "ts"), id="distinct star"),
        pytest.param("select user_id u from shop.clicks union select user_id from shop.orders", ("u",), id="union"),
        pytest.param(
            "select window.start as m, item_id, count(*) n from shop.clicks group by window(ts, '1 minute'), item_id",
            ("m", "item_id"),
            id="window start",
        ),
        pytest.param(
            "select window.end, count(*) n from shop.clicks group by window(ts, '1 minute')", ("end",), id="window end"
        ),
        pytest.param(
            "select window, window.end as e, window.start as s, count(*) from shop.clicks group by window(ts, '1 day')",
            ("s",),
            id="the start before the end before the struct",
        ),
        pytest.param(
            "select window, count(*) n from shop.clicks group by window(ts, '1 hour')", ("window",), id="struct"
        ),
        pytest.param(
            "select window(ts, '1 hour').start as s, count(*) n from shop.clicks group by window(ts, '1 hour')",
            ("s",),
            id="start of the call",
        ),
        pytest.param(
            "select a.item_id as one, b.item_id as two, count(*) n from shop.clicks a join shop.clicks b "
            "on a.user_id = b.user_id group by a.item_id, b.item_id",
            ("one", "two"),
            id="two columns of one name",
        ),
        pytest.param(
            "with v as (select item_id, count(*) n from shop.clicks group by item_id) "
            "select v.item_id as id, v.n from v left semi join shop.items i on i.id = v.item_id where v.n > 3",
            ("id",),
            id="carried through a CTE and a semi join",
        ),
        pytest.param(
            "select max(user_id) as item_id, item_id as id, count(*) n from shop.clicks group by item_id",
            ("id",),
            id="an aggregate's alias is not the column that is grouped",
        ),
        pytest.param(
            "select * from (select item_id, count(*) n from shop.clicks group by 1) x",
            ("item_id",),
            id="carried by star",
        ),
        pytest.param(
            "with c as (select item_id, window(ts, '1 minute') w from shop.clicks) "
            "select item_id, w.start s, count(*) n from c group by item_id, w",
            ("item_id", "s"),
            id="start of a window of a CTE",
        ),
        pytest.param(
            "with c as (select window(ts, '1 minute') from shop.clicks) "
            "select c.window.end e, count(*) n from c group by window",
            ("e",),
            id="end of a window without a name of a CTE",
        ),
        pytest.param(
            "select *, count(*) n from (select window(ts, '1 minute') w from shop.clicks) as c(x) group by c.x",
            ("x",),
            id="a window of a subquery under another name",
        ),
        pytest.param("from shop.clicks |> as c |> aggregate count(*) as n group by user_id", ("user_id",), id="pipes"),
    ],
)
def test_rows_are_replaced_by_their_key(sql: str, keys: tuple[str, ...]) -> None:
    assert replace(shape(sql), changed=None) == Shape(OutputMode.UPSERT, keys, stateful=True)


def test_unique_key_beats_the_group() -> None:
    sql = "select max(item_id) item, count(*) n from shop.clicks group by lower(item_id)"
    assert shape(sql, ("item",)) == Shape(OutputMode.UPSERT, ("item",), stateful=True)


def test_unique_key_makes_an_upsert_of_a_stateless_query() -> None:
    sql = "select user_id, item_id from shop.clicks"
    assert shape(sql, ("user_id",)) == Shape(OutputMode.UPSERT, ("user_id",), stateful=False)


@pytest.mark.parametrize("join", ["join", "left join", "right join", "full join", "left semi join"])
def test_the_rows_of_a_join_never_change_though_a_key_replaces_them(join: str) -> None:
    sql = f"select c.user_id, c.ts from shop.clicks c {join} shop.orders o on o.user_id = c.user_id and o.at = c.ts"
    found = timed(sql, unique_key=("user_id",))
    assert (found.mode, found.keys, found.stateful, found.joined) == (OutputMode.UPSERT, ("user_id",), True, True)
    assert not timed(sql).joined


@pytest.mark.parametrize(
    "sql",
    [
        "select c.user_id, count(*) n from shop.clicks c join shop.orders o on o.user_id = c.user_id group by 1",
        "select distinct c.user_id from shop.clicks c join shop.orders o on o.user_id = c.user_id",
        "select user_id from shop.clicks",
    ],
)
def test_the_rows_of_an_aggregate_change_and_those_without_state_need_no_mode(sql: str) -> None:
    assert not timed(sql, unique_key=("user_id",)).joined


def test_a_unique_key_gets_the_case_of_its_column() -> None:
    assert shape("select USER_ID, item_id from shop.clicks", ("user_id",)).keys == ("USER_ID",)


def test_a_table_joined_to_an_aggregate_needs_a_key_of_its_own() -> None:
    sql = (
        "with v as (select item_id, count(*) n from shop.clicks group by item_id)\n"
        "select v.item_id, i.shop, v.n from v join shop.items i on i.id = v.item_id"
    )
    problem = failure(sql)
    assert problem.kind is MODEL_KEYS
    assert "several rows for one key" in problem.message
    assert shape(sql, ("item_id", "shop")).keys == ("item_id", "shop")


def test_a_unique_key_must_be_a_column() -> None:
    problem = failure("select user_id from shop.clicks", ("usr_id",))
    assert str(problem) == (
        "PEN-1311 models/m.sql:1: unique_key 'usr_id' is not among the columns of the model. Did you mean 'user_id'?"
    )


@pytest.mark.parametrize(
    ("sql", "line", "message"),
    [
        ("select count(*) n\nfrom shop.clicks\ngroup by item_id", 3, "item_id is not in the result"),
        ("select date(ts),\ncount(*) n\nfrom shop.clicks\ngroup by date(ts)", 4, "has no name in the result"),
        ("select upper(item_id) as item_id, count(*) n from shop.clicks\ngroup by item_id", 2, "is not in the result"),
        ("select n from (\nselect item_id, count(*) n from shop.clicks group by 1)", 1, "key 'item_id'"),
        ("select distinct *\nfrom shop.orders", 1, "columns of DISTINCT"),
        ("select a.item_id, count(*) n from shop.clicks a, shop.clicks b where a.x = b.x\ngroup by 1,\nb.item_id",
         3, "b.item_id is not in the result"),
    ],
)  # fmt: skip
def test_a_key_that_the_result_lacks_is_an_error(sql: str, line: int, message: str) -> None:
    problem = failure(sql)
    assert problem.kind is MODEL_KEYS
    assert problem.at is not None
    assert problem.at.line == line
    assert message in problem.message


@pytest.mark.parametrize(
    ("sql", "line", "operator"),
    [
        ("select * from shop.clicks\norder by ts", 2, "ORDER BY"),
        ("select * from shop.clicks\nsort by ts", 2, "SORT BY"),
        ("select * from shop.clicks\nlimit 10", 2, "LIMIT"),
        ("select * from (\nselect * from shop.clicks\nlimit 10) x", 3, "LIMIT"),
        ("select *,\nrow_number() over (partition by user_id order by ts) n from shop.clicks", 2, "OVER"),
        ("select item_id,\ncount(distinct user_id) n from shop.clicks group by item_id", 2, "DISTINCT"),
        ("select n, count(*) m from (select item_id, count(*) n from shop.clicks group by 1) x\ngroup by n", 2,
         "an aggregate over an aggregate"),
        ("select distinct n from (select item_id, count(*) n from shop.clicks group by 1) x", 1, "DISTINCT over"),
        ("select c.x from shop.clicks c\nleft join shop.orders o on o.id = c.id", 2, "a left join of two streams"),
        ("select c.x from shop.clicks c\nleft anti join shop.orders o on o.id = c.id", 2,
         "a left anti join of two streams"),
        ("select * from (select k, n from shop.clicks)\npivot (sum(n) for k in ('a', 'b'))", 2, "PIVOT"),
        ("select *\nfrom shop.clicks pivot (sum(n) for k in ('a', 'b'))", 2, "PIVOT"),
        ("select *\nfrom shop.clicks tablesample (10 percent)", 2, "TABLESAMPLE"),
        ("select *\nfrom (select * from shop.clicks) tablesample (10 rows)", 2, "TABLESAMPLE"),
        ("with c as (select * from shop.clicks)\nselect x from c tablesample (bucket 1 out of 4)", 2, "TABLESAMPLE"),
        ("select c.x from shop.clicks c\njoin shop.orders o on o.at > c.ts", 2, "without an equality"),
        ("select c.x from shop.clicks c\nleft join shop.orders o on o.at > c.ts where o.id = c.id", 2,
         "without an equality"),
        ("select c.x from shop.clicks c\njoin shop.orders o on o.id = c.id or o.at = c.ts", 2, "without an equality"),
        ("select c.x from shop.clicks c\njoin shop.orders o on o.id = o.other and c.id = 3", 2, "without an equality"),
        ("select x from shop.clicks except select x from shop.items", 1, "EXCEPT"),
        ("select x from shop.clicks intersect select x from shop.items", 1, "INTERSECT"),
        ("select x from shop.clicks union all select x from shop.items", 1, "a stream and a table"),
        ("select i.x from shop.items i\nleft join shop.clicks c on c.id = i.id", 2, "left join"),
        ("select i.x from shop.clicks c\nfull join shop.items i on c.id = i.id", 2, "full join"),
        ("select x from shop.clicks\nwhere x in (select x from shop.orders)", 2, "a subquery over a stream"),
        ("select x from shop.clicks\nwhere exists (select 1 from shop.orders)", 2, "a subquery over a stream"),
        ("select count(*) n from shop.clicks\ngroup by session_window(ts, '1 minute')", 2, "session_window"),
        ("select user_id, count(*) n from shop.clicks\ngroup by rollup(user_id)", 2, "ROLLUP"),
    ],
)  # fmt: skip
def test_what_a_stream_cannot_keep_names_operator_and_line(sql: str, line: int, operator: str) -> None:
    problem = failure(sql)
    assert problem.kind is MODEL_NOT_INCREMENTAL
    assert problem.at is not None
    assert problem.at.line == line
    assert operator in problem.message


def test_unpivot_makes_several_rows_of_one_key() -> None:
    counts = "select user_id, count(*) n, max(ts) t from shop.clicks group by user_id"
    with pytest.raises(PenstockError, match="UNPIVOT over an aggregate may give several rows") as caught:
        shape(f"select * from ({counts}) unpivot (v for k in (n, t))")
    assert caught.value.kind is MODEL_KEYS
    assert shape(f"select * from ({counts}) unpivot (v for k in (n, t))", ("user_id", "k")).keys == ("user_id", "k")


# -- windows that are final -------------------------------------------------------------------------------------------
TIMED = {"shop.clicks": Source(("user_id", "ts"), "ts"), "shop.orders": Source(("user_id", "at"), "at")}


def timed(sql: str, **how: Any) -> Shape:
    return analyse(parse(sql, "models/m.sql", ()), TIMED, **how)


@pytest.mark.parametrize("window", ["window(ts, '5 seconds')", "window(ts, '10 seconds', '2 seconds')"])
def test_a_final_window_is_appended_once_and_needs_no_key(window: str) -> None:
    sql = f"select count(*) n from shop.clicks group by {window} having count(*) > 3"
    assert timed(sql, emit="final") == Shape(OutputMode.APPEND, (), stateful=True)


def test_a_session_is_final_by_itself_because_its_key_grows() -> None:
    sql = "select user_id, count(*) n from shop.clicks group by user_id, session_window(ts, '5 minutes')"
    assert timed(sql) == Shape(OutputMode.APPEND, (), stateful=True)
    with pytest.raises(PenstockError, match="session_window"):
        timed(sql, emit="changes")


def test_final_windows_may_be_aggregated_again() -> None:
    inner = "select window, user_id, count(*) n from shop.clicks group by window(ts, '1 minute'), user_id"
    sql = f"with a as ({inner}) select window, max(n) m from a group by window"
    assert timed(sql, emit="final").mode is OutputMode.APPEND
    with pytest.raises(PenstockError, match="an aggregate over an aggregate"):
        timed(sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select user_id, count(*) n from shop.clicks group by 1", "needs a GROUP BY with window"),
        ("select * from shop.clicks", "needs a GROUP BY with window"),
    ],
)
def test_final_without_a_window_is_an_error(sql: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        timed(sql, emit="final")
    assert caught.value.kind is MODEL_SETTING


@pytest.mark.parametrize(("window", "emit"), [("window", "final"), ("session_window", None)])
def test_what_is_final_is_not_replaced_by_a_key(window: str, emit: str | None) -> None:
    sql = f"select user_id, count(*) n from shop.clicks group by user_id, {window}(ts, '1 minute')"
    assert timed(sql, emit=emit).mode is OutputMode.APPEND
    with pytest.raises(PenstockError, match="written once, when they are over") as caught:
        timed(sql, emit=emit, unique_key=("user_id",))
    assert caught.value.kind is MODEL_SETTING


def test_final_without_a_watermark_is_an_error() -> None:
    sql = "select count(*) n from shop.clicks group by window(ts, '1 minute')"
    with pytest.raises(PenstockError, match="no input has one") as caught:
        analyse(parse(sql, "models/m.sql", ()), STREAMS, emit="final")
    assert caught.value.kind is MODEL_SETTING


def test_a_session_of_an_input_without_a_watermark_is_not_taken_for_emit_final() -> None:
    streams = {**STREAMS, "shop.orders": Source(("user_id", "at"), "at")}
    sql = (
        "with s as (select user_id, count(*) n from shop.clicks\ngroup by user_id, session_window(ts, '5 minutes'))\n"
        "select s.user_id, s.n from s join shop.orders o on o.user_id = s.user_id"
    )
    with pytest.raises(PenstockError, match=r"session_window.* over an input without a watermark") as caught:
        analyse(parse(sql, "models/m.sql", ()), streams)
    assert (caught.value.kind, str(caught.value.at)) == (MODEL_NOT_INCREMENTAL, "models/m.sql:2")
    assert "emit" not in str(caught.value)
    with pytest.raises(PenstockError, match="has passed it, and its input has none"):
        analyse(parse(sql, "models/m.sql", ()), streams, emit="final")


SESSIONS = "select user_id, count(*) n from shop.clicks group by user_id, session_window(ts, '5 minutes')"
FINAL = "select window, user_id, count(*) n from shop.clicks group by window(ts, '1 minute'), user_id"
OPEN = "select user_id, count(*) m from shop.orders\ngroup by user_id"


@pytest.mark.parametrize(
    ("sql", "how", "line", "message"),
    [
        (f"with s as ({SESSIONS})\nselect user_id, count(*) m from s\ngroup by user_id", {}, 3,
         "an aggregate of groups without event time, beside sessions"),
        (f"with s as ({SESSIONS})\nselect user_id, count(*) m from s\ngroup by user_id", {"unique_key": ("user_id",)},
         3, "an aggregate of groups without event time, beside sessions"),
        (f"with s as ({SESSIONS})\nselect count(*) m from s", {}, 2, "an aggregate of groups without event time"),
        (f"with s as ({SESSIONS}) select distinct n from s", {}, 1, "DISTINCT of groups without event time"),
        (f"with a as ({FINAL}) select user_id, sum(n) n from a\ngroup by user_id", {"emit": "final"}, 2,
         "an aggregate of groups without event time, beside windows"),
        (f"with a as ({FINAL}), b as ({OPEN}) select a.n, b.m from a join b on b.user_id = a.user_id",
         {"emit": "final"}, 2, "an aggregate of groups without event time, beside windows"),
        (f"select user_id, n from ({FINAL}) union all select user_id, m from ({OPEN})", {"emit": "final"}, 2,
         "an aggregate of groups without event time, beside windows"),
        (f"select distinct n\nfrom ({FINAL})", {"emit": "final"}, 1, "DISTINCT of groups without event time"),
        (f"select n from ({FINAL}) union\nselect 1 n from shop.orders", {"emit": "final"}, 1,
         "DISTINCT of groups without event time"),
    ],
)  # fmt: skip
def test_where_all_is_final_groups_without_event_time_are_not_kept(
    sql: str, how: dict[str, Any], line: int, message: str
) -> None:
    with pytest.raises(PenstockError) as caught:
        timed(sql, **how)
    assert caught.value.kind is MODEL_NOT_INCREMENTAL
    assert (message in caught.value.message, str(caught.value.at)) == (True, f"models/m.sql:{line}")


@pytest.mark.parametrize(
    "sql",
    [
        f"select distinct window, n from ({FINAL})",
        f"select n from ({FINAL}) union all select m from (select at, count(*) m from shop.orders group by at)",
        (
            "with c as (select user_id, window(ts, '1 minute') w from shop.clicks) "
            "select user_id, w.start s, count(*) n from c group by user_id, w"
        ),
        "with c as (select window(ts, '1 minute') from shop.clicks) select count(*) n from c group by window",
    ],
)
def test_groups_with_event_time_are_final_whatever_else_the_query_does(sql: str) -> None:
    assert timed(sql, emit="final") == Shape(OutputMode.APPEND, (), stateful=True)


def test_windows_of_several_lengths_have_no_key_in_their_start() -> None:
    both = " union all ".join(f"select window(ts, '{each}') w from shop.clicks" for each in ("1 minute", "1 hour"))
    with pytest.raises(PenstockError, match="w is not in the result"):
        timed(f"select w.start s, count(*) n from ({both}) group by w")


@pytest.mark.parametrize(
    ("streams", "emit", "hint"), [(TIMED, "changes", "Leave 'emit' out"), (STREAMS, None, "With a 'watermark:'")]
)
def test_what_makes_a_session_final_is_what_is_missing(streams: Any, emit: Any, hint: str) -> None:
    with pytest.raises(PenstockError, match="session_window") as caught:
        analyse(parse(SESSIONS, "models/m.sql", ()), streams, emit=emit)
    assert str(caught.value.hint).startswith(hint)


# -- state that grows without end -------------------------------------------------------------------------------------
JOIN = "select c.user_id, o.at from shop.clicks c join shop.orders o on o.user_id = c.user_id"
BRACKETS = JOIN.replace(
    "shop.orders o on", "((shop.orders o) join (shop.items i join shop.top t using (j)) using (k)) on"
)
WINDOWS = (
    "with a as (select user_id, window(ts, '1 minute') as w from shop.clicks), "
    "b as (select user_id, window(at, '1 minute') as w from shop.orders) "
    "select a.user_id from a join b on b.user_id = a.user_id"
)


@pytest.mark.parametrize(
    ("sql", "how", "warning"),
    [
        (f"{JOIN} and o.at between c.ts and c.ts + interval 1 hour", {}, None),
        (f"{JOIN} and o.at >= c.ts where o.at < c.ts + interval 1 hour", {}, None),
        (f"{JOIN} and o.at = c.ts", {}, None),
        (f"{JOIN} and (o.at + interval 5 minutes > c.ts and c.ts >= (o.at - interval 1 hour))", {}, None),
        (f"{JOIN} and cast(o.at as timestamp) >= c.ts and cast(o.at as long) < cast(c.ts as long) + 60", {}, None),
        (f"{JOIN} and cast(o.at as long) - cast(c.ts as long) between 0 and 60", {}, None),
        (f"{JOIN} and o.at >= c.ts and o.at < c.ts + make_interval(0, 0, 0, 0, 1)", {}, None),
        (f"{JOIN} and o.at >= c.ts and o.at < ts + interval 1 hour", {}, None),
        (f"{JOIN} and o.at >= c.ts and o.at < interval 1 hour 30 minutes 5 seconds + c.ts", {}, None),
        (f"{BRACKETS} and o.at between c.ts and c.ts + interval 1 hour", {}, None),
        (f"{JOIN} and o.paid + interval 1 hour = c.ts", {}, None),
        ("select c.x from shop.clicks c join (select user_id, at as ts from shop.orders) o using (user_id, ts)",
         {}, None),
        (f"{WINDOWS} and b.w = a.w", {}, None),
        (JOIN, {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and o.at > c.ts + interval 1 minute", {}, "no bound in time"),
        (f"{JOIN} and (o.at between c.ts and c.ts + interval 1 hour or c.x = 7)", {}, "no bound in time"),
        (f"{JOIN} and not o.at between c.ts and c.ts + interval 1 hour", {}, "no bound in time"),
        (f"{JOIN} and date_trunc('hour', c.ts) = date_trunc('hour', o.at)", {}, "no bound in time"),
        (f"{JOIN} and date(c.ts) = date(o.at)", {}, "no bound in time"),
        (f"{JOIN} and hour(c.ts) = hour(o.at)", {}, "no bound in time"),
        (f"{JOIN} and date(o.at) between date(c.ts) and date(c.ts)", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and o.at < c.ts + interval 1 month", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and o.at < c.ts + interval 1 month 2 hours", {}, "no bound in time"),
        (f"{BRACKETS} and o.at >= c.ts", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and o.at < timestampadd(hour, 1, c.ts)", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and o.at < c.ts + o.delay", {}, "no bound in time"),
        (f"{JOIN} and o.at - c.ts between interval 0 hours and interval 1 hour", {}, "no bound in time"),
        (f"{JOIN} and o.at >= c.ts and c.other < c.ts + interval 1 hour", {}, "no bound in time"),
        (f"{JOIN} and o.at <=> c.ts", {}, "no bound in time"),
        (f"{JOIN} and c.ts = timestamp '2026-01-01 00:00:00'", {}, "no bound in time"),
        (f"{WINDOWS} and b.w.start = a.w.start", {}, "no bound in time"),
        (f"{WINDOWS.replace(') as w', ').start as w')} and b.w = a.w", {}, "no watermark on any of its columns"),
        ("select distinct user_id, ts from shop.clicks", {}, None),
        ("select distinct user_id, window(ts, '1 minute') as w from shop.clicks", {}, None),
        ("select distinct window_time(w) t from (select user_id, window(ts, '1 minute') as w from shop.clicks)",
         {}, None),
        ("select distinct t from (select ts as t from shop.clicks union all select at from shop.orders)", {}, None),
        ("select distinct user_id from shop.clicks", {}, "DISTINCT remembers every row"),
        ("select distinct user_id, window(ts, '1 minute').start as w from shop.clicks", {}, "DISTINCT remembers"),
        ("select distinct user_id, date_trunc('hour', ts) as ts from shop.clicks", {}, "DISTINCT remembers"),
        ("select distinct user_id, window(other, '1 minute') as w from shop.clicks", {}, "DISTINCT remembers"),
        ("select user_id, ts from shop.clicks", {"deduplicate_by": ("user_id",)}, None),
        ("select window.start as s, count(*) n from shop.clicks group by window(ts, '1 minute')", {}, None),
        ("select window.start as s, count(*) n from shop.clicks c group by window(c.`TS`, '1 minute')", {}, None),
        ("select window(ts, '1 minute') as w, count(*) n from shop.clicks group by w", {}, None),
        ("select w.start as s, count(*) n from (select window(ts, '1 minute') as w from shop.clicks) group by w.start",
         {}, None),
        ("with c as (select ts t from shop.clicks) select window.start s, count(*) n from c group by window(t, '1 d')",
         {}, None),
        ("select window.start as s, count(*) n from shop.clicks group by window(other, '1 minute')", {},
         "the watermark is of ts"),
        ("select window.start as s, count(*) n from shop.clicks group by window(cast(ts as timestamp), '1 minute')",
         {}, "the watermark is of ts"),
        ("select window(other, '1 minute') as w, count(*) n from shop.clicks group by all", {},
         "the watermark is of ts"),
        ("select window(ts, '1 minute').start as s, count(*) n from shop.clicks group by s", {},
         "the watermark is of ts"),
        ("select user_id, count(*) n from shop.clicks group by user_id", {}, None),
    ],
)  # fmt: skip
def test_state_without_end_is_a_warning_with_its_cure(sql: str, how: dict[str, Any], warning: str | None) -> None:
    found = timed(sql, **how).warnings
    assert len(found) == (warning is not None)
    if warning:
        assert found[0].startswith("models/m.sql:1: ")
        assert warning in found[0]
        assert "Cure: " in found[0]


OUTER = "select c.user_id, o.at from shop.clicks c {} join shop.orders o on o.user_id = c.user_id"


@pytest.mark.parametrize(
    ("join", "on", "warned"),
    [
        *[(join, "o.at >= c.ts and o.at < c.ts + interval 1 hour", False)
          for join in ("left", "left outer", "right", "full", "semi", "left semi")],
        *[(join, "o.at >= c.ts and o.at < c.ts + interval 1 hour 30 minutes", False)
          for join in ("left", "right", "full", "left semi")],
        ("left", "o.at <= c.ts and c.ts - (interval 1 day - interval 1 hour) < o.at", False),
        *[(join, "o.at = c.ts", False) for join in ("left", "right", "full", "left semi")],
        ("left", "c.ts >= o.at - interval 1 hour", True),
        ("left semi", "o.at <= c.ts", True),
        ("right", "o.at >= c.ts", True),
    ],
)  # fmt: skip
def test_an_outer_join_tells_in_time_that_a_row_meets_no_other(join: str, on: str, warned: bool) -> None:
    found = timed(f"{OUTER.format(join)} and {on}")
    assert (found.mode, found.stateful, bool(found.warnings)) == (OutputMode.APPEND, True, warned)


@pytest.mark.parametrize(
    ("join", "on"),
    [
        *[(join, "true") for join in ("left", "left outer", "right", "full", "semi", "left semi")],
        ("left", "o.at >= c.ts"),
        ("left semi", "o.at >= c.ts"),
        ("right", "o.at <= c.ts"),
        ("full", "o.at >= c.ts"),  # Spark takes it, and never writes the orders that meet no click
        ("full", "o.at <= c.ts"),
        ("left", "date(o.at) = date(c.ts)"),
        ("left", "c.ts > o.at - make_interval(0, 0, 0, 0, 1)"),
        ("left", "c.ts > o.at - interval 1 month 1 day"),
        ("left", "c.other >= o.at"),  # Spark takes this, too, and would never write a click that meets no order
        ("left", "true where o.at >= c.ts and o.at < c.ts + interval 1 hour"),
    ],
)
def test_an_outer_join_without_a_bound_in_time_is_no_stream(join: str, on: str) -> None:
    with pytest.raises(PenstockError, match=r"join of two streams without a bound in time") as caught:
        timed(f"{OUTER.format(join)} and {on}")
    assert caught.value.kind is MODEL_NOT_INCREMENTAL
    assert f"a {join.removesuffix(' outer')} join" in caught.value.message
    assert "bound the join in its ON" in str(caught.value.hint)


def test_an_aggregate_over_an_outer_join_is_no_stream() -> None:
    sql = f"{OUTER.format('left')} and o.at = c.ts".replace("c.user_id, o.at", "c.user_id, count(*) as n")
    with pytest.raises(PenstockError, match="an aggregate over an outer join of two streams") as caught:
        timed(f"{sql} group by c.user_id")
    assert caught.value.kind is MODEL_NOT_INCREMENTAL


@pytest.mark.parametrize(
    ("sql", "warning"),
    [
        ("select c.user_id from shop.clicks c join shop.orders o on o.user_id = c.user_id", "has no watermark"),
        ("select window.start as s, count(*) n from shop.clicks group by window(ts, '1 minute')", "ever closed"),
    ],
)
def test_without_a_watermark_state_is_never_let_go_of(sql: str, warning: str) -> None:
    assert warning in shape(sql).warnings[0]


@pytest.mark.parametrize(
    "window",
    [
        "window(other, '1 minute')",
        "window(date_trunc('second', ts), '1 minute')",
        "window(ts + interval 1 hour, '1 minute')",
        "window(ts, '1 minute').start",
        "user_id, session_window(other, '5 minutes')",
    ],
)
def test_a_window_that_the_watermark_does_not_pass_is_never_final(window: str) -> None:
    with pytest.raises(PenstockError, match="final when a watermark has passed it, and ts carries it") as caught:
        timed(f"select count(*) n from shop.clicks group by {window}", emit="final")
    assert caught.value.kind is MODEL_SETTING


@pytest.mark.parametrize(
    "group",
    [
        "user_id, session_window(other, '5 minutes')",
        "session_window(ts, '5 minutes')",
        "'x', session_window(ts, '5 minutes')",
    ],
)
def test_sessions_that_spark_cannot_keep_are_no_stream(group: str) -> None:
    # Of another column than the watermark's; or of all rows together, which Spark refuses as it plans the first batch.
    with pytest.raises(PenstockError, match="session_window") as caught:
        timed(f"select count(*) n from shop.clicks group by {group}")
    assert caught.value.kind is MODEL_NOT_INCREMENTAL


def test_a_session_of_all_rows_is_found_under_another_name() -> None:
    inner = "select user_id, session_window(ts, '5 minutes') w from shop.clicks"
    with pytest.raises(PenstockError, match="as the only GROUP BY column") as caught:
        timed(f"select w.start s, count(*) n from ({inner})\ngroup by w")
    assert (caught.value.kind, str(caught.value.at)) == (MODEL_NOT_INCREMENTAL, "models/m.sql:2")
    kept = timed(f"select user_id, w.start s, count(*) n from ({inner}) group by user_id, w")
    assert kept == Shape(OutputMode.APPEND, (), stateful=True)


def test_the_key_of_a_distinct_window_is_called_window() -> None:
    assert timed("select distinct window(ts, '1 minute') from shop.clicks").keys == ("window",)


def test_rows_of_an_aggregate_are_not_deduplicated() -> None:
    with pytest.raises(PenstockError, match="deduplicate_by") as caught:
        timed("select user_id, count(*) n from shop.clicks group by 1", deduplicate_by=("user_id",))
    assert caught.value.kind is MODEL_SETTING


def test_rows_that_are_told_apart_have_no_newest_of_a_key() -> None:
    with pytest.raises(PenstockError, match="do not go together") as caught:
        timed("select user_id, ts from shop.clicks", deduplicate_by=("user_id",), unique_key=("user_id",))
    assert caught.value.kind is MODEL_SETTING


def test_a_watermark_that_the_result_lacks_cannot_forget_what_was_told_apart() -> None:
    with pytest.raises(PenstockError, match="at or ts, which carries the watermark, is not in the result") as caught:
        timed("select user_id from shop.clicks", deduplicate_by=("user_id",))
    assert caught.value.kind is MODEL_SETTING
    assert timed("select user_id, ts as t from shop.clicks", deduplicate_by=("user_id",)).stateful


# -- dynamic tables that are looked up --------------------------------------------------------------------------------
KEPT = {
    "shop.clicks": Source(("item_id", "ts")),
    "shop.prices": Source(("item_id", "price"), rows="upsert", keys=("item_id",)),
    "shop.top": Source(("item_id", "rank"), rows="replace"),
}


def kept(sql: str, **how: Any) -> Shape:
    return analyse(parse(sql, "models/m.sql", ()), KEPT, **how)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select c.ts, p.price from shop.clicks c join shop.prices p using (item_id)", {"shop.prices"}),
        ("select c.ts, t.rank from shop.clicks c left join shop.top t on t.item_id = c.item_id", {"shop.top"}),
        (("with p as (select item_id, price from shop.prices where price > 1), c as (select * from shop.clicks) "
         "select c.ts, p.price, t.rank from c left join p using (item_id) join shop.top t using (item_id)"),
         {"shop.prices", "shop.top"}),
        ("select c.ts, p.price from shop.clicks c join shop.prices p on p.price > length(c.item_id)", {"shop.prices"}),
    ],
)  # fmt: skip
def test_a_table_that_replaces_its_rows_is_looked_up_by_a_stream_that_appends(sql: str, tables: set[str]) -> None:
    assert kept(sql) == Shape(OutputMode.APPEND, (), False, looked_up=frozenset(tables))


def test_an_aggregate_of_what_was_looked_up_is_one_of_the_stream() -> None:
    sql = "select p.price, count(*) n from shop.clicks c join shop.prices p using (item_id) group by p.price"
    assert kept(sql) == Shape(OutputMode.UPSERT, ("price",), True, looked_up=frozenset({"shop.prices"}))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "select p.price, c.ts from shop.prices p join shop.clicks c using (item_id)",
            "a join of a stream with a table",
        ),
        (
            "select p.price, t.rank from shop.prices p join shop.top t using (item_id)",
            "a join of a stream with a table",
        ),
        ("select t.rank, c.ts from shop.top t join shop.clicks c using (item_id)", "shop.top is recomputed as a whole"),
        ("select c.ts, t.rank from shop.clicks c right join shop.top t using (item_id)", "right join"),
        ("select * from shop.top", "shop.top is recomputed as a whole"),
        ("with t as (select * from shop.top) select * from t", "shop.top is recomputed as a whole"),
        ("select count(*) n from shop.top", "shop.top is recomputed as a whole"),
        ("select distinct item_id from shop.top", "shop.top is recomputed as a whole"),
        ("select item_id from shop.top union all select item_id from shop.clicks", "shop.top is recomputed as a whole"),
        (
            "select t.rank, i.name from shop.top t join shop.items i using (item_id)",
            "shop.top is recomputed as a whole",
        ),
    ],
)
def test_a_table_that_replaces_its_rows_is_looked_up_on_the_right_of_a_join_alone(sql: str, message: str) -> None:
    with pytest.raises(PenstockError) as caught:
        kept(sql)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("selct x from shop.clicks", 1),
        ("select x,\n  y\nfrom shop.clicks\nwhere x = = 3", 4),
        ("select 'a\nb' as x,\n'never closed\nfrom shop.clicks", 3),
        ("select x -- it's fine\nfrom shop.clicks /* never\nclosed", 2),
        ("delete from shop.clicks", 1),
        ("select count(x from shop.clicks", 1),
    ],
)
def test_a_syntax_error_has_its_line(sql: str, line: int) -> None:
    problem = failure(sql)
    assert problem.kind is MODEL_SYNTAX
    assert problem.at is not None
    assert problem.at.line == line


def test_two_statements_are_no_model() -> None:
    assert failure("select 1; select 2").kind is MODEL_SYNTAX
