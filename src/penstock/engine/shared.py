"""Several streams that read one topic with one client: read once, decoded once, written by each for itself.

Rules
- A reader is a loop in a thread. Its members are streams of the same `compiler.sharing.reading`; to whoever runs them
  each looks like a streaming query of its own.
- A member keeps its own checkpoint, in Spark's form (`checkpoint.standing`), its own batch numbers and its own writer:
  planned, written, done. It may go on as a query of Spark's at any restart, and come from one.
- In a round every member comes to the front, the furthest that any of them has read; those that stand there get what is
  new. So whoever joins reads what it lacks by itself, once, and from then on with the others.
- What a batch of a crash or a stop left planned is done first, as it was planned.
- A member's error ends that member alone, and so does what it lacks and the topic has lost. A reading that fails in
  another way ends all of them.
- A member that takes long holds nobody up for longer than `PATIENCE`: the round goes on without it, and it catches up.
- After a round the loop rests for a quarter as long as it worked, at most half a second: under load batches become
  larger, not more.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.standing import Position, Standing, finish, plan
from penstock.engine import given, pools
from penstock.engine.given import Given
from penstock.engine.sink import TableWriter
from penstock.errors import PenstockError
from penstock.errors.catalogue import OFFSETS_LOST
from penstock.kafka.slices import Message
from penstock.kafka.tail import Tail

log = logging.getLogger(__name__)

CHUNK = 20_000  # messages of a batch, at most: they pass through the driver's memory
PATIENCE = 5.0  # seconds that a round waits for its members
_END = 10.0  # seconds that a cancelled batch has to end
_LOOK = 0.2  # seconds that one look for messages takes, at most
_LONGEST_REST = 0.5
_WORKERS = 3  # batches under way for each core: one waits for the JVM, the disk and the interpreter most of the time
_IDLE_AFTER = 5.0  # seconds without a batch
_MARKS_AFTER = 1.0  # seconds after which marks of transactions, which are no messages, are passed


@dataclass(frozen=True)
class Pace:
    """When a batch is due, and how large it may be."""

    most: int = CHUNK
    buffer: int = 1
    window: float = 0.0  # seconds

    def is_due(self, waiting: int, since: float) -> bool:
        """Whether as many messages make a batch, so long after the last one."""
        if waiting == 0:
            return False
        return waiting >= min(self.buffer, self.most) or since >= self.window


@dataclass(frozen=True)
class Read:
    """A batch that a member has written."""

    number: int
    messages: int
    seconds: float
    since: float  # seconds from the beginning of the one before
    offsets: dict[str, dict[str, int]]  # as Spark writes them
    counts: Mapping[str, Mapping[str, int]]  # source -> what was counted of its records


class Member:
    """One stream; looks like a Spark streaming query to whoever runs it."""

    def __init__(
        self,
        session: SparkSession,
        name: str,
        build: Callable[[SparkSession], DataFrame],
        writer: TableWriter,
        checkpoint: Path,
        stands: Standing,
        run_id: str | None = None,
    ) -> None:
        self.runId = run_id or str(
            uuid.uuid4()
        )  # as Spark spells it; of the query that it goes on for, if there is one
        self.name = name
        self.stands = stands  # of whoever runs its batch; else of the reader's loop
        self.is_own_fault = False  # what ended it was its own batch, not the reading
        self._session = session
        self._build = build
        self._writer = writer
        self._checkpoint = checkpoint
        self._guard = threading.Condition()  # of the three below; told when they change
        self._over = False
        self._problem: BaseException | None = None
        self._looks = 0  # that found nothing to read
        self._free = threading.Event()
        self._free.set()
        self._began = time.monotonic()
        self._done_at: float | None = None  # of a batch after which nobody was told of a rest
        self._leave: Callable[[], None] = lambda: None
        self._observe: Callable[[Read], None] = lambda _: None
        self._idle: Callable[[], None] = lambda: None
        self._ended: Callable[[str | None], None] = lambda _: None

    def listen(
        self, observe: Callable[[Read], None], idle: Callable[[], None], ended: Callable[[str | None], None]
    ) -> None:
        """Who is told of batches, of the first rest after one, and of the end."""
        self._observe, self._idle, self._ended = observe, idle, ended

    # -- as of a streaming query --------------------------------------------------------------------------------------
    @property
    def isActive(self) -> bool:  # noqa: N802 -- Spark's names
        with self._guard:
            return not self._over

    def exception(self) -> BaseException | None:
        with self._guard:
            return self._problem

    def stop(self) -> None:
        """End it; a batch under way is abandoned."""
        with self._guard:
            self._over = True
            self._guard.notify_all()
        self._leave()
        if not self._free.is_set():
            self._session.sparkContext.cancelJobGroup(self.runId)
            self._free.wait(_END)

    def processAllAvailable(self) -> None:  # noqa: N802
        """Until there is nothing left to read; raises what ended it."""
        with self._guard:
            enough = self._looks + 2  # a look may have begun before the question
            self._guard.wait_for(lambda: self._over or self._looks >= enough)
            if self._problem is not None:
                raise self._problem

    # -- for the reader -----------------------------------------------------------------------------------------------
    @property
    def is_free(self) -> bool:
        """Whether it could write a batch now."""
        return self._free.is_set() and not self._writer.is_busy

    def joined(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    def hold(self) -> None:
        """Its batch is about to run."""
        self._free.clear()

    def settle(self) -> None:
        """Wait for a batch under way: it must not write into a checkpoint that somebody else goes on with."""
        if not self._free.wait(_END):
            log.warning("%s: its batch did not finish in %s s", self.name, _END)

    def run(self, batch: Given, until: Position) -> None:
        """Plan, write and finish the next batch; what goes wrong is this member's end."""
        try:
            if self.isActive:
                self._run(batch, until)
        except InterruptedError:
            log.info("%s: stopped before a batch", self.name)
        except BaseException as problem:  # noqa: BLE001 -- it is told to whoever watches this query
            self.fail(problem, own=True)
        finally:
            self._free.set()

    def _run(self, batch: Given, until: Position) -> None:
        began, before, self._began = time.monotonic(), self._began, time.monotonic()
        context = self._session.sparkContext
        pools.enter(context, pools.STREAMS)
        context.setJobGroup(self.runId, self.name, interruptOnCancel=True)
        stands = self.stands
        if stands.planned is None:
            stands = self.stands = plan(self._checkpoint, stands, until)
        session = given.session(self._session, batch)
        self._writer(self._build(session), stands.next_batch)
        self.stands = finish(self._checkpoint, stands)
        self._done_at = time.monotonic()
        offsets = {stands.topic: {str(number): at for number, at in self.stands.position.items()}}
        seconds, since = self._done_at - began, began - before
        self._observe(Read(self.stands.batch, batch.size, seconds, since, offsets, given.counts(session)))

    def fail(self, problem: BaseException, *, own: bool) -> None:
        with self._guard:
            if self._over:
                return  # it was stopped, and its batch cancelled
            self._over, self._problem, self.is_own_fault = True, problem, own
            self._guard.notify_all()
        self._writer.error = self._writer.error or problem
        self._leave()
        self._ended(str(problem))

    def rest(self) -> None:
        """There is nothing to read."""
        with self._guard:
            self._looks += 1
            self._guard.notify_all()
        if self._done_at is not None and time.monotonic() - self._done_at > _IDLE_AFTER:
            self._done_at = None
            self._idle()


