"""Offsets belong to a Kafka cluster: what is noted of it, when it is asked for again, and what another one means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.checkpoint.clusters import Cluster, note, noted, others, read_from
from penstock.checkpoint.refreshes import Inputs, read_inputs, write_inputs
from penstock.compiler.plan import Verdict
from penstock.compiler.quarantine import quarantine
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.control.clusters import Asked, moved_sources
from penstock.control.deploy import deploy
from penstock.control.planning import Built, Deployed, Model, plan_model
from penstock.control.project_plan import project_plan
from penstock.control.quarantine import deploy_quarantine
from penstock.control.rebuild_cost import CostMeter
from penstock.control.rebuild_driver import RebuildDriver
from penstock.engine import clusters as engine_clusters
from penstock.engine.clusters import Clusters
from penstock.engine.refresh import Plan, Refresh
from penstock.engine.snapshot import Broker
from penstock.errors import PenstockError
from penstock.errors.catalogue import CLUSTER_CHANGED
from penstock.paths import ProjectPaths, beside
from penstock.project.profile import KafkaSettings, RuntimeSettings, save_settings
from penstock.store import Desired, Store, StreamState, Wanted

SOURCE = "shop.clicks"
OLD, NEW = Cluster("one", "a:1"), Cluster("two", "b:1")
IDS = {"a:1": "one", "renamed:1": "one", "b:1": "two"}  # at any other address nobody answers


def spec(bootstrap: str | None = None, **changes: Any) -> StreamSpec:
    columns = (Column(name="k", type="string", origin="value.k"),)
    clicks = KafkaInput(view="input", relation=SOURCE, topic="clicks", bootstrap=bootstrap, columns=columns)
    return StreamSpec(
        name="shop.a", unique_id="model.a", path="models/a.sql", sql="select k from input", stateful=False,
        inputs=(clicks,), output=Output(relation="shop.a", mode=OutputMode.APPEND),
    ).model_copy(update=changes)  # fmt: skip


def begun(checkpoint: Path, **clusters: Cluster) -> Path:
    """A checkpoint from which 7 messages were read."""
    for file, text in (("sources/0/0", '\0v1\n{"clicks":{"0":0}}'), ("offsets/0", 'v1\n{}\n{"clicks":{"0":7}}'),
                       ("commits/0", "v1\n{}")):  # fmt: skip
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text(text)
    if clusters:
        note(checkpoint, {name.replace("_", "."): each for name, each in clusters.items()})
    return checkpoint


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked which cluster they are."""
    found: list[str] = []

    def ask(bootstrap: str, _: Any = None) -> str | None:
        found.append(bootstrap)
        return IDS.get(bootstrap)

    for module in ("penstock.control.clusters", "penstock.engine.clusters"):
        monkeypatch.setattr(f"{module}.cluster_id", ask)
    monkeypatch.delenv("PENSTOCK_KAFKA", raising=False)
    return found


# -- the file ---------------------------------------------------------------------------------------------------------
def test_a_checkpoint_is_of_no_cluster_until_something_was_read(tmp_path: Path) -> None:
    assert read_from(tmp_path) == {}
    note(tmp_path, {SOURCE: OLD})
    assert (noted(tmp_path), read_from(tmp_path)) == ({SOURCE: OLD}, {})
    begun(tmp_path)
    assert read_from(tmp_path) == {SOURCE: OLD}


def test_another_cluster_is_one_with_another_id_not_with_another_address() -> None:
    assert others({SOURCE: OLD}, {SOURCE: NEW}) == [SOURCE]
    assert others({SOURCE: OLD}, {SOURCE: replace(OLD, address="renamed:1")}) == []
    assert others({SOURCE: OLD}, {}) == others({}, {SOURCE: NEW}) == []


