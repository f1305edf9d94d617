"""The engine is killed while it publishes; committed messages must be those that one run without a kill would give."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from published_messages import read_topic

from penstock import processes
from penstock.compiler.spec import Publish
from penstock.store import StreamState

KILLS = 2


@pytest.mark.timeout(600)
def test_every_row_is_published_once_across_kills_of_the_engine(
    platform: Any, topic: Any, produce: Any, make_spec: Any
) -> None:
    # Given: rows that go to a table and a topic, and counts that go to a topic alone; both exactly once.
    chance = random.Random(int(os.environ.get("PENSTOCK_FAULT_SEED", "7")))
    source = topic(2, name="faults")
    specs = {
        "rows": make_spec("rows", source, "select part, pos, k, v from input").model_copy(
            update={"publish": Publish(topic=f"{source}-rows", key=("k",))}
        ),
        "counts": make_spec(
            "counts", source, "select k, count(*) as n from input group by k", keys=("k",), stateful=True
        ).model_copy(update={"publish": Publish(topic=f"{source}-counts", key=("k",), table=False)}),
    }
    for spec in specs.values():
        platform.deploy(spec)

    # When: rows flow, and the engine is killed with all that it runs, in the middle of a batch or between two.
    done, sent = threading.Event(), []

    def flow() -> None:
        while not done.is_set():
            rows = [(f"k{chance.randrange(9)}", len(sent) + n) for n in range(20)]
            produce(source, [(k, {"k": k, "v": v}) for k, v in rows])
            sent.extend(rows)
            done.wait(0.1)

    def published(name: str) -> list[dict[str, Any]]:
        return [each.value for each in read_topic(platform.bootstrap, f"{source}-{name}", value=json.loads)]

    def more(name: str, than: int) -> None:
        platform.until(
            lambda: len(published(name)) > than, f"messages of {name}", 120,
            lambda: platform.store.actual(specs[name].name),
        )  # fmt: skip

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        for _ in range(KILLS):
            for name, spec in specs.items():
                platform.state(spec.name, StreamState.RUNNING)
                more(name, len(published(name)))
            engine = platform.endpoint()
            time.sleep(chance.uniform(0.0, 0.5))  # not a wait for anything: the moment of the kill is the input here
            os.killpg(engine.pid, signal.SIGKILL)
            platform.until(lambda e=engine: not processes.alive(e.pid, e.started_at), "its end")
    finally:
        done.set()
        thread.join()

    # Then: a reader of committed messages has every row once, as the table has.
    def all_there() -> bool:
        rows = platform.sql(f"select count(*) from {specs['rows'].name}")[0][0]
        latest = {each["k"]: each["n"] for each in published("counts")}
        return rows == len(sent) == len(published("rows")) and sum(latest.values()) == len(sent)

    platform.until(
        all_there, f"{len(sent)} rows everywhere", 120,
        lambda: (len(published("rows")), [platform.store.actual(spec.name) for spec in specs.values()]),
    )  # fmt: skip
    rows = published("rows")
    assert len({(each["part"], each["pos"]) for each in rows}) == len(rows), "a row was published twice"
    assert sorted((each["k"], each["v"]) for each in rows) == sorted(sent)
    assert sorted(platform.sql(f"select k, v from {specs['rows'].name}")) == sorted(sent)

    # And: a count is published once for each change of it, and ends where the rows do.
    counts: dict[str, list[int]] = {}
    for each in published("counts"):
        counts.setdefault(each["k"], []).append(each["n"])
    assert all(a < b for each in counts.values() for a, b in pairwise(each))
    assert {key: each[-1] for key, each in counts.items()} == Counter(k for k, _ in sent)
    assert all(platform.store.actual(spec.name).restarts >= KILLS for spec in specs.values())
