"""Which record a batch failed of, by trying parts of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.checkpoint.bisect import Range, bounds, culprit, failed_ranges, halves, ranges
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec, TableStreamInput
from penstock.control.waiting import wait_for
from penstock.engine.culprit import Culprits, Failure, blamed, is_of_records
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import BROKER_UNREACHABLE, CONSTRAINT_BROKEN, PUBLISH_NULL_KEY, STREAM_FAILED
from penstock.paths import ProjectPaths
from penstock.store import Store

CLICKS = KafkaInput(
    view="clicks", relation="shop.clicks", topic="clicks", columns=(Column(name="k", type="STRING", origin="value.k"),)
)
BATCH = [Range("shop.clicks", "clicks", 0, 10, 110), Range("shop.clicks", "clicks", 1, 3, 3),
         Range("shop.clicks", "clicks", 2, 0, 57)]  # fmt: skip


def failing(*bad: tuple[int, int]) -> tuple[Callable[[Sequence[Range]], str | None], list[int]]:
    """A probe that fails on these records (partition, offset), and how many messages it was asked to run each time."""
    asked: list[int] = []

    def probe(part: Sequence[Range]) -> str | None:
        asked.append(sum(each.count for each in part))
        hit = [f"{p}/{o}" for p, o in bad for each in part if each.partition == p and each.begin <= o < each.end]
        return hit[0] if hit else None

    return probe, asked


def always() -> bool:
    return True


@pytest.mark.parametrize("bad", [(0, 10), (0, 109), (0, 61), (2, 0), (2, 56)])
def test_one_bad_record_is_found_wherever_it_is(bad: tuple[int, int]) -> None:
    probe, asked = failing(bad)
    found = culprit(BATCH, probe, always)
    assert found is not None
    assert (found[0].partition, found[0].begin, found[0].count) == (*bad, 1)
    assert found[1] == f"{bad[0]}/{bad[1]}"
    assert len(asked) <= 10, "157 messages are halved eight times"


def test_of_several_the_first_is_found() -> None:
    chance = random.Random(3)
    for _ in range(50):
        bad = sorted((0, chance.randrange(10, 110)) for _ in range(3))
        found = culprit(BATCH, failing(*bad)[0], always)
        assert found is not None
        assert found[0].begin == bad[0][1]


def test_a_failure_that_has_passed_is_nobody_s() -> None:
    probe, asked = failing()
    assert culprit(BATCH, probe, always) is None
    assert len(asked) == 1


def test_a_failure_of_several_records_together_is_nobody_s() -> None:
    def probe(part: Sequence[Range]) -> str | None:
        return "too many" if sum(each.count for each in part) > 5 else None

    assert culprit(BATCH, probe, always) is None


def test_the_search_ends_when_its_time_is_up() -> None:
    probe, asked = failing((0, 61))
    assert culprit(BATCH, probe, lambda: len(asked) < 4) is None
    assert len(asked) == 4


def test_nothing_read_is_nobody_s() -> None:
    assert culprit([Range("shop.clicks", "clicks", 0, 5, 5)], failing((0, 5))[0], always) is None


def test_halves_are_the_whole() -> None:
    first, second = halves(BATCH)
    counts = [sum(each.count for each in part) for part in (first, second)]
    assert counts == [78, 79]
    assert all(each.count for each in (*first, *second))


def test_a_part_is_read_with_empty_ranges_for_the_rest() -> None:
    froms, untils = bounds(BATCH, [Range("shop.clicks", "clicks", 2, 4, 5)])
    assert froms == {"shop.clicks": {"clicks": {0: 10, 1: 3, 2: 4}}}
    assert untils == {"shop.clicks": {"clicks": {0: 10, 1: 3, 2: 5}}}


def test_a_partition_that_is_new_began_at_its_beginning() -> None:
    found = ranges({"shop.clicks": {"clicks": {"0": 4}}}, {"shop.clicks": {"clicks": {"0": 9, "1": 2}}})
    assert [(each.partition, each.begin, each.end) for each in found] == [(0, 4, 9), (1, 0, 2)]


def checkpoint(
    folder: Path, *offsets: dict[str, int], committed: int = -1, began: dict[str, int] | None = None
) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    for number, each in enumerate(offsets):
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", "{}", json.dumps({"clicks": each})]))
    for number in range(committed + 1):
        (folder / "commits" / str(number)).write_text("v1\n{}")
    if began is not None:
        (folder / "sources" / "0").mkdir(parents=True)
        (folder / "sources" / "0" / "0").write_text("\0v1\n" + json.dumps({"clicks": began}))
    return folder


def test_what_failed_is_the_batch_that_was_planned_and_not_committed(tmp_path: Path) -> None:
    later = checkpoint(tmp_path / "later", {"0": 5, "1": 1}, {"0": 9, "1": 1}, committed=0)
    assert failed_ranges(later, [CLICKS]) == (
        1, [Range("shop.clicks", "clicks", 0, 5, 9), Range("shop.clicks", "clicks", 1, 1, 1)]
    )  # fmt: skip
    first = checkpoint(tmp_path / "first", {"0": 5}, began={"0": 3})
    assert failed_ranges(first, [CLICKS]) == (0, [Range("shop.clicks", "clicks", 0, 3, 5)])
    done = checkpoint(tmp_path / "done", {"0": 5}, committed=0)
    assert failed_ranges(done, [CLICKS]) is None
    assert failed_ranges(tmp_path / "nothing", [CLICKS]) is None
    assert failed_ranges(later, [CLICKS, TableStreamInput(view="up", relation="shop.up")]) is None


def spec(*, stateful: bool = False, mode: OutputMode = OutputMode.APPEND) -> StreamSpec:
    return StreamSpec(
        name="shop.clean", unique_id="model.shop.clean", path="models/clean.sql", sql="select k from clicks",
        stateful=stateful, inputs=(CLICKS,), output=Output(relation="shop.clean", mode=mode),
    )  # fmt: skip


def test_only_failures_of_records_are_looked_into() -> None:
    failed, broken = STREAM_FAILED.error("x"), CONSTRAINT_BROKEN.error("x")
    assert is_of_records(failed, spec())
    assert is_of_records(failed, spec(stateful=True))
    assert is_of_records(broken, spec())
    assert not is_of_records(broken, spec(stateful=True)), "many records make one row"
    assert is_of_records(PUBLISH_NULL_KEY.error("x"), spec())
    assert is_of_records(PUBLISH_NULL_KEY.error("x"), spec(stateful=True)), "each record of the group has that key"
    assert not is_of_records(failed, spec(mode=OutputMode.REPLACE))
    assert not is_of_records(BROKER_UNREACHABLE.error("x"), spec())


def test_the_error_names_the_record_first() -> None:
    of_record = STREAM_FAILED.error("shop.clean: price: below zero.")
    told = blamed(STREAM_FAILED.error("shop.clean: a task failed."), BATCH[0], of_record)
    assert told.message == "shop.clean: topic 'clicks', partition 0, offset 10: price: below zero."


def test_a_record_that_is_known_is_told_with_the_line_that_the_model_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "store.db")
    culprits = Culprits(None, store, ProjectPaths(tmp_path), 1)
    of_record = STREAM_FAILED.error("shop.clean: below zero.")
    monkeypatch.setattr(culprits, "_search", lambda *_: (BATCH[0], of_record))
    folder = checkpoint(tmp_path / "c", {"0": 5}, began={"0": 3})

    def failed(line: int) -> Failure:
        problem = STREAM_FAILED.error("shop.clean: a task failed.", at=Location("models/clean.sql", line))
        return Failure("shop.clean", spec(), 1, folder, problem)

    culprits.look_into(failed(4))

    def told_of_record() -> PenstockError | None:
        found = culprits.known(failed(9))
        return found if "offset" in found.message else None

    told = wait_for(told_of_record, 10)
    assert told is not None
    assert told.at == Location("models/clean.sql", 9)
    assert told.message == "shop.clean: topic 'clicks', partition 0, offset 10: below zero."
    culprits.close()