# -- the start of a stream --------------------------------------------------------------------------------------------
Start = Callable[..., None]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, asked: list[str], tmp_path: Path) -> Start:
    monkeypatch.setattr(engine_clusters.topic_files, "home", lambda _: None)
    monkeypatch.setattr(engine_clusters.runtime, "broker_of", lambda _, topic: Broker(topic.bootstrap, ()))
    clusters = Clusters()
    return lambda bootstrap, **changes: clusters.check(MagicMock(), spec(bootstrap, **changes), tmp_path)


def test_a_first_start_notes_the_cluster_and_another_one_is_refused(start: Start, tmp_path: Path) -> None:
    start("a:1")
    assert noted(tmp_path) == {SOURCE: OLD}
    begun(tmp_path)
    with pytest.raises(PenstockError, match=r"PEN-2010 .*clicks was read from the Kafka cluster one at a:1.* is two"):
        start("b:1")
    assert noted(tmp_path) == {SOURCE: OLD}, "it can be pointed back"
    start("a:1")


def test_a_stream_that_has_read_nothing_takes_the_cluster_that_is_there(start: Start, tmp_path: Path) -> None:
    start("a:1")
    start("b:1")
    assert noted(tmp_path) == {SOURCE: NEW}


def test_a_checkpoint_of_before_takes_the_cluster_that_is_there(start: Start, tmp_path: Path) -> None:
    begun(tmp_path)
    start("b:1")
    assert read_from(tmp_path) == {SOURCE: NEW}


def test_the_same_cluster_at_another_address_is_noted_there(start: Start, tmp_path: Path) -> None:
    begun(tmp_path, shop_clicks=OLD)
    start("renamed:1")
    assert noted(tmp_path) == {SOURCE: replace(OLD, address="renamed:1")}


def test_a_broker_that_does_not_answer_holds_up_no_start_and_is_spared_for_a_while(
    start: Start, tmp_path: Path, asked: list[str]
) -> None:
    begun(tmp_path, shop_clicks=OLD)
    start("silent:1")
    start("silent:1")
    assert asked == ["silent:1"]
    assert noted(tmp_path) == {SOURCE: OLD}


def test_a_table_that_is_refreshed_in_full_is_not_refused(start: Start, tmp_path: Path, asked: list[str]) -> None:
    begun(tmp_path, shop_clicks=OLD)
    start("b:1", refresh_mode="full", output=Output(relation="shop.a", mode=OutputMode.REPLACE))
    assert asked == []


# -- full refresh -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("now", "known"), [({SOURCE: "two"}, False), ({SOURCE: "one"}, True), ({}, True)], ids=["other", "same", "silent"]
)
def test_a_full_refresh_knows_nothing_of_another_cluster(tmp_path: Path, now: dict[str, str], known: bool) -> None:
    ends = {SOURCE: {"clicks": {0: 7}}}
    write_inputs(tmp_path, 1, Inputs("v1", ends=ends, starts=ends, clusters={SOURCE: "one"}), ())
    writer = MagicMock(error=None)
    writer.newest_batch.return_value = 1
    plan = Plan("shop.a", "v1", MagicMock(), (), (), time_window_ms=60_000, clusters=lambda: now)
    query = Refresh(MagicMock(), plan, writer, tmp_path)
    query._known, query._due = read_inputs(tmp_path, 1), False
    query._look_at_clusters()
    assert (query._known is not None, query._due) == (known, not known)
    assert query._clusters == {SOURCE: "one"} | now, "what a silent broker was before is kept"


def test_inputs_of_before_clusters_were_noted_can_be_read(tmp_path: Path) -> None:
    write_inputs(tmp_path, 1, Inputs("v1"), ())
    file = tmp_path / "offsets" / "1"
    file.write_text(file.read_text().replace('"clusters": {}, ', ""))
    assert "clusters" not in file.read_text()
    assert read_inputs(tmp_path, 1) == Inputs("v1")


# -- plan and deployment ----------------------------------------------------------------------------------------------
@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    return ProjectPaths(tmp_path)


@pytest.fixture
def store(paths: ProjectPaths) -> Store:
    return Store.open(paths.store)


