"""The supervisor with real processes, real signals and a real store; the engine is a small program that runs no Spark.

The file is also the program of the processes: `engine PROJECT` and `supervisor PROJECT`. Files in the project directory
tell the engine how to behave: `poison` names the streams that fail, `broken` ends it before it is ready.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from penstock import processes
from penstock.compiler.spec import Output, OutputMode, StreamSpec, TableStreamInput
from penstock.control import supervisor, up
from penstock.control.policy import Policy
from penstock.control.streams import drop_stream, restart_stream, start_stream, stop_stream
from penstock.engine.process import Endpoint, endpoint_file, read_endpoint, write_endpoint
from penstock.errors import PenstockError
from penstock.errors.catalogue import STORE_UNUSABLE, STREAM_FAILED
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings
from penstock.store import Actual, Progress, Store, StreamState, holder_id

T = TypeVar("T")

POLICY = Policy(base=0.2, cap=1.0, quarantine_after=3, engine_healthy_after=0.0)
TTL = 4.0
SETTINGS = RuntimeSettings(target="dev", schema="shop")


# -- the programs -----------------------------------------------------------------------------------------------------
def engine_program(paths: ProjectPaths) -> int:
    """An engine without Spark: takes the lease, publishes its endpoint, answers commands."""
    if (paths.project / "broken").exists():
        print("PEN-1005 Port 4711, asked for by the engine, is taken.", flush=True)
        return 3
    store = Store.open(paths.store)
    lease = store.steal("engine", holder_id(), 5)
    assert lease is not None
    store.abandon_commands()
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    worker = subprocess.Popen(["sleep", "600"])  # as a JVM below its driver
    (paths.project / "worker").write_text(str(worker.pid))
    started = processes.started_at(os.getpid()) or 0.0
    write_endpoint(paths, Endpoint(os.getpid(), started, "127.0.0.1", 1, "secret", None, lease.token))
    running: dict[str, int] = {}
    batch = 0
    while not ending:
        assert store.renew(lease, 5)
        for command in store.take_commands():
            if command.kind == "start":
                poison = paths.project / "poison"
                if poison.exists() and command.stream in poison.read_text().split():
                    error = STREAM_FAILED.error("It failed on purpose.").as_dict()
                    store.report(
                        command.stream, engine_token=lease.token, state=StreamState.FAILED, last_failure_at=time.time(),
                        error_code=error["code"], error=error["message"],
                    )  # fmt: skip
                    store.finish(command.id, ok=False, result=dict(error))
                    continue
                running[command.stream] = command.payload["generation"]
                store.report(
                    command.stream, engine_token=lease.token, state=StreamState.RUNNING, started_at=time.time(),
                    generation=command.payload["generation"], run_id=f"{os.getpid()}-{command.id}",
                )  # fmt: skip
            elif command.kind == "stop":
                running.pop(command.stream, None)
                store.report(command.stream, engine_token=lease.token, state=StreamState.STOPPED)
            store.finish(command.id, ok=True, result={})
        batch += 1
        for stream, generation in running.items():
            store.record_progress(
                Progress(stream, generation, batch, time.time(), 1, 1, 5, "delta-rs"), engine_token=lease.token
            )
        time.sleep(0.05)
    worker.kill()
    worker.wait()
    endpoint_file(paths).unlink(missing_ok=True)
    store.release(lease)
    return 0


def spawn_engine(paths: ProjectPaths) -> int:
    command = [sys.executable, __file__, "engine", str(paths.project)]
    return processes.spawn(command, log=paths.logs / "engine.log", cwd=paths.project)


def supervisor_program(paths: ProjectPaths) -> int:
    supervisor.log_to_stdout()
    try:
        return int(supervisor.run(paths, spawn=spawn_engine, policy=POLICY, ttl=TTL, lag_every=0.2))
    except PenstockError as problem:
        print(problem, flush=True)
        return int(problem.kind.exit_code)


def supervisor_command(paths: ProjectPaths) -> list[str]:
    return [sys.executable, __file__, "supervisor", str(paths.project)]


# -- the tests' tools -------------------------------------------------------------------------------------------------
class Project:
    """A project directory with everything that runs in it."""

    def __init__(self, directory: Path) -> None:
        self.paths = ProjectPaths(directory)
        save_settings(self.paths, SETTINGS)
        self.store = Store.open(self.paths.store)
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def supervise(self) -> subprocess.Popen[bytes]:
        self.paths.logs.mkdir(parents=True, exist_ok=True)
        with (self.paths.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(supervisor_command(self.paths), stdout=log, stderr=log, start_new_session=True)
        self.supervisors.append(process)
        return process

    def deploy(self, stream: str) -> None:
        spec = StreamSpec(
            name=stream, unique_id=f"model.{stream}", path="models/a.sql", sql="select * from up", stateful=False,
            inputs=(TableStreamInput(view="up", relation="shop.up"),),
            output=Output(relation=stream, mode=OutputMode.APPEND),
        )  # fmt: skip
        self.store.deploy(stream, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=False)

    def engine(self) -> Endpoint:
        return until(lambda: read_endpoint(self.paths), "an engine")

    def running(self, stream: str) -> Actual:
        return self.state(stream, StreamState.RUNNING)

    def state(self, stream: str, state: StreamState) -> Actual:
        def look() -> Actual | None:
            found = self.store.actual(stream)
            return found if found.state is state else None

        return until(look, f"{stream} {state.value}")

    def log(self) -> str:
        return (self.paths.logs / "supervisor.log").read_text()

    def processes(self) -> list[psutil.Process]:
        """Every live process whose command names this project, or that an engine of it left."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if str(self.paths.project) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        worker = self.paths.project / "worker"
        if worker.exists() and processes.started_at(int(worker.read_text())) is not None:
            found.append(psutil.Process(int(worker.read_text())))
        return found

    def clean_up(self) -> None:
        for process in self.supervisors:
            if process.poll() is None:
                process.kill()
                process.wait()
        for left in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        self.store.close()


