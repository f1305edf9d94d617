"""What a model may say, kind by kind, on real topics: commercials of brands, equal to what DuckDB computes."""

from __future__ import annotations

import json
import random
import re
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from confluent_kafka import Producer
from model_files import Project

from penstock.checkpoint.offsets import committed_batch
from penstock.control.deployed import spec_of
from penstock.control.streams import drop_stream
from penstock.dev.broker import Broker
from penstock.engine.polling import CONF, SHORTEST, rest_ms
from penstock.kafka.admin import client_config, create_topics

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform
else:
    MakeTopic = Platform = Any

pytestmark = pytest.mark.timeout(600)

START = datetime(2026, 3, 1, 12)
LATER = START + timedelta(hours=1)  # a message of then ends all windows of before
WATERMARK = "10 minutes"
METRICS = "count(*) as cnt, avg(duration) as duration_mean, avg(rating) as rating_mean"
_SESSIONS = f"""
    select brand, min(ts) as starts, max(ts) + interval '1 second' as ends, count(*) as n from (
        select brand, ts, sum(fresh) over (partition by brand order by ts, id) as session from (
            select *, coalesce(ts > lag(ts) over (partition by brand order by ts, id)
                + interval '1 second', true)::int as fresh
            from commercials where ts < timestamp '{LATER}'
        )
    ) group by brand, session
    """
