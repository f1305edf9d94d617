"""Two processes want the same: engines of one project, deployments of one stream. One of them writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import processes
from penstock.control.engine_watch import ENGINE_LEASE
from penstock.control.lag import table_path
from penstock.control.requests import LEASE as DEPLOY_LEASE
from penstock.engine.identity import Mark, application
from penstock.engine.sink import TableWriter, Target
from penstock.errors import ExitCode
from penstock.store import Lease, StreamState, holder_id

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

DEPLOY = """\
import json
import sys
from pathlib import Path
from penstock.compiler.spec import StreamSpec
from penstock.control.deploy import deploy
from penstock.paths import ProjectPaths
from penstock.store import Store

paths = ProjectPaths(Path(sys.argv[1]))
spec = StreamSpec.from_json(json.loads(sys.stdin.readline()))
print("ready", flush=True)
made = deploy(Store.open(paths.store), paths, spec)
print(made.verdict, made.generation, made.checkpoint)
"""


def python(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """Whatever is left of it: a test that fails leaves nothing running."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_two_deployments_at_once_make_one_stream(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    produce(name, [{"k": "a", "v": n} for n in range(10)])
    spec = make_spec("once", name, "select pos from input")
    platform.endpoint()
    mine = platform.until(lambda: platform.store.acquire(DEPLOY_LEASE, holder_id(), 60), "the turn to deploy")
    both = [python("-c", DEPLOY, str(platform.paths.project)) for _ in range(2)]
    try:
        for process in both:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(spec.to_json()) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
        assert platform.store.find_desired(spec.name) is None  # both wait for their turn
    finally:
        platform.store.release(mine)
    try:
        said = [process.communicate(timeout=120)[0].split() for process in both]
    finally:
        for process in both:
            end(process)
    assert [process.returncode for process in both] == [0, 0], said
    first, second = sorted(said, reverse=True)
    assert [first[0], second[0]] == ["NO-OP", "NEW"]
    assert first[1:] == second[1:] == ["1", platform.store.desired(spec.name).checkpoint_id]
    platform.until(lambda: platform.sql(f"select count(*) from {spec.name}") == [(10,)], "10 rows, once", 90)


def test_a_second_engine_is_refused(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    spec = make_spec("kept", name, "select pos from input")
    platform.deploy(spec)
    platform.state(spec.name, StreamState.RUNNING)
    engine, before = platform.endpoint(), platform.store.actual(spec.name)
    second = python("-m", "penstock.engine.main", "--project-dir", str(platform.paths.project))
    produce(name, [{"k": "a", "v": n} for n in range(10)])
    try:
        printed, _ = second.communicate(timeout=120)
    finally:
        end(second)
    assert second.returncode == ExitCode.UNAVAILABLE
    assert "PEN-4001" in printed
    assert f"process {engine.pid}" in printed
    assert platform.endpoint() == engine
    platform.until(lambda: platform.sql(f"select count(*) from {spec.name}") == [(10,)], "10 rows of the first", 90)
    after = platform.store.actual(spec.name)
    assert (after.run_id, after.restarts) == (before.run_id, before.restarts)


def test_an_engine_that_was_suspended_and_replaced_cannot_write_any_more(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: an engine that is suspended, as a virtual machine is, with rows to read.
    name = topic(1)
    spec = make_spec("fenced", name, "select pos from input")
    platform.deploy(spec)
    produce(name, [{"k": "a", "v": n} for n in range(10)])
    platform.until(lambda: platform.sql(f"select count(*) from {spec.name}") == [(10,)], "10 rows", 90)
    engine = platform.endpoint()
    want = platform.store.desired(spec.name)
    path = table_path(platform.paths, spec.output.relation)
    successor = subprocess.Popen(["sleep", "600"], start_new_session=True)  # holds the lease and does nothing else
    os.killpg(engine.pid, signal.SIGSTOP)
    try:
        produce(name, [{"k": "a", "v": n} for n in range(10, 30)])

        # When: its lease runs out, a successor takes over and fences the table, and then it wakes up.
        lease: Lease = platform.until(
            lambda: platform.store.acquire(ENGINE_LEASE, holder_id(successor.pid), 300), "the lease's end", 60
        )
        assert lease.token > engine.engine_token
        target = Target(
            stream=spec.name, table=spec.output.relation, path=str(path), mode="append", keys=(),
            checkpoint=platform.paths.checkpoint(spec.name, want.checkpoint_id), checkpoint_id=want.checkpoint_id,
            small_batch_rows=spec.small_batch_rows, stateful=False,
        )  # fmt: skip
        TableWriter(target, lease.token).fence()
        fenced = DeltaTable(str(path)).version()
        os.killpg(engine.pid, signal.SIGCONT)
        platform.until(lambda: not processes.alive(engine.pid, engine.started_at), "the old engine's end", 90)

        # Then: it went without a word in the table or in the record.
        assert DeltaTable(str(path)).version() == fenced
        assert len(DeltaTable(str(path)).to_pyarrow_table()) == 10
    finally:
        if processes.alive(engine.pid, engine.started_at):
            os.killpg(engine.pid, signal.SIGCONT)
        successor.kill()
        successor.wait()

    # And: the next engine goes on, with a higher token; every row is there once.
    def rows() -> list[int]:
        return sorted(row[0] for row in platform.sql(f"select pos from {spec.name}"))

    platform.state(spec.name, StreamState.RUNNING, timeout=180)
    platform.until(lambda: rows() == list(range(30)), "30 rows", 120, rows)
    app = application(spec.name, want.checkpoint_id)
    marks = [Mark.of(version) for version in transactions(path, app)]
    assert [mark.token for mark in marks] == sorted(mark.token for mark in marks)
    assert all(mark.token > lease.token for mark in marks[fenced:])
    assert platform.store.actual(spec.name).engine_token > lease.token


def transactions(path: Any, app: str) -> list[int]:
    """The application's version in each commit that carries one."""
    found = []
    for file in sorted((path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        found += [each["txn"]["version"] for each in actions if each.get("txn", {}).get("appId") == app]
    return found
