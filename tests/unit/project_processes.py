"""The processes that run in or for a project, and the ports that they listen on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil


def processes_of(directory: Path) -> list[psutil.Process]:
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if any(str(directory) in word for word in each.info["cmdline"] or [])]


def listening(processes: Iterable[psutil.Process]) -> set[int]:
    return {port for each in processes for port in _ports(each)}


def _ports(process: psutil.Process) -> list[int]:
    try:
        return [each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:  # Hadoop starts a chmod for each file: it names the project, and is gone at once
        return []
