"""The embedded broker and what is asked of it, with the real Kafka."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import processes
from penstock.dev import broker as service
from penstock.dev.broker import Broker
from penstock.dev.generator import run
from penstock.errors import PenstockError
from penstock.kafka.admin import (
    begin_offsets,
    check_topic,
    client_config,
    create_topics,
    end_offsets,
    resolve_bootstrap,
    timestamp_at,
    topics,
)
from penstock.paths import ProjectPaths

MakeTopic = Callable[..., str]
Produce = Callable[..., int]

START = """
import sys; from pathlib import Path
from penstock.dev import broker; from penstock.paths import ProjectPaths
found = broker.start(ProjectPaths(Path(sys.argv[1]))); print(found.pid, found.port)
"""


@pytest.fixture
def own(project_paths: ProjectPaths) -> Iterator[ProjectPaths]:
    """A project whose broker the test starts, kills and stops as it likes."""
    yield project_paths
    service.stop(project_paths)


def messages(bootstrap: str, topic: str, partition: int = 0) -> list[Any]:
    """Everything a partition holds."""
    end = end_offsets(bootstrap, topic)[partition]
    consumer = Consumer(client_config(bootstrap) | {"group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, begin_offsets(bootstrap, topic)[partition])])
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while len(found) < end and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


# -- start and stop ---------------------------------------------------------------------------------------------------
def test_starting_twice_is_one_broker(broker: Broker, broker_paths: ProjectPaths) -> None:
    running = service.status(broker_paths)  # the run's own; a test of outages may have started it again
    assert running is not None
    assert running.bootstrap == broker.bootstrap
    assert service.start(broker_paths) == running
    assert service.status(broker_paths) == running
    assert service.healthy(running)


def test_the_state_file_says_who_runs_and_where(broker: Broker, broker_paths: ProjectPaths) -> None:
    state = json.loads((broker_paths.kafka / "broker.json").read_text())
    assert state["bootstrap"] == f"127.0.0.1:{broker.port}" == broker.bootstrap
    assert processes.alive(state["pid"], state["started_at"])
    assert resolve_bootstrap(None, None, broker_paths) == broker.bootstrap


def test_two_processes_that_start_at_once_get_the_same_broker(own: ProjectPaths) -> None:
    command = [sys.executable, "-c", START, str(own.project)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate(timeout=90)[0] for process in running}
    assert len(answers) == 1
    found = service.status(own)
    assert found is not None
    assert answers == {f"{found.pid} {found.port}\n"}


def test_data_and_port_survive_stop_start_and_a_kill(own: ProjectPaths) -> None:
    first = service.start(own)
    create_topics(first.bootstrap, {"kept": 1})
    assert run(first.bootstrap, "kept", rate=None, seed=1, count=500) == 500
    assert service.stop(own) is True
    assert service.status(own) is None
    assert not processes.alive(first.pid, first.started_at)

    second = service.start(own)
    assert second.port == first.port
    assert second.pid != first.pid
    assert end_offsets(second.bootstrap, "kept") == {0: 500}
    run(second.bootstrap, "kept", rate=None, seed=2, count=100)

    os.kill(second.pid, signal.SIGKILL)
    third = service.start(own)
    assert third.port == first.port
    assert end_offsets(third.bootstrap, "kept") == {0: 600}
    assert len(messages(third.bootstrap, "kept")) == 600


def test_a_broker_whose_state_file_was_lost_is_found_again(own: ProjectPaths) -> None:
    first = service.start(own)
    (own.kafka / "broker.json").unlink()
    assert service.start(own).pid == first.pid
    (own.kafka / "broker.json").unlink()
    assert service.stop(own) is True
    assert not processes.alive(first.pid, first.started_at)


def test_stopping_what_does_not_run_says_so(project_paths: ProjectPaths) -> None:
    assert service.stop(project_paths) is False


def test_a_fixed_port_that_somebody_else_holds_is_an_error(own: ProjectPaths) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PenstockError, match=rf"PEN-1005 Port {port} "):
            service.start(own, port=port)
    assert service.status(own) is None
    assert service.start(own, port=port).port == port, "the port is free now, and the fixed one is used"


def test_asking_for_another_fixed_port_moves_the_broker_there_with_its_data(own: ProjectPaths) -> None:
    first = service.start(own)
    create_topics(first.bootstrap, {"kept": 1})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        wanted = probe.getsockname()[1]
    second = service.start(own, port=wanted)
    assert second.port == wanted
    assert topics(second.bootstrap)["kept"] == 1
    assert not processes.alive(first.pid, first.started_at)


def test_a_broker_that_cannot_start_is_an_error_that_names_its_log(own: ProjectPaths) -> None:
    service.start(own)
    service.stop(own)
    (own.kafka / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    with pytest.raises(PenstockError, match=r"PEN-1101 The embedded broker ended.*kafka\.log"):
        service.start(own, timeout=40)
    assert service.status(own) is None


# -- questions --------------------------------------------------------------------------------------------------------
def test_a_topic_is_created_once_and_never_by_asking_for_it(broker: Broker, topic: MakeTopic) -> None:
    name = topic(3)
    assert check_topic(broker.bootstrap, name) == 3
    assert create_topics(broker.bootstrap, {name: 3}) == []
    with pytest.raises(PenstockError, match=r"PEN-2002 .*no topic 'never-made'"):
        check_topic(broker.bootstrap, "never-made")
    assert "never-made" not in topics(broker.bootstrap)


def test_an_address_where_nobody_listens_is_unreachable_at_once() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # bound, not listening: every connection is refused
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        began = time.monotonic()
        for ask in (topics, lambda b: end_offsets(b, "t"), lambda b: create_topics(b, {"t": 1})):
            with pytest.raises(PenstockError, match=f"PEN-2001 No Kafka broker answers at {address}"):
                ask(address)
        assert time.monotonic() - began < 5


def test_something_that_listens_but_is_no_broker_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kafka.admin.TIMEOUT", 1.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(PenstockError, match="PEN-2001"):
            topics(f"127.0.0.1:{mute.getsockname()[1]}")


@pytest.mark.parametrize("address", ["localhost", "no-such-host.invalid:9092", ":9092", "host:port"])
def test_an_address_that_is_none_is_unreachable(address: str) -> None:
    with pytest.raises(PenstockError, match="PEN-2001"):
        topics(address)


def test_offsets_are_those_of_each_partition(broker: Broker, topic: MakeTopic, produce: Produce) -> None:
    name = topic(2)
    assert end_offsets(broker.bootstrap, name) == {0: 0, 1: 0}
    produce(name, [{"n": n} for n in range(5)], partition=1)
    assert end_offsets(broker.bootstrap, name) == {0: 0, 1: 5}
    assert begin_offsets(broker.bootstrap, name) == {0: 0, 1: 0}


def test_the_time_of_a_message_is_found_by_its_offset(broker: Broker, topic: MakeTopic, produce: Produce) -> None:
    name = topic(1)
    before = time.time()
    produce(name, [{"n": 0}])
    between = time.time()
    produce(name, [{"n": 1}])
    after = time.time()
    first = timestamp_at(broker.bootstrap, name, 0, 0)
    second = timestamp_at(broker.bootstrap, name, 0, 1)
    assert first is not None
    assert second is not None
    assert before - 0.001 <= first <= between <= second + 0.001 <= after + 0.002
    assert timestamp_at(broker.bootstrap, name, 0, 2) is None


def test_an_address_is_looked_for_in_the_source_the_environment_the_profile_and_the_broker_file(
    monkeypatch: pytest.MonkeyPatch, project_paths: ProjectPaths
) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA", "env:1")
    assert resolve_bootstrap("source:1", "profile:1", project_paths) == "source:1"
    assert resolve_bootstrap(None, "profile:1", project_paths) == "env:1"
    monkeypatch.delenv("PENSTOCK_KAFKA")
    assert resolve_bootstrap(None, "profile:1", project_paths) == "profile:1"
    with pytest.raises(PenstockError, match="PEN-2004"):
        resolve_bootstrap(None, None, project_paths)
    project_paths.kafka.mkdir(parents=True)
    with pytest.raises(PenstockError, match=r"PEN-2001 The embedded broker is not running"):
        resolve_bootstrap(None, None, project_paths)


# -- the generator ----------------------------------------------------------------------------------------------------
def test_the_generator_delivers_what_it_counts_with_key_and_header(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    assert run(broker.bootstrap, name, rate=None, seed=5, count=300, start_time=1_767_225_600.0) == 300
    found = messages(broker.bootstrap, name)
    assert len(found) == 300
    row = json.loads(found[0].value())
    assert found[0].key() == row["user_id"].encode()
    assert [header for header, _ in found[0].headers()] == ["trace_id"]


def test_a_seed_and_a_start_time_give_the_same_topic_again(broker: Broker, topic: MakeTopic) -> None:
    names = [topic(1), topic(1)]
    for name in names:
        run(broker.bootstrap, name, rate=None, seed=9, count=200, start_time=1_767_225_600.0)
    first, second = ([message.value() for message in messages(broker.bootstrap, name)] for name in names)
    assert first == second


def test_the_rate_holds_and_stop_ends_the_run(broker: Broker, topic: MakeTopic) -> None:
    name, stop = topic(1), threading.Event()
    began = time.monotonic()
    assert run(broker.bootstrap, name, rate=200, seed=1, count=400, stop=stop) == 400
    assert 1.9 < time.monotonic() - began < 4.0

    timer = threading.Timer(0.5, stop.set)
    timer.start()
    sent = run(broker.bootstrap, name, rate=50, seed=1, stop=stop)
    timer.join()
    assert 0 < sent < 100
    assert end_offsets(broker.bootstrap, name) == {0: 400 + sent}


def test_the_generator_refuses_a_topic_that_does_not_exist(broker: Broker) -> None:
    with pytest.raises(PenstockError, match="PEN-2002"):
        run(broker.bootstrap, "never-made", rate=None, seed=1, count=1)


def test_a_broker_that_dies_under_the_generator_is_an_error(own: ProjectPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dev.generator._DELIVERY_TIMEOUT_MS", 2000)
    victim = service.start(own)
    create_topics(victim.bootstrap, {"clicks": 1})
    timer = threading.Timer(0.5, os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(PenstockError, match=r"PEN-2001 Clicks could not be delivered"):
        run(victim.bootstrap, "clicks", rate=500, seed=1)
    timer.join()
