"""The store keeps what it is told, in bounds, and refuses what is old, foreign or broken."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from penstock.errors import PenstockError
from penstock.store import Part, Progress, Store, StreamState, Wanted, database
from penstock.store import store as store_module
from penstock.store.commands import COMMANDS_KEPT
from penstock.store.schema import SCHEMA_VERSION


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


def deploy(store: Store, stream: str = "shop.a", *, new_checkpoint: bool = False) -> int:
    return store.deploy(stream, "{}", "hash", verdict="NEW", new_checkpoint=new_checkpoint).generation


def batch(stream: str, number: int, **more: object) -> Progress:
    values = {
        "generation": 1,
        "at": float(number),
        "rows_in": 1,
        "rows_out": 1,
        "duration_ms": 10,
        "writer": "delta-rs",
    }
    return Progress(stream=stream, batch_id=number, **(values | more))  # type: ignore[arg-type]


def test_each_deployment_is_a_new_generation_on_the_same_checkpoint(store: Store) -> None:
    deploy(store)
    first = store.desired("shop.a")
    deploy(store)
    second = store.desired("shop.a")
    assert (first.generation, second.generation) == (1, 2)
    assert first.checkpoint_id == second.checkpoint_id


def test_more_is_said_of_an_error_only_while_it_is_that_one(store: Store) -> None:
    deploy(store)
    store.report("shop.a", engine_token=2, state=StreamState.FAILED, error="it failed", error_code="PEN-4002")
    before = store.actual("shop.a")
    assert not store.amend_error("shop.a", 2, "another", "more")
    assert not store.amend_error("shop.a", 1, "it failed", "more"), "an older engine's word"
    assert store.amend_error("shop.a", 2, "it failed", "it failed of record 7")
    after = store.actual("shop.a")
    assert after.error == "it failed of record 7"
    assert (after.updated_at, after.state) == (before.updated_at, before.state), "nothing else changed"


def test_a_rebuild_has_a_checkpoint_of_its_own(store: Store) -> None:
    deploy(store)
    first = store.desired("shop.a").checkpoint_id
    deploy(store, new_checkpoint=True)
    assert store.desired("shop.a").checkpoint_id != first


def test_a_generation_number_is_not_used_again_after_a_drop(store: Store) -> None:
    deploy(store)
    store.forget("shop.a")
    assert deploy(store) == 2
    assert [g["generation"] for g in store.generations("shop.a")] == [2, 1]


def test_a_stopped_stream_stays_stopped_when_it_is_deployed_again(store: Store) -> None:
    deploy(store)
    store.set_wanted("shop.a", Wanted.STOPPED)
    deploy(store)
    assert store.desired("shop.a").wanted is Wanted.STOPPED


def test_an_unknown_stream_cannot_be_stopped(store: Store) -> None:
    with pytest.raises(PenstockError, match="PEN-3001"):
        store.set_wanted("shop.nothing", Wanted.STOPPED)


@pytest.mark.parametrize("state", [StreamState.QUARANTINED, StreamState.FAILED])
def test_starting_lifts_a_quarantine_and_forgets_failures(store: Store, state: StreamState) -> None:
    deploy(store)
    store.report("shop.a", state=state, failures=5, retry_at=9.0, error="boom", error_code="PEN-4003")
    store.set_wanted("shop.a", Wanted.RUNNING)
    found = store.actual("shop.a")
    assert (found.state, found.failures, found.retry_at, found.error) == (StreamState.PENDING, 0, None, None)


def test_a_running_stream_goes_on_running_when_it_is_deployed_again(store: Store) -> None:
    deploy(store)
    store.report("shop.a", state=StreamState.RUNNING)
    deploy(store)
    assert store.actual("shop.a").state is StreamState.RUNNING


def test_the_report_of_an_older_engine_is_refused(store: Store) -> None:
    deploy(store)
    assert store.report("shop.a", engine_token=7, state=StreamState.RUNNING)
    assert not store.report("shop.a", engine_token=6, state=StreamState.FAILED)
    assert not store.record_progress(batch("shop.a", 1), engine_token=6)
    assert store.actual("shop.a").state is StreamState.RUNNING
    assert store.progress("shop.a") == []


def test_a_decision_does_not_overwrite_what_was_reported_in_the_meantime(store: Store) -> None:
    deploy(store)
    seen = store.actual("shop.a")
    store.report("shop.a", state=StreamState.RUNNING, engine_token=1)
    assert not store.report("shop.a", if_still=seen, state=StreamState.STARTING)
    assert store.actual("shop.a").state is StreamState.RUNNING


def test_a_decision_about_a_forgotten_stream_does_not_bring_it_back(store: Store) -> None:
    deploy(store)
    seen = store.actual("shop.a")
    store.forget("shop.a")
    assert not store.report("shop.a", if_still=seen, state=StreamState.STARTING)
    assert store.all_actual() == {}


def test_a_start_does_not_overtake_a_stop(store: Store) -> None:
    deploy(store)
    store.set_wanted("shop.a", Wanted.STOPPED)
    assert not store.report("shop.a", if_wanted=1, state=StreamState.STARTING)
    store.set_wanted("shop.a", Wanted.RUNNING)
    assert not store.report("shop.a", if_wanted=2, state=StreamState.STARTING)
    assert store.report("shop.a", if_wanted=1, state=StreamState.STARTING)


def test_lag_is_written_without_touching_the_report(store: Store) -> None:
    deploy(store)
    store.report("shop.a", now=5.0, state=StreamState.RUNNING, engine_token=3)
    store.record_lag(store.actual("shop.a"), 12, 3.5, now=9.0)
    found = store.actual("shop.a")
    assert (found.lag_rows, found.lag_seconds, found.lag_at) == (12, 3.5, 9.0)
    assert (found.updated_at, found.state) == (5.0, StreamState.RUNNING)


def test_lag_of_a_run_before_is_not_that_of_the_new_one(store: Store) -> None:
    deploy(store)
    store.report("shop.a", state=StreamState.RUNNING, generation=1, started_at=5.0)
    measured = store.actual("shop.a")
    store.report("shop.a", state=StreamState.RUNNING, generation=2, started_at=5.0)
    store.record_lag(measured, 0, 0.0)
    store.report("shop.a", state=StreamState.RUNNING, generation=1, started_at=6.0)
    store.record_lag(measured, 0, 0.0)
    assert store.actual("shop.a").lag_at is None


def test_lag_of_an_unknown_stream_makes_no_record(store: Store) -> None:
    store.record_lag(store.actual("shop.a"), 1, 1.0)
    assert store.all_actual() == {}


def test_batches_add_up_in_the_record(store: Store) -> None:
    deploy(store)
    store.record_progress(
        batch("shop.a", 1, rows_in=5, rows_out=2, offsets={"shop.clicks": {"c": {"0": 5}}}), engine_token=1
    )
    store.record_progress(batch("shop.a", 2, rows_in=0, rows_out=0), engine_token=1)
    found = store.actual("shop.a")
    assert (found.batch_id, found.total_rows_in, found.total_rows_out) == (2, 5, 2)
    assert (found.last_batch_at, found.last_commit_at) == (2.0, 1.0)
    assert found.offsets == {"shop.clicks": {"c": {"0": 5}}}


def test_the_history_of_each_stream_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PROGRESS_KEPT", 10)
    for number in range(30):
        for stream in ("shop.a", "shop.b"):
            store.record_progress(batch(stream, number % 7), engine_token=1)
    store.record_progress(batch("shop.c", 1), engine_token=1)
    assert [len(store.progress(s, 1000)) for s in ("shop.a", "shop.b", "shop.c")] == [10, 10, 1]


def test_ended_commands_are_bounded_and_open_ones_kept(store: Store) -> None:
    waiting = store.submit("prepare", "shop.a")
    for _ in range(COMMANDS_KEPT + 50):
        store.finish(store.submit("start", "shop.a"), ok=True, result={})
    assert store.command(waiting) is not None
    assert store.command(waiting + 1) is None
    assert store.command(waiting + 51) is not None


def test_commands_are_taken_once_and_in_order(store: Store) -> None:
    ids = [store.submit(kind, "shop.a") for kind in ("prepare", "start", "stop")]
    assert [c.id for c in store.take_commands()] == ids
    assert store.take_commands() == []
    assert [c.state for c in store.open_commands("shop.a")] == ["taken"] * 3


def test_an_answered_command_does_not_change_again(store: Store) -> None:
    number = store.submit("start", "shop.a")
    assert store.abandon_commands() == 1
    store.finish(number, ok=True, result={})
    command = store.command(number)
    assert command is not None
    assert (command.state, (command.result or {})["code"]) == ("failed", "PEN-4005")


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "store.db").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    with engine.begin() as tx:
        tx.execute(text("update meta set value = '99' where key = 'schema_version'"))
    with pytest.raises(PenstockError, match=r"PEN-3004 .*version 99.*Install the newer Penstock"):
        Store.open(tmp_path / "store.db")


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"this is no database at all, whatever its name says" * 100)
    with pytest.raises(PenstockError, match=r"PEN-3004 .*not a database.*store\.db"):
        Store.open(tmp_path / "store.db")


def test_a_store_damaged_while_open_is_named(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    deploy(store)
    store.close()
    (tmp_path / "store.db-wal").unlink(missing_ok=True)
    whole = (tmp_path / "store.db").read_bytes()
    (tmp_path / "store.db").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(PenstockError, match="PEN-3004"):
        Store.open(tmp_path / "store.db").all_desired()


def test_a_store_that_somebody_holds_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    store = Store.open(tmp_path / "store.db")
    with sqlite3.connect(tmp_path / "store.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PenstockError, match=r"PEN-3004 .*locked"):
            deploy(store)
        other.execute("ROLLBACK")
    deploy(store)


def test_a_place_that_cannot_hold_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="PEN-3004"):
        Store.open(tmp_path / "file" / "store.db")


def test_an_address_is_shown_without_its_password() -> None:
    with pytest.raises(PenstockError) as caught:
        Store.open("nosuchdatabase://me:secret@127.0.0.1/penstock")
    assert "secret" not in str(caught.value)


def test_a_store_of_an_older_version_gets_what_it_lacks_and_keeps_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = Store.open(file)
    store.deploy("shop.a", "{}", "h", verdict="NEW", new_checkpoint=True)
    with store._write() as tx:
        tx.execute(text("drop table parts"))
        tx.execute(text("drop table sources"))
        tx.execute(text("update meta set value = '1' where key = 'schema_version'"))
    store.close()
    again = Store.open(file)
    assert (again.parts(), again.sources()) == ([], {})
    assert again.desired("shop.a").generation == 1
    with again._read() as tx:
        assert tx.execute(text("select value from meta where key = 'schema_version'")).scalar() == str(SCHEMA_VERSION)


def test_the_newest_batch_of_every_deployed_stream_is_found_at_once(store: Store) -> None:
    for stream in ("shop.a", "shop.b", "shop.idle"):
        store.deploy(stream, "{}", "h", verdict="NEW", new_checkpoint=True)
    for number in range(5):
        for stream in ("shop.a", "shop.b", "shop.gone"):
            store.record_progress(Progress(stream, 1, number, 100.0 + number, 1, 1, 10, "delta-rs"), engine_token=1)
    found = store.newest_progress()
    assert {stream: batch.batch_id for stream, batch in found.items()} == {"shop.a": 4, "shop.b": 4}


def test_parts_are_kept_as_they_were_seen_last(store: Store) -> None:
    store.record_parts(
        [Part("one", "broker", ok=True, detail="", at=1.0), Part("two", "broker", ok=True, detail="", at=1.0)]
    )
    store.record_parts([Part("one", "broker", ok=False, detail="away", at=2.0)])
    assert store.parts() == [Part("one", "broker", ok=False, detail="away", at=2.0)]


def test_a_free_lease_still_tells_its_last_token(store: Store) -> None:
    assert store.lease_record("engine") is None
    lease = store.acquire("engine", "me", 10)
    assert lease is not None
    store.release(lease)
    free = store.lease_record("engine")
    assert free is not None
    assert (free.holder, free.token) == ("", lease.token)


def test_a_source_is_kept_replaced_and_forgotten(store: Store) -> None:
    store.put_source("shop.clicks", "{}", "one", ["kafka.bootstrap.servers"])
    store.put_source("shop.clicks", "{}", "two", [])
    assert {name: (each.hash, each.properties) for name, each in store.sources().items()} == {
        "shop.clicks": ("two", [])
    }
    store.forget_source("shop.clicks")
    assert store.sources() == {}
