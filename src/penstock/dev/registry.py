"""The embedded schema registry of a project: start, find, stop.

Rules
- One registry per project. Starting it twice, or by two processes at once, gives the same one.
- `registry.json` says who runs and where; a process is believed only by pid and start time together.
- Schemas and their ids stay below `.penstock/registry/data`, whatever ended the registry: a message refers to its
  schema by id, so an id that was given out must never be lost or given out again.
- It listens on loopback alone, without credentials, at the port of the last start where possible.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from penstock import processes
from penstock.dev.ports import HOST, await_release, free_port, is_free, listens
from penstock.errors.catalogue import PORT_TAKEN, REGISTRY_START
from penstock.jars import java
from penstock.jars.archive import unpacked
from penstock.jars.fetch import Progress
from penstock.jars.guard import exclusive
from penstock.paths import ProjectPaths
from penstock.registry.address import STATE_FILE
from penstock.registry.client import Registry

_API = "/apis/ccompat/v7"  # Confluent's API
_POLL = 0.05
_LOG_LIMIT = 10 * 1024 * 1024  # bytes; an older log is kept once
_STOP_TIMEOUT = 15.0

# Measured on two cores: up in 2.4 s, 165 MB resident.
_JVM = (
    "-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip


@dataclass(frozen=True)
class RegistryService:
    """A running registry."""

    url: str
    pid: int
    started_at: float
    port: int


def start(
    paths: ProjectPaths, *, port: int = 0, timeout: float = 60.0, progress: Progress | None = None
) -> RegistryService:
    """The project's registry, started if it does not run. Port 0 is a free one, the same as last time if possible."""
    program = unpacked("registry", progress)  # before the clock runs: a download is not a slow start
    deadline = time.monotonic() + timeout
    try:
        with exclusive(paths.registry / ".lock", timeout):
            running = status(paths) or _orphan(paths)
            if running is not None and port not in (0, running.port):
                _end(paths, running)  # another fixed port was asked for; the data moves along
                running = None
            if running is not None and _await_answer(paths, running, deadline):
                return running
            service = _launch(paths, program, port)
            if not _await_answer(paths, service, deadline):
                _state(paths).unlink(missing_ok=True)
                raise _not_started(paths, "ended")
            return service
    except TimeoutError as cause:
        raise REGISTRY_START.error("Another process has been starting or stopping the registry all along.") from cause


def stop(paths: ProjectPaths) -> bool:
    """End the registry; False when none ran."""
    if not paths.registry.is_dir():
        return False
    try:
        with exclusive(paths.registry / ".lock", 60.0):
            running = status(paths) or _orphan(paths)
            if running is not None:
                _end(paths, running)
            _state(paths).unlink(missing_ok=True)
            return running is not None
    except TimeoutError as cause:
        raise REGISTRY_START.error("Another process has been starting the registry all the time.") from cause


def status(paths: ProjectPaths) -> RegistryService | None:
    """The registry whose process runs; None when there is none."""
    try:
        raw = json.loads(_state(paths).read_text(encoding="utf-8"))
        found = RegistryService(str(raw["url"]), int(raw["pid"]), float(raw["started_at"]), int(raw["port"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return found if processes.alive(found.pid, found.started_at) else None


def log_path(paths: ProjectPaths) -> Path:
    return paths.registry / "registry.log"


def _launch(paths: ProjectPaths, program: Path, port: int) -> RegistryService:
    last = _last_port(paths)
    if _state(paths).exists():  # the last one was killed, perhaps a moment ago
        await_release([last])
    if port and not is_free(port):
        raise PORT_TAKEN.error(f"Port {port} of {HOST}, asked for by the embedded schema registry, is taken.")
    chosen = port or free_port(last)
    _port_file(paths).write_text(json.dumps({"port": chosen}), encoding="utf-8")
    log = log_path(paths)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
    pid = processes.spawn(_command(paths, program, chosen), log=log, cwd=paths.registry)
    started = processes.started_at(pid)
    if started is None:
        raise _not_started(paths, "ended at once")
    service = RegistryService(f"http://{HOST}:{chosen}{_API}", pid, started, chosen)
    _write_state(paths, service)
    return service


def _command(paths: ProjectPaths, program: Path, port: int) -> list[str]:
    (runner,) = program.glob("*-runner.jar")
    # Without the delay a schema is on disk when its id is told: half a second later would lose it to a kill.
    database = f"jdbc:h2:file:{_data(paths) / 'registry'};WRITE_DELAY=0"
    settings = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        "quarkus.log.level": "WARN",
        "quarkus.banner.enabled": "false",
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        "apicurio.datasource.url": database,
    }
    return [str(java().path), *_JVM, *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(runner)]


def _await_answer(paths: ProjectPaths, service: RegistryService, deadline: float) -> bool:
    """Until the registry answers; False when it ended instead."""
    while processes.alive(service.pid, service.started_at):
        if listens(service.port) and Registry(service.url, {}).answers():
            return True
        if time.monotonic() >= deadline:
            raise _not_started(paths, "does not answer in time")
        time.sleep(_POLL)
    return False


def _not_started(paths: ProjectPaths, how: str) -> Exception:
    log = log_path(paths)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:] if log.exists() else []
    telling = [line for line in lines if "ERROR" in line or "Exception" in line]
    said = f": {telling[-1].strip()}" if telling else "."
    return REGISTRY_START.error(f"The embedded schema registry {how}{said}", hint=f"Its log is in {log}.")


def _orphan(paths: ProjectPaths) -> RegistryService | None:
    """A registry of this project without `registry.json`: its starter was killed between the two."""
    data = f"{_data(paths) / 'registry'};"
    for process in psutil.process_iter(["pid", "cmdline", "create_time"]):
        command = process.info["cmdline"] or []
        port = _last_port(paths)
        if port is not None and any(data in word for word in command) and "-jar" in command:
            url = f"http://{HOST}:{port}{_API}"
            service = RegistryService(url, process.info["pid"], process.info["create_time"], port)
            _write_state(paths, service)
            return service
    return None


def _end(paths: ProjectPaths, service: RegistryService) -> None:
    processes.terminate(service.pid, service.started_at, timeout=_STOP_TIMEOUT)
    _state(paths).unlink(missing_ok=True)


def _state(paths: ProjectPaths) -> Path:
    return paths.registry / STATE_FILE


def _data(paths: ProjectPaths) -> Path:
    return paths.registry / "data"


def _port_file(paths: ProjectPaths) -> Path:
    return paths.registry / "port.json"


def _write_state(paths: ProjectPaths, service: RegistryService) -> None:
    temporary = _state(paths).with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(service), indent=2) + "\n", encoding="utf-8")
    temporary.replace(_state(paths))


def _last_port(paths: ProjectPaths) -> int | None:
    try:
        return int(json.loads(_port_file(paths).read_text(encoding="utf-8"))["port"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
