"""Which pool of Spark's scheduler the work of a stream is in."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from xml.etree import ElementTree as ET

import pytest

from penstock.engine import pools, runtime
from penstock.engine.runtime import Stream
from penstock.engine.session import result_size
from penstock.paths import beside


def stream(name: str = "shop.clean", *, real_time: bool = False) -> Stream:
    made = MagicMock(spec=Stream)
    made.configure_mock(name=name, publish=MagicMock(real_time=real_time))
    return made


@pytest.mark.parametrize(
    ("work", "history", "pool"),
    [
        (stream(), False, pools.STREAMS),
        (stream(), True, pools.LONG),
        (stream(beside("shop.clean")), False, pools.LONG),
        (stream(real_time=True), False, pools.REAL_TIME),
    ],
    ids=["a batch", "a history", "a rebuild", "in real time"],
)
def test_a_stream_s_batches_are_in_a_pool_by_how_long_they_take(work: Stream, history: bool, pool: str) -> None:
    assert runtime._pool(work, history=history) == pool


def test_streams_and_people_are_served_before_what_takes_long_and_streams_each_in_its_turn() -> None:
    found = {each.get("name"): each for each in ET.fromstring(pools.XML)}
    assert set(found) == {pools.PEOPLE, pools.STREAMS, pools.LONG, pools.REAL_TIME}
    assert [found[name].findtext("minShare") for name in (pools.PEOPLE, pools.STREAMS, pools.LONG)] == ["1", "1", "0"]
    # Of jobs in one pool the oldest comes first; between pools of equal need Spark goes by their names.
    assert found[pools.STREAMS].findtext("schedulingMode") == "FIFO"


def test_a_thread_enters_a_pool_by_spark_s_property() -> None:
    context: Any = MagicMock()
    pools.enter(context, pools.LONG)
    context.setLocalProperty.assert_called_once_with("spark.scheduler.pool", "long")


@pytest.mark.parametrize(("memory", "size"), [("1g", "256m"), ("512m", "131072k"), ("2G", "512m")])
def test_a_result_may_take_a_quarter_of_the_heap(memory: str, size: str) -> None:
    assert result_size(memory) == size
