"""What a job is told about its broker at run time; the session is a stand-in that has settings alone. And in which mode
its query runs, and what becomes of rows that are dropped."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine import runtime
from penstock.engine.changed_rows import Follow
from penstock.errors import PenstockError
from penstock.project.expectations import Expectation

PROFILE = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanisms": "PLAIN",
    "kafka.sasl.username": "u",
    "kafka.sasl.password": {"env_var": "PROFILE_PASSWORD"},
    "kafka.client.id": "p",
}


def session(project: Path, **conf: str) -> Any:
    values = {runtime.PROJECT_CONF: str(project), runtime.BOOTSTRAP_CONF: "profile:1"} | conf
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default=None: values.get(name, default)))


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("PENSTOCK_KAFKA", raising=False)
    monkeypatch.setenv("PROFILE_PASSWORD", "from-the-profile")
    (tmp_path / "own").write_text("from-a-file\n")
    return session(tmp_path, **{runtime.KAFKA_CONF: json.dumps(PROFILE)})


def test_the_profiles_broker_comes_with_its_credentials(spark: Any) -> None:
    options = runtime.kafka_options(spark, None)
    assert options["kafka.bootstrap.servers"] == "profile:1"
    assert options["kafka.client.id"] == "p"
    assert 'password="from-the-profile"' in options["kafka.sasl.jaas.config"]


def test_another_broker_never_sees_the_profiles_credentials(spark: Any) -> None:
    assert runtime.kafka_options(spark, "other:2") == {"kafka.bootstrap.servers": "other:2"}


def test_a_source_may_log_in_by_itself_with_a_secret_in_a_file_of_the_project(spark: Any) -> None:
    own: dict[str, Any] = PROFILE | {"kafka.sasl.password": {"file": "own"}}
    assert 'password="from-a-file"' in runtime.kafka_options(spark, "other:2", own)["kafka.sasl.jaas.config"]


def test_a_variable_that_the_engine_does_not_have_is_named(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROFILE_PASSWORD")
    with pytest.raises(PenstockError, match=r"PEN-2005 .*PROFILE_PASSWORD, which is not set"):
        runtime.kafka_options(spark, None)


def test_without_a_profile_there_is_just_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_KAFKA", raising=False)
    assert runtime.kafka_options(session(tmp_path), None) == {"kafka.bootstrap.servers": "profile:1"}


@pytest.mark.parametrize(
    ("mode", "joined", "expected"),
    [("append", False, "append"), ("upsert", False, "update"), ("upsert", True, "append")],
)
def test_only_rows_that_change_are_given_in_update_mode(mode: str, joined: bool, expected: str) -> None:
    assert stream(mode=mode, stateful=True, joined=joined).output_mode == expected


@pytest.mark.parametrize(
    ("settings", "deletes"),
    [
        ({"mode": "upsert", "stateful": True}, True),
        ({"mode": "upsert", "follow": Follow(lambda rows: rows, ("k",))}, True),
        ({"mode": "upsert"}, False),
        ({"mode": "upsert", "stateful": True, "joined": True}, False),
        ({"mode": "append", "stateful": True}, False),
    ],
    ids=["an aggregate", "changes", "a plain SELECT with a unique_key", "a join of two with a unique_key", "windows"],
)
def test_a_row_that_is_dropped_takes_the_row_before_along_only_where_rows_change(
    settings: dict[str, Any], deletes: bool
) -> None:
    judge = stream(**settings, expectations=(Expectation(name="v > 0", expect="v > 0", on_violation="drop"),)).judge
    assert judge is not None
    assert judge.deletes is deletes


def stream(**settings: Any) -> runtime.Stream:
    made: dict[str, Any] = {
        "name": "shop.m", "build": lambda spark: spark, "table": "shop.m", "keys": ("k",), "time_window_ms": 1,
        "continuous": True, "shuffle_partitions": 1, "small_batch_rows": 1, "stateful": False,
    }  # fmt: skip
    return runtime.Stream(**made | settings)
