"""Bringing a project up and down.

Rules
- `ensure_up` changes nothing that is already up, and may be called by several processes at once: one supervisor comes
  of it, and every caller gets the engine.
- What the machine lacks (Java, jars) is found out before anything is started.
- `down` leaves no process and no lease behind, also after a supervisor or an engine was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock import processes
from penstock.control import logs
from penstock.control.engine_watch import ENGINE_LEASE
from penstock.control.sessions import end_session
from penstock.control.supervisor import LEASE, read_running, supervisor_file
from penstock.control.waiting import Tell, silent, wait_for
from penstock.dev import broker, registry
from penstock.engine.process import Endpoint, endpoint_file, read_endpoint
from penstock.errors import ExitCode, PenstockError
from penstock.errors.catalogue import ENGINE_START, SUPERVISOR_RUNNING, SUPERVISOR_START
from penstock.jars import fetch, java
from penstock.kafka.admin import create_topics
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, read_settings, save_settings
from penstock.store import Store, StreamState, holder_is_dead, parse_holder

GIVE_UP_AFTER = 2  # failed starts of the engine in a row

_SUPERVISOR_STOP = 45.0  # it gives the engine 30 s
_ENGINE_STOP = 30.0


def ensure_up(
    paths: ProjectPaths,
    settings: RuntimeSettings,
    *,
    progress: Tell | None = None,
    timeout: float = 120.0,
    supervisor: Sequence[str] | None = None,
) -> Endpoint:
    """The project's engine, with broker, topics and supervisor up; at once when they are."""
    tell = progress or silent
    store = Store.open(settings.store or paths.store)
    try:
        _same_store(paths, settings)
        _save(paths, settings)
        endpoint = read_endpoint(paths)
        supervised = store.live_lease(LEASE) is not None
        if endpoint is None or not supervised:
            _ready_machine(tell)
        if settings.kafka.embedded:
            _ensure_broker(paths, settings, tell)
        if settings.schema_registry.embedded:
            _ensure_registry(paths, settings, tell)
        if endpoint is not None and supervised:
            return endpoint
        return _ensure_engine(paths, store, tell, timeout, supervisor or _command(paths))
    finally:
        store.close()


def down(
    paths: ProjectPaths, *, progress: Tell | None = None, keep_broker: bool = False, keep_registry: bool = False
) -> None:
    """End supervisor, engine and, unless they are kept, embedded broker and schema registry; data stays."""
    tell = progress or silent
    store = _existing_store(paths)
    try:
        _end_supervisor(paths, store, tell)
        _end_engine(paths, store, tell)
        if store is not None:
            _give_back(store)
    finally:
        if store is not None:
            store.close()
    supervisor_file(paths).unlink(missing_ok=True)
    endpoint_file(paths).unlink(missing_ok=True)
    if not keep_broker:
        if broker.status(paths) is not None:
            tell("Stopping the broker")
        broker.stop(paths)
    if not keep_registry:
        if registry.status(paths) is not None:
            tell("Stopping the schema registry")
        registry.stop(paths)


# -- up ---------------------------------------------------------------------------------------------------------------
def _same_store(paths: ProjectPaths, settings: RuntimeSettings) -> None:
    """What runs looks into one store; a target with another one would be looked after by nobody, or by two."""
    if read_running(paths) is None and read_endpoint(paths) is None:
        return
    try:
        before = read_settings(paths)
    except PenstockError:
        return
    if before.store != settings.store:
        raise SUPERVISOR_RUNNING.error(
            f"The project is up for target '{before.target}', which has another deployment store.",
            hint="'penstock down' first.",
        )


def _save(paths: ProjectPaths, settings: RuntimeSettings) -> None:
    try:
        if read_settings(paths) == settings:
            return
    except PenstockError:
        pass  # none yet, or of another version: they are written now
    save_settings(paths, settings)


def _ready_machine(tell: Tell) -> None:
    java()
    fetch("engine", lambda done, total, what: tell(f"Fetching jars ({done} of {total}): {what}"))


def _ensure_broker(paths: ProjectPaths, settings: RuntimeSettings, tell: Tell) -> None:
    running = broker.status(paths)
    if running is None:
        tell("Starting the embedded broker")
    running = broker.start(
        paths,
        port=settings.kafka.port,
        progress=lambda done, total, what: tell(f"Fetching jars ({done} of {total}): {what}"),
    )
    topics = {name: topic.partitions for name, topic in settings.kafka.topics.items()}
    if topics:
        create_topics(running.bootstrap, topics)


def _ensure_registry(paths: ProjectPaths, settings: RuntimeSettings, tell: Tell) -> None:
    if registry.status(paths) is None:
        tell("Starting the embedded schema registry")
    registry.start(
        paths,
        port=settings.schema_registry.port,
        progress=lambda done, total, what: tell(f"Fetching jars ({done} of {total}): {what}"),
    )


def _command(paths: ProjectPaths) -> list[str]:
    return [sys.executable, "-m", "penstock.control.supervisor", "--project-dir", str(paths.project)]