def deployed(store: Store, paths: ProjectPaths, bootstrap: str | None, cluster: Cluster = OLD) -> Desired:
    """A stream that has read from the cluster."""
    of = spec(bootstrap)
    made = store.deploy(of.name, of.to_json(), of.hash, verdict="NEW", new_checkpoint=True)
    begun(paths.checkpoint(made.stream, made.checkpoint_id), shop_clicks=cluster)
    return made


MOVED = (f"{SOURCE} is on another cluster: offsets mean nothing there",)


@pytest.mark.parametrize(
    ("before", "after", "profile", "moved", "asks"),
    [
        ("a:1", "b:1", None, MOVED, ["b:1"]),
        ("a:1", "renamed:1", None, (), ["renamed:1"]),
        ("a:1", "silent:1", None, (), ["silent:1"]),
        (None, None, "a:1", (), []),
        (None, None, "b:1", MOVED, ["b:1"]),
        (None, None, "renamed:1", (), ["renamed:1"]),
        (None, None, None, (), []),  # no address is known
    ],
)
def test_brokers_are_asked_when_the_source_or_their_address_has_changed(
    store: Store,
    paths: ProjectPaths,
    asked: list[str],
    before: str | None,
    after: str | None,
    profile: str | None,
    moved: tuple[str, ...],
    asks: list[str],
) -> None:
    deployed(store, paths, before)
    assert moved_sources(store, paths, spec(after), Asked(), KafkaSettings(bootstrap=profile)) == moved
    assert asked == asks


def test_a_cluster_that_is_another_one_at_the_same_address_is_asked_once_the_stream_failed_of_it(
    store: Store, paths: ProjectPaths, asked: list[str]
) -> None:
    deployed(store, paths, "a:1", Cluster("gone", "a:1"))
    assert moved_sources(store, paths, spec("a:1"), Asked(), KafkaSettings()) == ()
    store.report("shop.a", state=StreamState.QUARANTINED, error_code=CLUSTER_CHANGED.code)
    assert moved_sources(store, paths, spec("a:1"), Asked(), KafkaSettings()) == MOVED


def test_a_table_that_is_refreshed_in_full_is_planned_without_asking(
    store: Store, paths: ProjectPaths, asked: list[str]
) -> None:
    deployed(store, paths, "a:1")
    full = spec("b:1", output=Output(relation="shop.a", mode=OutputMode.REPLACE))
    assert moved_sources(store, paths, full, Asked(), KafkaSettings()) == ()
    assert asked == []


def test_the_plan_and_a_run_say_that_the_profile_names_another_cluster(
    store: Store, paths: ProjectPaths, asked: list[str]
) -> None:
    kafka = KafkaSettings(bootstrap="b:1")
    save_settings(paths, RuntimeSettings(target="dev", schema="shop", kafka=kafka))
    deployed(store, paths, None)
    (planned,), _ = project_plan(store, paths, kafka, [Model(spec())], project=None)
    assert (planned.verdict, planned.reasons) == (Verdict.REBUILD, MOVED)
    with pytest.raises(PenstockError, match=r"PEN-3005 .*is on another cluster: offsets mean nothing there"):
        deploy(store, paths, spec())
    renamed = KafkaSettings(bootstrap="renamed:1")
    (planned,), _ = project_plan(store, paths, renamed, [Model(spec())], project=None)
    assert planned.verdict is Verdict.NO_OP


def test_an_address_is_asked_once_in_a_plan(store: Store, paths: ProjectPaths, asked: list[str]) -> None:
    models = []
    for name in ("shop.a", "shop.b", "shop.c"):
        mine = spec("a:1", name=name)
        made = store.deploy(name, mine.to_json(), mine.hash, verdict="NEW", new_checkpoint=True)
        begun(paths.checkpoint(name, made.checkpoint_id), shop_clicks=OLD)
        models.append(Model(spec("silent:1", name=name)))
    planned, _ = project_plan(store, paths, KafkaSettings(), models, project=None)
    assert len(planned) == 3
    assert asked == ["silent:1"]
    project_plan(store, paths, KafkaSettings(), models, project=None)
    assert asked == ["silent:1", "silent:1"], "by then it may be another one"


