"""Kafka → Delta table: from the message's timestamp to the row being readable, at a steady rate.

Rules
- One contender runs at a time; the others' applications are up and their streams stopped.
- They take turns in every round, each with a stretch of warm-up before the stretch that counts.
- Two tables: rows that are appended, and a count by key, whose rows are replaced.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.commits import latencies
from bench.feed import Steady
from bench.report import median, note, percentile, ratio, table
from bench.site import Contender, Handwritten, Penstock, Site, site, until

KINDS = {"appended": False, "counted": True}


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print p50 and p99 of each contender and the ratio of the medians."""
    rates = [100, 1000] if rows is None else [rows]
    rounds = rounds or (1 if quick else 3)
    for kind, counted in KINDS.items():
        found, names = _measured(kind, counted, rates, rounds, *((4.0, 8.0) if quick else (6.0, 15.0)))
        lines = []
        for rate in rates:
            ours = [median([percentile(v, share) for v in found[names[0], rate]]) for share in (0.5, 0.99)]
            for name in names:
                mine = [median([percentile(v, share) for v in found[name, rate]]) for share in (0.5, 0.99)]
                shown = [f"{each:.0f} ms" for each in mine]
                ratios = [ratio(own, other) for own, other in zip(ours, mine, strict=True)]
                lines.append([f"{rate} rows/s", name, *shown, *ratios])
        table(
            f"Message's timestamp to readable row, {kind}, median of {rounds} rounds",
            ["rate", "job", "p50", "p99", "p50 / Penstock's", "p99 / Penstock's"],
            lines,
        )


def _measured(
    kind: str, counted: bool, rates: list[int], rounds: int, warm: float, stretch: float
) -> tuple[dict[tuple[str, int], list[list[float]]], list[str]]:
    """Milliseconds by contender and rate, of each round; and the contenders, Penstock first."""
    found: dict[tuple[str, int], list[list[float]]] = {}
    with site() as place, ExitStack() as stack:
        contenders: list[Contender] = [Penstock(place), Handwritten(place), Handwritten(place, tuned=True)]
        for each in contenders:
            stack.callback(each.close)
            _first(each, place, warm, counted)
        for number in range(rounds):
            for rate in rates:
                for each in contenders:
                    values = _turn(each, place, rate, warm, stretch, replaced=counted)
                    found.setdefault((each.name, rate), []).append(values)
                    p50, p99 = (percentile(values, share) for share in (0.5, 0.99))
                    note(
                        f"{kind}, round {number + 1}, {rate} rows/s, {each.name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
                        f"{len(values)} rows"
                    )
        return found, [each.name for each in contenders]


_topics: dict[str, str] = {}


def _first(contender: Contender, place: Site, warm: float, counted: bool) -> None:
    """Start it, let it commit for a while, pause it."""
    topic = place.topic("steady")
    _topics[contender.name] = topic
    contender.start(topic, counted=counted)
    with Steady(place.bootstrap, topic, 200):
        until(lambda: (contender.table / "_delta_log").is_dir(), f"{contender.name}'s first commit")
        time.sleep(warm)  # a stretch of running is what is wanted here, no condition
    contender.pause()


def _turn(contender: Contender, place: Site, rate: int, warm: float, stretch: float, *, replaced: bool) -> list[float]:
    contender.resume()
    with Steady(place.bootstrap, _topics[contender.name], rate):
        time.sleep(warm)
        begun = time.time()
        time.sleep(stretch)
        ended = time.time()
        # The rows sent last must be in, too, or the slowest would not count.
        until(lambda: bool(latencies(contender.table, sent_from=ended, sent_to=ended + 3600)), "the last rows", every=1)
    values = latencies(contender.table, sent_from=begun, sent_to=ended, replaced=replaced)
    contender.pause()
    return values
