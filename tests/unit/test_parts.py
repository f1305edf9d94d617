"""Brokers that streams need, and whether they answer; lag while nobody measures it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from worlds import NOW, healthy, wanted

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.control import lag_once
from penstock.control.parts import ask_registry, brokers, look, registries
from penstock.control.world import read_world
from penstock.errors import PenstockError
from penstock.errors.catalogue import BROKER_UNREACHABLE, REGISTRY_REFUSED, REGISTRY_UNREACHABLE
from penstock.kafka.security import Reference
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings, SchemaRegistrySettings
from penstock.store import Desired, Store, StreamState


def _spec(name: str, bootstrap: str | None = None) -> StreamSpec:
    column = Column(name="k", type="string", origin="value.k")
    read = KafkaInput(view="input", relation="raw.input", topic="clicks", columns=(column,), bootstrap=bootstrap)
    return StreamSpec(
        name=name, unique_id=f"model.x.{name}", path="m.sql", sql="select k from input", stateful=False, inputs=(read,),
        output=Output(relation=name, mode=OutputMode.APPEND),
    )  # fmt: skip


def _deployed(*streams: tuple[str, str | None]) -> list[Desired]:
    return [wanted(name, spec_json=_spec(name, broker).to_json()) for name, broker in streams]


def test_each_broker_is_asked_once_and_one_that_is_away_says_why(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(bootstrap: str, _options: Any) -> None:
        asked.append(bootstrap)
        if bootstrap == "two:9092":
            raise BROKER_UNREACHABLE.error("No Kafka broker answers at two:9092.")

    deployed = _deployed(("a.x", None), ("a.y", "two:9092"), ("a.z", "two:9092"))
    found = look(brokers(deployed, KafkaSettings(bootstrap="one:9092"), ProjectPaths(tmp_path), ask), now=NOW)
    assert [(each.name, each.ok, each.detail) for each in found] == [
        ("one:9092", True, ""),
        ("two:9092", False, "No Kafka broker answers at two:9092."),
    ]
    assert asked == ["one:9092", "two:9092"]


def test_an_embedded_broker_that_does_not_run_is_known_without_asking(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    paths.kafka.mkdir(parents=True)
    found = look(brokers([], KafkaSettings(embedded=True), paths, lambda *_: pytest.fail("nobody to ask")), now=NOW)
    assert [(each.name, each.ok, each.detail) for each in found] == [
        ("embedded", False, "The embedded broker is not running.")
    ]


def test_a_project_without_a_broker_has_none(tmp_path: Path) -> None:
    assert look(brokers([], KafkaSettings(), ProjectPaths(tmp_path), lambda *_: None)) == []


def test_each_registry_is_asked_once_and_a_wrong_password_is_told_without_it(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(url: str, options: Any) -> None:
        asked.append(url)
        if dict(options):
            raise REGISTRY_REFUSED.error(f"The schema registry at {url} answers 401.")

    own = (("basic.auth.user.info", Reference(env_var="SECRET")), ("url", "http://two:8081"))
    spec = _spec("a.x")
    read = spec.inputs[0].model_copy(update={"registry": own})
    deployed = [wanted("a.x", spec_json=spec.model_copy(update={"inputs": (read, read)}).to_json())]
    profile = SchemaRegistrySettings(options={"url": "http://one:8081"})
    found = look(registries(deployed, profile, ProjectPaths(tmp_path), ask), now=NOW)
    assert [(each.kind, each.name, each.ok, each.detail) for each in found] == [
        ("registry", "http://one:8081", True, ""),
        ("registry", "http://two:8081", False, "The schema registry at http://two:8081 answers 401."),
    ]
    assert asked == ["http://one:8081", "http://two:8081"]


def test_an_embedded_registry_that_does_not_run_is_known_without_asking(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    (paths.registry / "data").mkdir(parents=True)
    profile = SchemaRegistrySettings(embedded=True)
    found = look(registries([], profile, paths, lambda *_: pytest.fail("nobody to ask")), now=NOW)
    assert [(each.kind, each.ok, each.detail) for each in found] == [
        ("registry", False, "The embedded schema registry is not running.")
    ]


def test_a_project_without_a_registry_has_none(tmp_path: Path) -> None:
    assert look(registries([], SchemaRegistrySettings(), ProjectPaths(tmp_path), lambda *_: None)) == []


def test_a_registry_that_nobody_serves_is_unreachable_within_seconds() -> None:
    with pytest.raises(PenstockError) as caught:
        ask_registry("http://127.0.0.1:9", ())
    assert caught.value.kind is REGISTRY_UNREACHABLE


class Topics:
    """A broker with 30 messages in one partition."""

    def __init__(self, *_: Any, slow: float = 0.0, **__: Any) -> None:
        self.slow = slow
        self.asked = 0

    def watermarks(self, *_: Any) -> tuple[dict[int, int], dict[int, int]]:
        self.asked += 1
        time.sleep(self.slow)
        return {0: 0}, {0: 30}

    def time_of(self, *_: Any) -> float:
        return time.time() - 50

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(lag_once, "_meters", {})
    return Store.open(ProjectPaths(tmp_path).store)


def _deploy(store: Store, *names: str) -> None:
    for name in names:
        spec = _spec(name, "one:9092")
        store.deploy(name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
        offsets = {"raw.input": json.dumps({"clicks": {"0": 10}})}
        store.report(name, state=StreamState.FAILED, generation=1, offsets=offsets)


def test_the_lag_of_a_dead_stream_is_measured_when_nobody_else_does(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_once, "TopicWatch", Topics)
    _deploy(store, "a.x")
    assert lag_once.measure_stale(ProjectPaths(tmp_path), store, read_world(store), KafkaSettings()) == 1
    found = store.actual("a.x")
    assert found.lag_rows == 20
    assert found.lag_seconds == pytest.approx(50, abs=5)
    # and what was measured just now is left alone
    assert lag_once.measure_stale(ProjectPaths(tmp_path), store, read_world(store), KafkaSettings()) == 0


def test_a_look_ends_within_its_budget_and_the_next_one_goes_on(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_once, "TopicWatch", lambda **_: Topics(slow=0.05))
    names = [f"a.t{n:02d}" for n in range(10)]
    _deploy(store, *names)
    paths = ProjectPaths(tmp_path)
    first = lag_once.measure_stale(paths, store, read_world(store), KafkaSettings(), budget=0.2)
    assert 0 < first < len(names)
    lag_once.measure_stale(paths, store, read_world(store), KafkaSettings(), budget=5)
    assert all(store.actual(name).lag_rows == 20 for name in names)


def test_a_world_without_streams_asks_nobody(tmp_path: Path, store: Store) -> None:
    world = healthy()
    assert lag_once.measure_stale(ProjectPaths(tmp_path), store, world, KafkaSettings()) == 0
