"""Tables that are refreshed in full, in a real engine: computed anew when an input changed, and else let be."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.compiler.spec import OutputMode, StreamSpec, TableInput, TableStreamInput, Trigger
from penstock.control.deploy import start_stream, stop_stream
from penstock.control.lag import table_path
from penstock.errors import PenstockError
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)
RANKED = "select k, v from (select *, row_number() over (partition by k order by v desc) as r from input) where r = 1"


def full(spec: StreamSpec, **changes: Any) -> StreamSpec:
    output = spec.output.model_copy(update={"mode": OutputMode.REPLACE, "keys": ()})
    return spec.model_copy(update={"output": output, "reason": "ROW_NUMBER", **changes})


def rows(platform: Platform, spec: StreamSpec) -> list[tuple[Any, ...]]:
    return sorted(platform.sql(f"select * from {spec.name}"))


def becomes(platform: Platform, spec: StreamSpec, want: list[tuple[Any, ...]]) -> None:
    platform.until(lambda: rows(platform, spec) == want, f"{spec.name} to be {want}", 90, lambda: rows(platform, spec))


def replaced_at(platform: Platform, spec: StreamSpec) -> list[float]:
    """When the table was replaced, in seconds, from its own log."""
    table = DeltaTable(str(table_path(platform.paths, spec.name)))
    replaced = (each for each in table.history() if (each.get("operationParameters") or {}).get("mode") == "Overwrite")
    return sorted(commit["timestamp"] / 1000 for commit in replaced)


def refreshes(platform: Platform, spec: StreamSpec) -> int:
    """How often that was."""
    return len(replaced_at(platform, spec))


@pytest.fixture
def busy(topic: MakeTopic, produce: Produce) -> Iterator[str]:
    """A topic to which messages come all the time."""
    name, done = topic(1), threading.Event()

    def flow() -> None:
        while not done.wait(0.2):
            produce(name, [{"k": "a", "v": 1}])

    thread = threading.Thread(target=flow)
    thread.start()
    yield name
    done.set()
    thread.join()


def test_a_topic_a_dynamic_table_and_a_seed_are_joined_anew_when_one_of_them_changes_and_not_otherwise(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic, produce: Produce, busy: str
) -> None:
    name = topic(2)
    produce(name, [("a", {"k": "a", "v": 1}), ("a", {"k": "a", "v": 3}), ("b", {"k": "b", "v": 2})])
    platform.sql(f"create schema {schema}")
    platform.sql(f"create table {schema}.titles (k string, title string) using delta")
    platform.sql(f"insert into {schema}.titles values ('a', 'Anna'), ('b', 'Bob')")
    platform.sql(f"create view {schema}.shown as select k, upper(title) as title from {schema}.titles")
    counts = make_spec("counts", name, "select k, count(*) as n from input group by k", keys=("k",), stateful=True)
    best = full(make_spec("best", name, RANKED))
    titled = full(make_spec(
        "titled", name, f"select i.k, title, n from ({RANKED}) i join {schema}.shown using (k) join counts using (k)",
    ))  # fmt: skip
    titled = titled.model_copy(update={"inputs": (
        *titled.inputs, TableInput(relation=f"{schema}.shown"),
        TableStreamInput(view="counts", relation=counts.name, rows="upsert"),
    )})  # fmt: skip
    seldom = full(make_spec("seldom", busy, RANKED, trigger=Trigger(time_window_ms=5_000)))
    for spec in (seldom, counts, best, titled):
        platform.deploy(spec)
    becomes(platform, best, [("a", 3), ("b", 2)])
    becomes(platform, titled, [("a", "ANNA", 2), ("b", "BOB", 1)])
    assert platform.store.actual(best.name).state is StreamState.RUNNING
    platform.until(lambda: platform.store.actual(best.name).lag_rows == 0, "no lag", 30)

    produce(name, [("b", {"k": "b", "v": 9}), ("a", {"k": "a", "v": 0})])
    becomes(platform, best, [("a", 3), ("b", 9)])
    becomes(platform, titled, [("a", "ANNA", 3), ("b", "BOB", 2)])
    before = refreshes(platform, best)
    platform.sql(f"update {schema}.titles set title = 'Ben' where k = 'b'")
    becomes(platform, titled, [("a", "ANNA", 3), ("b", "BEN", 2)])
    assert refreshes(platform, best) == before, "the seed is none of its inputs"

    settled = refreshes(platform, titled)
    platform.sql(f"optimize {schema}.titles")
    platform.sql(f"comment on table {schema}.titles is 'moved, not changed'")
    produce(name, [("c", {"k": "c", "v": 1})])  # the marker: when it is there, the commits above have been looked at
    becomes(platform, best, [("a", 3), ("b", 9), ("c", 1)])
    platform.until(lambda: refreshes(platform, titled) > settled, "a refresh for the message", 60)
    becomes(platform, titled, [("a", "ANNA", 3), ("b", "BEN", 2)])
    assert refreshes(platform, titled) <= settled + 2, "one for the topic, one for the counts"

    # However much comes, a refresh begins a window after the last one did; the commit is its end.
    platform.until(lambda: refreshes(platform, seldom) > 3, "refreshes for messages that come all the time", 60)
    took = {each.batch_id: each.duration_ms / 1000 for each in platform.store.progress(seldom.name)}
    for number, (this, following) in enumerate(pairwise(replaced_at(platform, seldom))):
        assert following - this > 5 - took[number] - 1, "a second for the look at the topic"


@pytest.mark.deep
def test_a_refresh_is_neither_skipped_nor_repeated_by_stops_restarts_and_a_killed_engine(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    spec = full(make_spec("best", name, RANKED))
    produce(name, [{"k": "a", "v": 1}])
    platform.deploy(spec)
    becomes(platform, spec, [("a", 1)])
    platform.until(lambda: platform.store.actual(spec.name).batch_id == 0, "the record of the refresh", 30)

    stop_stream(platform.store, spec.name)
    produce(name, [{"k": "a", "v": 5}])
    platform.until(lambda: platform.store.actual(spec.name).lag_rows == 1, "the lag of a stopped table", 30)
    assert rows(platform, spec) == [("a", 1)]
    start_stream(platform.store, spec.name)
    becomes(platform, spec, [("a", 5)])
    assert refreshes(platform, spec) == 2

    platform.until(lambda: platform.store.actual(spec.name).batch_id == 1, "the record of the refresh", 30)
    endpoint = platform.endpoint()
    os.kill(endpoint.pid, signal.SIGKILL)
    platform.until(lambda: platform.endpoint().pid != endpoint.pid, "another engine", 120)
    platform.state(spec.name, StreamState.RUNNING)
    produce(name, [{"k": "b", "v": 2}])
    becomes(platform, spec, [("a", 5), ("b", 2)])
    assert refreshes(platform, spec) == 3, "nothing had changed when the engine came back"

    changed = spec.model_copy(update={"sql": RANKED.replace("k, v from", "k, v + 100 as v from", 1)})
    assert platform.deploy(changed).verdict == "RESTART"
    becomes(platform, changed, [("a", 105), ("b", 102)])
    assert platform.deploy(changed).verdict == "NO-OP"


def test_a_large_result_goes_through_spark_and_an_empty_one_empties_the_table(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    sql = "select k, max(v) as v, count(distinct v) as n from input group by k having max(v) < 100"
    spec = full(make_spec("few", name, sql, small_batch_rows=1, trigger=Trigger(time_window_ms=200)))
    produce(name, [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "b", "v": 3}])
    platform.deploy(spec)
    becomes(platform, spec, [("a", 1, 1), ("b", 3, 2)])
    produce(name, [{"k": "a", "v": 100}])
    becomes(platform, spec, [("b", 3, 2)])
    produce(name, [{"k": "b", "v": 100}])
    becomes(platform, spec, [])
    writers = [batch.writer for batch in reversed(platform.store.progress(spec.name))]
    assert set(writers) == {"spark", "delta-rs"}
    assert writers[0] == "spark"


def test_what_spark_refuses_as_a_stream_is_refreshed_in_full_unless_the_model_says_incremental(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    produce(name, [{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    # A compiler that did not know better took this for a stream that appends.
    spec = make_spec("refused", name, "select k, max(v) as v from input group by k order by 1")
    with pytest.raises(PenstockError, match=r"PEN-1305 models/refused.sql"):
        platform.deploy(spec.model_copy(update={"refresh_mode": "incremental"}))
    platform.deploy(spec)
    deployed = StreamSpec.from_json(platform.store.desired(spec.name).spec_json)
    assert deployed.is_full
    assert "Spark refuses" in str(deployed.reason)
    becomes(platform, spec, [("a", 2)])
    assert platform.deploy(spec).verdict == "NO-OP"
    reader = make_spec("reader", name, "select v from refused")
    reader = reader.model_copy(update={"inputs": (TableStreamInput(view="refused", relation=spec.name),)})
    platform.deploy(reader)
    becomes(platform, reader, [(2,)])
    produce(name, [{"k": "a", "v": 3}])
    becomes(platform, reader, [(3,)])
