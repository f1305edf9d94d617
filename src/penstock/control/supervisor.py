"""The supervisor: a background process that keeps what runs equal to what is deployed.

Rules
- One supervisor looks after a project; it holds the lease "supervisor". A second one is refused. One that lost its
  lease goes at once and leaves the engine to its successor.
- Killed, it leaves the engine running; the next one adopts it. Asked to end (SIGTERM), it ends the engine first.
- SIGHUP says that somebody waits for the engine: its failures are forgotten and it is tried at once.
- A store that cannot be read for a while, or a full disk, is waited out.
- The log has a line for each change, none for a look that changed nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock import processes
from penstock.control import logs
from penstock.control.actions import StartEngine
from penstock.control.apply import Applier
from penstock.control.engine_watch import ENGINE_LEASE, EngineWatch, Spawn
from penstock.control.lag import LagWatcher
from penstock.control.parts import PartsWatcher
from penstock.control.policy import Policy
from penstock.control.rebuild_driver import RebuildDriver
from penstock.control.rebuilds import held
from penstock.control.reconcile import reconcile
from penstock.engine import process
from penstock.errors import ExitCode, PenstockError
from penstock.errors.catalogue import SUPERVISOR_RUNNING
from penstock.paths import ProjectPaths
from penstock.project.profile import read_settings
from penstock.store import Lease, Store, StreamState, holder_id, holder_is_dead, holder_name

LEASE = "supervisor"
LEASE_TTL = 10.0
TICK = 0.25
LOG_LOOK = 60.0
ENGINE_STOP_TIMEOUT = 30.0

log = logging.getLogger("penstock.supervisor")


@dataclass(frozen=True)
class Running:
    """What supervisor.json says of the supervisor that runs."""

    pid: int
    started_at: float
    engine_failures: int = 0  # in a row
    engine_exit: str | None = None  # how the last one ended


def supervisor_file(paths: ProjectPaths) -> Path:
    return paths.home / "supervisor.json"


def read_running(paths: ProjectPaths) -> Running | None:
    """The supervisor that runs now; None when there is none or the file is a dead one's."""
    try:
        found = Running(**json.loads(supervisor_file(paths).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if processes.alive(found.pid, found.started_at) else None


def open_store(paths: ProjectPaths) -> Store:
    """The store that the saved settings name."""
    return Store.open(read_settings(paths).store or paths.store)


class Supervisor:
    """One look after the other until it is told to end or loses its lease."""

    def __init__(
        self, paths: ProjectPaths, store: Store, lease: Lease, *, spawn: Spawn, policy: Policy, ttl: float = LEASE_TTL
    ) -> None:
        self._paths = paths
        self._store = store
        self._lease = lease
        self._policy = policy
        self._ttl = ttl
        self._renewed = time.monotonic()
        self._engine = EngineWatch(paths, store, policy, spawn, log.info)
        self._applier = Applier(store, log.info)
        self._rebuilds = RebuildDriver(paths, store, log.info)
        self._trouble: str | None = None
        self._trimmed = time.monotonic()
        self._published: Running | None = None
        # Plain flags: a signal handler that took a lock could meet the main thread holding it.
        self.ending = False
        self.hurry = False

    def run(self) -> ExitCode:
        """Look after the project until told to end."""
        while not self.ending:
            try:
                if not self._hold():
                    log.error("the lease was lost to another supervisor; going, the engine stays")
                    return ExitCode.CONFLICT
                self._look(time.time())
                self._publish()
                self._trim_logs()
                self._well()
            except (PenstockError, OSError, psutil.Error) as problem:
                self._troubled(str(problem))
            except Exception as problem:  # a file that was torn, a bug: the other streams are looked after all the same
                if self._troubled(f"{type(problem).__name__}: {problem}"):
                    log.exception("what went wrong:")
            time.sleep(TICK)
        return ExitCode.OK

    def end(self) -> None:
        """End the engine and give everything back."""
        self._engine.stop(ENGINE_STOP_TIMEOUT, time.time())
        now = time.time()
        for found in self._store.all_actual(hidden=True).values():
            if found.state in (StreamState.STARTING, StreamState.RUNNING):
                self._store.report(found.stream, now=now, state=StreamState.PENDING)
            elif found.state is StreamState.STOPPING:
                self._store.report(found.stream, now=now, state=StreamState.STOPPED)
        self._store.abandon_commands()
        left = self._store.lease(ENGINE_LEASE)
        if left is not None and holder_is_dead(left.holder):
            self._store.release(left)

    def _look(self, now: float) -> None:
        if self.hurry:
            self.hurry = False
            self._engine.forgive()
        # In this order: what a rebuild wants must not be seen without the rebuild, which may hold it back.
        desired, actual = self._store.all_desired(hidden=True), self._store.all_actual(hidden=True)
        rebuilds = self._store.rebuilds()
        asked = {c.stream: c.created_at for c in self._store.open_commands() if c.kind in ("start", "stop")}
        engine = self._engine.look(now, asked)
        self._applier.settle_refused(actual, now)
        if self._rebuilds.drive(rebuilds, actual, engine=engine.running, now=now):
            return  # the next look sees what is wanted now
        links = self._store.rebuild_links()
        early = self._rebuilds.early(rebuilds, actual)
        for action in reconcile(held(desired, rebuilds, links, early), actual, engine, now, self._policy):
            if isinstance(action, StartEngine):
                self._engine.start(now)
            else:
                self._applier.apply(action, actual, engine.token, now)

    def _trim_logs(self) -> None:
        if time.monotonic() - self._trimmed >= LOG_LOOK:
            self._trimmed = time.monotonic()
            for file in (*self._paths.logs.glob("*.log"), self._paths.kafka / "kafka.log"):
                logs.trim(file)

    def _hold(self) -> bool:
        if time.monotonic() - self._renewed < self._ttl / 4:
            return True
        renewed = self._store.renew(self._lease, self._ttl)
        if renewed is None:
            return False
        self._lease, self._renewed = renewed, time.monotonic()
        return True

    def _publish(self) -> None:
        pid = os.getpid()
        state = Running(pid, processes.started_at(pid) or 0.0, self._engine.failures, self._engine.last_exit)
        if state == self._published:
            return
        draft = supervisor_file(self._paths).with_suffix(f".{pid}.tmp")
        draft.write_text(json.dumps(vars(state)), encoding="utf-8")
        draft.replace(supervisor_file(self._paths))
        self._published = state

    def _troubled(self, problem: str) -> bool:
        """Say a trouble that is new; whether it is."""
        new, self._trouble = self._trouble != problem, problem
        if new:
            log.error("%s Trying again.", problem)
        return new

    def _well(self) -> None:
        if self._trouble is not None:
            log.info("going on")
        self._trouble = None

    @property
    def lease(self) -> Lease:
        return self._lease


def run(
    paths: ProjectPaths,
    *,
    spawn: Spawn = process.spawn,
    policy: Policy | None = None,
    ttl: float = LEASE_TTL,
    lag_every: float = 1.0,
) -> ExitCode:
    """Be the supervisor of a project until SIGTERM; PEN-3002 when there is one already."""
    store = open_store(paths)
    lease = store.acquire(LEASE, holder_id(), ttl, dead=holder_is_dead)
    if lease is None:
        other = store.lease(LEASE)
        who = holder_name(other.holder) if other else "another process"
        raise SUPERVISOR_RUNNING.error(f"A supervisor of this project is already running ({who}).")
    supervisor = Supervisor(paths, store, lease, spawn=spawn, policy=policy or Policy(), ttl=ttl)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(supervisor, "ending", True))
    signal.signal(signal.SIGHUP, lambda *_: setattr(supervisor, "hurry", True))
    log.info("supervisor %d looks after %s", os.getpid(), paths.project)
    lag = LagWatcher(paths, store, every=lag_every, say=log.info)
    lag.start()
    parts = PartsWatcher(paths, store, say=log.info)
    parts.start()
    try:
        code = supervisor.run()
        if code is ExitCode.OK:
            # The lease has to outlive the engine's end: nobody may start another one beside it.
            store.renew(supervisor.lease, ENGINE_STOP_TIMEOUT * 2)
            supervisor.end()
            store.release(supervisor.lease)
            supervisor_file(paths).unlink(missing_ok=True)
            log.info("supervisor ended")
    finally:
        lag.stop()
        parts.stop()
    store.close()
    return code


def main(arguments: list[str] | None = None) -> int:
    """`python -m penstock.control.supervisor --project-dir P`."""
    parser = argparse.ArgumentParser(prog="penstock.control.supervisor", description="Looks after a project's streams.")
    parser.add_argument("--project-dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    log_to_stdout()
    try:
        return int(run(ProjectPaths(options.project_dir.resolve())))
    except PenstockError as problem:
        log.error("%s", problem)  # noqa: TRY400 -- the line is for a user, a stack trace is not
        return int(problem.kind.exit_code)


def log_to_stdout() -> None:
    """One line per event, with its time; a full disk silences the log, not the supervisor."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