def until(condition: Callable[[], T | None], what: str, timeout: float = 60.0) -> T:
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    try:
        yield made
    finally:
        made.clean_up()


@pytest.fixture
def ready_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These engines need neither Java nor jars."""
    monkeypatch.setattr(up, "_ready_machine", lambda _tell: None)


# -- the engine dies --------------------------------------------------------------------------------------------------
def test_a_killed_engine_is_replaced_and_its_streams_go_on(project: Project) -> None:
    project.deploy("shop.a")
    project.deploy("shop.b")
    boss = project.supervise()
    first = project.engine()
    before = project.running("shop.a")
    project.running("shop.b")
    worker = int((project.paths.project / "worker").read_text())

    os.kill(first.pid, signal.SIGKILL)

    until(lambda: (e := read_endpoint(project.paths)) and e.pid != first.pid, "the next engine")
    second = project.engine()
    until(lambda: project.store.actual("shop.a").engine_token == second.engine_token, "a report of the next engine")
    for stream in ("shop.a", "shop.b"):
        found = project.running(stream)
        assert (found.restarts, found.failures, found.error_code) == (1, 0, "PEN-4005")
        assert found.run_id != before.run_id
    assert second.engine_token > first.engine_token
    assert processes.started_at(worker) is None, "what the dead engine left behind is gone"
    children = psutil.Process(boss.pid).children()
    assert [child.pid for child in children] == [second.pid], "the dead engine was buried"


def test_a_stream_that_fails_again_and_again_is_quarantined_and_the_others_go_on(project: Project) -> None:
    (project.paths.project / "poison").write_text("shop.bad")
    project.deploy("shop.bad")
    project.deploy("shop.good")
    project.supervise()

    bad = project.state("shop.bad", StreamState.QUARANTINED)
    good = project.running("shop.good")

    assert (bad.failures, bad.restarts, bad.error) == (3, 2, "It failed on purpose.")
    assert good.restarts == 0
    until(lambda: (project.store.actual("shop.good").batch_id or 0) > (good.batch_id or 0) + 3, "more batches")

    (project.paths.project / "poison").unlink()
    start_stream(project.store, "shop.bad", wait=60)
    assert project.store.actual("shop.bad").failures == 0


def test_an_engine_that_freezes_before_it_is_ready_is_replaced(project: Project) -> None:
    spawned: list[int] = []

    def spawn_frozen(paths: ProjectPaths) -> int:
        spawned.append(processes.spawn(["sleep", "600"], log=paths.logs / "engine.log", cwd=paths.project))
        return spawned[-1]

    lease = project.store.acquire(supervisor.LEASE, holder_id(), 60)
    assert lease is not None
    policy = Policy(base=0.1, engine_start_timeout=1.0)
    boss = supervisor.Supervisor(project.paths, project.store, lease, spawn=spawn_frozen, policy=policy)
    thread = threading.Thread(target=boss.run)
    thread.start()
    try:
        until(lambda: len(spawned) >= 2, "the next one")
    finally:
        boss.ending = True
        thread.join()
        boss.end()
    assert [processes.started_at(pid) for pid in spawned] == [None] * len(spawned)


# -- supervisors ------------------------------------------------------------------------------------------------------
def test_a_second_supervisor_is_refused_and_told_who_is_there(project: Project) -> None:
    first = project.supervise()
    project.engine()
    second = project.supervise()
    assert second.wait(60) == 5
    assert f"PEN-3002 A supervisor of this project is already running (process {first.pid})" in project.log()
    assert first.poll() is None


def test_a_new_supervisor_adopts_the_engine_of_a_killed_one(project: Project) -> None:
    project.deploy("shop.a")
    first = project.supervise()
    engine = project.engine()
    before = project.running("shop.a")

    first.kill()
    first.wait()
    second = project.supervise()
    until(lambda: f"engine {engine.pid} found running; adopting it" in project.log(), "the adoption")
    project.deploy("shop.b")

    project.running("shop.b")
    assert project.engine().pid == engine.pid
    after = project.store.actual("shop.a")
    assert (after.run_id, after.restarts) == (before.run_id, 0)
    assert second.poll() is None


def test_a_supervisor_that_lost_its_lease_goes_and_leaves_the_engine(project: Project) -> None:
    first = project.supervise()
    engine = project.engine()
    os.kill(first.pid, signal.SIGSTOP)
    until(lambda: project.store.live_lease("supervisor") is None, "the lease to expire")
    second = project.supervise()
    until(lambda: project.store.live_lease("supervisor"), "the next supervisor")
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(60) == 5
    assert project.engine().pid == engine.pid
    assert second.poll() is None


def test_sigterm_leaves_no_process_no_lease_and_no_file(project: Project) -> None:
    project.deploy("shop.a")
    boss = project.supervise()
    project.engine()
    project.running("shop.a")

    boss.terminate()

    assert boss.wait(90) == 0
    assert project.processes() == []
    assert [project.store.lease(name) for name in ("supervisor", "engine")] == [None, None]
    assert not supervisor.supervisor_file(project.paths).exists()
    assert read_endpoint(project.paths) is None
    assert project.store.actual("shop.a").state is StreamState.PENDING


def test_a_store_that_cannot_be_read_for_a_while_is_waited_out(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = [STORE_UNUSABLE.error("The disk is away.")] * 3
    read = project.store.all_desired

    def flaky(**options: bool) -> object:
        if troubles:
            raise troubles.pop()
        return read(**options)

    monkeypatch.setattr(project.store, "all_desired", flaky)
    lease = project.store.acquire(supervisor.LEASE, holder_id(), 60)
    assert lease is not None
    boss = supervisor.Supervisor(project.paths, project.store, lease, spawn=spawn_engine, policy=POLICY)
    thread = threading.Thread(target=boss.run)
    caplog.set_level("INFO", "penstock.supervisor")
    thread.start()
    try:
        project.engine()
    finally:
        boss.ending = True
        thread.join()
        boss.end()
    said = [record.message for record in caplog.records]
    assert sum("The disk is away" in line for line in said) == 1, "a lasting trouble is said once"
    assert "going on" in said


# -- operators --------------------------------------------------------------------------------------------------------
def test_a_new_generation_takes_the_place_of_the_old_one(project: Project) -> None:
    project.deploy("shop.a")
    project.supervise()
    assert project.running("shop.a").generation == 1
    project.deploy("shop.a")
    until(lambda: project.store.actual("shop.a").generation == 2, "the next generation")
    found = project.running("shop.a")
    assert (found.generation, found.restarts, found.failures) == (2, 0, 0)


def test_streams_are_stopped_started_restarted_and_dropped(project: Project) -> None:
    project.deploy("shop.a")
    project.deploy("shop.b")
    project.supervise()
    first = project.running("shop.a")
    assert stop_stream(project.store, "shop.a", wait=60).state is StreamState.STOPPED
    second = start_stream(project.store, "shop.a", wait=60)
    third = restart_stream(project.store, "shop.a", wait=60)
    assert len({first.run_id, second.run_id, third.run_id}) == 3
    drop_stream(project.store, "shop.a", wait=60)
    assert [d.stream for d in project.store.all_desired()] == ["shop.b"]
    assert project.running("shop.b").restarts == 0


@pytest.mark.usefixtures("ready_machine")
def test_a_stopped_stream_stays_stopped_whatever_is_restarted(project: Project) -> None:
    project.deploy("shop.kept")
    project.deploy("shop.other")
    boss = project.supervise()
    first = project.engine()
    project.running("shop.kept")
    stop_stream(project.store, "shop.kept", wait=60)
    batches = project.store.actual("shop.kept").batch_id

    os.kill(first.pid, signal.SIGKILL)
    until(lambda: (e := read_endpoint(project.paths)) and e.pid != first.pid, "the next engine")
    until(lambda: project.store.actual("shop.other").engine_token > first.engine_token, "the other to run again")
    assert project.store.actual("shop.kept").state is StreamState.STOPPED
    boss.kill()
    boss.wait()
    command = supervisor_command(project.paths)
    for _ in range(2):
        up.down(project.paths)
        assert (project.store.actual("shop.kept").state, project.processes()) == (StreamState.STOPPED, [])
        up.ensure_up(project.paths, SETTINGS, timeout=60, supervisor=command)
        project.running("shop.other")
        assert project.store.actual("shop.kept").state is StreamState.STOPPED
    project.deploy("shop.kept")  # a new version of it does not start it, either
    until(lambda: (project.store.actual("shop.other").batch_id or 0) > 3, "more batches of the other")
    found = project.store.actual("shop.kept")
    assert (found.state, found.batch_id) == (StreamState.STOPPED, batches)
    assert start_stream(project.store, "shop.kept", wait=60).state is StreamState.RUNNING
    up.down(project.paths)


def test_the_lag_is_measured_while_a_stream_is_stopped(project: Project) -> None:
    project.deploy("shop.a")
    project.supervise()
    project.running("shop.a")
    stop_stream(project.store, "shop.a", wait=60)
    log = project.paths.warehouse / "shop.db" / "up" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(
        '{"commitInfo":{"timestamp":1000}}\n{"add":{"path":"x","dataChange":true,"stats":"{\\"numRecords\\":7}"}}\n'
    )
    until(lambda: project.store.actual("shop.a").lag_rows == 7, "the lag")
    assert (project.store.actual("shop.a").lag_seconds or 0) > 1000


# -- up and down ------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("ready_machine")
def test_two_callers_at_once_get_one_supervisor_and_the_same_engine(project: Project) -> None:
    found: list[Endpoint] = []

    def bring_up() -> None:
        found.append(up.ensure_up(project.paths, SETTINGS, timeout=60, supervisor=supervisor_command(project.paths)))

    callers = [threading.Thread(target=bring_up) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 2
    assert found[0] == found[1]
    until(lambda: len([p for p in project.processes() if "supervisor" in p.cmdline()]) == 1, "one supervisor")

    begun = time.monotonic()
    assert up.ensure_up(project.paths, SETTINGS) == found[0]
    assert time.monotonic() - begun < 1.0, "nothing to do"

    up.down(project.paths)
    assert project.processes() == []
    assert [project.store.lease(name) for name in ("supervisor", "engine")] == [None, None]
    up.down(project.paths)  # nothing left to do


@pytest.mark.usefixtures("ready_machine")
def test_down_ends_the_engine_that_a_killed_supervisor_left(project: Project) -> None:
    project.deploy("shop.a")
    boss = project.supervise()
    project.engine()
    project.running("shop.a")
    boss.kill()
    boss.wait()
    up.down(project.paths)
    assert project.processes() == []
    assert [project.store.lease(name) for name in ("supervisor", "engine")] == [None, None]
    assert project.store.actual("shop.a").state is StreamState.PENDING


@pytest.mark.usefixtures("ready_machine")
def test_an_engine_that_cannot_start_is_an_error_with_its_last_words(project: Project) -> None:
    (project.paths.project / "broken").touch()
    command = supervisor_command(project.paths)
    with pytest.raises(PenstockError, match=r"PEN-4001 .*exit code 3.*PEN-1005 Port 4711"):
        up.ensure_up(project.paths, SETTINGS, timeout=60, supervisor=command)
    (project.paths.project / "broken").unlink()
    up.ensure_up(project.paths, SETTINGS, timeout=60, supervisor=command)  # mended: no waiting for the old backoff
    up.down(project.paths)
    assert project.processes() == []


@pytest.mark.usefixtures("ready_machine")
def test_a_supervisor_that_cannot_start_is_an_error_with_its_last_words(project: Project) -> None:
    command = [sys.executable, "-c", "raise SystemExit('PEN-3004 no store today')"]
    with pytest.raises(PenstockError, match=r"PEN-3007 .*PEN-3004 no store today"):
        up.ensure_up(project.paths, SETTINGS, timeout=60, supervisor=command)


if __name__ == "__main__":
    program = {"engine": engine_program, "supervisor": supervisor_program}[sys.argv[1]]
    sys.exit(program(ProjectPaths(Path(sys.argv[2]))))
