"""Several processes use one store at once: nobody is locked out, every lease has one holder, nothing is lost.

The file is also the program of those processes.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

from penstock.store import Progress, Store, holder_id

PROCESSES = 4
ROUNDS = 40


def work(path: str, number: str) -> list[tuple[int, float, float]]:
    store = Store.open(path)
    held: list[tuple[int, float, float]] = []
    for round_number in range(ROUNDS):
        store.all_desired()
        store.record_progress(
            Progress(f"shop.s{number}", 1, round_number, time.time(), 1, 1, 5, "delta-rs"), engine_token=1
        )
        store.report("shop.shared", restarts=round_number)
        store.finish(store.submit("start", f"shop.s{number}"), ok=True, result={})
        lease = store.acquire("engine", holder_id(), 30)
        if lease is not None:
            begun = time.monotonic()
            store.all_actual()
            held.append((lease.token, begun, time.monotonic()))
            store.release(lease)
    store.close()
    return held


def open_often(path: str, number: str) -> list[str]:
    for attempt in range(20):
        store = Store.open(f"{path}.{attempt}")  # each process makes, finds or closes it as the last: all at once
        store.report(f"shop.s{number}", restarts=1)
        store.close()
    return []


def in_processes(program: str, path: Path) -> list[str]:
    """The outputs of several processes that run a function of this file; none of them may fail."""
    command = [sys.executable, __file__, program, str(path)]
    running = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    ended = [(process.communicate(timeout=120), process.returncode) for process in running]
    assert [code for _, code in ended] == [0] * PROCESSES, "\n".join(err for (_, err), _ in ended)
    return [out for (out, _), _ in ended]


def test_processes_that_hammer_the_store_are_not_locked_out_and_take_turns_in_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    held = sorted(turn for out in in_processes("work", path) for turn in json.loads(out))

    assert [token for token, _, _ in held] == list(range(1, len(held) + 1)), "each token is used once"
    assert all(ended <= begun for (_, _, ended), (_, begun, _) in itertools.pairwise(held)), "one at a time"
    store = Store.open(path)
    streams = [f"shop.s{n}" for n in range(PROCESSES)]
    assert [store.actual(stream).total_rows_in for stream in streams] == [ROUNDS] * PROCESSES
    assert [len(store.progress(stream, 1000)) for stream in streams] == [ROUNDS] * PROCESSES


def test_processes_that_open_a_new_store_together_make_it_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    in_processes("open_often", path)
    for attempt in range(20):
        assert len(Store.open(f"{path}.{attempt}").all_actual()) == PROCESSES


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    store.deploy("shop.a", "{}", "h", verdict="NEW", new_checkpoint=False)
    other = Store.open(tmp_path / "store.db")
    with store._write() as tx:
        tx.exec_driver_sql("update desired set wanted = 'stopped'")
        begun = time.monotonic()
        assert other.desired("shop.a").wanted.value == "running", "it sees the state before the open write"
        assert time.monotonic() - begun < 1.0


if __name__ == "__main__":
    print(json.dumps({"work": work, "open_often": open_often}[sys.argv[1]](*sys.argv[2:])))