# name -> SQL of the model, its config, SQL for DuckDB where its functions differ
MODELS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "metrics_per_brand": (f"select brand, {METRICS} from {{commercials}} group by brand", {}, None),
    "metrics_per_5s": (
        (f"select window.start as starts, brand, {METRICS} from {{commercials}} "
        "group by window(ts, '5 seconds'), brand having count(*) > 3"),
        {},
        (f"select time_bucket(interval '5 seconds', ts) as starts, brand, {METRICS} from commercials "
        "group by all having count(*) > 3"),
    ),
    "final_per_5s": (
        (f"select window.start as starts, brand, {METRICS} from {{commercials}} "
        "group by window(ts, '5 seconds'), brand having count(*) > 3"),
        {"emit": "final"},
        (f"select time_bucket(interval '5 seconds', ts) as starts, brand, {METRICS} from commercials "
        f"where ts < timestamp '{LATER}' group by all having count(*) > 3"),
    ),
    "final_hops": (
        "select window.start as starts, count(*) as n from {commercials} group by window(ts, '10 second', '5 second')",
        {"emit": "final", "target_lag": "2 seconds"},
        f"""
        select starts, count(*) as n from (
            select unnest([time_bucket(interval '5 seconds', ts), time_bucket(interval '5 seconds', ts)
                - interval '5 seconds']) as starts
            from commercials where ts < timestamp '{LATER}'
        ) group by starts
        """,
    ),
    "hops_so_far": (
        "select window.start as starts, count(*) as n from {commercials} group by window(ts, '10 second', '5 second')",
        {"emit": "changes"},
        """
        select starts, count(*) as n from (
            select unnest([time_bucket(interval '5 seconds', ts), time_bucket(interval '5 seconds', ts)
                - interval '5 seconds']) as starts
            from commercials
        ) group by starts
        """,
    ),
    "sessions": (
        ("select brand, session_window.start as starts, session_window.end as ends, count(*) as n "
        "from {commercials} group by brand, session_window(ts, '1 second')"),
        {},
        _SESSIONS,
    ),
    "once": (
        "select id, brand, ts from {commercials}",
        {"deduplicate_by": "id"},
        "select distinct id, brand, ts from commercials",
    ),
    "distinct_brands": ("select distinct brand, duration from {commercials}", {}, None),
    "tags": (
        "select id, explode(details.tags) as tag, details.place.city as city from {commercials}",
        {},
        "select id, unnest(tags) as tag, city from commercials",
    ),
    "all_of_them": (
        "select id, 'c' as kind from {commercials} union all select id, 'o' as kind from {orders}", {}, None,
    ),
    "ordered": (
        ("select c.id, c.brand, o.amount from {commercials} c left join {orders} o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds"),
        {},
        ("select c.id, c.brand, o.amount from commercials c left join orders o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds "
        f"where c.ts < timestamp '{LATER}'"),
    ),
    "paid_for": (
        ("select o.id, o.amount, c.brand from {commercials} c right join {orders} o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds"),
        {},
        ("select o.id, o.amount, c.brand from commercials c right join orders o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds "
        f"where o.paid < timestamp '{LATER}'"),
    ),
    "shown_or_paid": (
        ("select c.id as shown, o.id as paid, o.amount from {commercials} c full join {orders} o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds"),
        {},
        ("select c.id as shown, o.id as paid, o.amount from commercials c full join orders o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds "
        f"where coalesce(c.ts, o.paid) < timestamp '{LATER}'"),
    ),
    "paid_in_time": (
        ("select c.id, o.amount from {commercials} c join {orders} o "
        "on o.id = c.id and o.paid between c.ts and c.ts + interval 10 seconds"),
        {}, None,
    ),
    "shown_before": (
        ("select o.id, o.paid from {orders} o left semi join {commercials} c "
        "on o.id = c.id and o.paid between c.ts and c.ts + interval 10 seconds"),
        {},
        ("select o.id, o.paid from orders o semi join commercials c "
        "on o.id = c.id and o.paid between c.ts and c.ts + interval 10 seconds"),
    ),
    "seen": ("select distinct id, ts from {commercials}", {}, None),
    "final_of_final": (
        ("select window(w, '10 seconds').start as starts, brand, sum(n) as n, count(*) as windows from "
        "(select window as w, brand, count(*) as n from {commercials} group by window(ts, '5 seconds'), brand) "
        "group by window(w, '10 seconds'), brand"),
        {"emit": "final"},
        f"""
        select time_bucket(interval '10 seconds', starts) as starts, brand, sum(n) as n, count(*) as windows from (
            select time_bucket(interval '5 seconds', ts) as starts, brand, count(*) as n
            from commercials where ts < timestamp '{LATER}' group by all
        ) group by all
        """,
    ),
    "both_per_5s": (
        ("with c as (select window as w, count(*) as n from {commercials} group by window(ts, '5 seconds')), "
        "o as (select window as w, sum(amount) as amount from {orders} group by window(paid, '5 seconds')) "
        "select c.w.start as starts, c.n, o.amount from c join o on o.w = c.w"),
        {"emit": "final"},
        f"""
        select c.starts, c.n, o.amount from
            (select time_bucket(interval '5 seconds', ts) as starts, count(*) as n from commercials group by all) c
            join (select time_bucket(interval '5 seconds', paid) as starts, sum(amount) as amount
                from orders group by all) o on o.starts = c.starts
        where c.starts < timestamp '{LATER}'
        """,
    ),
    "with_and_without_names": (
        """
        select c.id, 'right' as kind, n.name from {names} n right join {commercials} c on n.brand = c.brand
        union all
        select c.id, 'anti', null from {commercials} c left anti join {names} n on n.brand = c.brand
        union all
        select id, 'not in', null from {commercials} where brand not in (select brand from {names})
        union all
        select id, 'not exists', null from {commercials} c
        where not exists (select 1 from {names} n where n.brand = c.brand)
        """,
        {},
        """
        select c.id, 'right' as kind, n.name from commercials c left join names n on n.brand = c.brand
        union all
        select id, unnest(['anti', 'not in', 'not exists']), null from commercials where brand <> 'Acme'
        """,
    ),
    "kept_orders": (
        ("select c.id, c.brand, o.id as paid from {commercials} c left join {orders} o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds"),
        {"unique_key": "id"},
        ("select distinct c.id, c.brand, o.id as paid from commercials c left join orders o "
        "on o.id = c.id and o.paid >= c.ts and o.paid <= c.ts + interval 10 seconds "
        f"where c.ts < timestamp '{LATER}'"),
    ),
    "windows_of_a_cte": (
        ("with c as (select brand, window(ts, '5 seconds') as w from {commercials}) "
        "select w.start as starts, brand, count(*) as n from c group by w, brand"),
        {},
        "select time_bucket(interval '5 seconds', ts) as starts, brand, count(*) as n from commercials group by all",
    ),
    "final_windows_of_a_cte": (
        ("with c as (select brand, window(ts, '5 seconds') as w from {commercials}) "
        "select w.start as starts, brand, count(*) as n from c group by w, brand"),
        {"emit": "final"},
        ("select time_bucket(interval '5 seconds', ts) as starts, brand, count(*) as n from commercials "
        f"where ts < timestamp '{LATER}' group by all"),
    ),
    "final_and_distinct": (
        ("select window.start as starts, n from (select distinct window, n from (select window, count(*) as n "
        "from {commercials} group by window(ts, '5 seconds'), brand))"),
        {"emit": "final"},
        ("select distinct starts, n from (select time_bucket(interval '5 seconds', ts) as starts, count(*) as n "
        f"from commercials where ts < timestamp '{LATER}' group by starts, brand)"),
    ),
    "sessions_of_a_cte": (
        ("with c as (select brand, session_window(ts, '1 second') as w from {commercials}) "
        "select brand, w.start as starts, w.end as ends, count(*) as n from c group by brand, w"),
        {},
        _SESSIONS,
    ),
    "brands_by_duration": (
        "select duration, count(distinct brand) as brands from {commercials} group by duration", {}, None,
    ),
    "brand_names": (
        "select c.id, n.name from {commercials} c left join {names} n on n.brand = c.brand where c.rating = 5",
        {}, None,
    ),
}  # fmt: skip


