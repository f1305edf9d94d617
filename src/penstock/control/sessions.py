"""What a dead background process left behind.

Rules
- A background process leads a session of its own; its JVM and workers are members. When the leader was killed they may
  live on for a moment, and must be gone before a successor starts: two writers are one too many.
- A session whose leader lives is never touched. While a member lives, the kernel gives the leader's number to nobody
  else, so members found under a dead leader are its own.
"""

from __future__ import annotations

import os

import psutil

from penstock import processes


def end_session(leader: int, timeout: float = 10.0) -> int:
    """Kill what a dead leader left behind; how many there were."""
    if processes.started_at(leader) is not None:
        return 0
    members = [member for pid in psutil.pids() if pid != leader and (member := _member(pid, leader)) is not None]
    for member in members:
        _kill(member)
    psutil.wait_procs(members, timeout=timeout)
    return len(members)


def _member(pid: int, leader: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid) if os.getsid(pid) == leader else None
    except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
