"""stop, start, restart and drop write what is wanted, for the streams that were meant."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import dbt
from penstock.cli.main import app
from penstock.cli.streams import resolve
from penstock.compiler.spec import Origin, Output, OutputMode, StreamSpec, TableInput, TableStreamInput
from penstock.engine.maintenance import Done
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths
from penstock.store import RebuildPhase, Store, StreamState, Wanted


@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    return ProjectPaths(tmp_path)


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    store = Store.open(paths.store)
    for name in ("shop.clicks", "shop.views", "other.views"):
        store.deploy(name, "{}", "abc", verdict="NEW", new_checkpoint=True)
        store.report(name, state=StreamState.RUNNING)
    return store


def invoke(paths: ProjectPaths, *args: str) -> Result:
    return CliRunner().invoke(app, [*args, "--project-dir", str(paths.project)])


@contextmanager
def project_up(store: Store, outcome: StreamState = StreamState.RUNNING) -> Iterator[list[str]]:
    """Does at once what supervisor and engine do after a while; records what it did."""
    store.acquire("supervisor", "test", ttl=60)
    store.acquire("engine", "test", ttl=60)
    end = threading.Event()
    done: list[str] = []

    def stopped(stream: str) -> None:
        done.append(f"stop {stream}")
        store.report(stream, state=StreamState.STOPPED)

    def work() -> None:
        while not end.wait(0.02):
            for command in store.take_commands():
                stopped(command.stream)
                store.finish(command.id, ok=True, result={})
            for desired in store.all_desired():
                state = store.actual(desired.stream).state
                if desired.wanted is Wanted.STOPPED and state is not StreamState.STOPPED:
                    stopped(desired.stream)
                elif desired.wanted is Wanted.RUNNING and state not in (StreamState.RUNNING, outcome):
                    done.append(f"start {desired.stream}")
                    store.report(desired.stream, state=outcome, started_at=time.time())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


def test_a_stream_is_found_by_its_full_name_or_by_the_model_s_name(store: Store) -> None:
    assert resolve(store, ["shop.views", "clicks", "shop.clicks"]) == ["shop.views", "shop.clicks"]


def test_a_name_that_two_schemas_have_must_be_given_in_full(store: Store) -> None:
    with pytest.raises(PenstockError, match=r"PEN-5006.*other\.views, shop\.views"):
        resolve(store, ["views"])


def test_a_misspelt_name_is_answered_with_the_right_one(store: Store) -> None:
    with pytest.raises(PenstockError, match=r"PEN-3001.*Did you mean 'clicks'"):
        resolve(store, ["cliks"])


def test_names_and_all_do_not_go_together(paths: ProjectPaths, store: Store) -> None:
    assert invoke(paths, "stop", "clicks", "--all").exit_code == 2
    assert invoke(paths, "stop").exit_code == 2


def test_stop_without_a_supervisor_is_recorded_and_says_so(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "stop", "clicks")
    assert result.exit_code == 0
    assert "penstock up" in result.stderr
    assert store.desired("shop.clicks").wanted is Wanted.STOPPED
    assert store.desired("shop.views").wanted is Wanted.RUNNING


@pytest.mark.parametrize("timeout", ["60", "0"])
def test_a_stream_that_is_stopped_is_not_rebuilt(paths: ProjectPaths, store: Store, timeout: str) -> None:
    store.begin_rebuild("shop.clicks", "{}", "new", beside_json="{}", beside_hash="beside", verdict="REBUILD")
    assert invoke(paths, "stop", "clicks", "--timeout", timeout).exit_code == 0
    rebuild = store.rebuild("shop.clicks")
    assert rebuild is not None
    assert rebuild.phase is RebuildPhase.ENDING


def test_stop_waits_until_the_supervisor_has_acted(paths: ProjectPaths, store: Store) -> None:
    with project_up(store):
        result = invoke(paths, "stop", "--all", "--output", "json")
    assert result.exit_code == 0
    assert {row["state"] for row in json.loads(result.stdout)["streams"]} == {"stopped"}


def test_start_lifts_a_quarantine(paths: ProjectPaths, store: Store) -> None:
    store.report("shop.clicks", state=StreamState.QUARANTINED, failures=5)
    with project_up(store):
        result = invoke(paths, "start", "clicks")
    assert result.exit_code == 0
    assert store.actual("shop.clicks").state is StreamState.RUNNING
    assert store.actual("shop.clicks").failures == 0


def test_restart_stops_and_starts(paths: ProjectPaths, store: Store) -> None:
    with project_up(store) as done:
        result = invoke(paths, "restart", "clicks")
    assert result.exit_code == 0
    assert done == ["stop shop.clicks", "start shop.clicks"]


def test_a_stream_that_does_not_start_in_time_is_an_error(paths: ProjectPaths, store: Store) -> None:
    store.report("shop.clicks", state=StreamState.PENDING)
    store.acquire("supervisor", "idle", ttl=60)
    began = time.monotonic()
    result = invoke(paths, "start", "clicks", "--timeout", "0.3")
    assert result.exit_code == 4
    assert "shop.clicks" in result.stderr
    assert time.monotonic() - began < 5


def test_a_stream_that_ends_in_quarantine_again_is_a_failure(paths: ProjectPaths, store: Store) -> None:
    store.report("shop.clicks", state=StreamState.FAILED)
    with project_up(store, outcome=StreamState.QUARANTINED):
        assert invoke(paths, "start", "clicks").exit_code == 1


def test_one_stream_that_fails_does_not_keep_the_others_from_starting(paths: ProjectPaths, store: Store) -> None:
    for desired in store.all_desired():
        store.set_wanted(desired.stream, Wanted.STOPPED)
        store.report(desired.stream, state=StreamState.STOPPED)
    with project_up(store, outcome=StreamState.FAILED) as done:
        result = invoke(paths, "start", "--all", "--output", "json")
    assert result.exit_code == 1, (done, result.stdout, result.stderr)
    assert {"start other.views", "start shop.clicks", "start shop.views"} <= set(done)
    assert [row["error"]["code"] for row in json.loads(result.stdout)["streams"]] == ["PEN-4003"] * 3


def test_drop_asks_and_without_a_terminal_needs_yes(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "drop", "clicks")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert store.find_desired("shop.clicks") is not None


def reading(name: str, *inputs: TableInput | TableStreamInput) -> StreamSpec:
    return StreamSpec(
        name=name, unique_id=f"model.{name}", path="m.sql", sql="select 1", stateful=False, inputs=inputs,
        output=Output(relation=name, mode=OutputMode.APPEND),
    )  # fmt: skip


def test_a_table_that_a_deployed_stream_reads_is_not_dropped(paths: ProjectPaths, store: Store) -> None:
    looked_up, streamed = TableInput(relation="shop.clicks"), TableStreamInput(view="v", relation="shop.clicks")
    for each in (reading("shop.items", looked_up), reading("shop.sums", streamed)):
        store.deploy(each.name, each.to_json(), each.hash, verdict="NEW", new_checkpoint=True)
    result = invoke(paths, "drop", "clicks", "--yes")
    assert result.exit_code == 5
    said = " ".join(result.stderr.split())
    assert "PEN-3024 Dynamic table 'shop.clicks' is read by shop.items, shop.sums." in said
    assert "Drop them first: 'penstock drop shop.items'." in said
    assert "PEN-4002" in invoke(paths, "drop", "items", "--yes").stderr, "what nobody reads is asked of the engine"


def test_the_live_tests_of_a_table_are_dropped_with_it(
    paths: ProjectPaths, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.process.read_endpoint", lambda _paths: object())
    looked_up, streamed = TableInput(relation="shop.clicks"), TableStreamInput(view="v", relation="shop.clicks")
    live = {"origin": Origin.LIVE_TEST}
    of_clicks = [reading("audit.unique", looked_up), reading("audit.not_null", streamed)]
    items = reading("shop.items", streamed)
    for each in (items, *(each.model_copy(update=live) for each in of_clicks)):
        store.deploy(each.name, each.to_json(), each.hash, verdict="NEW", new_checkpoint=True)
        store.report(each.name, state=StreamState.RUNNING)
    refused = " ".join(invoke(paths, "drop", "clicks", "--yes").stderr.split())
    assert "is read by shop.items. " in refused
    store.forget(items.name)
    with project_up(store) as done:
        result = invoke(paths, "drop", "clicks", "--yes")
    assert result.exit_code == 0, result.output
    assert "Dropped shop.clicks and 2 live tests: audit.not_null, audit.unique." in " ".join(result.stdout.split())
    assert list(dict.fromkeys(done)) == ["stop audit.not_null", "stop audit.unique", "stop shop.clicks"]
    assert {want.stream for want in store.all_desired()} == {"shop.views", "other.views"}


def test_prune_stops_the_orphans_that_nothing_reads_and_says_who_reads_the_others(
    paths: ProjectPaths, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shop.clicks", "shop.views", "other.views"):
        store.forget(name)
    for each in (
        reading("shop.old"),
        reading("shop.sums", TableStreamInput(view="v", relation="shop.old")),
        reading("shop.lone"),
    ):
        store.deploy(each.name, each.to_json(), each.hash, verdict="NEW", new_checkpoint=True)
        store.report(each.name, state=StreamState.RUNNING)
    sums = {"resource_type": "model", "schema": "shop", "name": "sums", "config": {"materialized": "dynamic_table"}}
    manifest = {"nodes": {"model.shop.sums": sums}, "sources": {}}
    (paths.project / "target").mkdir()
    (paths.project / "target" / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(dbt, "run", lambda *_args, **_options: (0, ""))
    with project_up(store) as done:
        result = invoke(paths, "run", "--prune", "--output", "json")
    assert result.exit_code == 0, result.output
    assert "Left running, because it is still read by shop.sums: shop.old." in " ".join(result.stderr.split())
    rows = {row["stream"]: row for row in json.loads(result.stdout)["streams"]}
    assert {name: row["status"] for name, row in rows.items()} == {"shop.old": "kept", "shop.lone": "pruned"}
    assert rows["shop.old"]["reasons"][1:] == ["it is still read by shop.sums", "left running"]
    assert done == ["stop shop.lone"]


def test_drop_without_an_engine_leaves_the_stream_as_it_was(paths: ProjectPaths, store: Store) -> None:
    result = invoke(paths, "drop", "clicks", "--yes")
    assert result.exit_code == 4
    assert "PEN-4002" in result.stderr
    assert store.desired("shop.clicks").wanted is Wanted.RUNNING


def test_tables_are_maintained_and_what_was_done_is_shown(
    paths: ProjectPaths, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = invoke(paths, "maintain", "shop.clicks")
    assert (down.exit_code, "PEN-4002" in down.output) == (4, True)
    monkeypatch.setattr("penstock.engine.process.read_endpoint", lambda _paths: object())
    store.acquire("engine", "test", ttl=60)
    end = threading.Event()

    def work() -> None:
        while not end.wait(0.02):
            for command in store.take_commands():
                table = Done(command.stream, command.stream, 12, 1, 2048, 512, 30, 4096, 400, 20, notes=("kept",))
                result = table.as_dict() if command.stream != "other.views" else {}
                store.finish(command.id, ok=command.kind == "maintain", result=result)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        shown = invoke(paths, "maintain")
        told = invoke(paths, "maintain", "clicks", "--output", "json")
    finally:
        end.set()
        thread.join()
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "shop.clicks 12 → 1 2.0 KiB → 512 B 30 files, 4.0 KiB 400 → 20 kept" in lines
    assert not any(line.startswith("other.views") for line in lines), "it has no table yet"
    (table,) = json.loads(told.stdout)["tables"]
    assert (table["table"], table["files_before"], table["files_after"]) == ("shop.clicks", 12, 1)