class World:
    """Two topics with all the models on them."""

    def __init__(self, platform: Platform, broker: Broker) -> None:
        self.platform = platform
        self.schema = f"any_{uuid.uuid4().hex[:8]}"
        self.commercials: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self._producer = Producer(client_config(broker.bootstrap) | {"enable.idempotence": True})
        create_topics(broker.bootstrap, {f"{self.schema}-{name}": 2 for name in ("commercials", "orders")})
        project = Project(self.schema)
        details = "struct<tags: array<string>, place: struct<city: string>>"
        project.source(
            "commercials", f"{self.schema}-commercials",
            {"id": "bigint", "brand": "string from key", "duration": "int", "rating": "int", "details": details,
             "ts": "timestamp from timestamp"},
            {"column": "ts", "delay": WATERMARK},
        )  # fmt: skip
        project.source(
            "orders", f"{self.schema}-orders", {"id": "bigint", "amount": "int", "paid": "timestamp"},
            {"column": "paid", "delay": WATERMARK},
        )  # fmt: skip
        names = project.table("names")
        platform.sql(f"create schema {self.schema}")
        platform.sql(f"create table {names} using delta as select 'Acme' as brand, 'Acme Corporation' as name")
        for name, (sql, config, _) in MODELS.items():
            project.model(name, sql, **config)
        self.specs = project.specs()

    def send(self, commercials: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
        for row in commercials:
            value = {"id": row["id"], "duration": row["duration"], "rating": row["rating"],
                     "details": {"tags": row["tags"], "place": {"city": row["city"]}}}  # fmt: skip
            at = int(row["ts"].replace(tzinfo=timezone.utc).timestamp() * 1000)
            self._producer.produce(f"{self.schema}-commercials", json.dumps(value), row["brand"], timestamp=at)
        for row in orders:
            value = {**row, "paid": row["paid"].isoformat()}
            self._producer.produce(f"{self.schema}-orders", json.dumps(value), str(row["id"]))
        assert self._producer.flush(30) == 0
        self.commercials += commercials
        self.orders += orders

    def checkpoint(self, name: str) -> Path:
        stream = self.specs[name].name
        return self.platform.paths.checkpoint(stream, self.platform.store.desired(stream).checkpoint_id)

    def passed(self, name: str) -> datetime:
        """The watermark of the last batch that is done: what it makes stale is forgotten by then."""
        batch = committed_batch(self.checkpoint(name))
        if batch is None:
            return datetime.min
        _, metadata, *_ = (self.checkpoint(name) / "offsets" / str(batch)).read_text().split("\n")
        at = datetime.fromtimestamp(json.loads(metadata)["batchWatermarkMs"] / 1000, timezone.utc)
        return at.replace(tzinfo=None)

    def computed(self, name: str) -> list[tuple[Any, ...]]:
        """The model's rows, by DuckDB."""
        sql, _, other = MODELS[name]
        connection = duckdb.connect()
        connection.execute(
            "create table commercials (id bigint, brand varchar, duration int, rating int, tags varchar[], "
            "city varchar, ts timestamp)"
        )
        connection.execute("create table orders (id bigint, amount int, paid timestamp)")
        connection.execute("create table names as select 'Acme' as brand, 'Acme Corporation' as name")
        connection.executemany("insert into commercials values (?, ?, ?, ?, ?, ?, ?)", [
            [row[key] for key in ("id", "brand", "duration", "rating", "tags", "city", "ts")]
            for row in self.commercials
        ])  # fmt: skip
        connection.executemany("insert into orders values (?, ?, ?)", [[*row.values()] for row in self.orders])
        relations = {"commercials": "commercials", "orders": "orders", "names": "names"}
        return connection.execute((other or sql).format(**relations)).fetchall()


def comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows), key=repr)


