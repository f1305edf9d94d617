"""ksqlDB's source stream and source table, as a dbt project: declared, deployed, read, joined, refused and dropped."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm
from typer.testing import CliRunner, Result

from penstock.cli.main import app

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)

PROJECT = """\
name: ksql
profile: ksql
model-paths: [{schema}/models]
seed-paths: [{schema}/seeds]
macro-paths: [{schema}/macros]
flags: {{send_anonymous_usage_stats: false}}
"""
PROFILES = "ksql: {{target: dev, outputs: {{dev: {{type: penstock, schema: {schema}, kafka: {{embedded: true}}}}}}}}\n"
# CREATE SOURCE STREAM stream_name (COL1 INT, COL2 STRING) WITH ...
# CREATE SOURCE TABLE table_name (ID INT PRIMARY KEY, COL1 INT) WITH ...
SOURCES = """\
sources:
  - name: {schema}
    tables:
      - name: stream_name
        config: {{meta: {{stream: {{topic: {stream}, value: {{format: json}}}}}}}}
        columns:
          - {{name: COL1, data_type: int}}
          - {{name: COL2, data_type: string}}
      - name: table_name
        config: {{meta: {{stream: {{kind: table, topic: {table}, primary_key: ID}}}}}}
        columns:
          - {{name: ID, data_type: int, data_tests: [unique, not_null], config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: COL1, data_type: int}}
      - name: unread
        config: {{meta: {{stream: {{kind: table, topic: {table}, primary_key: ID}}}}}}
        columns:
          - {{name: ID, data_type: int, config: {{meta: {{stream: {{from: key}}}}}}}}
          - {{name: COL1, data_type: int}}
"""
JOINED = """\
{{{{ config(materialized='dynamic_table') }}}}
select s.COL2 as word, t.COL1 as number
from {{{{ source('{schema}', 'stream_name') }}}} as s
join {{{{ source('{schema}', 'table_name') }}}} as t on t.ID = s.COL1
"""


@pytest.fixture
def root(platform: Platform, schema: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dbt project on the engine of the run; commands are called in it."""
    platform.endpoint()
    root = platform.paths.project
    (root / "dbt_project.yml").write_text(PROJECT.format(schema=schema))
    (root / "profiles.yml").write_text(PROFILES.format(schema=schema))
    for folder in ("models", "seeds", "macros"):
        (root / schema / folder).mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith(("DBT_", "PENSTOCK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DBT_TARGET_PATH", str(root / schema / "target"))
    monkeypatch.chdir(root)
    return root / schema


def penstock(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def told(*args: str) -> Any:
    result = penstock(*args, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def dbt(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        [warm("dbt"), "--no-use-colors", *args],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_source_stream_and_a_source_table_are_read_only_and_ready_to_be_queried(
    platform: Platform, schema: str, root: Path, topic: MakeTopic, produce: Produce
) -> None:
    stream, table = topic(name="stream"), topic(name="table")
    produce(table, [("1", {"COL1": 10}), ("2", {"COL1": 20}), ("1", {"COL1": 11}), ("2", None)])
    sources = SOURCES.format(schema=schema, stream=stream, table=table)
    (root / "models" / "sources.yml").write_text(sources)
    (root / "models" / "joined.sql").write_text(JOINED.format(schema=schema))
    stream_name, table_name, joined = f"{schema}.stream_name", f"{schema}.table_name", f"{schema}.joined"

    # Deployed: the table that a model reads before the model, and the one that nothing reads.
    ran = told("run")
    assert {each["source"]: (each["kind"], each["verdict"]) for each in ran["sources"]} == {
        stream_name: ("stream", "NEW"), table_name: ("table", "NEW"), f"{schema}.unread": ("table", "NEW"),
    }  # fmt: skip
    assert [each["verdict"] for each in ran["streams"]] == ["NEW"]
    produce(stream, [{"COL1": 1, "COL2": "one"}, {"COL1": 2, "COL2": "two"}])
    platform.until(lambda: platform.sql(f"select * from {joined}") == [("one", 11)], "the joined row")

    # Read: by key, with dbt's tests and with dbt show.
    assert told("query", "select COL1 from table_name where ID = 1") == [{"COL1": 11}]
    code, text = dbt("test", "--select", f"source:{schema}.table_name")
    assert (code, "PASS=2" in text) == (0, True), text
    code, text = dbt("show", "--inline", f"select COL1 from {{{{ source('{schema}', 'table_name') }}}}")
    assert (code, "11" in text) == (0, True), text

    # Read-only: from the command line, and from dbt.
    for sql in (f"insert into {table_name} values (3, 30)", f"delete from {stream_name}"):
        refused = penstock("query", sql)
        assert (refused.exit_code, "PEN-3020" in refused.stderr) == (2, True), refused.output
        assert "insertion into source stream/table is not allowed" in refused.stderr
    (root / "seeds" / "table_name.csv").write_text("ID,COL1\n3,30\n")
    (root / "models" / "other.sql").write_text(
        "{{ config(materialized='table', alias='stream_name') }} select 1 as COL1"
    )
    code, text = dbt("build", "--select", "table_name", "other")
    assert (code, text.count("insertion into source stream/table is not allowed")) == (1, 2), text
    (root / "seeds" / "table_name.csv").unlink()
    (root / "models" / "other.sql").unlink()
    assert "PEN-3021" in penstock("drop", table_name, "--delete-topic", "--yes").stderr
    stopped = penstock("stop", table_name)
    assert "PEN-3022" in stopped.stderr
    assert f"penstock drop {table_name}" in stopped.stderr

    # Shown: what it is, the query behind it, and who reads it.
    found = told("describe", table_name)
    assert (found["kind"], found["read_only"], found["primary_key"]) == ("source table", True, ["ID"])
    assert (found["query"]["stream"], found["state"], found["messages"]) == (table_name, "running", 4)
    assert (found["table"]["rows"], [each["stream"] for each in found["read_by"]]) == (1, [joined])
    queries = {each["name"]: (each["kind"], each["read_only"]) for each in told("list", "queries")["queries"]}
    assert (queries[table_name], queries[joined]) == (("source table", True), ("dynamic table", False))

    # Again: an unchanged project changes nothing; a changed source says what changes and which streams restart.
    ran = told("run")
    assert {each["verdict"] for each in [*ran["sources"], *ran["streams"]]} == {"NO-OP"}
    (root / "models" / "sources.yml").write_text(
        sources.replace(
            "          - {name: COL2,", "          - {name: COL3, data_type: date}\n          - {name: COL2,"
        )
    )
    ran = told("run")
    changed = {each["source"]: each for each in ran["sources"]}
    assert changed[stream_name]["changes"] == [f"column {stream_name}.COL3 is new"]
    assert (changed[stream_name]["verdict"], changed[stream_name]["restarts"]) == ("CHANGED", [joined])
    assert changed[table_name]["verdict"] == "NO-OP"

    # Dropped: not while it is read, and never with its topic.
    assert "PEN-3023" in penstock("drop", table_name, "--yes").stderr
    for name in (joined, table_name, f"{schema}.unread"):
        assert told("drop", name, "--yes") == {"dropped": name, "live_tests": []}
    assert platform.sql(f"show tables in penstock__{schema}") == []
