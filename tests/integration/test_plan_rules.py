"""Every rule of the plan, performed on a real checkpoint.

All streams of the cases are deployed, read their history, and are changed together, once; each test then looks at what
became of its own. A RESTART goes on with its state and its offsets: no row is lost, none comes twice. For a REBUILD the
changed query is also forced onto the old checkpoint, past the plan: there it fails, or its rows are wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec, Trigger, Watermark
from penstock.control.streams import drop_stream
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config, create_topics
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import Platform
else:
    Platform = Any

pytestmark = pytest.mark.timeout(420)

FAILS, WRONG, IGNORED = "fails", "wrong rows", "ignored"
# partition, key, value, seconds; then what comes after the change
HISTORY = [(0, "a", 1, 0), (0, "b", 2, 1), (1, "a", 3, 2), (1, "c", -4, 3), (0, "a", 1, 4)]
LATER = [(0, "a", 5, 5), (1, "b", 2, 6), (0, "d", 7, 7)]
ALL = HISTORY + LATER
COLUMNS = (
    Column(name="k", type="string", origin="value.k"),
    Column(name="v", type="bigint", origin="value.v"),
    Column(name="at", type="timestamp", origin="value.at"),
    Column(name="part", type="int", origin="partition"),
    Column(name="pos", type="bigint", origin="offset"),
)
ROWS = "select part, pos, k, v from input"
COUNTS = "select k, count(*) as n, sum(v) as total from input group by k"
WINDOWS = "select window.start as w, count(*) as n from input group by window(at, '4 seconds')"


@dataclass(frozen=True)
class Case:
    """A change of a stream, and what has to become of it."""

    name: str
    verdict: str
    change: dict[str, Any]
    sql: str = ROWS
    keys: tuple[str, ...] | None = None
    stateful: bool = False
    source: dict[str, Any] = field(default_factory=dict)  # of the input, before
    spec: dict[str, Any] = field(default_factory=dict)  # before
    rows: list[tuple[Any, ...]] | None = None  # in the end; of a rebuild: what the forced query should have given
    forced: str | None = None  # how a rebuild's query ends on the old checkpoint
    reason: str = ""


def listed(rows: list[tuple[int, str, int, int]]) -> list[tuple[Any, ...]]:
    """As ROWS has them."""
    ends = {0: 0, 1: 0}
    found = []
    for part, k, v, _ in rows:
        found.append((part, ends[part], k, v))
        ends[part] += 1
    return found


def counted(rows: list[tuple[int, str, int, int]]) -> list[tuple[Any, ...]]:
    """As COUNTS has them."""
    keys = sorted({k for _, k, _, _ in rows})
    return [(k, sum(r[1] == k for r in rows), sum(r[2] for r in rows if r[1] == k)) for k in keys]


STATE = {"sql": COUNTS, "keys": ("k",), "stateful": True}
FASTER = Trigger(time_window_ms=300, max_batch_rows=2)
BOTH = listed(ALL)
OF_COUNTS = counted(ALL)
LAST = sorted({k: (k, v) for _, k, v, _ in ALL}.values())
POSITIVE = counted([row for row in ALL if row[2] > 0])
NEW_COLUMN = (*COLUMNS, Column(name="more", type="string", origin="value.more"))
AHEAD = (*COLUMNS, Column(name="ahead", type="timestamp", origin="computed", expr="at + interval 1 hour"))
WEIGHED = "select part, pos, k, {schema}.weigh(v) as v from input"
TEXT = tuple(c.model_copy(update={"type": "string"}) if c.name == "v" else c for c in COLUMNS)

CASES = [
    Case("a comment", "NO-OP", {"sql": f"-- said better\n{ROWS}"}, rows=BOTH),
    Case("a comment on state", "NO-OP", {"sql": f"{COUNTS} -- so"}, **STATE, rows=OF_COUNTS),
    Case("the size of small batches", "HOT", {"small_batch_rows": 0}, rows=BOTH),
    Case("where a source starts", "HOT", {"source": {"starting": "latest"}}, **STATE, rows=OF_COUNTS),
    Case("the trigger", "RESTART", {"trigger": FASTER.model_copy(update={"buffer_limit": 2})}, rows=BOTH),
    Case("the trigger of state", "RESTART", {"trigger": FASTER}, **STATE, rows=OF_COUNTS),
    Case(
        "the SQL without state", "RESTART", {"sql": "select part, pos, k, v * 10 as v from input where v <> 2"},
        rows=listed(HISTORY) + [(p, o, k, v * 10) for p, o, k, v in BOTH[len(HISTORY) :] if v != 2],
    ),
    Case("shuffle partitions without state", "RESTART", {"shuffle_partitions": 3}, rows=BOTH),
    Case("a constraint", "RESTART", {"checks": (("sane", "v > -10"),)}, rows=BOTH, reason="constraints: sane"),
    Case("a column that nobody reads", "RESTART", {"source": {"columns": NEW_COLUMN}}, **STATE, rows=OF_COUNTS),
    Case("what becomes of bad records", "RESTART", {"source": {"on_bad_record": "skip"}}, **STATE, rows=OF_COUNTS),
    Case(
        "more partitions", "RESTART", {"source": {"partitions": (0, 1)}}, source={"partitions": (0,)}, rows=BOTH,
        reason="partitions",
    ),
    Case(
        "a watermark's delay", "RESTART", {"source": {"watermark": Watermark(column="at", delay="2 hours")}},
        sql=WINDOWS, keys=("w",), stateful=True, source={"watermark": Watermark(column="at", delay="1 hour")},
        rows=[(0, 4), (4, 4)],
    ),
    Case(
        "a watermark's column without state", "RESTART",
        {"source": {"watermark": Watermark(column="ahead", delay="1 second")}},
        source={"columns": AHEAD, "watermark": Watermark(column="at", delay="1 second")}, rows=BOTH,
    ),
    Case(
        "a function", "RESTART", {"functions": (("{schema}.weigh", "2"),)}, sql=WEIGHED,
        spec={"functions": (("{schema}.weigh", "1"),)},
        rows=[(p, o, k, v * (10 if at < len(HISTORY) else 100)) for at, (p, o, k, v) in enumerate(BOTH)],
        reason=".weigh changed",
    ),
    Case(
        "anything of a full refresh", "RESTART", {"sql": "select k, v from input order by v desc limit 2"},
        sql="select k, v from input order by v limit 1", spec={"replace": True}, rows=[("a", 5), ("d", 7)],
    ),
    Case(
        "the SQL of a state", "REBUILD", {"sql": COUNTS.replace("group", "where v > 0 group")}, **STATE,
        rows=POSITIVE, forced=WRONG, reason="the SQL of a stateful query changed",
    ),
    Case(
        "what is grouped by", "REBUILD", {"sql": COUNTS.replace("group by k", "group by k, part")}, **STATE,
        forced=FAILS, reason="the SQL of a stateful query changed",
    ),
    Case(
        "a query that begins to keep state", "REBUILD",
        {"sql": "select k, sum(v) as v from input group by k", "stateful": True},
        sql="select k, v from input", keys=("k",), forced=FAILS,
        reason="the query keeps state now",
    ),
    Case("shuffle partitions of a state", "REBUILD", {"shuffle_partitions": 3}, **STATE, forced=IGNORED),
    Case(
        "the type of a column in the state", "REBUILD", {"source": {"columns": TEXT}},
        sql="select k, cast(max(v) as string) as m from input group by k", keys=("k",), stateful=True, forced=FAILS,
        reason="type of",
    ),
    Case(
        "what is told apart", "REBUILD", {"deduplicate_by": ("k", "v")}, stateful=True, spec={"deduplicate_by": ("k",)},
        forced=FAILS, reason="deduplicate_by k -> k, v",
    ),
    Case(
        "a watermark for what is told apart", "REBUILD",
        {"source": {"watermark": Watermark(column="at", delay="1 hour")}}, stateful=True,
        spec={"deduplicate_by": ("k",)}, forced=FAILS, reason="watermark",
    ),
    Case(
        # The old watermark stands an hour ahead of the new column: all that comes would be late.
        "a watermark's column", "REBUILD", {"source": {"watermark": Watermark(column="at", delay="1 second")}},
        sql=WINDOWS, keys=("w",), stateful=True,
        source={"columns": AHEAD, "watermark": Watermark(column="ahead", delay="1 second")},
        rows=[(0, 4), (4, 4)], forced=WRONG, reason="ahead -> at",
    ),
    Case(
        "a function of a state", "REBUILD", {"functions": (("{schema}.weigh", "2"),)},
        sql=COUNTS.replace("sum(v)", "sum({schema}.weigh(v))"), keys=("k",), stateful=True,
        spec={"functions": (("{schema}.weigh", "1"),)}, rows=[(k, n, total * 100) for k, n, total in OF_COUNTS],
        forced=WRONG, reason=".weigh changed",
    ),
    Case("another topic", "REBUILD", {"source": {"topic": "other"}}, forced=FAILS, reason="topic"),
    Case("fewer partitions", "REBUILD", {"source": {"partitions": (0,)}}, forced=FAILS, reason="partitions"),
    Case(
        "rows that are replaced, not appended", "REBUILD", {"keys": ("k",)}, sql="select k, v from input",
        rows=LAST, forced=WRONG, reason="output mode append -> upsert",
    ),
    Case(
        "another key", "REBUILD", {"keys": ("k", "v")}, sql="select k, v from input", keys=("k",),
        rows=sorted({(k, v) for _, k, v, _ in ALL}), forced=WRONG, reason="key (k) -> (k, v)",
    ),
    Case(
        "columns of the result", "REBUILD", {"sql": "select part, pos, k, v, at from input"}, forced=FAILS,
        reason="column at is new",
    ),
    Case(
        "the order of the inputs", "REBUILD",
        {"sql": f"{ROWS.replace('input', 'second')} union all {ROWS}"},
        sql=f"{ROWS} union all {ROWS.replace('input', 'second')}", spec={"second": True}, forced=FAILS,
        reason="the order in which the query reads its streams changed",
    ),
    Case(
        "one more input", "REBUILD", {"sql": f"{ROWS} union all {ROWS.replace('input', 'second')}", "second": True},
        forced=FAILS, reason="is new",
    ),
]  # fmt: skip


class Bench:
    """The streams of all cases, on one engine."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.schema = f"p_{uuid.uuid4().hex[:8]}"
        self.topic, self.other = (f"rules-{uuid.uuid4().hex[:8]}" for _ in range(2))
        create_topics(platform.bootstrap, {self.topic: 2, self.other: 2})
        self.refused: dict[str, str] = {}
        self.verdicts: dict[str, str] = {}
        self.runs: dict[str, str | None] = {}
        self.checkpoints: dict[str, str] = {}
        self.specs = {case.name: self._spec(case, number) for number, case in enumerate(CASES)}
        self.changed = {case.name: self._changed(case) for case in CASES}

    def _input(self, view: str, topic: str, changes: dict[str, Any]) -> KafkaInput:
        made = KafkaInput(view=view, relation=f"{self.schema}_raw.{view}", topic=topic, columns=COLUMNS)
        return made.model_copy(update=changes)

    def _named(self, settings: dict[str, Any]) -> dict[str, Any]:
        """With the functions of this schema."""
        named = tuple((name.format(schema=self.schema), version) for name, version in settings.get("functions", ()))
        return {**settings, "functions": named} if named else dict(settings)

    def _spec(self, case: Case, number: int) -> StreamSpec:
        name = f"{self.schema}.s{number}"
        own = self._named(case.spec)
        mode = OutputMode.APPEND if case.keys is None else OutputMode.UPSERT
        mode = OutputMode.REPLACE if own.pop("replace", False) else mode
        inputs = [self._input("input", self.topic, case.source)]
        if own.pop("second", False):
            inputs.append(self._input("second", self.other, {}))
        return StreamSpec(
            name=name, unique_id=f"model.rules.s{number}", path=f"models/s{number}.sql",
            sql=case.sql.replace("{schema}", self.schema),
            stateful=case.stateful, inputs=tuple(inputs),
            output=Output(relation=name, mode=mode, keys=case.keys or ()), **own,
        )  # fmt: skip

    def _changed(self, case: Case) -> StreamSpec:
        spec, change = self.specs[case.name], self._named(case.change)
        source = dict(change.pop("source", {}))
        if source.get("topic"):
            source["topic"] = self.other
        inputs = (spec.inputs[0].model_copy(update=source), *spec.inputs[1:])
        if change.pop("second", False):
            inputs = (*inputs, self._input("second", self.other, {}))
        output = spec.output
        if "keys" in change:
            output = output.model_copy(update={"keys": change.pop("keys"), "mode": OutputMode.UPSERT})
        if "checks" in change:
            output = output.model_copy(update={"checks": change.pop("checks")})
        return spec.model_copy(update={**change, "inputs": inputs, "output": output})

    def send(self, rows: list[tuple[int, str, int, int]]) -> None:
        producer = Producer(client_config(self.platform.bootstrap) | {"enable.idempotence": True})
        for part, k, v, second in rows:
            value = f'{{"k": "{k}", "v": {v}, "at": "2026-01-01T00:00:0{second}Z"}}'
            for topic in (self.topic, self.other):
                producer.produce(topic, value=value.encode(), partition=part)
        assert producer.flush(30) == 0

    def rows(self, case: Case) -> list[tuple[Any, ...]]:
        found = self.platform.sql(f"select * from {self.specs[case.name].name}")
        if case.sql == WINDOWS:
            found = [(start.second, n) for start, n in found]
        return sorted(found)

    def read(self, name: str) -> int:
        """Messages that the stream has read since it was deployed first."""
        return sum(batch.rows_in for batch in self.platform.store.progress(name, 1000))

    def expected_in(self, case: Case, messages: list[Any]) -> int:
        spec = self.specs[case.name]
        per_input = [
            sum(not each.partitions or row[0] in each.partitions for row in messages)
            for each in spec.inputs
            if isinstance(each, KafkaInput)
        ]
        return sum(per_input)

    def perform(self) -> None:
        store = self.platform.store
        self.platform.sql(f"create schema {self.schema}")
        self._define(10)
        self.send(HISTORY)
        for case in CASES:
            self.checkpoints[case.name] = self.platform.deploy(self.specs[case.name]).checkpoint
        for case in CASES:
            self._await_history(case)
            self.runs[case.name] = store.actual(self.specs[case.name].name).run_id
        self._define(100)
        for case in CASES:
            new = self.changed[case.name]
            try:
                self.verdicts[case.name] = self.platform.deploy(new).verdict
            except PenstockError as problem:
                self.verdicts[case.name], self.refused[case.name] = "REBUILD", str(problem)
                assert store.actual(new.name).run_id == self.runs[case.name], "a refusal changes nothing"
                if case.forced:  # past the plan, on the old checkpoint
                    store.deploy(new.name, new.to_json(), new.hash, verdict="RESTART", new_checkpoint=False)
        for case in CASES:
            if self.verdicts[case.name] in ("RESTART", "REBUILD"):
                self._await_restart(case)
        self.send(LATER)

    def _define(self, times: int) -> None:
        self.platform.sql(f"create or replace function {self.schema}.weigh(x bigint) returns bigint return x * {times}")

    def _await_history(self, case: Case) -> None:
        name, want = self.specs[case.name].name, self.expected_in(case, HISTORY)
        full = self.specs[case.name].is_full
        self.platform.until(
            lambda: (self.rows(case) if full else self.read(name) >= want), f"the history of {case.name}", 120,
            lambda: store_actual(self.platform, name),
        )  # fmt: skip

    def _await_restart(self, case: Case) -> None:
        store, name = self.platform.store, self.specs[case.name].name
        ended = (StreamState.RUNNING, StreamState.FAILED, StreamState.QUARANTINED)

        def there() -> bool:
            found = store.actual(name)
            return found.generation == store.desired(name).generation and (found.state in ended or found.failures > 0)

        self.platform.until(there, f"the restart of {case.name}", 120, lambda: store_actual(self.platform, name))

    def close(self) -> None:
        self.platform.endpoint()
        for want in self.platform.store.all_desired():
            if want.stream.startswith(f"{self.schema}."):
                drop_stream(self.platform.store, want.stream)