# -- who reads what ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Group:
    """Members that read the same messages next."""

    begin: Position
    end: Position
    members: tuple[Member, ...]


def front(positions: Iterable[Position], partitions: Iterable[int]) -> dict[int, int]:
    """The furthest that anybody has read; a partition that nobody has read begins at 0."""
    found = dict.fromkeys(partitions, 0)
    for position in positions:
        for number, at in position.items():
            found[number] = max(found.get(number, 0), at)
    return found


def cut(begin: Position, end: Position, most: int) -> dict[int, int]:
    """The end, or an earlier one if that is too far: as many messages of each partition as it has of all."""
    lengths = {number: max(at - begin.get(number, 0), 0) for number, at in end.items()}
    whole = sum(lengths.values())
    if whole <= most:
        return dict(end)
    return {number: begin.get(number, 0) + -(-length * most // whole) for number, length in lengths.items()}


def behind(members: Sequence[Member], at: Position, most: int) -> list[Group]:
    """Who has something to read before standing at the front, and what; those of one way together."""
    groups: dict[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]], list[Member]] = {}
    for member in members:
        stands = member.stands
        end = stands.planned if stands.planned is not None else cut(stands.position, at, most)
        if stands.planned is not None or _differ(stands.position, end):
            way = tuple(sorted(stands.position.items())), tuple(sorted(end.items()))
            groups.setdefault(way, []).append(member)
    return [Group(dict(begin), dict(end), tuple(each)) for (begin, end), each in groups.items()]


def _differ(position: Position, end: Position) -> bool:
    return any(at != position.get(number, 0) for number, at in end.items())


