"""`state:modified` of dbt notices what a stream is made of: topic, format, columns, pinned schemas. No engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dbt.adapters.factory import reset_adapters
from dbt.cli.main import dbtRunner

# name of a table -> what is changed of its YAML; each table is alike before
CHANGES = {
    "topic": ("topic: t", "topic: t2"),
    "format": ("format: json", "format: csv"),
    "column_type": ("item_id, data_type: string", "item_id, data_type: bigint"),
    "column_name": ("name: item_id", "name: item"),
    "column_origin": ("from: key", "from: value.user"),
    "description": ("Clicks", "The clicks"),
    "column_description": ("The item", "Another word for it"),
    "nothing": ("", ""),
    "pinned": ("", ""),
}
TABLE = """\
      - name: {name}
        description: Clicks
        config: {{meta: {{stream: {{topic: t, value: {{format: json}}}}}}}}
        columns:
          - {{name: user_id, data_type: string, config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: item_id, data_type: string, description: The item}}
"""
HEAD = "sources:\n  - name: shop\n    tables:\n"
ABOVE = "  - name: web\n    config: {{meta: {{stream: {{on_bad_record: {what}}}}}}}\n    tables:\n"
LOCK = """\
version: 1
sources:
  shop.pinned:
    value: {format: avro, types: [{fingerprint: abc, columns: {item_id: STRING}, schema: '{}'}]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DBT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text("name: st\nprofile: st\nflags: {send_anonymous_usage_stats: false}\n")
    (tmp_path / "profiles.yml").write_text("st: {target: d, outputs: {d: {type: penstock, schema: st}}}\n")
    (tmp_path / "models" / "of_column_type.sql").write_text(
        "{{ config(materialized='dynamic_table') }} select * from {{ source('shop', 'column_type') }}"
    )
    return tmp_path


def dbt(*args: str) -> list[str]:
    ended = dbtRunner().invoke([*args, "--profiles-dir", ".", "--quiet"])
    reset_adapters()
    assert ended.success, ended.exception
    return [str(each) for each in ended.result] if isinstance(ended.result, list) else []


def test_a_source_is_modified_by_what_its_stream_is_made_of_and_by_nothing_else(project: Path) -> None:
    file = project / "models" / "source.yml"
    tables = {name: TABLE.format(name=name) for name in CHANGES}
    file.write_text(HEAD + "".join(tables.values()) + ABOVE.format(what="skip") + TABLE.format(name="from_above"))
    dbt("parse", "--target-path", "state")
    assert dbt("ls", "--select", "state:modified", "--state", "state") == []

    changed = "".join(tables[name].replace(old, new) for name, (old, new) in CHANGES.items())
    file.write_text(HEAD + changed + ABOVE.format(what="fail") + TABLE.format(name="from_above"))
    (project / "penstock.lock").write_text(LOCK)
    modified = ("topic", "format", "column_type", "column_name", "column_origin", "pinned")
    assert sorted(dbt("ls", "--select", "state:modified+", "--state", "state")) == sorted(
        [*(f"source:st.shop.{name}" for name in modified), "source:st.web.from_above", "st.of_column_type"]
    )