def store_actual(platform: Platform, name: str) -> Any:
    found = platform.store.actual(name)
    return found.state, found.error, found.batch_id


@pytest.fixture(scope="module")
def bench(platform: Platform) -> Iterator[Bench]:
    made = Bench(platform)
    try:
        made.perform()
        yield made
    finally:
        made.close()


def of(*verdicts: str) -> Callable[[Any], Any]:
    chosen = [case for case in CASES if case.verdict in verdicts]
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


@of("NO-OP", "HOT")
def test_the_running_query_goes_on(bench: Bench, case: Case) -> None:
    assert bench.verdicts[case.name] == case.verdict
    name = bench.specs[case.name].name
    bench.platform.until(lambda: bench.rows(case) == sorted(case.rows or []), "all rows", 60, lambda: bench.rows(case))
    actual, want = bench.platform.store.actual(name), bench.platform.store.desired(name)
    assert (actual.run_id, want.generation) == (bench.runs[case.name], 1)
    if case.verdict == "HOT":
        assert want.spec_hash == bench.changed[case.name].hash, "the next start has it"
    if "small_batch_rows" in case.change:

        def used() -> bool:
            return "spark" in {batch.writer for batch in bench.platform.store.progress(name)}

        bench.platform.until(used, "the running query to have it, too")


