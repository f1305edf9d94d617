"""The embedded Kafka broker of a project (`penstock.dev.service` has the rules of its life)."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.dev.broker_config import JVM, log4j_properties, server_properties
from penstock.dev.ports import HOST
from penstock.dev.service import Running, Service
from penstock.errors.catalogue import BROKER_START
from penstock.jars import fetch, java
from penstock.jars.fetch import Progress
from penstock.kafka.admin import answers
from penstock.paths import ProjectPaths


@dataclass(frozen=True)
class Broker(Running):
    """A running broker."""

    bootstrap: str = field(kw_only=True)


def start(
    paths: ProjectPaths,
    *,
    port: int = 0,
    timeout: float = 60.0,
    progress: Progress | None = None,
    more: Mapping[str, str] | None = None,
) -> Broker:
    """The project's broker, started if it does not run. Port 0 is a free one, the same as last time where possible."""
    jars = fetch("broker", progress)  # before the clock runs: a download is not a slow start
    return _Service(paths, jars, more or {}).start(port, timeout)


def stop(paths: ProjectPaths) -> bool:
    """End the broker; False when none ran."""
    return _Service(paths).stop()


def status(paths: ProjectPaths) -> Broker | None:
    """The broker whose process runs; None when there is none."""
    return _Service(paths).status()


def healthy(broker: Broker, timeout: float = 2.0) -> bool:
    """Does it answer a client?"""
    return answers(broker.bootstrap, timeout=timeout)


def log_path(paths: ProjectPaths) -> Path:
    return _Service(paths).log


class _Service(Service[Broker]):
    name, title, failure = "broker", "embedded broker", BROKER_START
    ports = ("port", "controller")

    def __init__(self, paths: ProjectPaths, jars: Sequence[Path] = (), more: Mapping[str, str] | None = None) -> None:
        super().__init__(paths.kafka, "broker.json", "kafka.log")
        self._jars = jars
        self._more = more or {}
        self._properties = self.home / "server.properties"

    def found(self, pid: int, started_at: float, port: int) -> Broker:
        return Broker(pid, started_at, port, bootstrap=f"{HOST}:{port}")

    def answers(self, running: Broker) -> bool:
        return healthy(running, timeout=1.0)

    def is_own(self, command: Sequence[str]) -> bool:
        return command[-1:] == [str(self._properties)] and "kafka.Kafka" in command

    def command(self, ports: Sequence[int], deadline: float) -> list[str]:
        port, controller = ports
        log4j = self.home / "log4j2.properties"
        log4j.write_text(log4j_properties(), encoding="utf-8")
        properties = server_properties(data=self.home / "data", port=port, controller_port=controller, more=self._more)
        self._properties.write_text(properties, encoding="utf-8")
        classes = os.pathsep.join(str(jar) for jar in self._jars)
        program = [str(java().path), *JVM, f"-Dlog4j2.configurationFile={log4j}", "-cp", classes]
        self._format(program, deadline)
        return [*program, "kafka.Kafka", str(self._properties)]

    def _format(self, program: list[str], deadline: float) -> None:
        """Give the data directory its identity, once. The mark is written last: half a format is done again."""
        mark = self.home / "formatted"
        if mark.exists():
            return
        cluster = new_cluster_id()
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties), "--ignore-formatted"]
        try:
            ran = subprocess.run(
                [*program, *tool],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=max(deadline - time.monotonic(), 1.0),
            )
        except subprocess.TimeoutExpired as cause:
            raise BROKER_START.error("The embedded broker's data directory could not be prepared in time.") from cause
        if ran.returncode != 0:
            said = (ran.stderr.strip() or ran.stdout.strip() or "no message").splitlines()[-1]
            raise BROKER_START.error(f"The embedded broker's data directory could not be prepared: {said}")
        mark.write_text(cluster, encoding="utf-8")


def new_cluster_id() -> str:
    """A random id in Kafka's form. None begins with a dash: the tool would take it for an option."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):
            return found
