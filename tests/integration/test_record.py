"""`penstock record` and `penstock replay --file`: a slice of a topic, there and back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import warm
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer

from penstock.compiler.spec import Column, KafkaInput, MessageType, Schema
from penstock.control.inputs import Access
from penstock.dev.broker import Broker
from penstock.dev.registry import RegistryService
from penstock.kafka import slices
from penstock.kafka.admin import client_config
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings, RuntimeSettings, SchemaRegistrySettings
from penstock.registry.register import Registrar
from penstock.testing import fixtures, recording

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
else:
    MakeTopic = Any

SOURCES = """\
sources:
  - name: src
    tables:
      - name: orders
        config: {meta: {stream: {topic: TOPIC}}}
        columns:
          - {name: id, data_type: int}
          - {name: email, data_type: string, config: {meta: {stream: {from: value.user.email}}}}
          - {name: customer, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: trace, data_type: string, config: {meta: {stream: {from: header(trace)}}}}
"""
BEGIN = int(time.time()) * 1000 - 3_600_000  # a broker soon deletes what is older than its retention
MESSAGES = [  # partition, time, key, value
    (0, BEGIN, b"ann", b'{"id":1,"user":{"email":"ann@example.org"}}'),
    (1, BEGIN + 1000, b"bob", b'{"id":2,"user":{"email":"bob@example.org"}}'),
    (0, BEGIN + 2000, b"ann", b"ann@example.org, not JSON"),
    (1, BEGIN + 3000, b"bob", None),
    (0, BEGIN + 60_000, b"late", b'{"id":9}'),
]


def penstock(project: Path, bootstrap: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
    command = [warm("penstock"), *args]
    return subprocess.run(
        command, cwd=project, env=environment | {"PENSTOCK_KAFKA": bootstrap}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def read(bootstrap: str, topic: str, partitions: int) -> list[slices.Message]:
    return slices.read(bootstrap, {topic: range(partitions)}, {}, begin=None, end=None, limit=100)


def test_a_slice_is_recorded_masked_and_written_into_another_topic(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    producer = Producer(client_config(broker.bootstrap))
    headers = [("trace", b"t"), ("kind", b"k")]
    for partition, at, key, value in MESSAGES:
        producer.produce(name, partition=partition, timestamp=at, key=key, value=value, headers=headers)
    assert producer.flush(30) == 0
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sources.yml").write_text(SOURCES.replace("TOPIC", name))
    (tmp_path / "dbt_project.yml").write_text("name: rec\nprofile: rec\nflags: {send_anonymous_usage_stats: false}\n")
    (tmp_path / "profiles.yml").write_text(
        "rec: {target: dev, outputs: {dev: {type: penstock, schema: rec, kafka: {embedded: true}}}}\n"
    )
    masks = [word for column in ("email", "customer", "trace") for word in ("--mask", column)]
    begin, end = (datetime.fromtimestamp(each / 1000, timezone.utc).isoformat() for each in (BEGIN, BEGIN + 30_000))
    done = penstock(
        tmp_path, broker.bootstrap, "record", "orders", "--from", begin, "--to", end, *masks, "--output", "json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["messages"], told["file"]) == (4, "tests/streams/fixtures/src.orders.jsonl.gz")

    recorded = fixtures.read(tmp_path / told["file"])
    assert [(each.partition, each.offset, each.timestamp) for each in recorded.records] == [
        (0, 0, BEGIN), (1, 0, BEGIN + 1000), (0, 1, BEGIN + 2000), (1, 1, BEGIN + 3000),
    ]  # fmt: skip
    assert [json.loads(each.value or b"{}").get("id") for each in recorded.records[:2]] == [1, 2]
    assert recorded.records[3].value is None
    assert dict(recorded.records[0].headers)["kind"] == b"k"
    content = json.dumps([[str(each.key), str(each.value), str(each.headers)] for each in recorded.records])
    assert not any(secret in content for secret in ("ann", "bob", "example.org"))
    assert recorded.records[0].key == recorded.records[2].key  # equal keys stay equal

    other = f"{name}-copy"
    missing = penstock(tmp_path, broker.bootstrap, "replay", "--file", told["file"], "--topic", other)
    assert missing.returncode != 0
    assert "--create" in missing.stderr
    done = penstock(tmp_path, broker.bootstrap, "replay", "--file", told["file"], "--topic", other, "--create")
    assert done.returncode == 0, done.stderr
    back = [replace(each, topic=name) for each in read(broker.bootstrap, other, 2)]
    wanted = [slices.Message(name, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
              for r in recorded.records]  # fmt: skip
    assert back == wanted

    nothing = penstock(tmp_path, broker.bootstrap, "record", "src.orders", "--from", "2020-01-01", "--to", "2021-01-01")
    assert (nothing.returncode, "PEN-6012" in nothing.stderr) == (2, True)


def test_messages_of_a_registry_take_their_schemas_with_them(
    broker: Broker, registry: RegistryService, topic: MakeTopic, tmp_path: Path
) -> None:
    name, copy = topic(1), topic(1)
    content = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    place = Registrar(registry.url, {})
    number = place.register(f"{name}-value", content, "AVRO")
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(content)), {"id": 7})
    message = b"\0" + number.to_bytes(4, "big") + out.getvalue()
    producer = Producer(client_config(broker.bootstrap))
    producer.produce(name, value=message)
    assert producer.flush(30) == 0

    source = KafkaInput(
        view="v", relation="src.orders", topic=name, value_format="avro",
        columns=(Column(name="id", type="BIGINT", origin="value.id", read_as="BIGINT"),),
        value_schema=Schema(subjects=(f"{name}-value",), types=(MessageType(name="Order", content=content),)),
    )  # fmt: skip
    settings = RuntimeSettings(
        target="dev", schema="x", kafka=KafkaSettings(bootstrap=broker.bootstrap),
        schema_registry=SchemaRegistrySettings(options={"url": registry.url}),
    )  # fmt: skip
    recorded = recording.record(source, settings, ProjectPaths(tmp_path), begin=None, end=None, limit=10)
    found = recorded.schemas[number]
    assert (found.subject, json.loads(found.text)["name"]) == (f"{name}-value", "Order")

    # As if it had been recorded at another registry: there the same schema had another number.
    foreign = 4711
    moved = replace(
        recorded,
        schemas={foreign: replace(found, id=foreign)},
        records=tuple(replace(r, value=b"\0" + foreign.to_bytes(4, "big") + (r.value or b"")[5:])
                      for r in recorded.records),
    )  # fmt: skip
    assert recording.replay(moved, copy, Access(broker.bootstrap, {}), place) == 1
    assert [each.value for each in read(broker.bootstrap, copy, 1)] == [message]
