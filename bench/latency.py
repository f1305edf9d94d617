"""Kafka → Delta table: from the message's timestamp to the row being readable, at a steady rate.

Rules
- One contender runs at a time; the others' applications are up and their streams stopped.
- They take turns in every round, each with a stretch of warm-up before the stretch that counts.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.commits import latencies
from bench.feed import Steady
from bench.report import median, note, percentile, ratio, table
from bench.site import Contender, Handwritten, Penstock, Site, site, until


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print p50 and p99 of each contender and the ratio of the medians."""
    rates = [100, 1000] if rows is None else [rows]
    rounds = rounds or (1 if quick else 3)
    warm, counted = (4.0, 8.0) if quick else (6.0, 15.0)
    found: dict[tuple[str, int], list[list[float]]] = {}
    with site() as place, ExitStack() as stack:
        contenders: list[Contender] = [Penstock(place), Handwritten(place), Handwritten(place, tuned=True)]
        for each in contenders:
            stack.callback(each.close)
            _first(each, place, warm)
        for number in range(rounds):
            for rate in rates:
                for each in contenders:
                    values = _turn(each, place, rate, warm, counted)
                    found.setdefault((each.name, rate), []).append(values)
                    note(
                        f"round {number + 1}, {rate} rows/s, {each.name}: p50 {percentile(values, 0.5):.0f} ms, "
                        f"p99 {percentile(values, 0.99):.0f} ms, {len(values)} rows"
                    )
    lines = []
    for rate in rates:
        ours = [median([percentile(v, share) for v in found["Penstock", rate]]) for share in (0.5, 0.99)]
        for each in contenders:
            mine = [median([percentile(v, share) for v in found[each.name, rate]]) for share in (0.5, 0.99)]
            lines.append(
                [
                    f"{rate} rows/s",
                    each.name,
                    f"{mine[0]:.0f} ms",
                    f"{mine[1]:.0f} ms",
                    ratio(ours[0], mine[0]),
                    ratio(ours[1], mine[1]),
                ]
            )
    table(
        f"Message's timestamp to readable row, median of {rounds} rounds",
        ["rate", "job", "p50", "p99", "p50 / Penstock's", "p99 / Penstock's"],
        lines,
    )


_topics: dict[str, str] = {}


def _first(contender: Contender, place: Site, warm: float) -> None:
    """Start it, let it commit for a while, pause it."""
    topic = place.topic("steady")
    _topics[contender.name] = topic
    contender.start(topic)
    with Steady(place.bootstrap, topic, 200):
        until(lambda: (contender.table / "_delta_log").is_dir(), f"{contender.name}'s first commit")
        time.sleep(warm)  # a stretch of running is what is wanted here, no condition
    contender.pause()


def _turn(contender: Contender, place: Site, rate: int, warm: float, counted: float) -> list[float]:
    contender.resume()
    with Steady(place.bootstrap, _topics[contender.name], rate):
        time.sleep(warm)
        begun = time.time()
        time.sleep(counted)
        ended = time.time()
        # The rows sent last must be in, too, or the slowest would not count.
        until(lambda: bool(latencies(contender.table, sent_from=ended, sent_to=ended + 3600)), "the last rows", every=1)
    values = latencies(contender.table, sent_from=begun, sent_to=ended)
    contender.pause()
    return values
