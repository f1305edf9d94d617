"""Streams in a real engine: every kind of dynamic table over one topic, and what becomes of messages of every kind."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from model_files import Project

from penstock.compiler.spec import (
    Column,
    Input,
    KafkaInput,
    Output,
    OutputMode,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
)
from penstock.control.streams import drop_stream
from penstock.dev.broker import Broker
from penstock.kafka.admin import client_config, create_topics
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

START = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
COLUMNS = (
    Column(name="key", type="STRING", origin="key"),
    Column(name="trace", type="STRING", origin="header(trace)"),
    Column(name="k", type="STRING", origin="value.k"),
    Column(name="v", type="BIGINT", origin="value.v"),
    Column(name="ts", type="TIMESTAMP", origin="value.ts"),
    Column(name="city", type="STRING", origin="value.place.city"),
    Column(name="floor", type="INT", origin="value.place.floor"),
    Column(name="part", type="INT", origin="partition"),
    Column(name="pos", type="BIGINT", origin="offset"),
    Column(name="at", type="TIMESTAMP", origin="timestamp"),
)


@dataclass(frozen=True)
class Click:
    """A message that was sent."""

    k: str
    v: int
    ts: datetime

    @property
    def minute(self) -> datetime:
        return self.ts.replace(second=0, microsecond=0, tzinfo=None)


class World:
    """One topic with every kind of stream on it."""

    def __init__(self, platform: Platform, broker: Broker) -> None:
        self.platform = platform
        self.schema = f"w_{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.schema}-clicks"
        self.sent: list[Click] = []
        self._chance = random.Random(11)
        self._producer = Producer(client_config(broker.bootstrap) | {"enable.idempotence": True})
        create_topics(broker.bootstrap, {self.topic: 2})

    def table(self, name: str) -> str:
        return f"{self.schema}.{name}"

    def spec(
        self,
        name: str,
        sql: str,
        *others: Input,
        keys: tuple[str, ...] = (),
        stateful: bool = False,
        small_batch_rows: int = 20_000,
        streams: bool = True,
        trigger: Trigger | None = None,
    ) -> StreamSpec:
        clicks = KafkaInput(view="clicks", relation="shop.clicks", topic=self.topic, columns=COLUMNS)
        return StreamSpec(
            name=self.table(name), unique_id=f"model.test.{name}", path=f"models/{name}.sql", sql=sql,
            stateful=stateful, inputs=(clicks, *others) if streams else others,
            output=Output(relation=self.table(name), mode=OutputMode.UPSERT if keys else OutputMode.APPEND, keys=keys),
            small_batch_rows=small_batch_rows, trigger=trigger or Trigger(),
        )  # fmt: skip

    def send(self, count: int, *, keys: int = 7) -> None:
        """Clicks of few keys, each key in one partition, so that updates of a key interleave with the others'."""
        for _ in range(count):
            number = len(self.sent)
            click = Click(
                f"k{self._chance.randrange(keys)}", self._chance.randrange(1000), START + timedelta(seconds=7 * number)
            )
            value = {"k": click.k, "v": click.v, "ts": click.ts.isoformat(), "place": {"city": "Rome", "floor": 3}}
            self._producer.produce(self.topic, json.dumps(value), click.k, headers=[("trace", f"t{number}".encode())])
            self.sent.append(click)
        assert self._producer.flush(30) == 0

    def count(self, name: str) -> int:
        return int(self.platform.sql(f"select count(*) from {self.table(name)}")[0][0])

    def settled(self, name: str, want: list[tuple[Any, ...]], sql: str) -> None:
        """The query's rows become those; a table that has too much never does."""
        seen: list[list[tuple[Any, ...]]] = []

        def same() -> bool:
            seen[:] = [sorted(self.platform.sql(sql), key=repr)]
            return seen[0] == sorted(want, key=repr)

        self.platform.until(same, f"the rows of {name}", 120, lambda: (seen, want))

    def writers(self, name: str) -> Counter[str]:
        return Counter(batch.writer for batch in self.platform.store.progress(self.table(name)) if batch.rows_out)

    def drop(self) -> None:
        for want in reversed(self.platform.store.all_desired()):
            if want.stream.startswith(f"{self.schema}."):
                drop_stream(self.platform.store, want.stream)


