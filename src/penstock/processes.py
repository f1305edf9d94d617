"""Background processes: start, recognise, end.

Rules
- A process is known by its pid and its start together; a pid alone may have been given to somebody else. The start is
  told without the time of day, which may be set while the process runs.
- A background process runs in a session of its own: a terminal's Ctrl-C does not reach it.
- Ending a process ends its children too (a Python driver has a JVM below it).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TOLERANCE = 0.05  # seconds; a start travels through files as a decimal fraction
_TICKS = os.sysconf("SC_CLK_TCK")


def spawn(command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a background process whose output is appended to `log`; its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=cwd,
            env=os.environ | dict(env or {}),
            start_new_session=True,
        )
    return process.pid


def started_at(pid: int) -> float | None:
    """When a process started, in seconds that nobody sets; None when it is gone or only waits to be buried."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else _start(process)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def _start(process: psutil.Process) -> float:
    """Seconds from the start of the machine where it tells them (Linux). psutil adds the time of day at which that was,
    which is another one whenever a clock is put right; elsewhere the kernel keeps the time of day of the start.
    """
    if not psutil.LINUX:
        return float(process.create_time())
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()  # a name may have spaces
    return int(fields[19]) / _TICKS


def time_of_start(pid: int) -> float | None:
    """The time of day at which a process started, for people; None when it is gone."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def alive(pid: int, started: float) -> bool:
    """Is that very process still there?"""
    found = started_at(pid)
    return found is not None and abs(found - started) <= _TOLERANCE


def terminate(pid: int, started: float, timeout: float = 30.0) -> bool:
    """Ask the process to end, then make it; its children go with it. True when it ended by itself."""
    if not alive(pid, started):
        return True
    try:
        process = psutil.Process(pid)
        family = process.children(recursive=True)
        process.terminate()
    except psutil.NoSuchProcess:
        return True
    gone, left = psutil.wait_procs([process], timeout=timeout)
    by_itself = bool(gone)
    _, orphans = psutil.wait_procs(family, timeout=5 if by_itself else 0)
    for survivor in [*left, *orphans]:
        try:
            survivor.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs([*left, *orphans], timeout=10)
    return by_itself
