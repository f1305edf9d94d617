"""A background service of a project: start, find, stop. What the broker and the registry have in common.

Rules
- One of a kind per project. Starting it twice, or by two processes at once, gives the same one.
- A file says who runs; a process is believed only by pid and start time together.
- The data stays, whatever ended the service. The ports of the last start are tried first, so that an address written
  down somewhere goes on working.
- It answers, or it is an error: `start` returns only after a client got an answer.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from penstock import processes
from penstock.dev.ports import HOST, await_release, free_port, is_free, listens
from penstock.errors import Kind
from penstock.errors.catalogue import PORT_TAKEN
from penstock.jars.guard import exclusive

_POLL = 0.05
_LOG_LIMIT = 10 * 1024 * 1024  # bytes; an older log is kept once
_STOP_TIMEOUT = 15.0


@dataclass(frozen=True)
class Running:
    """A service that runs."""

    pid: int
    started_at: float
    port: int


R = TypeVar("R", bound=Running)


class Service(ABC, Generic[R]):
    """One kind of service in one project."""

    name: str  # in messages: broker
    title: str  # and in those about what it is: embedded broker
    failure: Kind
    ports: tuple[str, ...] = ("port",)  # what it listens on; the first is for clients

    def __init__(self, home: Path, state: str, log: str) -> None:
        self.home = home
        self.log = home / log
        self._state = home / state

    # -- what is particular to a kind ---------------------------------------------------------------------------------
    @abstractmethod
    def found(self, pid: int, started_at: float, port: int) -> R:
        """The process as what clients are given."""

    @abstractmethod
    def command(self, ports: Sequence[int], deadline: float) -> list[str]:
        """The command that runs it on these ports, with all that it needs written down."""

    @abstractmethod
    def answers(self, running: R) -> bool:
        """Does it answer a client?"""

    @abstractmethod
    def is_own(self, command: Sequence[str]) -> bool:
        """Whether a command is the one of this project's service."""

    # -- life ---------------------------------------------------------------------------------------------------------
    def start(self, port: int, timeout: float) -> R:
        """The one of the project, started if it does not run. Port 0 is a free one, if possible that of last time."""
        deadline = time.monotonic() + timeout
        try:
            with exclusive(self.home / ".lock", timeout):
                running = self.status() or self._orphan()
                if running is not None and port not in (0, running.port):
                    self._end(running)  # another fixed port was asked for; the data moves along
                    running = None
                if running is not None and self._await_answer(running, deadline):
                    return running
                # There was none, or it was on its way out when it was found.
                made = self._launch(port, deadline)
                if not self._await_answer(made, deadline):
                    self._state.unlink(missing_ok=True)
                    raise self._not_started("ended")
                return made
        except TimeoutError as cause:
            raise self._busy("starting or stopping") from cause

    def stop(self) -> bool:
        """End it; False when none ran."""
        if not self.home.is_dir():
            return False
        try:
            with exclusive(self.home / ".lock", 60.0):
                running = self.status() or self._orphan()
                if running is not None:
                    self._end(running)
                self._state.unlink(missing_ok=True)
                return running is not None
        except TimeoutError as cause:
            raise self._busy("starting") from cause

    def status(self) -> R | None:
        """The one whose process runs; None when there is none."""
        try:
            raw = json.loads(self._state.read_text(encoding="utf-8"))
            running = self.found(int(raw["pid"]), float(raw["started_at"]), int(raw["port"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return running if processes.alive(running.pid, running.started_at) else None

    def _launch(self, port: int, deadline: float) -> R:
        last = self._last_ports()
        if self._state.exists():  # the last one was killed, perhaps a moment ago
            await_release(last)
        if port and not is_free(port):
            raise PORT_TAKEN.error(f"Port {port} of {HOST}, asked for by the {self.title}, is taken.")
        chosen = [port or free_port(last[0])]
        chosen += [free_port(other, avoid=chosen[0]) for other in last[1:]]
        self._ports_file.write_text(json.dumps(dict(zip(self.ports, chosen, strict=True))), encoding="utf-8")
        command = self.command(chosen, deadline)
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        pid = processes.spawn(command, log=self.log, cwd=self.home)
        started = processes.started_at(pid)
        if started is None:
            raise self._not_started("ended at once")
        return self._noted(self.found(pid, started, chosen[0]))

    def _await_answer(self, running: R, deadline: float) -> bool:
        """Until it answers; False when it ended instead."""
        while processes.alive(running.pid, running.started_at):
            if listens(running.port) and self.answers(running):
                return True
            if time.monotonic() >= deadline:
                raise self._not_started("does not answer in time")
            time.sleep(_POLL)
        return False

    def _orphan(self) -> R | None:
        """One of this project that no file tells of: its starter was killed between the two."""
        for process in psutil.process_iter(["pid", "cmdline"]):
            if self.is_own(process.info["cmdline"] or []):
                port, started = self._last_ports()[0], processes.started_at(process.info["pid"])
                if port is None or started is None:
                    return None
                return self._noted(self.found(process.info["pid"], started, port))
        return None

    def _end(self, running: R) -> None:
        processes.terminate(running.pid, running.started_at, timeout=_STOP_TIMEOUT)
        self._state.unlink(missing_ok=True)

    # -- what is written down -----------------------------------------------------------------------------------------
    def _noted(self, running: R) -> R:
        draft = self._state.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(running), indent=2) + "\n", encoding="utf-8")
        draft.replace(self._state)
        return running

    @property
    def _ports_file(self) -> Path:
        return self.home / "ports.json"

    def _last_ports(self) -> list[int | None]:
        try:
            raw = json.loads(self._ports_file.read_text(encoding="utf-8"))
            return [int(raw[name]) for name in self.ports]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return [None for _ in self.ports]

    # -- errors -------------------------------------------------------------------------------------------------------
    def _busy(self, what: str) -> Exception:
        return self.failure.error(f"Another process has been {what} the {self.name} all the time.")

    def _not_started(self, how: str) -> Exception:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:] if self.log.exists() else []
        telling = [line for line in lines if "ERROR" in line or "FATAL" in line or "Exception" in line]
        said = f": {telling[-1].strip()}" if telling else "."
        return self.failure.error(f"The {self.title} {how}{said}", hint=f"Its log is in {self.log}.")