@pytest.fixture(scope="module")
def world(platform: Platform, broker: Broker) -> Iterator[World]:
    """All streams deployed; clicks before their start and, in two portions, after it."""
    made = World(platform, broker)
    platform.sql(f"create schema {made.schema}")
    platform.sql(f"create table {made.table('titles')} (k string, title string) using delta")
    platform.sql(f"insert into {made.table('titles')} values ('k0', 'zero'), ('k1', 'one')")
    made.send(40)
    latest = "select k, v, ts from clicks"
    titles = TableInput(relation=made.table("titles"))
    new_rows = TableStreamInput(view="appended", relation=made.table("appended"))
    windows = "select window, k, count(*) as n from clicks group by window(ts, '1 minute'), k"
    specs = [
        made.spec("appended", "select part, pos, k, v, ts from clicks"),
        made.spec("by_spark", "select part, pos, k, v, ts from clicks", small_batch_rows=0),
        made.spec(
            "totals", "select k, count(*) as n, sum(v) as total from clicks group by k", keys=("k",), stateful=True
        ),
        made.spec("latest", latest, keys=("k",)),
        made.spec("latest_by_spark", latest, keys=("k",), small_batch_rows=0),
        made.spec("windows", windows, keys=("window", "k"), stateful=True),
        made.spec(
            "chained", "select k, max(v) as most from appended group by k", new_rows, keys=("k",), stateful=True,
            streams=False,
        ),
        made.spec(
            "titled", f"select c.k, t.title from clicks c left join {titles.relation} t on c.k = t.k", titles
        ),
    ]  # fmt: skip
    try:
        for spec in specs:
            assert platform.deploy(spec).verdict == "NEW"
        for spec in specs:
            platform.state(spec.name, StreamState.RUNNING)
        made.settled("titled", [(40,)], f"select count(*) from {made.table('titled')}")
        platform.sql(f"insert into {made.table('titles')} values ('k2', 'two')")
        made.send(60)
        made.settled("latest", [(100,)], f"select count(*) from {made.table('appended')}")
        made.send(100)
        yield made
    finally:
        made.drop()


def test_an_append_has_every_message_once(world: World) -> None:
    want = [(c.k, c.v, c.ts.replace(tzinfo=None)) for c in world.sent]
    for name in ("appended", "by_spark"):
        world.settled(name, want, f"select k, v, ts from {world.table(name)}")
        rows = world.platform.sql(f"select part, pos from {world.table(name)}")
        assert len(set(rows)) == len(rows)


def test_the_progress_says_which_writer_ran(world: World) -> None:
    for name, writer in (("appended", "direct"), ("by_spark", "spark"), ("windows", "spark"), ("totals", "delta-rs")):
        world.platform.until(lambda name=name: world.writers(name), f"a batch of {name}")
        assert set(world.writers(name)) == {writer}, name


def test_an_aggregate_has_one_row_a_key(world: World) -> None:
    totals: dict[str, list[int]] = {}
    for click in world.sent:
        totals.setdefault(click.k, []).append(click.v)
    want = [(k, len(values), sum(values)) for k, values in totals.items()]
    world.settled("totals", want, f"select * from {world.table('totals')}")


def test_an_upsert_without_state_keeps_the_newest_row_of_a_key(world: World) -> None:
    newest = {click.k: (click.k, click.v, click.ts.replace(tzinfo=None)) for click in world.sent}
    for name in ("latest", "latest_by_spark"):
        world.settled(name, list(newest.values()), f"select k, v, ts from {world.table(name)}")


def test_windows_are_keyed_by_their_struct(world: World) -> None:
    counts = Counter((click.minute, click.k) for click in world.sent)
    want = [(minute, k, n) for (minute, k), n in counts.items()]
    world.settled("windows", want, f"select window.start, k, n from {world.table('windows')}")


def test_a_stream_on_a_table_sees_its_new_rows(world: World) -> None:
    most: dict[str, int] = {}
    for click in world.sent:
        most[click.k] = max(most.get(click.k, 0), click.v)
    world.settled("chained", list(most.items()), f"select k, most from {world.table('chained')}")


