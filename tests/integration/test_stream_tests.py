"""`penstock test`: the demo's tests as people run them, and a project of its own for all that a test can say."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from commands import warm
from fastavro import parse_schema, schemaless_writer

from penstock.engine.topic_files import Record
from penstock.project.lockfile import Lock, LockedPart, LockedType, write_lock
from penstock.registry.client import Registered
from penstock.testing import fixtures
from penstock.testing.fixtures import Recorded

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]

PROJECT = {
    "dbt_project.yml": """\
name: lab
profile: lab
model-paths: [models]
test-paths: [tests/data]
flags: {send_anonymous_usage_stats: false}
models: {lab: {+materialized: dynamic_table}}
""",
    "profiles.yml": "lab: {target: dev, outputs: {dev: {type: penstock, schema: lab, kafka: {embedded: true}}}}\n",
    "models/sources.yml": """\
sources:
  - name: shop
    tables:
      - name: orders
        config:
          meta:
            stream:
              topic: orders
              on_bad_record: quarantine
              watermark: {column: ordered_at, delay: 1 minute}
              security.protocol: SASL_SSL
              sasl.mechanisms: PLAIN
              sasl.username: nobody
              sasl.password: {env_var: NOT_SET_ANYWHERE}
        columns:
          - {name: id, data_type: int}
          - {name: customer, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: amount, data_type: "decimal(10,2)"}
          - {name: ordered_at, data_type: timestamp}
          - {name: city, data_type: string, config: {meta: {stream: {from: value.place.city}}}}
          - {name: channel, data_type: string, config: {meta: {stream: {from: header(channel)}}}}
          - {name: at_offset, data_type: bigint, config: {meta: {stream: {from: offset}}}}
      - name: payments
        config:
          meta:
            stream:
              topic: payments
              value: {format: csv}
              watermark: {column: paid_at, delay: 1 minute}
        columns:
          - {name: order_id, data_type: int}
          - {name: paid_at, data_type: timestamp}
      - name: customers
        config: {meta: {stream: {topic: customers, kind: table, primary_key: name}}}
        columns:
          - {name: name, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: country, data_type: string}
      - name: readings
        config:
          meta:
            stream:
              topic: readings
              value:
                format: avro
                schema: '{"type": "record", "name": "Reading", "fields": [
                  {"name": "sensor", "type": "string"},
                  {"name": "degrees", "type": ["null", "double"], "default": null},
                  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}'
      - name: beats
        config:
          meta:
            stream:
              topic: beats
              value: {format: protobuf, schema: 'syntax = "proto3"; message Beat { string who = 1; int32 rate = 2; }'}
      - name: sensors
        config: {meta: {stream: {topic: sensors, value: {format: avro}}}}
""",
    "models/orders.sql": """\
select o.id, o.customer, o.amount, o.city, o.channel, o.ordered_at, o.at_offset, c.country
from {{ source('shop', 'orders') }} as o
left join {{ source('shop', 'customers') }} as c on o.customer = c.name
""",
    "models/per_minute.sql": """\
{{ config(emit='final') }}
select window.start as minute, count(*) as orders, sum(amount) as total
from {{ source('shop', 'orders') }} group by window(ordered_at, '1 minute')
""",
    "models/paid.sql": """\
select o.id, p.paid_at
from {{ source('shop', 'orders') }} as o
inner join {{ source('shop', 'payments') }} as p
    on o.id = p.order_id and p.paid_at between o.ordered_at and o.ordered_at + interval 1 minute
""",
    "models/best.sql": """\
select id, amount, row_number() over (order by amount desc) as place from {{ source('shop', 'orders') }}
""",
    "models/strict.sql": "{{ config(on_bad_record='fail') }}\nselect id from {{ source('shop', 'orders') }}\n",
    "models/pairs.sql": """\
select a.id, b.order_id from {{ source('shop', 'orders') }} as a
inner join {{ source('shop', 'payments') }} as b on a.id = b.order_id
""",
    "models/warm.sql": "select sensor, degrees, at from {{ source('shop', 'readings') }} where degrees > 20\n",
    "functions/minutes.sql": "{{ var('minutes', 60) }}",
    "functions/per_hour.sql": "rate * {{ function('minutes') }}()",
    "functions/functions.yml": """\
functions:
  - name: minutes
    returns: {data_type: int}
  - name: per_hour
    arguments: [{name: rate, data_type: int}]
    returns: {data_type: int}
""",
    "models/slow.sql": """\
select who, rate, {{ function('per_hour') }}(rate) as beats from {{ source('shop', 'beats') }} where rate < 60
""",
    "models/sensors.sql": "select sensor, degrees from {{ source('shop', 'sensors') }}\n",
    "tests/streams/orders.yml": """\
