"""A source that is pointed to another Kafka cluster: nothing goes on with the offsets of the old one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.checkpoint.clusters import noted
from penstock.compiler.spec import StreamSpec
from penstock.control.planning import Model
from penstock.control.project_plan import project_plan
from penstock.dev import broker as service
from penstock.dev.broker import Broker
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config, cluster_id, create_topics, end_offsets
from penstock.paths import ProjectPaths
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def second(project_paths: ProjectPaths) -> Iterator[Broker]:
    """Another cluster. It ends after the streams that read it, which would wait a minute for an answer."""
    try:
        yield service.start(project_paths)
    finally:
        service.stop(project_paths)


def at(spec: StreamSpec, bootstrap: str) -> StreamSpec:
    return spec.model_copy(update={"inputs": (spec.inputs[0].model_copy(update={"bootstrap": bootstrap}),)})


def settled(platform: Platform, spec: StreamSpec, values: range) -> None:
    def same() -> bool:
        return sorted(v for (v,) in platform.sql(f"select v from {spec.name}")) == list(values)

    platform.until(same, f"the rows of {spec.name}", 120, lambda: platform.store.actual(spec.name))


def test_a_stream_does_not_go_on_with_the_offsets_of_another_cluster(
    platform: Platform, second: Broker, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a topic of the same name and length on two clusters, and two tables of the one on the first.
    name, here, there = topic(1), platform.bootstrap, second.bootstrap
    produce(name, [{"v": n} for n in range(30)])
    rows = make_spec("rows", name, "select v from input")
    whole = make_spec("whole", name, "select v from input order by v").as_full("It is sorted.")
    for spec in (rows, whole):
        platform.deploy(at(spec, here))
        settled(platform, spec, range(30))
    checkpoint = platform.paths.checkpoint(rows.name, platform.store.desired(rows.name).checkpoint_id)
    (known,) = noted(checkpoint).values()
    assert (known.id, known.address) == (cluster_id(here), here)

    # When its brokers have other names, then both go on.
    renamed = f"{here},{here}"
    for spec in (rows, whole):
        assert platform.deploy(at(spec, renamed)).verdict == "RESTART"
        produce(name, [{"v": 30}] if spec is rows else [])
        settled(platform, spec, range(31))
    platform.until(lambda: [each.address for each in noted(checkpoint).values()] == [renamed], "the new address")

    # When the source names the other cluster, then plan and run say so, and nothing has changed.
    create_topics(there, {name: 1})
    producer = Producer(client_config(there))
    for n in range(100, 131):
        producer.produce(name, json.dumps({"v": n}).encode())
    assert producer.flush(30) == 0
    assert end_offsets(there, name) == end_offsets(here, name)
    moved = at(rows, there)
    (planned,), _ = project_plan(platform.store, platform.paths, platform.settings.kafka, [Model(moved)], project=None)
    assert (planned.verdict, planned.reasons) == (
        "REBUILD",
        (f"{rows.inputs[0].relation} is on another cluster: offsets mean nothing there",),
    )
    with pytest.raises(PenstockError, match=r"PEN-3005 .*another cluster"):
        platform.deploy(moved)
    settled(platform, rows, range(31))

    # When a stream comes to the other cluster all the same, as when brokers are replaced behind their names, then it
    # does not start, and is not tried again and again.
    platform.store.deploy(moved.name, moved.to_json(), moved.hash, verdict="RESTART", new_checkpoint=False)
    ended = platform.state(rows.name, StreamState.QUARANTINED)
    assert (ended.error_code, ended.failures) == ("PEN-2010", 1)
    settled(platform, rows, range(31))
    with pytest.raises(PenstockError, match=r"PEN-3005 .*another cluster"):
        platform.deploy(moved)

    # Then a full refresh reads what the new cluster has; a table that is computed anew anyway needs none.
    assert platform.deploy(at(whole, there)).verdict == "RESTART"
    settled(platform, whole, range(100, 131))
    assert platform.deploy(moved, full_refresh=True).verdict == "REBUILD"
    platform.until(lambda: platform.store.rebuild(rows.name) is None, "the new generation to take over", 120,
                   lambda: (platform.store.rebuild(rows.name), platform.store.actual(rows.name)))  # fmt: skip
    settled(platform, rows, range(100, 131))
    assert platform.state(rows.name, StreamState.RUNNING).error_code != "PEN-2010"

    # And it goes on there.
    producer.produce(name, json.dumps({"v": 131}).encode())
    assert producer.flush(30) == 0
    settled(platform, rows, range(100, 132))
