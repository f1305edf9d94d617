"""Stream tests at the same time: told in their order, and none begins after a failure when one is enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from penstock.testing.cases import Case, StreamTest
from penstock.testing.lab import Failure, Lab, Outcome


def case(name: str) -> Case:
    return Case(StreamTest.model_validate({"name": name, "model": "m", "steps": ["restart"]}), "tests/streams/x.yml", 1)


class Pretended(Lab):
    """A lab whose tests do what a function does."""

    def __init__(self, do: Callable[[str], bool]) -> None:
        super().__init__(cast(Any, None), Path(), {}, Path())
        self.do = do
        self.begun: list[str] = []

    def run(self, case: Case, tell: Callable[[str], None] = lambda _: None) -> Outcome:
        self.begun.append(case.name)
        return Outcome(case, 0.0, None if self.do(case.name) else Failure("it is wrong"))


def test_tests_that_run_at_the_same_time_are_told_of_in_their_order() -> None:
    second_is_done = threading.Event()

    def do(name: str) -> bool:
        if name == "second":
            second_is_done.set()
        return second_is_done.wait(30)  # the first one cannot end before the second one has

    found = list(Pretended(do).run_all([case("first"), case("second"), case("third")], at_once=2))
    assert [each.case.name for each in found] == ["first", "second", "third"]
    assert all(each.passed for each in found)


def test_no_test_begins_after_a_failure_when_one_is_enough() -> None:
    lab = Pretended(lambda name: name != "b")
    found = list(lab.run_all([case(name) for name in "abcd"], at_once=1, fail_fast=True))
    told = [each.case.name for each in found]
    assert told == lab.begun  # one that was under way when it was noticed is told of, too
    assert told[:2] == ["a", "b"]
    assert [each.passed for each in found][:2] == [True, False]


def test_every_test_is_run_when_failures_are_not_to_stop_it() -> None:
    lab = Pretended(lambda name: name != "b")
    assert [each.passed for each in lab.run_all([case(name) for name in "abc"], at_once=2)] == [True, False, True]


def test_no_test_at_all_is_no_outcome() -> None:
    assert list(Pretended(lambda _: True).run_all([], at_once=4)) == []
