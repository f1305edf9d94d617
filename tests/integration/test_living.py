"""Living with streams, in a real engine: stopped and resumed while rows flow, failures that name the record, and tables
that are maintained under running streams."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from model_files import Project

from penstock.compiler.spec import Function, Publish
from penstock.control.maintenance import maintain
from penstock.control.streams import start_stream, stop_stream
from penstock.errors import PenstockError
from penstock.errors.catalogue import CONSTRAINT_BROKEN, EXPECTATION_BROKEN, PUBLISH_NULL_KEY, STREAM_FAILED
from penstock.project.expectations import Expectation
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


class Flow:
    """Messages that keep coming, to both partitions of a topic."""

    def __init__(self, produce: Produce, topic: str) -> None:
        self._send: Callable[..., int] = produce
        self._topic = topic
        self.sent: list[tuple[str, int]] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.wait(0.02):
            number = len(self.sent)
            message = (f"k{number % 5}", number)
            self._send(self._topic, [{"k": message[0], "v": message[1]}], partition=number % 2)
            self.sent.append(message)


@contextmanager
def flowing(produce: Produce, topic: str) -> Iterator[Flow]:
    flow = Flow(produce, topic)
    thread = threading.Thread(target=flow.run)
    thread.start()
    try:
        yield flow
    finally:
        flow.ending.set()
        thread.join()


def test_streams_are_stopped_and_resumed_while_rows_flow(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2)
    plain = make_spec("plain", name, "select k, v, part, pos from input")
    totals = make_spec(
        "totals", name, "select k, count(*) as n, sum(v) as total from input group by k", keys=("k",), stateful=True
    )
    for spec in (plain, totals):
        platform.deploy(spec)

    def count() -> list[int]:
        (plain_rows,), (grouped,) = (
            platform.sql(f"select count(*) from {plain.name}")[0],
            platform.sql(f"select coalesce(sum(n), 0) from {totals.name}")[0],
        )
        return [int(plain_rows), int(grouped)]

    with flowing(produce, name) as flow:
        for _ in range(2):
            seen = len(flow.sent)
            platform.until(lambda seen=seen: min(count()) > seen, "rows in both tables", 90, count)
            for spec in (plain, totals):
                assert stop_stream(platform.store, spec.name).state is StreamState.STOPPED
            before, sent = count(), len(flow.sent)
            platform.until(lambda sent=sent: len(flow.sent) > sent + 20, "more messages")
            assert platform.deploy(plain).verdict == "NO-OP", "deploying it does not start it"
            assert count() == before
            assert platform.store.actual(plain.name).state is StreamState.STOPPED
            for spec in (plain, totals):
                assert start_stream(platform.store, spec.name).state is StreamState.RUNNING
    want = [len(flow.sent)] * 2
    platform.until(lambda: count() == want, "every row", 90, lambda: (count(), want))
    rows = platform.sql(f"select k, v, part, pos from {plain.name}")
    assert sorted((k, v) for k, v, _, _ in rows) == sorted(flow.sent)
    assert len({(part, pos) for _, _, part, pos in rows}) == len(rows)
    groups = Counter(k for k, _ in flow.sent)
    sums = {k: sum(v for each, v in flow.sent if each == k) for k in groups}
    assert sorted(platform.sql(f"select * from {totals.name}")) == sorted((k, groups[k], sums[k]) for k in groups)


def test_a_failure_names_the_record_and_the_others_go_on(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(2)
    raising = "if(v < 0, raise_error(concat('price below zero: ', v)), v)"
    lines = {"line_map": (4, 5, 6)}
    raises = make_spec("raises", name, f"select k,\n  {raising} as v\nfrom input").model_copy(update=lines)
    grouped = make_spec(
        "grouped", name, f"select k,\n  sum({raising}) as v\nfrom input group by k", keys=("k",), stateful=True
    ).model_copy(update=lines)
    checked = make_spec("checked", name, "select k, v from input").model_copy(update={"line_map": (3,)})
    checked = checked.model_copy(
        update={"output": checked.output.model_copy(update={"checks": (("positive", "v >= 0"), ("named", "k <> ''"))})}
    )
    called = make_spec("called", name, "select k,\n  sane(v) as v\nfrom input").model_copy(
        update={
            "functions": (
                Function(name="rules.sane", called="sane", signature="(v bigint) RETURNS bigint",
                         body=raising.replace("price", "value")),
            ),
            "line_map": (4, 5, 6),
        }
    )  # fmt: skip
    # A record before that one has no key either, but its row is left out.
    kept = make_spec("kept", name, "select if(v in (-7, 3), null, k) as k, v from input", keys=("k",)).model_copy(
        update={
            "publish": Publish(topic=f"{name}-kept", key=("k",)),
            "expectations": (Expectation(name="other", expect="v <> 3", on_violation="drop"),),
        }
    )
    counted = make_spec(
        "counted", name, "select nullif(k, 'b') as k, count(*) as n from input group by 1", keys=("k",), stateful=True
    ).model_copy(update={"publish": Publish(topic=f"{name}-counted", key=("k",), table=False)})
    others = make_spec("others", name, "select k, v from input")
    for partition in (0, 1):
        produce(name, [{"k": "a", "v": n} for n in range(20)], partition=partition)
    produce(name, [{"k": "b", "v": -7}], partition=1)
    produce(name, [{"k": "c", "v": n} for n in range(20)], partition=1)
    for spec in (raises, grouped, called, checked, kept, counted, others):
        platform.deploy(spec)

    def told(stream: str) -> str:
        return platform.store.actual(stream).error or ""

    place = f"topic '{name}', partition 1, offset 20: "
    for spec in (raises, grouped, called, checked, kept, counted):
        platform.until(
            lambda spec=spec: place in told(spec.name), f"the record that {spec.name} failed of", 180,
            lambda spec=spec: platform.store.actual(spec.name),
        )  # fmt: skip
    for spec in (raises, grouped):
        assert platform.store.actual(spec.name).error_code == STREAM_FAILED.code
        assert f"models/{spec.path.split('/')[-1]}:5: {spec.name}: {place}price below zero: -7." in told(spec.name)
    assert platform.store.actual(checked.name).error_code == CONSTRAINT_BROKEN.code
    broken = f"models/checked.sql:3: {checked.name}: {place}its row does not hold positive (v >= 0)."
    assert broken in told(checked.name)
    assert platform.store.actual(called.name).error_code == STREAM_FAILED.code
    assert f"{called.name}: {place}value below zero: -7." in told(called.name)
    for spec in (kept, counted):
        assert platform.store.actual(spec.name).error_code == PUBLISH_NULL_KEY.code
        assert f"{spec.name}: {place}its row is published by k, which is null." in told(spec.name)
    assert "batch 0 failed of one record" in (platform.paths.logs / "engine.log").read_text()
    platform.until(lambda: platform.sql(f"select count(*) from {others.name}") == [(61,)], "the others' rows", 60)
    again = platform.store.actual(raises.name).restarts
    platform.until(
        lambda: platform.store.actual(raises.name).restarts > again
        or platform.store.actual(raises.name).state is StreamState.QUARANTINED,
        "another try", 90,
    )  # fmt: skip
    platform.until(lambda: place in told(raises.name), "the record after the next try, too")


def test_tables_are_maintained_while_streams_write_and_read_them(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    project = Project(schema)
    events = topic(2)
    project.source("events", events, {"k": "string", "v": "bigint"})
    project.model("rows", "select k, v from {events}")
    project.model("latest", "select k, v from {events}", unique_key="v")
    project.model("copied", "select k, v from {rows}", time_window="200 ms")
    project.model("mirrored", "select k, v from {latest} where v >= 0", time_window="200 ms")
    specs = project.specs()
    assert specs["mirrored"].follow is not None
    for spec in specs.values():
        platform.deploy(spec)

    def rows(name: str) -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select k, v from {schema}.{name}"))

    def files(name: str) -> int:
        return len(DeltaTable(str(platform.paths.warehouse / f"{schema}.db" / name)).file_uris())

    with flowing(produce, events) as flow:
        for _ in range(3):
            platform.until(lambda: min(files(name) for name in ("rows", "latest")) > 4, "many small files", 90)
            before = len(flow.sent)
            done = {each["table"]: each for each in maintain(platform.store, [f"{schema}.rows", f"{schema}.latest"])}
            for name in ("rows", "latest"):
                found = done[f"{schema}.{name}"]
                assert not found["conflict"]
                assert found["files_after"] < found["files_before"]
            platform.until(lambda before=before: len(flow.sent) > before + 20, "more messages")
    want = sorted(flow.sent)
    for name in specs:
        platform.until(lambda name=name: rows(name) == want, f"the rows of {name}", 90, lambda n=name: (rows(n), want))
    for name in specs:
        found = platform.store.actual(f"{schema}.{name}")
        assert (found.failures, found.restarts, found.error) == (0, 0, None), name
    log = Path(platform.paths.warehouse / f"{schema}.db" / "rows" / "_delta_log")
    assert any('"operation":"OPTIMIZE"' in commit.read_text() for commit in log.glob("*.json"))


@pytest.mark.deep
def test_files_are_put_together_and_old_ones_deleted_in_time_while_the_table_is_written_and_read(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a table that is maintained every minute, the least there is, and a stream that reads it.
    project = Project(schema)
    events = topic(2)
    project.source("events", events, {"k": "string", "v": "bigint"})
    project.model("rows", "select k, v from {events}", maintenance={"every": "1 minute", "keep": "1 hour"})
    project.model("copied", "select k, v from {rows}")
    specs = project.specs()
    for spec in specs.values():
        platform.deploy(spec)
    table = platform.paths.warehouse / f"{schema}.db" / "rows"

    def rows(name: str) -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select k, v from {schema}.{name}"))

    before = [("old", -number) for number in range(1, 4)]
    for number, row in enumerate(before):
        produce(events, [{"k": row[0], "v": row[1]}])
        for name in specs:
            want = sorted(before[: number + 1])
            platform.until(lambda n=name, want=want: rows(n) == want, f"the rows of {name}", 90, lambda n=name: rows(n))

    # Given: files of it that were replaced two hours ago.
    replaced = _replaced(table, 2 * 3600)
    assert len(replaced) == 3
    assert all(file.exists() for file in replaced)

    by_hand = DeltaTable(str(table)).version()

    def compacted() -> bool:
        commits = DeltaTable(str(table)).history()
        return any(each["operation"] == "OPTIMIZE" and each["version"] > by_hand for each in commits)

    # When nobody asks for anything, then they are deleted, and what came since is put together; whoever writes or reads
    # notices nothing.
    with flowing(produce, events) as flow, reading(platform, f"select count(*) from {schema}.rows") as seen:
        platform.until(
            lambda: not any(file.exists() for file in replaced), "the old files to be deleted", 150,
            lambda: [file.name for file in replaced if file.exists()],
        )  # fmt: skip
        platform.until(compacted, "the small files to be put together", 150)
        sent, looks = len(flow.sent), len(seen)
        platform.until(lambda: len(flow.sent) > sent + 20 and len(seen) > looks + 1, "more messages and looks")
    assert seen == sorted(seen), "no row was ever missing"
    want = sorted([*before, *flow.sent])
    for name in specs:
        platform.until(lambda n=name: rows(n) == want, f"the rows of {name}", 90, lambda n=name: (rows(n), want))
        found = platform.store.actual(f"{schema}.{name}")
        assert (found.failures, found.restarts, found.error) == (0, 0, None), name


def _replaced(table: Path, seconds: float) -> list[Path]:
    """Put the files of a table together as if that had been so long ago; those that are no longer part of it."""
    before = DeltaTable(str(table))
    hooks = PostCommitHookProperties(create_checkpoint=False)  # it would keep the time of now
    before.optimize.compact(post_commithook_properties=hooks)
    commit = table / "_delta_log" / f"{DeltaTable(str(table)).version():020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    removed = []
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] -= int(seconds * 1000)
            removed.append(table / action["remove"]["path"])
    aged = commit.with_suffix(".aged")
    aged.write_text("\n".join(json.dumps(action) for action in actions) + "\n")
    aged.replace(commit)  # at once: a stream reads it
    for file in removed:
        os.utime(file, (time.time() - seconds,) * 2)
    return removed


@contextmanager
def reading(platform: Platform, query: str) -> Iterator[list[int]]:
    """Ask a query with one number over and over, in a session of its own; what it answered."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(platform.endpoint().url).create()
    seen: list[int] = []
    failures: list[Exception] = []
    ending = threading.Event()

    def run() -> None:
        try:
            while not ending.wait(0.5):
                seen.append(int(session.sql(query).collect()[0][0]))
        except Exception as problem:  # noqa: BLE001 -- the test is told below
            failures.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        ending.set()
        thread.join()
        session.client.close()
    assert failures == []