stream_tests:
  - name: every_part_of_a_message_is_a_column
    model: orders
    steps:
      - input:
          customers:
            - {name: ann, country: Norway}
            - {name: bob, country: DE}
      - input:
          shop.orders:
            - {id: 1, customer: ann, amount: 12.5, city: Oslo, channel: web, ordered_at: "2026-01-01 10:00:00",
               _offset: 41}
            - {_key: bob, _value: '{"id": 2, "amount": "3"}', _headers: {channel: app}}
            - {_key: bob, _value: '{"id": 3, "amount": "much"}'}
            - {_key: ann, _value: nonsense, _timestamp: 2026-01-01 09:00:00}
      - expect:
          - {id: 1, customer: ann, amount: 12.50, city: Oslo, channel: web, ordered_at: 2026-01-01 10:00:00,
             at_offset: 41, country: Norway}
          - {id: 2, customer: bob, amount: 3, city: null, channel: app, at_offset: 42, country: DE}
      - expect_quarantine:
          - {column_at_fault: amount, key: bob}
          - {value: nonsense, timestamp: 2026-01-01 09:00:00}
      - input:
          customers: [{_key: bob, _value: null}]
      - input:
          shop.orders: [{id: 4, customer: bob}]
      - expect:
          orders: {subset: true, rows: [{id: 4, country: null}]}

  - name: a_minute_is_there_when_it_is_over
    model: per_minute
    steps:
      - input:
          shop.orders:
            - {id: 1, amount: 1, ordered_at: 2026-01-01 10:00:10}
            - {id: 2, amount: 2, ordered_at: 2026-01-01 10:00:50}
      - expect: []
      - kill
      - advance_watermark: 2026-01-01T10:01:00Z
      - expect:
          - {minute: 2026-01-01 10:00:00, orders: 2, total: 3}
      - advance_watermark: 2026-01-01 09:00:00
  - name: two_topics_in_one_batch
    model: paid
    steps:
      - input:
          shop.orders:
            - {id: 1, ordered_at: 2026-01-01 10:00:00}
            - {id: 2, ordered_at: 2026-01-01 10:00:00}
          shop.payments:
            - {order_id: 1, paid_at: "2026-01-01 10:01:00"}
            - {order_id: 2, paid_at: "2026-01-01 10:01:01"}
      - expect: [{id: 1}]
      - restart
      - input:
          shop.payments: [{order_id: 2, paid_at: "2026-01-01 10:00:30"}]
      - expect: [{id: 1}, {id: 2}]
  - name: a_full_refresh_over_a_topic
    model: best
    steps:
      - input: {shop.orders: [{id: 1, amount: 1}, {id: 2, amount: 5}]}
      - expect: [{id: 2, place: 1}, {id: 1, place: 2}]
      - input: {shop.orders: [{id: 3, amount: 9}]}
      - expect: [{id: 3, place: 1}, {id: 2, place: 2}, {id: 1, place: 3}]
      - expect_warnings: [every refresh reads]
  - name: a_bad_record_ends_a_strict_stream
    model: strict
    steps:
      - input: {shop.orders: [{_value: nonsense, _partition: 2, _offset: 7}]}
      - expect_error: {code: PEN-4030, contains: "partition 2, offset 7"}
  - name: state_without_end_is_warned_of
    model: pairs
    steps:
      - expect_warnings: [state]
  - name: avro_without_a_registry
    model: warm
    steps:
      - input:
          shop.readings:
            - {sensor: a, degrees: 21.5, at: "2026-01-01 10:00:00"}
            - {sensor: b, degrees: 19.0, at: "2026-01-01 10:00:00"}
            - {sensor: c, at: "2026-01-01 10:00:00"}
      - expect: [{sensor: a, degrees: 21.5, at: 2026-01-01 10:00:00}]
  - name: protobuf_without_a_registry
    model: slow
    steps:
      - input:
          shop.beats: [{who: ann, rate: 55}, {who: bob, rate: 61}, {_value_base64: /////w==}]
      - expect: [{who: ann, rate: 55, beats: 3300}]
  - name: messages_of_a_registry_without_one
    model: sensors
    steps:
      - input: {shop.sensors: [{sensor: a, degrees: 1.5}]}
      - input: {shop.sensors: {fixture: tests/streams/fixtures/sensors.jsonl.gz}}
      - expect: [{sensor: a, degrees: 1.5}, {sensor: recorded, degrees: 2.5}]
  - name: values_have_the_type_of_their_column
    model: strict
    steps:
      - input: {shop.orders: [{id: 1}]}
      - expect: [{id: one}]
  - name: versions
    model: strict
    steps:
      - input: {shop.orders: [{id: 1, amount: 10}]}
      - deploy:
          sql: "{{ config(on_bad_record='fail') }} select id from {{ source('shop', 'orders') }} -- same"
          verdict: NO-OP
      - deploy: {sql: "select id from {{ source('shop', 'orders') }} where id > 2", verdict: RESTART}
      - input: {shop.orders: [{id: 2}, {id: 3}]}
      - expect: [{id: 1}, {id: 3}]
      - deploy: {sql: "select id, amount from {{ source('shop', 'orders') }}", verdict: REBUILD}
      - expect_error: PEN-3005
      - deploy: {sql: "select id, amount from {{ source('shop', 'orders') }}", full_refresh: true}
      - expect: [{id: 1, amount: 10}, {id: 2, amount: null}, {id: 3, amount: null}]
  - name: a_running_table_gets_a_column
    model: strict
    steps:
      - input: {shop.orders: [{id: 1, amount: 10}]}
      - deploy:
          sql: "select id, amount from {{ source('shop', 'orders') }}"
          config: {on_schema_change: append_new_columns}
          verdict: RESTART
      - input: {shop.orders: [{id: 2, amount: 20}]}
      - expect: [{id: 1, amount: null}, {id: 2, amount: 20}]
  - name: this_one_is_wrong
    model: strict
    steps:
      - input: {shop.orders: [{id: 1}, {id: 2}]}
      - expect: [{id: 1}, {id: 3}]
""",
}


def penstock(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
    command = [warm("penstock"), *args]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=380, check=False
    )


def test_the_demo_s_stream_tests_pass(tmp_path: Path) -> None:
    """On a copy of the demo project, with nothing running and nothing left behind."""
    done = penstock(ROOT, "test", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passed"] == len(found["tests"]) >= 8
    assert {name for test in found["tests"] for name in test["models"]} == {
        "clicks_clean", "item_views_per_minute", "co_views", "also_viewed", "recommendations",
    }  # fmt: skip


SENSOR = """{"type": "record", "name": "Sensor", "fields": [
  {"name": "sensor", "type": "string"}, {"name": "degrees", "type": "double"}]}"""


def make_project(project: Path) -> None:
    for name, content in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(content)
    subject = "sensors-value"
    locked = LockedType(
        name="Sensor", subject=subject, fingerprint="sha256:0", columns={"sensor": "STRING", "degrees": "DOUBLE"},
        schema=SENSOR,
    )  # fmt: skip
    write_lock(project, Lock().having("shop.sensors", {"value": LockedPart(format="avro", types=(locked,))}))
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(SENSOR)), {"sensor": "recorded", "degrees": 2.5})
    record = Record("elsewhere", 0, 0, 1000, None, b"\0" + (12).to_bytes(4, "big") + out.getvalue())
    schema = Registered(12, "AVRO", SENSOR, {}, subject, 3)
    recorded = Recorded("shop.sensors", "elsewhere", (record,), {12: schema})
    fixtures.write(recorded, project / "tests" / "streams" / "fixtures" / "sensors.jsonl.gz")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    project = tmp_path_factory.mktemp("lab")
    make_project(project)
    done = penstock(project, "test", "--output", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (project / ".penstock").exists()
    return {test["name"]: test for test in json.loads(done.stdout)["tests"]}


@pytest.mark.parametrize(
    "name",
    [
        "every_part_of_a_message_is_a_column", "two_topics_in_one_batch", "a_full_refresh_over_a_topic",
        "a_bad_record_ends_a_strict_stream", "state_without_end_is_warned_of", "avro_without_a_registry",
        "protobuf_without_a_registry", "messages_of_a_registry_without_one", "versions",
        "a_running_table_gets_a_column",
    ],
)  # fmt: skip
def test_a_test_can_say(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["status"] == "passed", outcomes[name]["failure"]


def test_a_watermark_never_goes_back(outcomes: dict[str, Any]) -> None:
    failure = outcomes["a_minute_is_there_when_it_is_over"]["failure"]
    assert (failure["code"], failure["place"]) == ("PEN-6006", "tests/streams/orders.yml:42")


def test_a_value_that_does_not_fit_is_told_with_its_place(outcomes: dict[str, Any]) -> None:
    failure = outcomes["values_have_the_type_of_their_column"]["failure"]
    assert (failure["code"], failure["message"]) == ("PEN-6003", "column 'id': one is no int.")


def test_a_wrong_row_is_shown_beside_the_one_that_is_there(outcomes: dict[str, Any]) -> None:
    failure = outcomes["this_one_is_wrong"]["failure"]
    assert (failure["step"], failure["what"]) == (2, "expect")
    assert failure["message"] == "rows of strict: 1 missing, 1 unexpected, 1 as expected"
    assert failure["rows"] == [{"kind": "missing", "row": {"id": "3"}}, {"kind": "unexpected", "row": {"id": "2"}}]


def test_a_report_for_ci_names_the_test_that_failed(outcomes: dict[str, Any], tmp_path: Path) -> None:
    from penstock.cli.stream_tests import junit
    from penstock.testing.cases import Case, StreamTest
    from penstock.testing.lab import Failure, Outcome

    test = StreamTest.model_validate({"name": "t", "model": "m", "steps": ["restart"]})
    suite = junit([Outcome(Case(test, "tests/streams/x.yml", 3), 1.5, Failure("rows differ"))])
    assert suite.attrib["failures"] == "1"
    assert "rows differ" in ET.tostring(suite, encoding="unicode")
