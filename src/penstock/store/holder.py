"""Who holds a lease: host, pid and start time in one string, so that a dead holder is recognised at once.

Rules
- Only a process of this host can be called dead; another host's lease runs until it expires.
- A string that is not ours belongs to somebody we cannot judge: never dead.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from penstock import processes


@dataclass(frozen=True)
class Holder:
    """A process that may hold a lease."""

    host: str
    pid: int
    started_at: float

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.started_at:.2f}"


def holder_id(pid: int | None = None) -> str:
    """The holder string of this process, or of another one on this host."""
    pid = os.getpid() if pid is None else pid
    return str(Holder(socket.gethostname(), pid, processes.started_at(pid) or 0.0))


def parse_holder(holder: str) -> Holder | None:
    """The process behind a holder string; None when the string is not of that form."""
    host, _, rest = holder.rpartition(":")
    host, _, pid = host.rpartition(":")
    try:
        return Holder(host, int(pid), float(rest)) if host else None
    except ValueError:
        return None


def holder_is_dead(holder: str) -> bool:
    """Is the holder a process of this host that is gone?"""
    found = parse_holder(holder)
    if found is None or found.host != socket.gethostname():
        return False
    return not processes.alive(found.pid, found.started_at)


def holder_name(holder: str) -> str:
    """The holder as a person reads it: `process 4711`, with its host when that is another one."""
    found = parse_holder(holder)
    if found is None:
        return holder
    return f"process {found.pid}" + ("" if found.host == socket.gethostname() else f" on {found.host}")
