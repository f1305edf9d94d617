"""A lease has one holder, a token that only rises, and does not outlive its process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.store import Store, holder_id, holder_is_dead, holder_name, parse_holder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


def dead_holder() -> str:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = holder_id(process.pid)
    process.communicate(b"\n")
    return holder


def test_a_held_lease_is_refused_until_it_expires(store: Store) -> None:
    first = store.acquire("engine", "a", 10, now=100)
    assert first is not None
    assert store.acquire("engine", "b", 10, now=109) is None
    second = store.acquire("engine", "b", 10, now=110.1)
    assert second is not None
    assert second.token == first.token + 1


def test_a_lost_lease_can_be_neither_renewed_nor_released(store: Store) -> None:
    old = store.acquire("engine", "a", 10, now=100)
    new = store.acquire("engine", "b", 10, now=200)
    assert old is not None
    assert store.renew(old, 10, now=201) is None
    store.release(old)
    assert store.lease("engine") == new


def test_a_lease_that_is_kept_does_not_run_out(store: Store) -> None:
    lease = store.acquire("deploy", holder_id(), 60)
    assert lease is not None
    deadline = time.monotonic() + 30
    with store.kept(lease, 90, 0.01):
        while (found := store.lease("deploy")) is not None and found.expires_at < lease.expires_at + 20:
            assert time.monotonic() < deadline, "it was not renewed"
            time.sleep(0.01)
    store.release(lease)
    assert store.lease("deploy") is None


def test_the_token_rises_also_after_a_release(store: Store) -> None:
    tokens = []
    for _ in range(3):
        lease = store.acquire("engine", "a", 10, now=100)
        assert lease is not None
        tokens.append(lease.token)
        store.release(lease)
    assert tokens == [1, 2, 3]
    assert store.lease("engine") is None


def test_the_lease_of_a_dead_process_is_taken_at_once(store: Store) -> None:
    dead = store.acquire("engine", dead_holder(), 1000)
    assert dead is not None
    assert store.acquire("engine", holder_id(), 10) is None
    assert store.live_lease("engine") is None
    taken = store.steal("engine", holder_id(), 10)
    assert taken is not None
    assert taken.token == dead.token + 1


def test_the_lease_of_a_living_process_cannot_be_stolen(store: Store) -> None:
    assert store.acquire("engine", holder_id(), 10) is not None
    assert store.steal("engine", "other", 10) is None


def test_this_process_is_not_dead() -> None:
    assert not holder_is_dead(holder_id())


def test_a_process_that_only_has_the_same_pid_does_not_hold_the_lease() -> None:
    me = parse_holder(holder_id())
    assert me is not None
    assert holder_is_dead(f"{me.host}:{me.pid}:{me.started_at - 1000:.2f}")


@pytest.mark.parametrize("holder", ["somebody", "elsewhere:1:2.0", "a:b:c", ""])
def test_a_holder_that_cannot_be_judged_is_not_dead(holder: str) -> None:
    assert not holder_is_dead(holder)


def test_a_holder_reads_as_a_process() -> None:
    assert holder_name(f"{socket.gethostname()}:4711:1.0") == "process 4711"
    assert holder_name("elsewhere:4711:1.0") == "process 4711 on elsewhere"
    assert holder_name("a person") == "a person"