@pytest.fixture(scope="module")
def world(platform: Platform, broker: Broker) -> Iterator[World]:
    """Commercials before the streams start and after it, some of them twice; then some of an hour later, and when
    these have passed, an id of before once more.
    """
    made = World(platform, broker)
    chance = random.Random(3)
    commercials = [
        {"id": number, "brand": chance.choice(["Acme", "Globex"]), "duration": chance.choice([30, 45, 60]),
         "rating": chance.randint(1, 5), "tags": chance.sample(["tv", "radio", "web"], chance.randrange(4)),
         "city": chance.choice(["Wien", "Graz"]), "ts": START + timedelta(milliseconds=300 * number)}
        for number in range(150)
    ]  # fmt: skip
    commercials = [row for row in commercials for _ in range(1 + (row["id"] % 10 == 0))]
    orders = [
        {
            "id": row["id"],
            "amount": chance.randrange(9),
            "paid": row["ts"] + timedelta(seconds=chance.randrange(-5, 20)),
        }
        for row in commercials[::7]
    ]
    made.send(commercials[:80], orders[:10])
    try:
        for spec in made.specs.values():
            platform.deploy(spec)
        first = made.specs["tags"].name
        platform.until(lambda: platform.sql(f"select count(*) from {first}")[0][0] > 0, "the first rows", 120)
        made.send(commercials[80:], orders[10:])
        # In each partition and topic, so that every watermark passes.
        end = [{**commercials[0], "id": 1000 + n, "brand": brand, "ts": LATER} for n, brand in enumerate("ABCDEFGH")]
        made.send(end, [{"id": 2000 + n, "amount": 0, "paid": LATER} for n in range(8)])
        platform.until(lambda: made.passed("once") > START + timedelta(minutes=30), "ids to be forgotten", 120)
        made.send([{**commercials[0], "ts": LATER + timedelta(seconds=20)}], [])
        yield made
    finally:
        for spec in made.specs.values():
            if platform.store.find_desired(spec.name):
                drop_stream(platform.store, spec.name)


