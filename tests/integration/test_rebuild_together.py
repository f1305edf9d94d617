"""Rebuilds of streams that read each other, and of streams that are published: old rows until all take over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest
from model_files import Project
from published_messages import latest, read_topic

from penstock.checkpoint.offsets import normalised
from penstock.checkpoint.table_ids import table_id
from penstock.compiler.spec import StreamSpec
from penstock.control.lag import table_path
from penstock.paths import beside
from penstock.store import RebuildPhase, StreamState, Wanted

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

Rows = list[tuple[Any, ...]]


class World:
    """A project on a running platform, and what was sent to its topic."""

    def __init__(self, platform: Platform, produce: Produce, project: Project, topic: str) -> None:
        self.platform = platform
        self.project = project
        self.sent: list[tuple[str, int]] = []
        self._produce = produce
        self._topic = topic

    def send(self, *rows: tuple[str, int]) -> None:
        self._produce(self._topic, [(k, {"k": k, "v": v}) for k, v in rows])
        self.sent += rows

    def rows(self, name: str) -> Rows:
        return sorted(self.platform.sql(f"select * from {self.project.schema}.{name}"))

    def become(self, **want: Rows) -> None:
        for name, rows in want.items():
            told = lambda name=name: (self.rows(name), self.seen())  # noqa: E731
            self.platform.until(lambda name=name, rows=rows: self.rows(name) == rows, f"{name} to be {rows}", 120, told)

    def rebuild(self, *specs: StreamSpec) -> list[str]:
        """As one run with --full-refresh does it; the verdicts."""
        together = {spec.name for spec in specs}
        return [self.platform.deploy(spec, full_refresh=True, together=together).verdict for spec in specs]

    def taken_over(self, *specs: StreamSpec) -> None:
        store = self.platform.store
        self.platform.until(lambda: not store.rebuilds(), "the takeover", 240, self.seen)
        for spec in specs:
            assert store.desired(spec.name).generation == 2
            self.platform.state(spec.name, StreamState.RUNNING)

    def seen(self) -> Any:
        store = self.platform.store
        return store.rebuilds(), store.rebuild_links(), store.all_actual(hidden=True)


@pytest.fixture
def world(platform: Platform, schema: str, topic: MakeTopic, produce: Produce) -> World:
    project, events = Project(schema), topic(2, name="together")
    project.source("events", events, {"k": "string", "v": "bigint"})
    return World(platform, produce, project, events)


def test_a_chain_is_built_beside_and_takes_over_together(world: World) -> None:
    # Given: rows, a count of them, what changes of the count, and the largest count, which is computed anew each time.
    platform, project = world.platform, world.project
    world.send(*((f"k{n % 3}", n) for n in range(30)))
    project.model("kept", "select k, v from {events} where v % 2 = 0")
    project.model("counts", "select k, count(*) as n from {kept} group by k")
    project.model("often", "select k, n from {counts} where n > 4")
    project.model("top", "select k from {counts} order by n desc, k limit 1")
    topic = f"{project.schema}-told"
    told = "select e.k, e.v, {} from {{events}} e left join {{counts}} c on c.k = e.k"
    project.model("told", told.format("c.k is not null as known"), publish={"topic": topic})
    project.model("both", "select k, v from {told} union all select k, v from {kept}")
    old = project.specs()
    for spec in old.values():
        platform.deploy(spec)

    def before() -> dict[str, Rows]:
        n = Counter(k for k, v in world.sent if v % 2 == 0)
        kept = [(k, v) for k, v in world.sent if v % 2 == 0]
        return {
            "kept": sorted(kept),
            "both": sorted([*world.sent, *kept]),
            "counts": sorted(n.items()),
            "often": sorted((k, count) for k, count in n.items() if count > 4),
            "top": [(min(n, key=lambda k: (-n[k], k)),)],
        }

    world.become(**before())
    runs = {name: platform.store.actual(spec.name).run_id for name, spec in old.items()}

    # When: all are changed, each needs columns that those above it do not have yet, and there is a new reader.
    project.model("kept", "select k, v, 1 as one from {events}")
    project.model("counts", "select k, sum(one) as n, max(v) as most from {kept} group by k")
    project.model("often", "select k, n, most from {counts} where n > 4")
    project.model("top", "select k, most from {counts} order by most desc limit 1")
    project.model("told", told.format("c.most is null as odd"), publish={"topic": topic})
    project.model("both", "select k, v from {told} union all select k, v from {kept}")
    project.model("fresh", "select k, one + v as w from {kept}")
    new = project.specs()
    platform.deploy(new["kept"], full_refresh=True, together={spec.name for spec in new.values()})
    platform.store.set_wanted(beside(new["kept"].name), Wanted.STOPPED)  # it is held back for a while
    assert world.rebuild(*(new[name] for name in ("counts", "often", "top", "told", "both", "fresh"))) == [
        *["REBUILD"] * 5,
        "NEW",
    ]

    # Then: the old ones go on, all of them, not even restarted; the new reader waits.
    world.send(("k0", 100), ("k7", 101))
    world.become(**before())
    for name, spec in old.items():
        actual, rebuild = platform.store.actual(spec.name), platform.store.rebuild(spec.name)
        assert (actual.state, actual.generation, actual.run_id) == (StreamState.RUNNING, 1, runs[name])
        assert rebuild is not None
        assert rebuild.phase is RebuildPhase.CATCHING_UP
    assert platform.store.actual(new["fresh"].name).state in (StreamState.PENDING, StreamState.STOPPED)
    assert world.rows("fresh") == []

    # And: with the new rows all have what the new definitions make of the topic, and go on with what comes.
    platform.store.set_wanted(beside(new["kept"].name), Wanted.RUNNING)
    world.taken_over(*(new[name] for name in old))

    def after() -> dict[str, Rows]:
        n, most = Counter(k for k, _ in world.sent), dict(sorted(world.sent, key=lambda each: each[1]))
        return {
            "kept": sorted((k, v, 1) for k, v in world.sent),
            "both": sorted([*world.sent, *world.sent]),
            "counts": sorted((k, n[k], most[k]) for k in n),
            "often": sorted((k, n[k], most[k]) for k in n if n[k] > 4),
            "top": [max(most.items(), key=lambda each: each[1])],
            "fresh": sorted((k, v + 1) for k, v in world.sent),
        }

    world.become(**after())
    # What was there when the rebuild began was looked up in the new counts once these had all of it.
    assert sorted(row for row in world.rows("told") if row[1] < 100) == sorted(
        (k, v, False) for k, v in world.sent[:30]
    )

    def published() -> list[int]:
        found = [each.value for each in read_topic(platform.bootstrap, topic, value=lambda raw: json.loads(raw or b""))]
        return sorted(each["v"] for each in found if "odd" in each)

    numbers = lambda: sorted(v for _, v in world.sent)  # noqa: E731
    platform.until(lambda: published() == numbers(), "the new rows in the topic", 60, published)
    for batch in ([("k0", 200)], [("k8", n) for n in range(300, 306)]):
        world.send(*batch)
        world.become(**after())
    found = {name: platform.store.desired(spec.name) for name, spec in new.items()}
    assert {name: each.generation for name, each in found.items()} == dict.fromkeys(old, 2) | {"fresh": 1}
    assert not any(table_path(platform.paths, beside(spec.name)).exists() for spec in new.values())
    assert [platform.deploy(spec).verdict for spec in new.values()] == ["NO-OP"] * 7

    # And: where it stands in which table is known, of the one that reads two of them.
    offsets = platform.store.actual(new["both"].name).offsets
    for table in (f"{project.schema}.told", f"{project.schema}.kept"):
        offset = normalised(offsets[table])
        assert offset is not None
        assert offset["reservoirId"] == table_id(table_path(platform.paths, table))


def test_a_new_generation_that_fails_ends_the_rebuild_of_the_whole_chain(world: World) -> None:
    platform, project = world.platform, world.project
    world.send(*((f"k{n % 3}", n) for n in range(9)))
    project.model("kept", "select k, v from {events}")
    project.model("copied", "select k, v from {kept}")
    old = project.specs()
    for spec in old.values():
        platform.deploy(spec)
    world.become(kept=sorted(world.sent), copied=sorted(world.sent))

    # A row breaks what the reader promises: neither of the two is replaced.
    project.model("kept", "select k, -v as v from {events}")
    new = project.specs()
    output = new["copied"].output.model_copy(update={"checks": (("small", "v > -8"),)})
    world.rebuild(new["kept"], new["copied"].model_copy(update={"output": output}))

    def failed() -> bool:
        return {each.phase for each in platform.store.rebuilds().values()} == {RebuildPhase.FAILED}

    platform.until(failed, "the rebuilds to fail", 120, world.seen)
    told = {name.rpartition(".")[2]: each for name, each in platform.store.rebuilds().items()}
    assert {each.error_code for each in told.values()} == {"PEN-1321"}
    above = told["kept"].error or ""
    assert above.startswith(f"It takes over together with {old['copied'].name}, which failed: ")
    world.send(("later", 1))
    world.become(kept=sorted(world.sent), copied=sorted(world.sent))
    for spec in old.values():
        actual = platform.store.actual(spec.name)
        assert (actual.generation, actual.state) == (1, StreamState.RUNNING)
        assert not table_path(platform.paths, beside(spec.name)).exists()


def test_a_published_table_tells_its_topic_what_the_new_rows_change(world: World) -> None:
    # Given: counts by key that are published, rows that are published and kept nowhere else, and counts that were there
    # before their table was published.
    platform, project, schema = world.platform, world.project, world.project.schema
    world.send(*((f"k{n % 4}", n) for n in range(12)))
    to = {name: f"{schema}-{name}" for name in ("counts", "lines", "kept", "late")}
    counts, lines = "select k, count(*) as n from {events} group by k", "select k, v from {events}"
    project.model("counts", counts, publish={"topic": to["counts"]})
    project.model("lines", lines, publish={"topic": to["lines"], "table": False})
    project.model("kept", lines, publish={"topic": to["kept"]})
    project.model("late", counts)
    for spec in project.specs().values():
        platform.deploy(spec)
    world.become(late=[(f"k{n}", 3) for n in range(4)])
    run_id = platform.store.actual(f"{schema}.late").run_id
    project.model("late", counts, publish={"topic": to["late"]})
    assert platform.deploy(project.specs()["late"]).verdict == "RESTART"

    def read(name: str) -> list[Any]:
        return read_topic(
            platform.bootstrap, to[name], lambda raw: raw and raw.decode(), lambda raw: raw and json.loads(raw)
        )

    def until(name: str, want: Any, look: Any) -> None:
        platform.until(lambda: look() == want, f"the messages of {name}", 120, lambda: (look(), want, world.seen()))

    numbers = lambda name: sorted(each.value["v"] for each in read(name))  # noqa: E731
    until("counts", {f"k{n}": {"k": f"k{n}", "n": 3} for n in range(4)}, lambda: latest(read("counts")))
    for name in ("lines", "kept"):
        until(name, list(range(12)), lambda name=name: numbers(name))
    known = {(each.partition, each.offset) for each in read("counts")}
    platform.until(lambda: platform.store.actual(f"{schema}.late").run_id != run_id, "late to start again", 60)
    platform.state(f"{schema}.late", StreamState.RUNNING)
    assert read("late") == []

    # When: k1 has fewer rows, k3 has none, and rows are left out. Then: just that is told, at the takeover.
    fewer = counts.replace("group", "where v <> 5 and v % 4 <> 3 group")
    for name in ("counts", "late"):
        project.model(name, fewer, publish={"topic": to[name]})
    project.model("lines", f"{lines} where v >= 10", publish={"topic": to["lines"], "table": False})
    project.model("kept", "select k, if(v = 3, 33, v) as v from {events}", publish={"topic": to["kept"]})
    new = project.specs()
    assert world.rebuild(*new.values()) == ["REBUILD"] * 4
    world.taken_over(*(new[name] for name in ("counts", "lines", "kept")))
    platform.state(new["late"].name, StreamState.RUNNING)
    told = [(each.key, each.value) for each in read("counts") if (each.partition, each.offset) not in known]
    assert sorted(told) == [("k1", {"k": "k1", "n": 2}), ("k3", None)]
    assert latest(read("counts")) == {f"k{n}": {"k": f"k{n}", "n": 2 if n == 1 else 3} for n in range(3)}
    assert numbers("lines") == sorted([*range(12), 10, 11]), (
        "all of the new generation: there is nothing to compare with"
    )
    assert numbers("kept") == sorted([*range(12), 33]), "what was published before is not published again"
    told = [(each.key, each.value and each.value["n"]) for each in read("late")]
    assert sorted(told) == [("k0", 3), ("k1", 2), ("k2", 3), ("k3", None)], "it may know of k3, and of nothing else"

    # And: all go on, once.
    world.send(("k1", 50))
    until("counts", {"k": "k1", "n": 3}, lambda: latest(read("counts"))["k1"])
    until("lines", sorted([*range(12), 10, 11, 50]), lambda: numbers("lines"))
    until("kept", sorted([*range(12), 33, 50]), lambda: numbers("kept"))
    until("late", {"k": "k1", "n": 3}, lambda: latest(read("late"))["k1"])

    # A row that cannot be published, because it has no key, ends a rebuild before anything is replaced.
    project.model("counts", counts.replace("select k,", "select if(v = 50, null, k) as k,").replace("by k", "by 1"),
                  publish={"topic": to["counts"]})  # fmt: skip
    world.rebuild(project.specs()["counts"])
    name, before = f"{schema}.counts", world.rows("counts")

    def failed() -> bool:
        found = platform.store.rebuild(name)
        return found is not None and found.phase is RebuildPhase.FAILED

    platform.until(failed, "the rebuild to fail", 120, world.seen)
    rebuild = platform.store.rebuild(name)
    assert rebuild is not None
    assert rebuild.error_code == "PEN-3030"
    assert "published by k, which is null" in (rebuild.error or "")
    assert world.rows("counts") == before
    world.send(("k1", 52))
    until("counts", {"k": "k1", "n": 4}, lambda: latest(read("counts"))["k1"])


def test_groups_that_are_filtered_and_windows_that_are_written_once_are_built_beside(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    # Given: HAVING, whose rows come and go, sessions and windows, which are written when the watermark has passed them.
    project, events, began = Project(schema), topic(2, name="timed"), 1_772_323_200  # 2026-03-01 in UTC
    columns = {"k": "string", "v": "bigint", "at": "timestamp from timestamp"}
    project.source("timed", events, columns, {"column": "at", "delay": "1 second"})
    world, sent = World(platform, produce, project, events), list[tuple[str, int, int]]()

    def send(*rows: tuple[str, int, int]) -> None:
        """Key, number, and the second that it is sent in."""
        for k, v, second in rows:
            produce(events, [(k, {"k": k, "v": v})], timestamp=(began + second) * 1000)
        sent.extend(rows)

    def define(total: str, least: int) -> dict[str, StreamSpec]:
        group = f"select k, {total}, {{}} from {{{{timed}}}} group by k"
        start = f"unix_timestamp({{}}.start) - {began} as began"
        project.model("often", group.format("count(*) as n") + f" having count(*) >= {least}")
        project.model("visits", f"{group.format(start.format('session_window'))}, session_window(at, '10 seconds')")
        project.model("minutes", f"{group.format(start.format('window'))}, window(at, '1 minute')", emit="final")
        return project.specs()

    def expected(value: Callable[[list[int]], int], least: int) -> dict[str, Rows]:
        passed = max(second for *_, second in sent) - 1  # the watermark
        often = sorted((k, value(each), len(each)) for k, each in _grouped((k, v) for k, v, _ in sent).items()
                       if len(each) >= least)  # fmt: skip
        minutes = _grouped(((k, second // 60 * 60), v) for k, v, second in sent)
        visits: dict[tuple[str, int], list[int]] = {}
        ends: dict[tuple[str, int], int] = {}
        for k, v, second in sorted(sent, key=lambda each: (each[0], each[2])):
            last = next((key for key in reversed(visits) if key[0] == k and second < ends[key]), None)
            key = last or (k, second)
            visits.setdefault(key, []).append(v)
            ends[key] = second + 10
        return {
            "often": often,
            "visits": sorted((k, value(each), at) for (k, at), each in visits.items() if ends[k, at] <= passed),
            "minutes": sorted((k, value(each), at) for (k, at), each in minutes.items() if at + 60 <= passed),
        }

    send(("a", 1, 0), ("a", 2, 9), ("b", 3, 5), ("a", 4, 30), ("b", 5, 70), ("c", 6, 200))
    old = define("max(v) as most", 3)
    assert old["often"].follow is not None
    for spec in old.values():
        platform.deploy(spec)
    world.become(**expected(max, 3))
    runs = {spec.name: platform.store.actual(spec.name).run_id for spec in old.values()}

    # When: each gets another column, and HAVING takes in more groups, while messages come.
    new = define("sum(v) as total", 2)
    platform.deploy(new["often"], full_refresh=True)
    platform.store.set_wanted(beside(new["often"].name), Wanted.STOPPED)  # it is held back for a while
    assert world.rebuild(new["visits"], new["minutes"]) == ["REBUILD"] * 2
    send(("b", 7, 201), ("c", 8, 205), ("d", 9, 300))
    world.become(often=expected(max, 3)["often"])
    assert platform.store.actual(old["often"].name).run_id == runs[old["often"].name]
    platform.store.set_wanted(beside(new["often"].name), Wanted.RUNNING)
    world.taken_over(*new.values())

    # Then: they have what the new definitions make of all messages, and go on: groups come, windows are over.
    world.become(**expected(sum, 2))
    send(("d", 10, 301), ("c", 11, 400), ("e", 12, 500))
    world.become(**expected(sum, 2))


def _grouped(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
