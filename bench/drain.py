"""Draining a preloaded topic: rows a second from the start of the query until all rows are in the table."""

from __future__ import annotations

from contextlib import ExitStack

from bench.commits import last_commit, total_rows
from bench.feed import preload
from bench.report import median, note, table
from bench.site import Handwritten, Penstock, site, until

# max_batch_rows, and whether the batches go to delta-rs instead of Spark's writer
VARIANTS = (
    (50_000, False),
    (200_000, False),
    (500_000, False),
    (1_000_000, False),
    (50_000, True),
    (100_000, True),
    (200_000, True),
)


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print rows/s of Penstock by the size of its batches beside the hand-written job."""
    rows = rows or (200_000 if quick else 3_000_000)
    rounds = rounds or (1 if quick else 3)
    variants = VARIANTS[1::5] if quick else VARIANTS
    found: dict[str, list[float]] = {}
    with site() as place, ExitStack() as stack:
        topic = place.topic("full")
        preload(place.bootstrap, topic, rows)
        small = place.topic("warm")
        preload(place.bootstrap, small, 100_000)
        note(f"{rows:,} rows are in the topic")
        ours = Penstock(place)
        stack.callback(ours.close)
        theirs = Handwritten(place)
        stack.callback(theirs.close)
        limited = Handwritten(place, unlimited=False)
        limited.name = "hand-written, 200,000 rows a batch"
        stack.callback(limited.close)
        for number in range(-1, rounds):  # the first is for warming up
            source, count = (topic, rows) if number >= 0 else (small, 100_000)
            for size, by_delta_rs in variants if number >= 0 else variants[:1]:
                ours.start(source, max_batch_rows=size, small_batch_rows=size if by_delta_rs else 0)
                speed = _drained(ours, count)
                ours.drop()
                writer = "delta-rs" if by_delta_rs else "Spark's writer"
                _keep(found, f"Penstock, {size:,} rows a batch, {writer}", speed, number)
            for rival in (theirs, limited):
                rival.start(source)
                speed = _drained(rival, count)
                rival.drop()
                _keep(found, rival.name, speed, number)
    base = median(found[theirs.name])
    table(
        f"Draining {rows:,} JSON rows, median of {rounds} rounds",
        ["job", "rows/s", "of hand-written"],
        [[name, f"{median(speeds):,.0f}", f"{median(speeds) / base:.2f}x"] for name, speeds in found.items()],
    )


def _keep(found: dict[str, list[float]], name: str, speed: float, number: int) -> None:
    if number >= 0:
        found.setdefault(name, []).append(speed)
        note(f"round {number + 1}, {name}: {speed:,.0f} rows/s")


def _drained(contender: Penstock | Handwritten, rows: int) -> float:
    until(lambda: total_rows(contender.table) >= rows, f"{contender.name} to drain", timeout=900, every=0.2)
    if (seen := total_rows(contender.table)) != rows:
        raise RuntimeError(f"{contender.name} wrote {seen:,} of {rows:,} rows")
    return rows / (last_commit(contender.table) - contender.began())
