"""`dbt source freshness`, as far as it goes without a broker."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from dbt.adapters.base import BaseRelation
from dbt.adapters.capability import Capability
from source_files import entries, table

from dbt.adapters.penstock.freshness import freshness, source_of
from dbt.adapters.penstock.impl import PenstockAdapter
from penstock.control import inputs
from penstock.errors import PenstockError
from penstock.kafka import topics
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings
from penstock.project.source import read_source

KAFKA = KafkaSettings(bootstrap="127.0.0.1:1")
PLAIN = "sources: [{name: shop, tables: [{name: clicks}]}]\n"


@dataclass(frozen=True)
class Node:
    """A source as dbt's manifest holds it."""

    entry: dict[str, Any]

    def to_dict(self, omit_none: bool = True) -> dict[str, Any]:
        return self.entry


def entry(tmp_path: Path, text: str = table("{topic: clicks}")) -> dict[str, Any]:
    return entries(text, tmp_path)[0]


def test_dbt_asks_for_the_freshness_of_sources_without_a_column() -> None:
    assert PenstockAdapter.supports(Capability.TableLastModifiedMetadata)
    assert not PenstockAdapter.supports(Capability.TableLastModifiedMetadataBatch)


def test_a_source_is_found_by_its_relation(tmp_path: Path) -> None:
    clicks = entry(tmp_path)
    sources = {"a": Node({**clicks, "identifier": "others"}), "b": Node(clicks)}
    assert source_of(BaseRelation.create(schema="shop", identifier="clicks"), sources) == clicks
    with pytest.raises(PenstockError, match=r"shop\.nothing is no source"):
        source_of(BaseRelation.create(schema="shop", identifier="nothing"), sources)


def test_a_source_that_is_no_stream_needs_a_column(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"shop\.clicks is no stream.* 'loaded_at_field'"):
        freshness(entry(tmp_path, PLAIN), KAFKA, tmp_path)


def test_a_broker_that_is_down_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"PEN-2001 No Kafka broker answers at 127\.0\.0\.1:1"):
        freshness(entry(tmp_path), KAFKA, tmp_path)


def test_an_embedded_broker_that_was_never_started_is_no_fault_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_KAFKA", raising=False)
    with pytest.raises(PenstockError, match=r"PEN-2001 The embedded broker was never started. 'penstock up'"):
        freshness(entry(tmp_path), KafkaSettings(embedded=True), tmp_path)
    with pytest.raises(PenstockError, match="PEN-2004"):
        freshness(entry(tmp_path), KafkaSettings(), tmp_path)


def test_the_age_is_that_of_the_latest_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = time.time() - 90
    monkeypatch.setattr(inputs, "latest_message_at", lambda *_: sent)
    _, answer = freshness(entry(tmp_path), KAFKA, tmp_path)
    assert answer["max_loaded_at"] == datetime.fromtimestamp(sent, timezone.utc)
    assert answer["age"] == pytest.approx(90, abs=5)
    assert answer["snapshotted_at"].tzinfo is not None


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ("{topic: clicks}", {"clicks": (0, 1, 2)}),
        ("{topic: clicks, partitions: [2]}", {"clicks": (2,)}),
        ("{topic_pattern: 'clicks_.*'}", {"clicks_a": (0,), "clicks_b": (0, 1)}),
    ],
)
def test_only_what_the_source_reads_is_asked_for(
    settings: str, read: dict[str, tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"clicks": 3, "clicks_a": 1, "clicks_b": 2, "__own": 1}
    monkeypatch.setattr(inputs, "topics", lambda *_: known)
    monkeypatch.setattr(inputs, "check_topic", lambda _bootstrap, topic, _options: known[topic])
    asked: list[Any] = []
    monkeypatch.setattr(topics, "latest_at", lambda _bootstrap, read, _options: asked.append(read))
    source = read_source(entry(tmp_path, table(settings)), tmp_path)
    with pytest.raises(PenstockError, match=r"PEN-2009 .* shop\.clicks reads"):
        inputs.latest_message_at(source, KAFKA, ProjectPaths(tmp_path))
    assert asked == [read]