def test_a_joined_table_is_read_as_it_is_at_each_batch(world: World) -> None:
    want = Counter[tuple[str, str | None]]()
    for number, click in enumerate(world.sent):
        titles = {"k0": "zero", "k1": "one"} | ({"k2": "two"} if number >= 40 else {})
        want[(click.k, titles.get(click.k))] += 1
    sql = f"select k, title, count(*) from {world.table('titled')} group by k, title"
    world.settled("titled", [(*pair, n) for pair, n in want.items()], sql)


def test_the_lag_of_every_stream_goes_to_zero(world: World) -> None:
    def lags() -> dict[str, int | None]:
        found = world.platform.store.all_actual()
        return {name: record.lag_rows for name, record in found.items() if name.startswith(f"{world.schema}.")}

    world.platform.until(lambda: set(lags().values()) == {0}, "a lag of 0", 60, lags)
    assert len(lags()) == 8


# -- messages ---------------------------------------------------------------------------------------------------------
def test_columns_come_from_every_part_of_a_message_and_bad_messages_lose_only_what_is_bad(
    world: World, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    good = {"k": "a", "v": 1, "ts": "2026-03-01T12:00:00Z", "place": {"city": "Rome", "floor": 3}}
    produce(name, [("key-1", good)], headers={"trace": "t-1", "other": "x"})
    bad: list[Any] = [
        ("key-2", good | {"v": "many", "place": {"city": "Oslo", "floor": "top"}}),  # partly bad: the row stays
        ("key-3", b""),  # empty: no row
        ("key-4", None),  # a tombstone: no row
        ("key-5", b"not json at all"),  # nothing parses: no row
        ("key-6", {"something": "else"}),  # nothing of it is declared: no row
        ("key-7", {"v": "many", "ts": "never", "place": {"floor": "top"}}),  # nothing fits its type: no row
        ("key-8", b"[1, 2]"),
        ("key-9", {"place": {"city": "Bonn"}}),  # one nested value is enough
    ]
    produce(name, bad)
    base = world.spec("decoded", "select * from clicks")
    (clicks,) = base.inputs
    spec = base.model_copy(update={"inputs": (clicks.model_copy(update={"topic": name}),)})
    world.platform.deploy(spec)
    when = datetime(2026, 3, 1, 12)
    sql = f"select key, trace, k, v, ts, city, floor, part, pos from {spec.name}"
    want = [
        ("key-1", "t-1", "a", 1, when, "Rome", 3, 0, 0),
        ("key-2", None, "a", None, when, "Oslo", None, 0, 1),
        ("key-9", None, None, None, None, "Bonn", None, 0, 8),
    ]
    world.settled("decoded", want, sql)
    assert world.platform.sql(f"select count(*) from {spec.name} where at > now() - interval 1 hour") == [(3,)]
    produce(name, [("key-10", good)])
    world.settled("decoded", [*want, ("key-10", None, "a", 1, when, "Rome", 3, 0, 9)], sql)


# -- when a batch is written ------------------------------------------------------------------------------------------
def test_a_buffer_is_written_when_it_is_full_or_when_its_time_is_up(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    sql = "select pos from input"
    plain = make_spec("plain", name, sql)
    full = make_spec("full", name, sql, trigger=Trigger(buffer_limit=100, time_window_ms=3_600_000))
    timed = make_spec("timed", name, sql, trigger=Trigger(buffer_limit=100_000, time_window_ms=2_000))
    project = Project(schema)
    project.source("input", name, {"v": "bigint", "pos": "bigint from offset"})
    project.model("behind", "select pos from {input}", target_lag="1 hour")
    behind = project.specs()["behind"]

    def rows(spec: StreamSpec) -> int:
        return int(platform.sql(f"select count(*) from {spec.name}")[0][0])

    produce(name, [{"k": "a", "v": 1}])  # the first batch never waits: there is none before it
    for spec in (plain, full, timed, behind):
        platform.deploy(spec)
        platform.until(lambda spec=spec: rows(spec) == 1, f"the first row of {spec.name}", 90)
    produce(name, [{"k": "a", "v": 1}] * 60)
    platform.until(lambda: rows(plain) == 61 and rows(timed) == 61, "60 rows at once, and 60 when the time is up", 90)
    for spec in (full, behind):
        platform.until(lambda spec=spec: platform.store.actual(spec.name).lag_rows == 60, f"{spec.name} to wait", 30)
        assert [batch.rows_in for batch in platform.store.progress(spec.name) if batch.rows_in] == [1]
        assert rows(spec) == 1
    produce(name, [{"k": "a", "v": 1}] * 40)
    platform.until(lambda: rows(full) == 101, "the full buffer", 60, lambda: platform.store.actual(full.name))
    assert [batch.rows_in for batch in platform.store.progress(full.name) if batch.rows_in] in ([100, 1], [1, 100])


# -- deployments ------------------------------------------------------------------------------------------------------
def refused(platform: Platform, spec: StreamSpec, pattern: str, **how: Any) -> None:
    from penstock.errors import PenstockError

    before = platform.store.find_desired(spec.name)
    with pytest.raises(PenstockError, match=pattern):
        platform.deploy(spec, **how)
    assert platform.store.find_desired(spec.name) == before


def test_a_wrong_model_is_refused_and_leaves_nothing(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic
) -> None:
    name = topic(1)
    lines: Callable[[StreamSpec], StreamSpec] = lambda spec: spec.model_copy(update={"line_map": (5, 6, 7)})  # noqa: E731
    refused(
        platform,
        lines(make_spec("wrong", name, "select pos,\n  no_such\nfrom input")),
        r"PEN-1304 models/wrong.sql:6: .*no_such",
    )
    refused(platform, lines(make_spec("wrong", name, "select pos\nfrm input where")), r"PEN-1303 models/wrong.sql:6: ")
    ordered = make_spec("wrong", name, "select distinct k from input order by k", keys=("k",))
    refused(platform, ordered.model_copy(update={"refresh_mode": "incremental"}), r"PEN-1305 ")
    refused(platform, make_spec("wrong", "no-such-topic", "select pos from input"), r"PEN-2002 .*no-such-topic")
    assert platform.store.find_desired(f"{schema}.wrong") is None
    assert platform.sql(f"show schemas like '{schema}'") in ([], [(schema,)])
    assert not platform.store.actual(f"{schema}.wrong").generation


def test_a_table_of_somebody_else_is_not_touched_without_full_refresh(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    produce(name, [{"k": "a", "v": 1}])
    platform.sql(f"create schema {schema}")
    platform.sql(f"create table {schema}.taken (mine string) using delta")
    spec = make_spec("taken", name, "select k from input")
    refused(platform, spec, rf"PEN-4007 .*{schema}\.taken")
    assert platform.sql(f"select * from {schema}.taken") == []
    platform.deploy(spec, full_refresh=True)
    platform.until(lambda: platform.sql(f"select * from {schema}.taken") == [("a",)], "the stream's own table", 90)


def test_a_redeployment_changes_nothing_a_change_restarts_and_a_rebuild_needs_full_refresh(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    produce(name, [{"k": "a", "v": n} for n in range(5)])
    spec = make_spec("changing", name, "select k, v from input")

    def rows() -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select * from {spec.name}"))

    first = platform.deploy(spec)
    platform.until(lambda: len(rows()) == 5, "5 rows", 90)
    before = platform.store.actual(spec.name)
    again = platform.deploy(spec)
    assert (again.verdict, again.changed, again.generation) == ("NO-OP", False, first.generation)
    assert platform.store.actual(spec.name).run_id == before.run_id

    changed = spec.model_copy(update={"sql": "select k, v + 100 as v from input"})
    assert platform.deploy(changed).verdict == "RESTART"
    platform.until(lambda: platform.store.actual(spec.name).generation == 2, "generation 2")
    platform.state(spec.name, StreamState.RUNNING)
    produce(name, [{"k": "b", "v": 5}])
    want = [("a", n) for n in range(5)] + [("b", 105)]
    platform.until(lambda: rows() == want, "old rows as they were, new ones by the new SQL", 90, rows)

    wider = spec.model_copy(update={"sql": "select k, v, pos from input"})
    refused(platform, wider, r"PEN-3005 .*column pos is new")
    assert rows() == want
    assert platform.store.actual(spec.name).state is StreamState.RUNNING
    rebuilt = platform.deploy(wider, full_refresh=True)
    assert rebuilt.verdict == "REBUILD"
    assert rebuilt.checkpoint != first.checkpoint
    want = [("a", n, n) for n in range(5)] + [("b", 5, 5)]
    platform.until(lambda: rows() == want, "every row anew", 90, rows)
