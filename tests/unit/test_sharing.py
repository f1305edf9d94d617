"""Which streams share the reading of a topic, where they stand, and what a round gives to whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.checkpoint.bisect import Range, failed_ranges
from penstock.checkpoint.offsets import committed, kafka_rows
from penstock.checkpoint.standing import Standing, finish, plan, standing
from penstock.compiler.sharing import reading, why_alone
from penstock.compiler.spec import (
    Column,
    KafkaInput,
    MessageType,
    Output,
    OutputMode,
    Publish,
    Schema,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
)
from penstock.engine.given import Given, arrow_of
from penstock.engine.shared import Member, Pace, Read, Reader, Readers, behind, cut, front
from penstock.errors.catalogue import OFFSETS_LOST
from penstock.kafka.security import Reference
from penstock.kafka.slices import Message

CLICKS = KafkaInput(
    view="clicks", relation="shop.clicks", topic="clicks", columns=(Column(name="k", type="string", origin="value.k"),)
)
WAIT = 10.0


def spec(sql: str = "select k from clicks", *inputs: Any, **changes: Any) -> StreamSpec:
    base = StreamSpec(
        name="lab.clean", unique_id="model.lab.clean", path="models/clean.sql", sql=sql, stateful=False,
        inputs=inputs or (CLICKS,), output=Output(relation="lab.clean", mode=OutputMode.APPEND),
    )  # fmt: skip
    return base.model_copy(update=changes)


# -- who may --------------------------------------------------------------------------------------------------------
def test_a_stateless_stream_of_one_topic_may_share_its_reading() -> None:
    assert why_alone(spec()) is None
    assert why_alone(spec("with a as (select * from clicks) select k from a")) is None
    assert why_alone(spec("select c.k from clicks c join shop.items i using (k)", CLICKS, TableInput(relation="x.y")))\
        is None  # fmt: skip
    upsert = Output(relation="lab.clean", mode=OutputMode.UPSERT, keys=("k",))
    assert why_alone(spec(output=upsert)) is None
    assert why_alone(spec(publish=Publish(topic="out"))) is None


SOME_SCHEMA = Schema(types=(MessageType(content="{}"),))
ISOLATED = (("kafka.isolation.level", "read_committed"),)
ALONE: list[tuple[StreamSpec, str]] = [
    (spec(output=Output(relation="lab.clean", mode=OutputMode.REPLACE)), "computed anew"),
    (spec(publish=Publish(topic="out", table=False, real_time=True)), "real time"),
    (spec("select 1", CLICKS, TableStreamInput(view="t", relation="lab.t")), "more than one stream"),
    (spec("select 1", CLICKS, CLICKS.model_copy(update={"view": "other"})), "more than one stream"),
    (spec("select k from t", TableStreamInput(view="t", relation="lab.t")), "a dynamic table"),
    (spec("select 1", TableInput(relation="lab.t")), "no stream"),
    (spec(stateful=True), "keeps state"),
    (spec(deduplicate_by=("k",)), "keeps state"),
    (spec(small_batch_rows=0), "small_batch_rows"),
    (spec("select 1", CLICKS.model_copy(update={"topic": None, "topic_pattern": "c.*"})), "pattern"),
    (spec("select k from clicks", CLICKS.model_copy(update={"value_schema": SOME_SCHEMA})), "schema"),
    (spec("select k from clicks", CLICKS.model_copy(update={"options": ISOLATED})), "settings of its own"),
    (spec("select k from clicks union all select k from clicks"), "more than once"),
    (spec("with a as (select k from clicks) select k from a union all select k from a"), "more than once"),
]


@pytest.mark.parametrize(("alone", "why"), ALONE, ids=[why for _, why in ALONE])
def test_what_could_differ_reads_alone_and_says_why(alone: StreamSpec, why: str) -> None:
    told = why_alone(alone)
    assert told is not None
    assert why in told
    assert told.endswith(".")
    assert reading(alone) is None


def test_streams_share_what_they_read_in_the_same_way() -> None:
    other = CLICKS.model_copy(update={"columns": (Column(name="v", type="int", origin="value.v"),), "relation": "x.y"})
    assert reading(spec()) == reading(spec("select v from clicks", other)), "columns are each stream's own"
    assert reading(spec()) == reading(spec(trigger=Trigger(time_window_ms=9000))), "nobody waits for the window"
    secret = CLICKS.model_copy(update={"options": (("kafka.sasl.password", Reference(env_var="PASSWORD")),)})
    different = [
        spec(),
        spec("select k from clicks", CLICKS.model_copy(update={"topic": "orders"})),
        spec("select k from clicks", CLICKS.model_copy(update={"partitions": (1,)})),
        spec("select k from clicks", CLICKS.model_copy(update={"bootstrap": "elsewhere:9092"})),
        spec("select k from clicks", secret),
        spec(trigger=Trigger(buffer_limit=10)),
        spec(trigger=Trigger(buffer_limit=10, time_window_ms=9000)),
        spec(trigger=Trigger(max_batch_rows=10)),
    ]
    assert len({reading(each) for each in different}) == len(different)


# -- checkpoints ----------------------------------------------------------------------------------------------------
NOTES = '{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def checkpoint(folder: Path, offsets: Mapping[int, str], commits: tuple[int, ...]) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for number, line in offsets.items():
        (folder / "offsets" / str(number)).write_text(f"v1\n{NOTES}\n{line}")
    for number in commits:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_a_checkpoint_says_where_its_stream_stands_and_what_was_begun(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, {3: '{"clicks":{"0":5,"1":7}}', 4: '{"clicks":{"0":6,"1":9}}'}, (2, 3))
    found = standing(place)
    assert found is not None
    assert (found.topic, found.batch, found.next_batch) == ("clicks", 3, 4)
    assert found.position == {0: 5, 1: 7}
    assert found.planned == {0: 6, 1: 9}


@pytest.mark.parametrize(
    ("offsets", "commits"),
    [
        ({}, ()),
        ({0: '{"clicks":{"0":5}}'}, ()),  # nothing is done: where it starts is Spark's to say
        ({2: '{"clicks":{"0":5}}', 3: '{"clicks":{"0":5}}'}, (1,)),
        ({1: '{"clicks":{"0":5}}\n{"orders":{"0":5}}'}, (1,)),
        ({1: '{"clicks":{"0":5},"orders":{"0":5}}'}, (1,)),
        ({1: '{"reservoirVersion":5}'}, (1,)),
        ({1: "-"}, (1,)),
    ],
)
def test_a_checkpoint_that_is_not_of_one_topic_and_a_batch_that_is_done_is_left_to_spark(
    tmp_path: Path, offsets: dict[int, str], commits: tuple[int, ...]
) -> None:
    assert standing(checkpoint(tmp_path, offsets, commits)) is None


def test_a_batch_is_planned_and_done_in_files_that_spark_reads(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, {3: '{"clicks":{"0":5,"1":7}}'}, (3,))
    (place / "offsets" / ".4.crc").write_text("of a file that is gone")
    before = standing(place)
    assert before is not None
    planned = plan(place, before, {0: 6, 1: 9})
    assert standing(place) == planned, "what was begun is found again"
    done = finish(place, planned)
    assert standing(place) == done
    assert (done.batch, done.position, done.planned) == (4, {0: 6, 1: 9}, None)
    version, notes, offsets = (place / "offsets" / "4").read_text().split("\n")
    assert (version, offsets) == ("v1", '{"clicks":{"0":6,"1":9}}')
    assert '"spark.sql.shuffle.partitions":"2"' in notes
    assert '"batchTimestampMs":5' not in notes
    assert (place / "commits" / "4").read_text() == (place / "commits" / "3").read_text()
    assert not (place / "offsets" / ".4.crc").exists(), "a checksum of another file would make Spark refuse it"
    # Whoever else reads a checkpoint reads this one, too.
    assert committed(place, (CLICKS,)) == {"shop.clicks": {"clicks": {"0": 6, "1": 9}}}
    assert kafka_rows(place, 4) == 3


def test_batches_that_are_long_past_are_forgotten(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, {0: '{"clicks":{"0":0}}'}, (0,))
    (place / "offsets" / ".0.crc").write_text("")
    at = standing(place)
    assert at is not None
    for number in range(1, 26):
        at = finish(place, plan(place, at, {0: number}))
    for folder in ("offsets", "commits"):
        assert sorted(int(each.name) for each in (place / folder).iterdir()) == list(range(6, 26))


# -- who reads what -------------------------------------------------------------------------------------------------
def member(position: dict[int, int], planned: dict[int, int] | None = None) -> Any:
    return MagicMock(stands=Standing("clicks", 3, position, planned, {}, ""))


def test_the_front_is_the_furthest_that_anybody_has_read() -> None:
    assert front([{0: 5, 1: 7}, {0: 6, 1: 2}], (0, 1, 2)) == {0: 6, 1: 7, 2: 0}


def test_who_lacks_the_same_reads_it_together_and_who_stands_at_the_front_reads_nothing_here() -> None:
    ahead, one, two, other = member({0: 9}), member({0: 5}), member({0: 5}), member({0: 7})
    groups = behind([ahead, one, other, two], {0: 9}, most=100)
    assert [(each.begin, each.end, each.members) for each in groups] == [
        ({0: 5}, {0: 9}, (one, two)),
        ({0: 7}, {0: 9}, (other,)),
    ]


def test_a_batch_that_was_begun_comes_first_and_as_it_was_planned() -> None:
    begun = member({0: 5}, planned={0: 6})
    empty = member({0: 9}, planned={0: 9})  # of Spark: without messages, and it has to be done all the same
    assert [(each.begin, each.end) for each in behind([begun, empty], {0: 9}, most=1)] == [
        ({0: 5}, {0: 6}),
        ({0: 9}, {0: 9}),
    ]


def test_a_long_way_is_gone_in_pieces() -> None:
    assert cut({0: 0, 1: 0}, {0: 300, 1: 100}, most=40) == {0: 30, 1: 10}
    assert cut({0: 10}, {0: 30, 1: 20}, most=100) == {0: 30, 1: 20}
    far = {0: 7, 1: 1000}
    at: dict[int, int] = {0: 5, 1: 3}
    for _ in range(200):
        at = cut(at, far, most=10)
    assert at == far, "it comes to an end"


def test_a_new_partition_is_behind_from_its_beginning() -> None:
    old = member({0: 9})
    assert [(each.begin, each.end) for each in behind([old], {0: 9, 1: 4}, most=9)] == [({0: 9}, {0: 9, 1: 4})]
    assert behind([old], {0: 9, 1: 0}, most=9) == []


@pytest.mark.parametrize(
    ("pace", "waiting", "since", "due"),
    [
        (Pace(), 0, 99.0, False),
        (Pace(), 1, 0.0, True),
        (Pace(buffer=10, window=5.0), 9, 4.9, False),
        (Pace(buffer=10, window=5.0), 10, 0.0, True),
        (Pace(buffer=10, window=5.0), 1, 5.0, True),
        (Pace(most=5, buffer=10, window=5.0), 5, 0.0, True),
    ],
)
def test_a_batch_is_due_when_enough_wait_or_time_has_passed(pace: Pace, waiting: int, since: float, due: bool) -> None:
    assert pace.is_due(waiting, since) is due


# -- messages -------------------------------------------------------------------------------------------------------
def message(partition: int, offset: int, value: bytes | None = b"{}") -> Message:
    return Message("clicks", partition, offset, 1000, b"k", value, ())


def test_messages_have_the_columns_of_sparks_kafka_source() -> None:
    found = arrow_of([
        Message("clicks", 1, 7, 1234, None, b"", (("trace", None), ("trace", b"x")), 1),
        Message("clicks", 0, 8, -1, b"", None, (), -1),
    ]).to_pylist()  # fmt: skip
    assert found[0]["key"] is None
    assert found[0]["value"] == b""
    assert found[0]["headers"] == [{"key": "trace", "value": None}, {"key": "trace", "value": b"x"}]
    assert (found[0]["topic"], found[0]["partition"], found[0]["offset"]) == ("clicks", 1, 7)
    assert found[0]["timestamp"].timestamp() == pytest.approx(1.234)
    assert found[0]["timestampType"] == 1
    assert (found[1]["key"], found[1]["value"], found[1]["headers"]) == (b"", None, None)


def test_a_text_is_decoded_once_and_a_failure_is_each_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def compute(_session: Any, source: str, _rows: Any) -> Any:
        computed.append(source)
        if len(computed) == 1:
            raise RuntimeError("cancelled")
        return MagicMock(counts={"records": 3})

    monkeypatch.setattr("penstock.engine.given._computed", compute)
    batch = Given(MagicMock(), [message(0, 1)])
    with pytest.raises(RuntimeError, match="cancelled"):
        batch.once(MagicMock(), "shop.clicks", "select 1", MagicMock())
    one = batch.once(MagicMock(), "shop.clicks", "select 1", MagicMock())
    assert batch.once(MagicMock(), "shop.clicks", "select 1", MagicMock()) is one
    batch.once(MagicMock(), "shop.clicks", "select 2", MagicMock())
    assert len(computed) == 3


# -- the loop -------------------------------------------------------------------------------------------------------
class Topic:
    """A topic in memory, read as `Tail` reads one."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._messages: list[Message] = []
        self.numbers = frozenset({0})
        self.reads: list[tuple[str, list[int]]] = []  # how, and which offsets
        self.problem: BaseException | None = None
        self.closed = threading.Event()
        self.fetched = 0
        self.oldest = 0
        self.marks = 0  # the topic has marks of transactions up to here

    def send(self, count: int) -> None:
        with self._told:
            self._messages += [message(0, len(self._messages) + n) for n in range(count)]
            self._told.notify_all()

    def end_with(self, problem: BaseException) -> None:
        with self._told:
            self.problem = problem
            self._told.notify_all()

    def partitions(self) -> frozenset[int]:
        return self.numbers

    def more(self, at: Mapping[int, int], most: int, timeout: float) -> tuple[list[Message], dict[int, int]]:
        with self._told:
            self._told.wait_for(lambda: self.problem or len(self._messages) > at[0], timeout)
            if self.problem is not None:
                raise self.problem
            found = self._read("more", self._messages[at[0] : at[0] + most])
            return found, {0: max(at[0] + len(found), self.marks)}

    def between(self, begin: Mapping[int, int], end: Mapping[int, int]) -> list[Message]:
        with self._told:
            if begin[0] < self.oldest:
                raise OFFSETS_LOST.error("topic 'clicks': gone.")
            return self._read("between", self._messages[begin[0] : end[0]])

    def _read(self, how: str, found: list[Message]) -> list[Message]:
        if found:
            self.reads.append((how, [each.offset for each in found]))
        return found

    def close(self) -> None:
        self.closed.set()


