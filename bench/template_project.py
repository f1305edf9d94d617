"""The project of `penstock init` with as many tests as one likes: its own ones, again and again under other names."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from penstock import jars
from penstock.cli.init import create
from penstock.engine import session

NAME = "shop_bench"
UNITS = "models/unit_tests.yml"
STREAMS = "tests/streams/views.yml"
_COLUMNS = "event_id string, user_id string, session_id string, item_id string, event_type string, clicked_at timestamp"


def make(directory: Path) -> None:
    """The project as `penstock init` makes it, and a copy of its tests to make others of."""
    create(directory, NAME)
    for file in (UNITS, STREAMS):
        (directory / f"{file}.own").write_bytes((directory / file).read_bytes())


def have(directory: Path, file: str, key: str, count: int) -> None:
    """Let the project have that many tests of a file."""
    own: list[dict[str, Any]] = yaml.safe_load((directory / f"{file}.own").read_text(encoding="utf-8"))[key]
    tests = [deepcopy(own[number % len(own)]) for number in range(count)]
    for number, test in enumerate(tests):
        test["name"] += f"_{number}"
    # JSON is YAML, and a time stays the text that it was.
    (directory / file).write_text(json.dumps({key: tests}, default=str, indent=1), encoding="utf-8")


def make_plain(directory: Path) -> None:
    """The same models as Delta tables of dbt-spark, in a Spark session with the engine's jars and settings."""
    make(directory)
    for file in (directory / "models").glob("*.sql"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("'dynamic_table'", "'table', file_format='delta'"), encoding="utf-8")
    sources = yaml.safe_load((directory / "sources/clicks.yml").read_text(encoding="utf-8"))
    for table in sources["sources"][0]["tables"]:
        table.pop("config")
        for column in table["columns"]:
            column.pop("config", None)
    (directory / "sources/clicks.yml").write_text(json.dumps(sources), encoding="utf-8")
    project = (directory / "dbt_project.yml").read_text(encoding="utf-8").replace("dynamic_table", "table")
    statements = (
        "create schema if not exists shop",
        f"create table if not exists shop.clicks ({_COLUMNS}) using delta",
    )
    start = [f"{{{{ '{sql}' if flags.WHICH == 'run' }}}}" for sql in statements]
    (directory / "dbt_project.yml").write_text(f"{project}\non-run-start: {json.dumps(start)}\n", encoding="utf-8")
    home = directory / "spark"
    settings = session.COMMON | {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(str(jar) for jar in jars.fetch("engine")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.ui.enabled": "false",
    }
    target = {
        "type": "spark", "method": "session", "host": "none", "schema": NAME, "threads": 4,
        "server_side_parameters": settings,
    }  # fmt: skip
    profile = {NAME: {"target": "unit", "outputs": {"unit": target}}}
    (directory / "profiles.yml").write_text(json.dumps(profile), encoding="utf-8")
