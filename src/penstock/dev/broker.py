"""The embedded Kafka broker of a project: start, find, stop.

Rules
- One broker per project. Starting it twice, or by two processes at once, gives the same broker.
- `broker.json` says who runs; a process is believed only by pid and start time together.
- The data stays below `.penstock/kafka/data`, whatever ended the broker. The port of the last start is tried first, so
  that an address written down somewhere goes on working.
- It answers, or it is an error: `start` returns only after a client got metadata.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from penstock import processes
from penstock.dev.broker_config import JVM, log4j_properties, server_properties
from penstock.dev.ports import HOST, await_release, free_port, is_free, listens
from penstock.errors.catalogue import BROKER_START, PORT_TAKEN
from penstock.jars import fetch, java
from penstock.jars.fetch import Progress
from penstock.jars.guard import exclusive
from penstock.kafka.admin import answers
from penstock.paths import ProjectPaths

_POLL = 0.05
_LOG_LIMIT = 10 * 1024 * 1024  # bytes; an older log is kept once
_STOP_TIMEOUT = 15.0


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    bootstrap: str
    pid: int
    started_at: float
    port: int


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
    deadline = time.monotonic() + timeout
    try:
        with exclusive(paths.kafka / ".lock", timeout):
            running = status(paths) or _orphan(paths)
            if running is not None and port not in (0, running.port):
                _end(paths, running)  # another fixed port was asked for; the data moves along
                running = None
            if running is not None and _await_answer(paths, running, deadline):
                return running
            # There was none, or it was on its way out when it was found.
            broker = _launch(paths, jars, port, deadline, more or {})
            if not _await_answer(paths, broker, deadline):
                _state(paths).unlink(missing_ok=True)
                raise _not_started(paths, "ended")
            return broker
    except TimeoutError as cause:
        raise BROKER_START.error("Another process has been starting or stopping the broker all the time.") from cause


def stop(paths: ProjectPaths) -> bool:
    """End the broker; False when none ran."""
    if not paths.kafka.is_dir():
        return False
    try:
        with exclusive(paths.kafka / ".lock", 60.0):
            running = status(paths) or _orphan(paths)
            if running is not None:
                _end(paths, running)
            _state(paths).unlink(missing_ok=True)
            return running is not None
    except TimeoutError as cause:
        raise BROKER_START.error("Another process has been starting the broker all the time.") from cause


def status(paths: ProjectPaths) -> Broker | None:
    """The broker whose process runs; None when there is none."""
    try:
        raw = json.loads(_state(paths).read_text(encoding="utf-8"))
        broker = Broker(str(raw["bootstrap"]), int(raw["pid"]), float(raw["started_at"]), int(raw["port"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return broker if processes.alive(broker.pid, broker.started_at) else None


def healthy(broker: Broker, timeout: float = 2.0) -> bool:
    """Does it answer a client?"""
    return answers(broker.bootstrap, timeout=timeout)


def log_path(paths: ProjectPaths) -> Path:
    return paths.kafka / "kafka.log"


def _launch(paths: ProjectPaths, jars: list[Path], port: int, deadline: float, more: Mapping[str, str]) -> Broker:
    last_port, last_controller = _last_ports(paths)
    if _state(paths).exists():  # the last broker was killed, perhaps a moment ago
        await_release([last_port, last_controller])
    if port and not is_free(port):
        raise PORT_TAKEN.error(f"Port {port} of {HOST}, asked for by the embedded broker, is taken.")
    chosen = port or free_port(last_port)
    controller = free_port(last_controller, avoid=chosen)
    properties = _properties(paths)
    log4j = paths.kafka / "log4j2.properties"
    properties.write_text(
        server_properties(data=_data(paths), port=chosen, controller_port=controller, more=more), encoding="utf-8"
    )
    log4j.write_text(log4j_properties(), encoding="utf-8")
    (paths.kafka / "ports.json").write_text(json.dumps({"port": chosen, "controller": controller}), encoding="utf-8")
    command = [
        str(java().path),
        *JVM,
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        os.pathsep.join(str(jar) for jar in jars),
    ]
    _format(paths, command, deadline)
    _roll(log_path(paths))
    pid = processes.spawn([*command, "kafka.Kafka", str(properties)], log=log_path(paths), cwd=paths.kafka)
    started = processes.started_at(pid)
    if started is None:
        raise _not_started(paths, "ended at once")
    broker = Broker(f"{HOST}:{chosen}", pid, started, chosen)
    _write_state(paths, broker)
    return broker


def _format(paths: ProjectPaths, command: list[str], deadline: float) -> None:
    """Give the data directory its identity, once. The mark is written last: half a format is done again."""
    mark = paths.kafka / "formatted"
    if mark.exists():
        return
    cluster = new_cluster_id()
    tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(_properties(paths)), "--ignore-formatted"]
    try:
        ran = subprocess.run(
            [*command, *tool],
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


def _await_answer(paths: ProjectPaths, broker: Broker, deadline: float) -> bool:
    """Until the broker answers; False when it ended instead."""
    while processes.alive(broker.pid, broker.started_at):
        if listens(broker.port) and healthy(broker, timeout=1.0):
            return True
        if time.monotonic() >= deadline:
            raise _not_started(paths, "does not answer in time")
        time.sleep(_POLL)
    return False


def _not_started(paths: ProjectPaths, how: str) -> Exception:
    log = log_path(paths)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:] if log.exists() else []
    telling = [line for line in lines if "ERROR" in line or "FATAL" in line or "Exception" in line]
    said = f": {telling[-1].strip()}" if telling else "."
    return BROKER_START.error(f"The embedded broker {how}{said}", hint=f"Its log is in {log}.")


def _orphan(paths: ProjectPaths) -> Broker | None:
    """A broker of this project without `broker.json`: its starter was killed between the two."""
    properties = str(_properties(paths))
    for process in psutil.process_iter(["pid", "cmdline", "create_time"]):
        command = process.info["cmdline"] or []
        if command[-1:] == [properties] and "kafka.Kafka" in command:
            port, _ = _last_ports(paths)
            if port is None:
                return None
            broker = Broker(f"{HOST}:{port}", process.info["pid"], process.info["create_time"], port)
            _write_state(paths, broker)
            return broker
    return None


def _end(paths: ProjectPaths, broker: Broker) -> None:
    processes.terminate(broker.pid, broker.started_at, timeout=_STOP_TIMEOUT)
    _state(paths).unlink(missing_ok=True)


def _state(paths: ProjectPaths) -> Path:
    return paths.kafka / "broker.json"


def _properties(paths: ProjectPaths) -> Path:
    return paths.kafka / "server.properties"


def _data(paths: ProjectPaths) -> Path:
    return paths.kafka / "data"


def _write_state(paths: ProjectPaths, broker: Broker) -> None:
    temporary = _state(paths).with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(broker), indent=2) + "\n", encoding="utf-8")
    temporary.replace(_state(paths))


def _last_ports(paths: ProjectPaths) -> tuple[int | None, int | None]:
    try:
        raw = json.loads((paths.kafka / "ports.json").read_text(encoding="utf-8"))
        return int(raw["port"]), int(raw["controller"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None, None


def _roll(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
