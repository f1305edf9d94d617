"""Data tests that streams keep: a dbt project with two of them on a real engine, and Dagster's checks of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm
from dagster import DagsterInstance, build_sensor_context

from penstock.control.streams import drop_stream
from penstock.dagster import penstock_definitions
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

PROJECT = """\
name: live
profile: live
model-paths: [{schema}/models]
test-paths: [{schema}/tests]
flags: {{send_anonymous_usage_stats: false}}
"""
PROFILES = "live: {{target: dev, outputs: {{dev: {{type: penstock, schema: {schema}, kafka: {{embedded: true}}}}}}}}\n"
MODELS = """\
sources:
  - name: shop
    schema: {schema}
    tables:
      - name: prices
        config: {{meta: {{stream: {{topic: {topic}, value: {{format: json}}}}}}}}
        columns: [{{name: item_id, data_type: string}}, {{name: price, data_type: double}}]
models:
  - name: items
    columns:
      - name: item_id
        data_tests:
          - not_null
          - unique: {{name: items_are_unique, config: {{meta: {{live: true}}}}}}
"""
ITEMS = "{{ config(materialized='dynamic_table') }} select item_id, price from {{ source('shop', 'prices') }}"
FREE = "{{ config(meta={'live': true}) }}\nselect item_id, price from {{ ref('items') }} where price = 0"


@pytest.fixture
def audit(platform: Platform, schema: str) -> Iterator[str]:
    """The schema of the tests' tables; their streams are dropped in the end, before what they read."""
    name = f"{schema}_dbt_test__audit"
    yield name
    for want in platform.store.all_desired():
        if want.stream.startswith(f"{name}."):
            drop_stream(platform.store, want.stream)


def test_rows_that_break_a_live_test_are_a_table_and_turn_its_check_red(
    platform: Platform, schema: str, audit: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, name = platform.paths.project, topic()
    files = {
        "dbt_project.yml": PROJECT.format(schema=schema), "profiles.yml": PROFILES.format(schema=schema),
        f"{schema}/models/items.sql": ITEMS, f"{schema}/models/shop.yml": MODELS.format(schema=schema, topic=name),
        f"{schema}/tests/no_free_items.sql": FREE,
    }  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for variable in [each for each in os.environ if each.startswith(("DBT_", "PENSTOCK_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("DBT_TARGET_PATH", str(root / schema / "target"))

    def dbt(*words: str) -> tuple[int, str]:
        command = [warm("dbt"), "--no-use-colors", *words]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    platform.endpoint()
    produce(name, [{"item_id": "a", "price": 1}, {"item_id": "b", "price": 2}])
    code, said = dbt("build")
    assert code == 0, said
    free, unique = f"{audit}.no_free_items", f"{audit}.items_are_unique"
    tests = {want.stream for want in platform.store.all_desired() if want.stream.startswith(audit)}
    assert tests == {free, unique}, "the others are judged when dbt is asked, and not kept"
    for stream in tests:
        platform.state(stream, StreamState.RUNNING)

    definitions = penstock_definitions(root)

    def checks() -> dict[str, bool]:
        context = build_sensor_context(instance=DagsterInstance.ephemeral(), definitions=definitions)
        events = definitions.resolve_sensor_def("penstock_health").evaluate_tick(context).asset_events
        return {
            each.check_name: each.passed
            for each in events
            if getattr(each, "check_name", "") in ("no_free_items", "items_are_unique")
        }

    assert checks() == {"no_free_items": True, "items_are_unique": True}
    produce(name, [{"item_id": "c", "price": 0}, {"item_id": "a", "price": 3}])
    for stream, rows in ((free, [("c", 0.0)]), (unique, [("a", 2)])):
        platform.until(
            lambda stream=stream, rows=rows: platform.sql(f"select * from {stream}") == rows, f"the rows of {stream}",
            90, lambda stream=stream: (platform.sql(f"select * from {stream}"), platform.store.actual(stream)),
        )  # fmt: skip
        platform.until(
            lambda stream=stream: platform.store.violations().get(stream, {}).get("rows", (0,))[0] == 1, "the count"
        )
    assert checks() == {"no_free_items": False, "items_are_unique": False}
    code, said = dbt("test")
    assert code == 1, said
    assert [platform.store.desired(stream).generation for stream in (free, unique)] == [1, 1], "nothing has changed"
