"""Background processes: start, recognise, end.

Rules
- A process is known by its pid and its start time together; a pid alone may have been given to somebody else.
- A background process runs in a session of its own: a terminal's Ctrl-C does not reach it.
- Ending a process ends its children too (a Python driver has a JVM below it).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TOLERANCE = 1.0  # seconds; a start time travels through files as a decimal fraction


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
    """When a process started; None when it is gone or only waits to be buried."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
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
