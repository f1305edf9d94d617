"""What the demo costs: from nothing to the first recommendation, and the memory of the engine meanwhile."""

from __future__ import annotations

import json
import threading
from types import TracebackType

import psutil

from bench.demo_project import Demo, demo
from bench.report import median, note, table
from penstock.engine.process import read_endpoint
from penstock.paths import ProjectPaths


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print start times and memory of the demo's first start (cold) and later ones (warm)."""
    seconds = rows or (10 if quick else 60)
    lines: list[list[str]] = []
    with demo() as project:
        colds = [_once(project, seconds)]
        warms = [_once(project, seconds) for _ in range(rounds or (1 if quick else 3))]
    for name, found in (("first start of a project", colds), ("later start", warms)):
        lines.append(
            [
                name,
                f"{median([each['up'] for each in found]):.1f} s",
                f"{median([each['first row after'] for each in found]):.1f} s",
                f"{max(each['jvm'] for each in found):.0f} MB",
                f"{max(each['driver'] for each in found):.0f} MB",
                f"{max(each['engine'] for each in found):.0f} MB",
            ]
        )
    table(
        f"The demo, {seconds} s of streaming; memory is the highest resident set",
        ["", "up", "first recommendation", "JVM", "driver", "engine"],
        lines,
    )


def _once(project: Demo, seconds: int) -> dict[str, float]:
    with _Memory(project) as memory:
        call = project.call("penstock", "demo", "--output", "json", "--once", "--seconds", str(seconds))
    found: dict[str, float] = {name: float(value) for name, value in json.loads(call.printed)["seconds"].items()}
    note(f"{found}, engine {memory.highest['engine']:.0f} MB")
    return found | memory.highest


class _Memory:
    """Looks at the engine's processes four times a second."""

    def __init__(self, project: Demo) -> None:
        self._project = project
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.highest = {"jvm": 0.0, "driver": 0.0, "engine": 0.0}

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.25):
            now = engine_memory(self._project.paths)
            self.highest = {name: max(value, now.get(name, 0.0)) for name, value in self.highest.items()}


def engine_memory(paths: ProjectPaths) -> dict[str, float]:
    """Resident MB of the engine's driver and JVM; nothing when it does not run."""
    endpoint = read_endpoint(paths)
    if endpoint is None:
        return {}
    try:
        driver = psutil.Process(endpoint.pid)
        mine = driver.memory_info().rss / 1e6
        # A process that the JVM is just starting (Hadoop's chmod) is for a moment a second JVM with the same memory.
        below = [each for each in driver.children(recursive=True) if each.ppid() == driver.pid or each.name() != "java"]
        jvm = sum(each.memory_info().rss for each in below) / 1e6
    except psutil.NoSuchProcess:
        return {}
    return {"driver": mine, "jvm": jvm, "engine": mine + jvm}