def test_a_generation_that_is_being_built_on_the_new_cluster_is_let_alone(
    store: Store, paths: ProjectPaths, asked: list[str]
) -> None:
    deployed(store, paths, None)
    after = spec()
    rebuild = store.begin_rebuild(
        after.name, after.to_json(), after.hash, beside_json=after.to_json(), beside_hash="b", verdict="REBUILD"
    )
    assert rebuild is not None
    kafka = KafkaSettings(bootstrap="b:1")
    begun(paths.checkpoint(beside(after.name), rebuild.checkpoint_id), shop_clicks=NEW)
    assert moved_sources(store, paths, after, Asked(), kafka) == ()

    # And when the brokers change once more, it is begun anew.
    was = Deployed(after.name, 1, after, built=Built(2, after.hash, after))
    assert plan_model(Model(after), was).verdict is Verdict.NO_OP
    back = moved_sources(store, paths, after, Asked(), KafkaSettings(bootstrap="a:1"))
    assert back == MOVED
    assert plan_model(Model(after, moved=back), was).verdict is Verdict.REBUILD


def test_a_new_generation_is_level_whatever_the_offsets_of_the_old_cluster_were(
    store: Store, paths: ProjectPaths
) -> None:
    old = deployed(store, paths, None)
    after = spec()
    rebuild = store.begin_rebuild(
        after.name, after.to_json(), after.hash, beside_json=after.to_json(), beside_hash="b", verdict="REBUILD"
    )
    assert rebuild is not None
    new = begun(paths.checkpoint(after.name, rebuild.checkpoint_id), shop_clicks=OLD)
    (new / "offsets" / "0").write_text('v1\n{}\n{"clicks":{"0":2}}')
    driver = RebuildDriver(paths, store, lambda _: None)
    assert old.checkpoint_id != rebuild.checkpoint_id
    assert driver._settled(rebuild, after, ()) == (False, True)
    note(new, {SOURCE: NEW})
    assert driver._settled(rebuild, after, ()) == (True, True)


def test_of_another_cluster_nobody_knows_what_is_lost(
    paths: ProjectPaths, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Topics:
        def watermarks(self, *_: Any) -> tuple[dict[int, int], dict[int, int]]:
            return {0: 3}, {0: 5}

    monkeypatch.setattr("penstock.control.rebuild_cost.retention", lambda *_: {})
    begun(paths.checkpoint("shop.a", "g1"), shop_clicks=OLD)
    old = Desired("shop.a", 1, "", "", "g1", Wanted.RUNNING, 0.0)

    def cost(bootstrap: str) -> Any:
        return CostMeter(paths, KafkaSettings(), Topics(), Asked()).measure(spec(bootstrap), old)  # type: ignore[arg-type]

    assert (cost("renamed:1").messages, cost("renamed:1").lost) == (2, 3 + 2)
    assert (cost("b:1").messages, cost("b:1").lost) == (2, None)
    assert "another cluster" in cost("b:1").words()


def test_a_quarantine_begins_anew_on_another_cluster_and_keeps_what_it_holds(
    store: Store, paths: ProjectPaths, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_settings(paths, RuntimeSettings(target="dev", schema="shop"))
    for name, answer in (("check_inputs", None), ("run_command", {"changes": []})):
        monkeypatch.setattr(f"penstock.control.quarantine.{name}", lambda *_, answer=answer: answer)

    def deployed_for(bootstrap: str) -> Desired:
        source = spec(bootstrap).inputs[0]
        assert isinstance(source, KafkaInput)
        kept = quarantine(source)
        deploy_quarantine(store, paths, kept, lambda _: None, Asked())
        return store.desired(kept.name)

    first = deployed_for("a:1")
    begun(paths.checkpoint(first.stream, first.checkpoint_id), shop_clicks=OLD)
    assert deployed_for("renamed:1").checkpoint_id == first.checkpoint_id
    assert deployed_for("b:1").checkpoint_id != first.checkpoint_id
