"""The loop of a full refresh, and the topics of a test that it looks at."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest

from penstock.checkpoint.refreshes import Inputs, write_inputs
from penstock.engine import topic_files
from penstock.engine.refresh import Plan, Refresh
from penstock.engine.snapshot import Broker, Topic
from penstock.engine.topic_files import Record
from penstock.kafka.topic_watch import Options, TopicWatch

ENDS = {"shop.orders": {"orders": {0: 3}}}


class SlowWatch(TopicWatch):
    """A topic that ends at 3; the first look takes until `go`, the second one is told by an error."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = threading.Event()
        self.go = threading.Event()
        self.looks = 0

    def watermarks(self, bootstrap: str, topic: str, options: Options) -> tuple[dict[int, int], dict[int, int]]:
        self.looks += 1
        if self.looks == 2:
            raise RuntimeError("looked again")
        self.looking.set()
        assert self.go.wait(10)
        return {0: 0}, {0: 3}


def refresh(tmp_path: Path, watch: TopicWatch) -> Refresh:
    write_inputs(tmp_path, 1, Inputs("v1", ends=ENDS), ())
    writer = MagicMock(error=None)
    writer.newest_batch.return_value = 1
    topics = [(Topic("shop.orders", "orders"), Broker("nowhere:1", ()))]
    plan = Plan("lab.best", "v1", MagicMock(), topics, (), time_window_ms=60_000, watch=watch)
    return Refresh(MagicMock(), plan, writer, tmp_path)


def test_a_look_that_began_before_the_question_is_no_answer(tmp_path: Path) -> None:
    watch = SlowWatch()
    query = refresh(tmp_path, watch)
    query.start()
    assert watch.looking.wait(10)
    found: list[BaseException] = []

    def ask() -> None:
        try:
            query.processAllAvailable()
        except RuntimeError as problem:
            found.append(problem)

    asking = threading.Thread(target=ask)
    asking.start()
    while query._asked == 0:  # the question is there while the first look goes on
        threading.Event().wait(0.001)
    watch.go.set()
    asking.join(10)
    assert not asking.is_alive(), "a question wakes the loop; the time window of a minute has not passed"
    assert [str(each) for each in found] == ["looked again"]


def test_a_table_stays_as_it_is_while_somebody_has_its_turn(tmp_path: Path) -> None:
    watch = SlowWatch()
    watch.go.set()
    query = refresh(tmp_path, watch)
    asking = threading.Thread(target=query.processAllAvailable)
    with query.turn:
        query.start()
        asking.start()
        while query._asked == 0:
            threading.Event().wait(0.001)
        assert watch.looks == 0
    asking.join(10)
    assert not asking.is_alive()
    assert watch.looks == 1
    query.stop()


def test_a_query_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    watch = SlowWatch()
    watch.go.set()
    query = refresh(tmp_path, watch)
    query.start()
    query.stop()
    query.processAllAvailable()
    assert not query.isActive


def test_a_file_that_is_being_written_is_not_yet_in_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = topic_files._Watch(tmp_path)
    seen: list[Any] = []

    def half(table: Any, file: Path) -> None:
        file.write_bytes(b"PAR1")
        seen.append((watch.names("", ()), watch.watermarks("", "orders", ())[1]))
        whole(table, file)

    whole = pq.write_table
    monkeypatch.setattr(pq, "write_table", half)
    topic_files.write(tmp_path, "orders", 1, [Record("orders", 0, 4, 1000)])
    assert seen == [([], {0: 0})]
    assert (watch.names("", ()), watch.watermarks("", "orders", ())[1]) == (["orders"], {0: 5})
