"""Lag while there is no supervisor to measure it: a bounded look, from wherever it is asked for.

Rules
- Only streams whose lag nobody has written lately are measured; the longest unmeasured first.
- All of it ends within a budget: what is not reached is measured by the next look.
- A broker that did not answer is not asked again in the same look.
"""

from __future__ import annotations

import threading
import time

from penstock.control import behind
from penstock.control.lag import LagMeter
from penstock.control.world import World
from penstock.errors import PenstockError
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings
from penstock.store import Store

STALE = 30.0  # seconds
BUDGET = 1.5
ANSWER = 0.5  # a broker's

_meters: dict[str, LagMeter] = {}
_one_at_a_time = threading.Lock()


def measure_stale(
    paths: ProjectPaths, store: Store, world: World, kafka: KafkaSettings, *, budget: float = BUDGET
) -> int:
    """Measure what is stale and write it into the store; how many streams that were."""
    stale = [want for want in world.desired if world.at - (world.of(want.stream).lag_at or 0.0) > STALE]
    if not stale:
        return 0
    stale.sort(key=lambda want: world.of(want.stream).lag_at or 0.0)
    ends = time.monotonic() + budget
    measured = 0
    with _one_at_a_time:
        meter = _meters.get(str(paths.home))
        if meter is None:
            meter = _meters[str(paths.home)] = LagMeter(paths, TopicWatch(timeout=ANSWER, spare=STALE))
        for want in stale:
            if time.monotonic() >= ends:
                break
            try:
                lag = meter.measure(want, world.of(want.stream), kafka, time.time())
            except (PenstockError, OSError, ValueError):
                lag = behind.UNKNOWN
            store.record_lag(world.of(want.stream), lag.rows, lag.seconds)
            measured += 1
    return measured
