"""Streams that share the reading of a topic: rows as alone, failures alone, and checkpoints that go on either way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.checkpoint.standing import standing
from penstock.compiler.spec import StreamSpec
from penstock.control.streams import drop_stream, restart_stream, start_stream, stop_stream
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def platform(sharing_platform: Platform) -> Platform:
    return sharing_platform


def log(platform: Platform) -> str:
    return (platform.paths.logs / "engine.log").read_text(encoding="utf-8", errors="replace")


def shared(platform: Platform, topic: str, specs: Iterable[StreamSpec]) -> None:
    """Wait until these streams read the topic together."""

    def all_in() -> bool:
        text = log(platform)
        return all(f"{each.name} reads topic '{topic}' with others" in text for each in specs)

    platform.until(all_in, "a shared reading", 120, lambda: log(platform)[-3000:])


def settled(platform: Platform, spec: StreamSpec, want: list[tuple[Any, ...]], columns: str) -> None:
    seen: list[Any] = []

    def same() -> bool:
        seen[:] = sorted(platform.sql(f"select {columns} from {spec.name}"), key=repr)
        return seen == sorted(want, key=repr)

    def last() -> Any:
        return len(seen), len(want), platform.store.actual(spec.name), log(platform)[-2000:]

    platform.until(same, f"the rows of {spec.name}", 120, last)


OF_EVERY_KIND = """
    struct(v, named_struct('k', k) as inner) as s, array(v, null) as l, map('k', v) as m,
    cast(v as decimal(10, 2)) as d, cast(at as date) as day, cast(k as binary) as b, cast(at as timestamp_ntz) as local,
    v / 3 as f, cast(null as string) as empty
