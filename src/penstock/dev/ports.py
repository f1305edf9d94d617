"""Ports of the embedded services, all on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

HOST = "127.0.0.1"

_POLL = 0.05
_RELEASE_TIMEOUT = 5.0


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: closed connections do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None, avoid: int = 0) -> int:
    """The preferred port when it is free, else any other."""
    if preferred and preferred != avoid and is_free(preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port != avoid:
            return port


def listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def await_release(ports: Iterable[int | None]) -> None:
    """A killed process is reported as gone while its threads still hold its sockets; give them a moment."""
    wanted = [port for port in ports if port]
    deadline = time.monotonic() + _RELEASE_TIMEOUT
    while time.monotonic() < deadline and not all(is_free(port) for port in wanted):
        time.sleep(_POLL)
