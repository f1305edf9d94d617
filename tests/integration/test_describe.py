"""A source on a real broker, without an engine: `dbt source freshness`, `penstock list` and `penstock describe`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.dev.broker import Broker
from penstock.kafka.admin import client_config
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
else:
    MakeTopic = Any

pytestmark = pytest.mark.timeout(300)
HOUR = 3600
SOURCES = """\
sources:
  - name: shop
    config:
      freshness: {{warn_after: {{count: 10, period: minute}}, error_after: {{count: 2, period: hour}}}}
      meta: {{stream: {{value: {{format: json}}}}}}
    tables:
"""
TABLE = """\
      - name: {name}
        config: {{meta: {{stream: {settings}}}}}
        columns:
          - {{name: v, data_type: bigint}}
          - {{name: at, data_type: timestamp, config: {{meta: {{stream: {{from: timestamp}}}}}}}}
"""


@pytest.fixture
def project(tmp_path: Path, broker: Broker) -> Path:
    (tmp_path / "dbt_project.yml").write_text(
        "name: shop\nprofile: shop\nmodel-paths: [sources]\nflags: {send_anonymous_usage_stats: false}\n"
    )
    target = f"{{type: penstock, schema: shop, kafka: {{bootstrap.servers: '{broker.bootstrap}'}}}}"
    (tmp_path / "profiles.yml").write_text(f"shop: {{target: dev, outputs: {{dev: {target}}}}}\n")
    (tmp_path / "sources").mkdir()
    return tmp_path


def declare(project: Path, **tables: str) -> None:
    """Sources by name and settings, as a file of the project."""
    text = SOURCES.format() + "".join(TABLE.format(name=name, settings=text) for name, text in tables.items())
    (project / "sources" / "shop.yml").write_text(text)


def send(broker: Broker, topic: str, partition: int, *ages: float) -> None:
    """Messages that are so many seconds old, in that order."""
    producer = Producer(client_config(broker.bootstrap))
    for age in ages:
        producer.produce(topic, b'{"v": 1}', partition=partition, timestamp=int((time.time() - age) * 1000))
    assert producer.flush(30) == 0


def run(project: Path, program: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PENSTOCK_"))}
    return subprocess.run(
        [warm(program), *args], cwd=project, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def freshness(project: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """dbt's exit code and its results by source."""
    done = run(project, "dbt", "source", "freshness", "--profiles-dir", str(project))
    file = project / "target" / "sources.json"
    assert file.exists(), done.stdout + done.stderr
    results = json.loads(file.read_text())["results"]
    return done.returncode, {result["unique_id"].rpartition(".")[2]: result for result in results}


def describe(project: Path, name: str) -> tuple[int, dict[str, Any]]:
    done = run(project, "penstock", "describe", name, "--output", "json")
    return done.returncode, json.loads(done.stdout)


def test_freshness_is_the_age_of_the_latest_message_and_nothing_is_started(
    project: Path, broker: Broker, topic: MakeTopic
) -> None:
    fresh, stale, old = topic(2, name="fresh"), topic(name="stale"), topic(name="old")
    send(broker, fresh, 0, 30, HOUR * 5)  # the latest is not the last
    send(broker, fresh, 1, HOUR * 9)
    send(broker, stale, 0, HOUR)
    send(broker, old, 0, HOUR * 3)
    declare(
        project,
        fresh=f"{{topic: {fresh}}}",
        one_partition=f"{{topic: {fresh}, partitions: [1]}}",
        pattern=f"{{topic_pattern: '{stale}|{old}'}}",
        stale=f"{{topic: {stale}}}",
        old=f"{{topic: {old}}}",
    )
    code, results = freshness(project)
    assert {name: result["status"] for name, result in results.items()} == {
        "fresh": "pass", "one_partition": "error", "pattern": "warn", "stale": "warn", "old": "error",
    }  # fmt: skip
    assert results["fresh"]["max_loaded_at_time_ago_in_s"] == pytest.approx(30, abs=25)
    assert results["one_partition"]["max_loaded_at_time_ago_in_s"] == pytest.approx(HOUR * 9, abs=60)
    assert code == 1
    assert not ProjectPaths(project).home.exists()  # neither engine nor supervisor nor store


def test_freshness_of_a_topic_that_is_empty_or_missing_says_so(project: Path, topic: MakeTopic) -> None:
    declare(
        project,
        empty=f"{{topic: {topic()}}}",
        missing="{topic: no-such-topic}",
        beyond=f"{{topic: {topic()}, partitions: [4]}}",
        away="{topic: t, bootstrap.servers: '127.0.0.1:1'}",
    )
    done = run(project, "dbt", "source", "freshness", "--profiles-dir", str(project))
    assert done.returncode == 1
    said = done.stdout
    assert "PEN-2009 Topic 'topic-" in said
    assert "has no message that shop.empty reads" in said
    assert "PEN-2002 " in said
    assert "has no topic 'no-such-topic'" in said
    assert "PEN-2007 shop.beyond reads partition 4" in said
    assert "PEN-2001 No Kafka broker answers at 127.0.0.1:1" in said


def test_a_source_is_described_with_what_its_topic_holds(project: Path, broker: Broker, topic: MakeTopic) -> None:
    clicks = topic(2, name="clicks")
    send(broker, clicks, 0, HOUR, HOUR / 2, 20, 10)
    send(broker, clicks, 1, HOUR)
    resource = ConfigResource(ResourceType.TOPIC, clicks)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "10800000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient(client_config(broker.bootstrap))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=30)
    declare(project, clicks=f"{{topic: {clicks}}}")
    now = time.time()
    code, source = describe(project, "clicks")
    assert code == 0, source
    assert (source["name"], source["broker"], source["messages"]) == ("shop.clicks", broker.bootstrap, 5)
    assert source["latest_message_at"] == pytest.approx(now - 10, abs=10)
    assert source["rows_per_s"] == pytest.approx(2 / 60, abs=0.01)
    (described,) = source["topics"]
    assert (described["topic"], described["retention"]) == (clicks, "3 hours")
    offsets = [(part["partition"], part["begin"], part["end"], part["messages"]) for part in described["partitions"]]
    assert offsets == [(0, 0, 4, 4), (1, 0, 1, 1)]
    assert source["last_error"] is None
    page = run(project, "penstock", "describe", "shop.clicks").stdout
    assert "3 hours" in page
    assert "over the last minute" in page


def test_a_source_whose_topic_is_missing_is_described_with_the_error(project: Path) -> None:
    declare(project, gone="{topic: no-such-topic}")
    code, source = describe(project, "gone")
    assert code == 2
    assert source["last_error"]["code"] == "PEN-2002"
    assert [column["origin"] for column in source["columns"]] == ["value.v", "timestamp"]


def test_a_topic_without_messages_is_described_as_empty(project: Path, topic: MakeTopic) -> None:
    declare(project, empty=f"{{topic: {topic()}}}")
    code, source = describe(project, "empty")
    assert code == 0
    assert (source["messages"], source["latest_message_at"], source["rows_per_s"]) == (0, None, 0.0)
    listed = run(project, "penstock", "list", "sources", "-o", "json")
    assert [row["name"] for row in json.loads(listed.stdout)["sources"]] == ["shop.empty"]
