"""The embedded schema registry of a project (`penstock.dev.service` has the rules of its life).

Rules
- Schemas and their ids stay below `.penstock/registry/data`, whatever ended the registry: a message refers to its
  schema by id, so an id that was given out must never be lost or given out again.
- It listens on loopback alone, without credentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.dev.ports import HOST
from penstock.dev.service import Running, Service
from penstock.errors.catalogue import REGISTRY_START
from penstock.jars import java
from penstock.jars.archive import unpacked
from penstock.jars.fetch import Progress
from penstock.paths import ProjectPaths
from penstock.registry.address import STATE_FILE
from penstock.registry.client import Registry

_API = "/apis/ccompat/v7"  # Confluent's API

# Measured on two cores: up in 2.4 s, 165 MB resident.
_JVM = (
    "-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip


@dataclass(frozen=True)
class RegistryService(Running):
    """A running registry."""

    url: str = field(kw_only=True)


def start(
    paths: ProjectPaths, *, port: int = 0, timeout: float = 60.0, progress: Progress | None = None
) -> RegistryService:
    """The project's registry, started if it does not run. Port 0 is a free one, the same as last time if possible."""
    program = unpacked("registry", progress)  # before the clock runs: a download is not a slow start
    return _Service(paths, program).start(port, timeout)


def stop(paths: ProjectPaths) -> bool:
    """End the registry; False when none ran."""
    return _Service(paths).stop()


def status(paths: ProjectPaths) -> RegistryService | None:
    """The registry whose process runs; None when there is none."""
    return _Service(paths).status()


def log_path(paths: ProjectPaths) -> Path:
    return _Service(paths).log


class _Service(Service[RegistryService]):
    name, title, failure = "registry", "embedded schema registry", REGISTRY_START

    def __init__(self, paths: ProjectPaths, program: Path | None = None) -> None:
        super().__init__(paths.registry, STATE_FILE, "registry.log")
        self._program = program
        self._data = self.home / "data" / "registry"

    def found(self, pid: int, started_at: float, port: int) -> RegistryService:
        return RegistryService(pid, started_at, port, url=f"http://{HOST}:{port}{_API}")

    def answers(self, running: RegistryService) -> bool:
        return Registry(running.url, {}).answers()

    def is_own(self, command: Sequence[str]) -> bool:
        return "-jar" in command and any(f"{self._data};" in word for word in command)

    def command(self, ports: Sequence[int], deadline: float) -> list[str]:
        assert self._program is not None
        (runner,) = self._program.glob("*-runner.jar")
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(ports[0]),
            "quarkus.log.level": "WARN",
            "quarkus.banner.enabled": "false",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # Without the delay a schema is on disk when its id is told: half a second later would lose it to a kill.
            "apicurio.datasource.url": f"jdbc:h2:file:{self._data};WRITE_DELAY=0",
        }
        words = (f"-D{name}={value}" for name, value in settings.items())
        return [str(java().path), *_JVM, *words, "-jar", str(runner)]