"""


def value(n: int) -> Any:
    """Messages of every kind: good, partly bad, bad, empty, none at all."""
    match n % 10:
        case 3:
            return {"k": f"k{n}", "v": "no number"}
        case 5:
            return b"{broken"
        case 7:
            return b""
        case 8:
            return None
        case _:
            return {"k": f"k{n}", "v": n}


def rows(numbers: Iterable[int]) -> list[tuple[Any, ...]]:
    """What is left of them: an empty or bad record is no row, and what does not fit is null."""
    return [(f"k{n}", None if n % 10 == 3 else n) for n in numbers if n % 10 not in (5, 7, 8)]


def test_models_on_one_source_have_the_rows_and_counts_that_they_have_alone_and_read_it_once(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: models that append, filter, use other columns and replace by key; one keeps state and so reads alone.
    name = topic(1)
    every = make_spec("every", name, f"select part, pos, key, k, v, at, {OF_EVERY_KIND} from input")
    again = make_spec("again", name, "select k, v, pos as n, part, key, at from input")
    even = make_spec("even", name, "select k, v from input where v % 2 = 0")
    latest = make_spec("latest", name, "select part, max_by.k, max_by.v from (select part, k, v from input) max_by",
                       keys=("part",))  # fmt: skip
    counts = make_spec("counts", name, "select count(*) as n, sum(v) as v from input", keys=(), stateful=True)
    alone = every.model_copy(update={
        "name": every.name + "_alone", "small_batch_rows": 0,
        "output": every.output.model_copy(update={"relation": every.output.relation + "_alone"}),
    })  # fmt: skip
    together = (every, again, even, latest)
    platform.deploy(every)
    run = platform.state(every.name, StreamState.RUNNING).run_id
    for spec in (*together[1:], counts, alone):
        platform.deploy(spec)
    produce(name, [(f"key{n}", value(n)) for n in range(50)])
    settled(platform, every, rows(range(50)), "k, v")
    shared(platform, name, together)
    assert platform.store.actual(every.name).run_id == run, "to whoever watches, it is the same run"
    started = [log(platform).count(f"{spec.name} runs, generation") for spec in together]
    assert started == [2] * len(together), "each was moved once, though all were on their way at the same time"

    # When more messages come, a few at a time.
    for begin in range(50, 200, 30):
        produce(name, [(f"key{n}" if n % 4 else None, value(n)) for n in range(begin, begin + 30)])

    # Then every table has what the topic says, and just what a query of Spark's own makes of it.
    settled(platform, every, rows(range(200)), "k, v")
    settled(platform, again, rows(range(200)), "k, v")
    settled(platform, even, [row for row in rows(range(200)) if row[1] is not None and row[1] % 2 == 0], "k, v")
    settled(platform, latest, [("k199", 199)], "k, v")
    settled(platform, counts, [(140, sum(v for _, v in rows(range(200)) if v is not None))], "n, v")
    columns = "part, pos, key, k, v, at, s, l, m, d, day, b, local, f, empty"
    settled(platform, alone, rows(range(200)), "k, v")
    settled(platform, every, platform.sql(f"select {columns} from {alone.name}"), columns)

    # And records are counted as they are alone.
    relation = every.inputs[0].relation

    def counted(spec: StreamSpec) -> Any:
        found = platform.store.record_counts()[spec.name][relation]
        return found.records, found.empty, found.bad, found.partly_bad

    platform.until(lambda: counted(alone) == (200, 40, 20, 20), "the counts", 60, lambda: counted(alone))
    for spec in (every, again, even):
        platform.until(lambda s=spec: counted(s) == counted(alone), f"the counts of {spec.name}", 60,
                       lambda s=spec: counted(s))  # fmt: skip

    # And: of the messages that came since, each was fetched once, for four tables. Of those before, each may have been
    # fetched for whoever had not read it when it came to share.
    for spec in together:
        drop_stream(platform.store, spec.name)
    found = re.compile(rf"topic '{name}' is no longer read for several streams; (\d+) messages were fetched")
    platform.until(lambda: found.search(log(platform)), "the reader's end", 60)
    fetched = sum(map(int, found.findall(log(platform))))
    assert 150 <= fetched <= 150 + 50 * len(together), "four streams by themselves would have fetched 600 of 150"


def test_who_fails_fails_alone_who_stops_loses_nothing_and_who_comes_late_catches_up(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: three streams that read together, one of which will fail.
    name = topic(2)
    boom = "select pos, case when k = 'poison' then raise_error('boom on poison') else k end as k from input"
    poisoned = make_spec("poisoned", name, boom)
    healthy = make_spec("healthy", name, "select part, pos, v from input")
    paused = make_spec("paused", name, "select part, pos, v from input where v >= 0")
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        produce(name, [{"k": f"k{n}", "v": n} for n in range(sent, sent + count)])
        sent += count

    def all_rows() -> list[tuple[Any, ...]]:
        return [(n,) for n in range(sent)]

    for spec in (poisoned, healthy, paused):
        platform.deploy(spec)
    send(20)
    for spec in (healthy, paused):
        settled(platform, spec, all_rows(), "v")
    shared(platform, name, (poisoned, healthy, paused))

    # When lines come before its query, it goes on and knows where it stands now.
    run = platform.store.actual(healthy.name).run_id
    assert platform.deploy(poisoned.model_copy(update={"line_map": (7,)})).verdict == "NO-OP"
    platform.until(lambda: not platform.store.open_commands(poisoned.name), "the engine to know")

    # When a message comes that one of them fails of, then that one is ended with its error, the others go on.
    produce(name, [{"k": "poison", "v": -1}], partition=1)
    found = platform.state(poisoned.name, StreamState.FAILED, StreamState.QUARANTINED)
    assert found.error_code == "PEN-4003"
    assert "models/poisoned.sql:7: " in found.error
    assert "boom on poison" in found.error
    assert [word for word in ("org.apache", "Traceback", "\n", "Py4J") if word in found.error] == []
    settled(platform, paused, all_rows(), "v")
    send(10)
    settled(platform, healthy, [*all_rows(), (-1,)], "v")
    ((offset,),) = platform.sql(f"select pos from {healthy.name} where part = 1 and v = -1")
    record = f"models/poisoned.sql:7: {poisoned.name}: topic '{name}', partition 1, offset {offset}: boom on poison."

    def told() -> str:
        return platform.store.actual(poisoned.name).error or ""

    platform.until(lambda: record in told(), "the record that it failed of", 120, lambda: (record, told()))
    assert platform.store.actual(healthy.name).run_id == run
    assert platform.store.actual(healthy.name).restarts == 0

    # When one is stopped and started, it loses and doubles nothing.
    stop_stream(platform.store, paused.name)
    checkpoint = platform.paths.checkpoint(paused.name, platform.store.desired(paused.name).checkpoint_id)
    stood = standing(checkpoint)
    assert stood is not None
    send(30)
    settled(platform, healthy, [*all_rows(), (-1,)], "v")
    assert standing(checkpoint) == stood, "who is stopped reads nothing"
    start_stream(platform.store, paused.name)
    settled(platform, paused, all_rows(), "v")

    # When another one is deployed, it reads all that there is, and then with the others.
    late = make_spec("late", name, "select part, pos, v from input where v >= 0")
    platform.deploy(late)
    settled(platform, late, all_rows(), "v")
    shared(platform, name, (late,))
    send(30)
    for spec in (late, paused):
        settled(platform, spec, all_rows(), "v")

    # When one is left, a restart makes it a query of Spark's again, on the same checkpoint.
    for spec in (poisoned, healthy, late):
        drop_stream(platform.store, spec.name)
    before = standing(checkpoint)
    assert before is not None
    restart_stream(platform.store, paused.name)
    send(10)
    settled(platform, paused, all_rows(), "v")
    after = standing(checkpoint)
    assert after is not None
    assert after.batch > before.batch
    assert (checkpoint / "offsets" / f".{after.batch}.crc").exists(), "Spark wrote the last batch"
    metadata = json.loads((checkpoint / "metadata").read_text())
    assert list(metadata) == ["id"]
    pairs = platform.sql(f"select count(*), count(distinct part, pos) from {paused.name}")
    assert pairs == [(sent, sent)]