# -- the loop ---------------------------------------------------------------------------------------------------------
class Reader:
    """Reads one topic for its members; ends when the last of them has left."""

    def __init__(self, session: SparkSession, name: str, tail: Tail, pace: Pace, workers: int) -> None:
        self._session = session
        self._name = name
        self._tail = tail
        self._pace = pace
        self._workers = workers
        self._lock = threading.Condition()  # of the two below; told when they change
        self._members: list[Member] = []
        self._over = False
        self._waiting: list[Message] = []  # at the front, for a batch that is not due yet
        self._waiting_from: Position = {}
        self._waiting_until: Position = {}
        self._last = time.monotonic()  # batch at the front
        self._thread = threading.Thread(target=self._run, name=f"reader {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, member: Member) -> bool:
        """Take a member in; False when the reader is at its end."""
        with self._lock:
            if self._over:
                return False
            member.joined(lambda: self._left(member))
            self._members.append(member)
            self._lock.notify_all()
            return True

    def _left(self, member: Member) -> None:
        with self._lock:
            if member in self._members:
                self._members.remove(member)
            self._lock.notify_all()

    def _run(self) -> None:
        log.info("%s is read for several streams at once", self._name)
        pool = ThreadPoolExecutor(max_workers=self._workers, thread_name_prefix=f"reader {self._name}")
        problem: BaseException | None = None
        try:
            while members := self._present():
                self._round(members, pool)
        except BaseException as found:  # noqa: BLE001 -- it is told to whoever watches the members
            problem = found
        with self._lock:
            self._over = True
            left = list(self._members)
        for member in left:
            member.settle()
            member.fail(problem or RuntimeError("the reader ended"), own=False)
        pool.shutdown(wait=False)
        self._tail.close()
        log.info("%s is no longer read for several streams; %s messages were fetched", self._name, self._tail.fetched)

    def _present(self) -> list[Member]:
        with self._lock:
            self._over = not self._members
            return list(self._members)

    def _round(self, members: Sequence[Member], pool: ThreadPoolExecutor) -> None:
        free = [each for each in members if each.is_free]
        if not free:
            with self._lock:
                self._lock.wait(_LOOK)
            return
        began = time.monotonic()
        at = front((each.stands.position for each in members), self._tail.partitions())
        for group in behind(free, at, self._pace.most):
            try:
                missing = self._tail.between(group.begin, group.end)
            except PenstockError as problem:
                if problem.kind is not OFFSETS_LOST:
                    raise
                for each in group.members:
                    each.fail(problem, own=True)
                continue
            self._give(pool, group.members, missing, group.end)
        there = [each for each in free if each.is_free and each.isActive and not behind([each], at, self._pace.most)]
        if not there:
            return
        worked = time.monotonic() - began
        if self._is_due(at):
            began = time.monotonic()
            messages, until = sorted(self._waiting, key=lambda each: (each.partition, each.offset)), self._waiting_until
            self._waiting, self._waiting_from, self._last = [], {}, began
            self._give(pool, there, messages, until)
            worked += time.monotonic() - began
            self._rest(min(worked / 4, _LONGEST_REST))
        elif not self._waiting and self._waiting_until == at:
            for each in there:
                each.rest()

    def _is_due(self, at: Position) -> bool:
        """Look for messages from there on; whether those that wait make a batch."""
        if self._waiting_from != at:
            self._waiting, self._waiting_from, self._waiting_until = [], dict(at), dict(at)
        room = self._pace.most - len(self._waiting)
        if room > 0:
            found, self._waiting_until = self._tail.more(self._waiting_until, room, _LOOK)
            self._waiting += found
        since = time.monotonic() - self._last
        if not self._waiting and self._waiting_until != at:
            return since >= max(self._pace.window, _MARKS_AFTER)
        return self._pace.is_due(len(self._waiting), since)

    def _give(
        self, pool: ThreadPoolExecutor, members: Sequence[Member], messages: Sequence[Message], until: Position
    ) -> None:
        batch = Given(self._session, messages)
        running: list[Future[None]] = []
        for each in members:
            each.hold()
            running.append(pool.submit(each.run, batch, until))
        _, late = wait(running, timeout=PATIENCE)
        if late:
            log.info("%s: %s of %s streams take their time; the others go on", self._name, len(late), len(members))

    def _rest(self, seconds: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._members, seconds)


class Readers:
    """The readers of an engine, by what their members have in common."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._readers: dict[object, Reader] = {}

    def join(self, key: object, member: Member, name: str, tail: Callable[[], Tail], pace: Pace) -> None:
        """Let a member read with the others of that key."""
        with self._lock:
            found = self._readers.get(key)
            if found is not None and found.join(member):
                return
            session = self._spark.newSession()
            workers = _WORKERS * max(1, int(self._spark.sparkContext.defaultParallelism))
            made = self._readers[key] = Reader(session, name, tail(), pace, workers)
            made.join(member)
            made.start()