@of("RESTART")
def test_a_restart_loses_no_row_and_reads_none_twice(bench: Bench, case: Case) -> None:
    assert bench.verdicts[case.name] == "RESTART"
    name = bench.specs[case.name].name
    bench.platform.until(
        lambda: bench.rows(case) == sorted(case.rows or []), f"the rows {case.rows}", 60,
        lambda: (bench.rows(case), bench.platform.store.actual(name)),
    )  # fmt: skip
    store = bench.platform.store
    assert store.desired(name).generation == 2
    assert store.desired(name).checkpoint_id == bench.checkpoints[case.name]
    assert store.actual(name).run_id != bench.runs[case.name]
    if not bench.specs[case.name].is_full:
        assert bench.read(name) == len(ALL), "each message was read once, before or after the restart"


@of("REBUILD")
def test_what_needs_a_rebuild_fails_or_is_wrong_on_the_old_checkpoint(bench: Bench, case: Case) -> None:
    assert "PEN-3005" in bench.refused[case.name]
    assert case.reason in bench.refused[case.name]
    store, name = bench.platform.store, bench.specs[case.name].name
    if case.forced == FAILS:
        bench.platform.until(
            lambda: store.actual(name).failures > 0, "its failure", 60, lambda: (store.actual(name), bench.rows(case))
        )
        return
    deadline = time.monotonic() + 60
    while bench.read(name) < len(ALL) and time.monotonic() < deadline:
        assert store.actual(name).failures == 0, store.actual(name).error
        time.sleep(0.05)
    assert bench.read(name) == len(ALL)
    if case.forced == WRONG:
        assert bench.rows(case) != sorted(case.rows or []), "the old checkpoint would have done"
        return
    state = bench.platform.paths.checkpoint(name, bench.checkpoints[case.name]) / "state" / "0"
    assert {each.name for each in state.iterdir() if each.name.isdigit()} == {"0", "1"}, "the setting has no effect"


def test_a_confirmed_rebuild_gives_what_the_old_checkpoint_could_not(bench: Bench) -> None:
    chosen = [case for case in CASES if case.name in ("the SQL of a state", "another key")]
    for case in chosen:
        assert bench.platform.deploy(bench.changed[case.name], full_refresh=True).verdict == "REBUILD"
    for case in chosen:
        bench.platform.until(
            lambda case=case: bench.rows(case) == sorted(case.rows or []), f"the rows of {case.name}", 90,
            lambda case=case: (bench.rows(case), bench.platform.store.rebuild(bench.specs[case.name].name)),
        )  # fmt: skip
