"""Medians, percentiles and the tables that the measurements print. Tables are Markdown, so that docs can take them."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence

import psutil

_CALM = 1.0  # load of the last minute below which a measurement has the machine to itself


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ratio(ours: float, theirs: float) -> str:
    """How many times quicker ours is, when both are durations."""
    return f"{theirs / ours:.2f}x" if ours else "-"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]
    print(f"\n{title}\n")
    print("| " + " | ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)) + " |")
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for line in texts:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    print(flush=True)


def note(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def machine() -> str:
    """What the absolute figures of a run belong to."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, load {load():.1f}; absolute figures are this machine's, ratios are the result"
    )


def load() -> float:
    return os.getloadavg()[0]


def wait_for_calm(patience: float) -> None:
    """Wait until the machine is idle, at most `patience` seconds; then go on and say so."""
    deadline = time.monotonic() + patience
    while load() > _CALM and time.monotonic() < deadline:
        time.sleep(2)
    if load() > _CALM:
        note(f"the machine is busy with something else (load {load():.1f}): only ratios mean something")