class Table:
    """What a member writes to: the offsets of each batch."""

    def __init__(self, fail: Callable[[], BaseException | None] = lambda: None) -> None:
        self.batches: dict[int, int] = {}
        self.error: BaseException | None = None
        self.is_busy = False
        self._fail = fail

    def __call__(self, rows: int, batch: int) -> None:
        if (problem := self._fail()) is not None:
            raise problem
        self.batches[batch] = rows


class World:
    """A topic, a reader of it, and members that count the messages they are given."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.topic = Topic()
        self.readers = Readers(MagicMock(sparkContext=MagicMock(defaultParallelism=2)))
        self.tails = 0

    def _tail(self) -> Any:
        self.tails += 1
        return self.topic

    def member(self, name: str, at: int, planned: int | None = None, table: Table | None = None) -> Joined:
        place = self.home / name
        place.mkdir()
        lines = {3: f'{{"clicks":{{"0":{at}}}}}'} | ({4: f'{{"clicks":{{"0":{planned}}}}}'} if planned else {})
        stands = standing(checkpoint(place, lines, (3,)))
        assert stands is not None
        return Joined(self, name, place, stands, table or Table())

    def join(self, joined: Joined, pace: Pace | None = None) -> None:
        self.readers.join("clicks", joined.query, "topic 'clicks'", self._tail, pace or Pace())


class Joined:
    def __init__(self, world: World, name: str, place: Path, stands: Standing, table: Table) -> None:
        self.place, self.table = place, table
        self.batches: list[Read] = []
        self.ends: list[str | None] = []
        self._told = threading.Condition()
        self.query = Member(MagicMock(), name, self._build, table, place, stands)  # type: ignore[arg-type]
        self.query.listen(self._observe, lambda: None, self._ended)

    def _build(self, session: Any) -> Any:
        return session._given.size

    def _observe(self, done: Read) -> None:
        with self._told:
            self.batches.append(done)
            self._told.notify_all()

    def _ended(self, problem: str | None) -> None:
        with self._told:
            self.ends.append(problem)
            self._told.notify_all()

    def at(self, offset: int) -> None:
        """Wait until it has read up to there."""
        with self._told:
            assert self._told.wait_for(lambda: self.query.stands.position[0] >= offset, WAIT), self.query.stands

    def ended(self) -> list[str | None]:
        with self._told:
            assert self._told.wait_for(lambda: bool(self.ends), WAIT), "it did not end"
            return self.ends


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_members_at_the_front_get_was_read_once(world: World) -> None:
    world.topic.send(10)
    members = [world.member(f"m{n}", at=10) for n in range(5)]
    for each in members:
        world.join(each)
    members[-1].query.processAllAvailable()  # all are in
    world.topic.send(7)
    for each in members:
        each.at(17)
        assert sum(each.table.batches.values()) == 7
        assert min(each.table.batches) == 4, "batches are numbered on"
        found = standing(each.place)
        assert found is not None
        assert found.position == {0: 17}
        assert found.planned is None
        assert each.batches[-1].offsets == {"clicks": {"0": 17}}
    read = sorted(offset for _, offsets in world.topic.reads for offset in offsets)
    assert read == list(range(10, 17)), "each message was fetched once"
    assert world.tails == 1
    for each in members:
        each.query.stop()
        assert not each.query.isActive
    assert world.topic.closed.wait(WAIT), "with its last member the reader ends"


def test_a_late_joiner_reads_what_it_lacks_by_itself_and_then_with_the_others(world: World) -> None:
    world.topic.send(10)
    first = world.member("first", at=10)
    world.join(first)
    world.topic.send(5)
    first.at(15)
    late = world.member("late", at=2)
    world.join(late)
    late.at(15)
    late.query.processAllAvailable()
    assert ("between", list(range(2, 15))) in world.topic.reads
    world.topic.send(5)
    first.at(20)
    late.at(20)
    assert sum(late.table.batches.values()) == 18
    assert sum(first.table.batches.values()) == 10
    assert [offset for how, offsets in world.topic.reads for offset in offsets if offset >= 15] == list(range(15, 20))


def test_a_batch_that_was_begun_is_done_as_it_was_planned(world: World) -> None:
    world.topic.send(10)
    begun = world.member("begun", at=2, planned=6)
    world.join(begun)
    begun.at(10)
    assert begun.table.batches[4] == 4, "the same number, the same messages"
    assert (begun.place / "offsets" / "4").read_text().endswith('{"clicks":{"0":6}}')


def test_a_member_that_fails_fails_alone(world: World) -> None:
    bad = world.member("bad", at=0, table=Table(lambda: ValueError("boom")))
    good = world.member("good", at=0)
    for each in (bad, good):
        world.join(each)
    world.topic.send(3)
    assert bad.ended() == ["boom"]
    good.at(3)
    world.topic.send(3)
    good.at(6)
    assert good.query.isActive
    assert not bad.query.isActive
    assert bad.query.is_own_fault
    assert str(bad.query.exception()) == "boom"
    assert isinstance(bad.table.error, ValueError)
    left = standing(bad.place)
    assert left is not None
    assert left.position == {0: 0}
    assert left.planned is not None, "the batch comes again, as it was"
    failed = Range("shop.clicks", "clicks", 0, 0, left.planned[0])
    assert failed_ranges(bad.place, [CLICKS]) == (4, [failed]), "what it failed of can be looked into"


def test_a_reading_that_fails_ends_all_members_and_is_nobodys_own_fault(world: World) -> None:
    members = [world.member(f"m{n}", at=0) for n in range(3)]
    for each in members:
        world.join(each)
    world.topic.end_with(RuntimeError("no broker"))
    for each in members:
        assert each.ended() == ["no broker"]
        assert not each.query.is_own_fault
    assert world.topic.closed.wait(WAIT)
    # Who comes afterwards gets a reader of its own.
    world.topic = Topic()
    again = world.member("again", at=0)
    world.join(again)
    world.topic.send(1)
    again.at(1)
    assert world.tails == 2


def test_a_member_that_lacks_what_the_topic_has_lost_ends_alone(world: World) -> None:
    world.topic.send(10)
    world.topic.oldest = 5
    good, late = world.member("good", at=10), world.member("late", at=2)
    world.join(good)
    world.join(late)
    assert late.ended() == [str(late.query.exception())]
    assert "gone" in str(late.query.exception())
    world.topic.send(1)
    good.at(11)


def test_marks_of_transactions_are_passed_without_messages(world: World) -> None:
    one = world.member("one", at=0)
    world.topic.send(3)
    world.join(one)
    one.at(3)
    world.topic.marks = 4
    one.at(4)
    assert sum(one.table.batches.values()) == 3
    assert one.batches[-1].messages == 0


def test_a_writer_that_rests_holds_nobody_up(world: World) -> None:
    resting, other = world.member("resting", at=0), world.member("other", at=0)
    resting.table.is_busy = True  # maintenance has its table
    for each in (resting, other):
        world.join(each)
    world.topic.send(4)
    other.at(4)
    assert resting.table.batches == {}
    resting.table.is_busy = False
    resting.at(4)
    assert sum(resting.table.batches.values()) == 4


def test_a_member_that_is_stopped_in_its_batch_leaves_it_planned(world: World) -> None:
    running, go = threading.Event(), threading.Event()

    def stuck() -> BaseException | None:
        running.set()
        assert go.wait(WAIT)
        return InterruptedError("cancelled")

    slow, other = world.member("slow", at=0, table=Table(stuck)), world.member("other", at=0)
    slow.query._session.sparkContext.cancelJobGroup.side_effect = lambda _: go.set()
    for each in (slow, other):
        world.join(each)
    world.topic.send(2)
    assert running.wait(WAIT)
    slow.query.stop()
    assert slow.ends == [], "a stop is no failure"
    left = standing(slow.place)
    assert left is not None
    assert left.position == {0: 0}
    assert left.planned is not None
    world.topic.send(2)
    other.at(4)


def test_a_buffer_is_waited_for(world: World) -> None:
    patient = world.member("patient", at=0)
    world.join(patient, Pace(buffer=5, window=3600.0))
    world.topic.send(3)
    world.topic.send(2)
    patient.at(5)
    assert list(patient.table.batches.values()) == [5]


def test_nothing_left_to_read_is_told_to_who_asks(world: World) -> None:
    one = world.member("one", at=0)
    world.topic.send(3)
    world.join(one)
    one.query.processAllAvailable()
    assert sum(one.table.batches.values()) == 3
    world.topic.end_with(RuntimeError("no broker"))
    with pytest.raises(RuntimeError, match="no broker"):
        one.query.processAllAvailable()


def test_a_reader_at_its_end_takes_nobody_in() -> None:
    reader = Reader(MagicMock(), "topic", MagicMock(), Pace(), 1)
    reader._over = True
    assert not reader.join(MagicMock())