def _ensure_engine(paths: ProjectPaths, store: Store, tell: Tell, timeout: float, command: Sequence[str]) -> Endpoint:
    supervisor_log, engine_log = paths.logs / "supervisor.log", paths.logs / "engine.log"
    marks = logs.size(supervisor_log), logs.size(engine_log)
    child: int | None = None
    try:
        if store.live_lease(LEASE) is None:
            tell("Starting the supervisor")
            child = processes.spawn(command, log=supervisor_log, cwd=paths.project)
        else:
            _try_again_now(paths)
        tell("Waiting for the engine")
        return _await_engine(paths, store, child, timeout, marks)
    except (KeyboardInterrupt, SystemExit):
        # A supervisor that only just started is in no file and holds no lease yet: nobody else could find it.
        started = processes.started_at(child) if child is not None else None
        if child is not None and started is not None:
            processes.terminate(child, started, timeout=_SUPERVISOR_STOP)
        raise


def _await_engine(
    paths: ProjectPaths, store: Store, child: int | None, timeout: float, marks: tuple[int, int]
) -> Endpoint:
    supervisor_log, engine_log = paths.logs / "supervisor.log", paths.logs / "engine.log"
    deadline = time.monotonic() + timeout
    while (endpoint := read_endpoint(paths)) is None or store.live_lease(LEASE) is None:
        if child is not None and (code := _exit_code(child)) is not None:
            child = None
            if code != ExitCode.CONFLICT:  # in that case another caller's supervisor was quicker
                raise _no_supervisor(f"it ended with code {code}", supervisor_log, marks[0])
        if child is None and store.live_lease(LEASE) is None:
            raise _no_supervisor("it ended", supervisor_log, marks[0])
        running = read_running(paths)
        if running is not None and running.engine_failures >= GIVE_UP_AFTER:
            how = f"it failed {running.engine_failures} times in a row, last with {running.engine_exit}"
            raise _no_engine(how, engine_log, marks[1])
        if time.monotonic() >= deadline:
            raise _no_engine(f"it was not ready within {timeout:.0f} s", engine_log, marks[1])
        time.sleep(0.05)
    return endpoint


def _try_again_now(paths: ProjectPaths) -> None:
    """A supervisor that waits before the engine's next start need not wait: somebody is here and wants it."""
    running = read_running(paths)
    if running is None or not running.engine_failures or read_endpoint(paths) is not None:
        return
    os.kill(running.pid, signal.SIGHUP)

    def forgotten() -> bool | None:
        now = read_running(paths)
        return True if now is None or not now.engine_failures else None

    wait_for(forgotten, 2.0)


def _exit_code(child: int) -> int | None:
    """The exit code of a child that ended; it is reaped by this."""
    try:
        pid, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:  # reaped elsewhere in this process
        return None if processes.started_at(child) is not None else int(ExitCode.CONFLICT)
    return os.waitstatus_to_exitcode(status) if pid else None


def _no_supervisor(how: str, log: Path, since: int) -> PenstockError:
    return SUPERVISOR_START.error(f"The supervisor did not start: {how}.", hint=_hint(log, since))


def _no_engine(how: str, log: Path, since: int) -> PenstockError:
    return ENGINE_START.error(f"The engine did not start: {how}.", hint=_hint(log, since))


def _hint(log: Path, since: int) -> str:
    words = logs.last_words(log, since)
    return f"Its log, {log.parent.name}/{log.name} below .penstock, ends with: {words}" if words else f"See {log}."


# -- down -------------------------------------------------------------------------------------------------------------
def _existing_store(paths: ProjectPaths) -> Store | None:
    try:
        where: Path | str = read_settings(paths).store or paths.store
    except PenstockError:
        where = paths.store
    return Store.open(where) if isinstance(where, str) or where.exists() else None


def _end_supervisor(paths: ProjectPaths, store: Store | None, tell: Tell) -> None:
    running = read_running(paths)
    found = (running.pid, running.started_at) if running else _holder(store, LEASE)
    if found is None:
        return
    tell("Stopping the streams and the engine")
    processes.terminate(*found, timeout=_SUPERVISOR_STOP)


def _end_engine(paths: ProjectPaths, store: Store | None, tell: Tell) -> None:
    """The engine that a killed supervisor left, ready or still starting."""
    endpoint = read_endpoint(paths)
    found = (endpoint.pid, endpoint.started_at) if endpoint else _holder(store, ENGINE_LEASE)
    if found is None:
        return
    tell("Stopping the engine")
    processes.terminate(*found, timeout=_ENGINE_STOP)
    end_session(found[0])


def _holder(store: Store | None, name: str) -> tuple[int, float] | None:
    """The process of this host that holds a lease and lives."""
    lease = store.lease(name) if store is not None else None
    holder = parse_holder(lease.holder) if lease else None
    if holder is None or not processes.alive(holder.pid, holder.started_at):
        return None
    return holder.pid, holder.started_at


def _give_back(store: Store) -> None:
    for name in (LEASE, ENGINE_LEASE):
        lease = store.lease(name)
        if lease is not None and holder_is_dead(lease.holder):
            store.release(lease)
    if store.lease(ENGINE_LEASE) is not None:
        return  # an engine on another host
    for found in store.all_actual(hidden=True).values():
        if found.state in (StreamState.STARTING, StreamState.RUNNING):
            store.report(found.stream, state=StreamState.PENDING)
        elif found.state is StreamState.STOPPING:
            store.report(found.stream, state=StreamState.STOPPED)