def test_every_model_is_kept_by_a_stream_but_one_that_counts_distinct_values(world: World) -> None:
    reasons = {name: spec.reason for name, spec in world.specs.items() if spec.is_full}
    assert reasons.keys() == {"brands_by_duration"}
    assert "an aggregate with DISTINCT" in str(reasons["brands_by_duration"])
    deployed = [spec_of(world.platform.store.desired(spec.name)) for spec in world.specs.values()]
    assert [spec.name for spec in deployed if spec and spec.refused] == [], "Spark takes what the compiler takes"


@pytest.mark.parametrize("name", MODELS)
def test_a_models_rows_equal_their_batch_computation(world: World, name: str) -> None:
    want = comparable(world.computed(name))
    assert want
    rows = lambda: comparable(world.platform.sql(f"select * from {world.schema}.{name}"))  # noqa: E731
    world.platform.until(
        lambda: rows() == want, f"the rows of {name}", 120,
        lambda: ([row for row in rows() if row not in want][:4], [row for row in want if row not in rows()][:4],
                 world.platform.store.actual(f"{world.schema}.{name}").error),
    )  # fmt: skip


def test_streams_of_many_ask_less_often(world: World) -> None:
    log = (world.platform.paths.logs / "engine.log").read_text(encoding="utf-8", errors="replace")
    last = list(world.specs.values())[-1].name
    rests = re.findall(rf"{re.escape(last)} runs, .* it rests (\d+) ms", log)
    shortest = int(world.platform.settings.engine.spark_conf[CONF].removesuffix("ms"))
    assert int(rests[-1]) == rest_ms(len(world.specs), shortest) > shortest > SHORTEST, "the profile's, and then longer"


def test_state_has_a_size_and_is_kept_as_its_changes(world: World) -> None:
    test_a_models_rows_equal_their_batch_computation(world, "metrics_per_brand")
    assert world.platform.store.progress(f"{world.schema}.metrics_per_brand")[0].state_bytes > 0
    # A batch writes what it changed, not all that there is.
    assert list(world.checkpoint("metrics_per_brand").glob("state/**/*.changelog"))


@pytest.mark.parametrize("small_batch_rows", [50_000, 0])
def test_updates_of_several_writers_are_applied_in_the_order_of_partition_and_offset(
    platform: Platform, broker: Broker, schema: str, topic: MakeTopic, small_batch_rows: int
) -> None:
    name = topic(3)
    project = Project(schema)
    project.source("updates", name, {"k": "string from key", "v": "bigint", "part": "int from partition",
                                     "pos": "bigint from offset"})  # fmt: skip
    project.model("every", "select k, v, part, pos from {updates}")
    project.model("latest", "select k, v, part, pos from {updates}", unique_key="k", small_batch_rows=small_batch_rows,
                  max_batch_rows=150)  # fmt: skip
    for spec in project.specs().values():
        platform.deploy(spec)

    together = threading.Barrier(3)  # no writer is far ahead of the others

    def write(writer: int) -> None:
        producer = Producer(client_config(broker.bootstrap) | {"enable.idempotence": True, "linger.ms": 2})
        for number in range(200):
            producer.produce(name, json.dumps({"v": writer * 1000 + number}), f"k{number % 11}")
            if number % 20 == 19:
                assert producer.flush(30) == 0
                together.wait(30)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = f"{schema}.every"
    platform.until(lambda: platform.sql(f"select count(*) from {every}")[0][0] == 600, "all updates", 90)
    want = sorted(platform.sql(f"select k, max_by(v, pos), max_by(part, pos), max(pos) from {every} group by k"))
    writers: dict[str, list[int]] = {f"k{number}": [] for number in range(11)}
    for key, v, _ in sorted(platform.sql(f"select k, v, pos from {every}"), key=lambda row: row[2]):
        writers[key].append(v // 1000)
    for each in writers.values():
        assert sum(a != b for a, b in pairwise(each)) >= 10, f"they take no turns: {each}"
    platform.until(
        lambda: sorted(platform.sql(f"select * from {schema}.latest")) == want, "the latest of each key", 90,
        lambda: (sorted(platform.sql(f"select * from {schema}.latest")), want),
    )  # fmt: skip