def test_expectations_warn_drop_and_fail(platform: Platform, schema: str, topic: MakeTopic, produce: Produce) -> None:
    project = Project(schema)
    events = topic(1)
    project.source("events", events, {"k": "string", "v": "bigint"})
    positive = {"name": "positive", "expect": "v >= 0"}
    drop = {**positive, "on_violation": "drop"}
    counts = "select k, count(*) as n from {events} group by k"
    rare = {"name": "rare", "expect": "n < 3", "on_violation": "drop"}
    project.model("warned", "select k, v from {events}", expectations=[positive, {"expect": "k <> 'x'"}])
    project.model("dropped", "select k, v from {events}", expectations=[drop])
    project.model("by_spark", "select k, v from {events}", expectations=[drop], small_batch_rows=0)
    project.model("latest", "select k, v from {events}", unique_key="k", expectations=[drop])
    project.model("groups", counts, expectations=[rare])
    project.model("groups_by_spark", counts, expectations=[rare], small_batch_rows=0)
    project.model("filtered", f"{counts} having count(*) > 0", expectations=[rare])
    project.model("ranked", "select k, v from {warned} order by v limit 9", expectations=[positive])
    project.model("failing", "select k, v from {events}", expectations=[{**positive, "on_violation": "fail"}])
    specs = project.specs()
    assert specs["ranked"].is_full
    assert specs["filtered"].follow is not None
    wrong = specs["warned"].model_copy(
        update={"expectations": (specs["warned"].expectations[0].model_copy(update={"expect": "price > 0"}),)}
    )
    with pytest.raises(PenstockError, match=r"PEN-1345 .*expectation positive \(price > 0\): .*`price`"):
        platform.deploy(wrong)
    with pytest.raises(PenstockError, match=r"PEN-1345 .* is bigint, not true or false"):
        platform.deploy(
            wrong.model_copy(update={"expectations": (wrong.expectations[0].model_copy(update={"expect": "v"}),)})
        )
    for spec in specs.values():
        platform.deploy(spec)
    first, second = [("a", 1), ("b", 2), ("a", -3)], [("a", -4), ("b", 5), ("a", 6), ("c", None)]
    sent: list[tuple[str, int | None]] = []
    for part in (first, second):
        produce(events, [{"k": k, "v": v} for k, v in part])
        sent += part
        good = [(k, v) for k, v in sent if v is not None and v >= 0]
        number = Counter(k for k, _ in sent)
        groups = sorted((k, n) for k, n in number.items() if n < 3)
        want = {
            "warned": sent, "dropped": good, "by_spark": good, "latest": list(dict(good).items()), "groups": groups,
            "groups_by_spark": groups, "filtered": groups, "ranked": sent,
        }  # fmt: skip
        for name, rows in want.items():
            platform.until(
                lambda name=name, rows=rows: sorted(platform.sql(f"select * from {schema}.{name}"), key=repr)
                == sorted(rows, key=repr),
                f"the rows of {name}", 90,
                lambda name=name: (
                    platform.sql(f"select * from {schema}.{name}"), platform.store.actual(f"{schema}.{name}")
                ),
            )  # fmt: skip

    def violations() -> dict[str, dict[str, int]]:
        found = platform.store.violations()
        return {
            name: {each: rows for each, (rows, _) in found.get(f"{schema}.{name}", {}).items()}
            for name in ("warned", "dropped", "by_spark", "latest", "groups", "ranked")
        }

    # Null holds nothing. Of groups the rows that are written are counted, each time; of a refresh, all its rows.
    counted = {
        "warned": {"positive": 3, "k <> 'x'": 0}, "dropped": {"positive": 3}, "by_spark": {"positive": 3},
        "latest": {"positive": 3}, "groups": {"rare": 1}, "ranked": {"positive": 3},
    }  # fmt: skip
    platform.until(lambda: violations() == counted, "the counts", 60, violations)
    failing = f"{schema}.failing"
    place = f"PEN-1346 models/failing.sql:1: {failing}: topic '{events}', partition 0, offset 2: its row does not hold "
    platform.until(
        lambda: (platform.store.actual(failing).error or "").startswith(f"{place}positive (v >= 0)."),
        "the record that is not as expected", 90, lambda: platform.store.actual(failing),
    )  # fmt: skip
    assert platform.state(failing, StreamState.QUARANTINED).error_code == EXPECTATION_BROKEN.code
    assert platform.sql(f"select * from {failing}") in ([], [("a", 1)], [("a", 1), ("b", 2)])
