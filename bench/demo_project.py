"""The demo project, copied, with `penstock` and `dbt` as commands."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.site import scratch
from penstock.control import up
from penstock.paths import ProjectPaths

_ROOT = Path(__file__).parent.parent
_PARTS = ("dbt_project.yml", "models", "sources", "seeds", "profiles", "tests/data")


@dataclass(frozen=True)
class Call:
    """What a command took: by the clock, and of a core (which a busy machine changes less), with its children's."""

    seconds: float
    cpu_seconds: float
    printed: str


@dataclass(frozen=True)
class Demo:
    """A copy of the demo project."""

    directory: Path

    @property
    def paths(self) -> ProjectPaths:
        return ProjectPaths(self.directory)

    def call(self, tool: str, *arguments: str) -> Call:
        """Run a command to its end; an error when it failed."""
        command = [str(Path(sys.executable).with_name(tool)), *arguments]
        environment = os.environ | {"DBT_PROFILES_DIR": str(self.directory / "profiles"), "NO_COLOR": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, errors = process.communicate(timeout=600)
            except BaseException:  # also Ctrl-C: what the command has started must not go on without it
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
                raise
        taken = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if process.returncode:
            raise RuntimeError(f"{tool} {' '.join(arguments)} failed:\n{printed[-2000:]}\n{errors[-2000:]}")
        return Call(taken, used, printed)


@contextmanager
def demo() -> Iterator[Demo]:
    """The demo in a directory of its own; whatever it started is ended."""
    with scratch() as directory:
        for part in _PARTS:
            source, target = _ROOT / part, directory / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, target)
        try:
            yield Demo(directory)
        finally:
            up.down(ProjectPaths(directory))
