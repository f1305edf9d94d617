"""`penstock query --follow` as people run it: a terminal, a real engine, a real broker, Ctrl-C."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)
PROFILES = "followed: {target: dev, outputs: {dev: {type: penstock, schema: SCHEMA, kafka: {embedded: true}}}}\n"
SOURCE = """\
sources:
  - name: {schema}_src
    tables:
      - name: clicks
        config: {{meta: {{stream: {{topic: {topic}}}}}}}
        columns:
          - {{name: item, data_type: string}}
          - {{name: price, data_type: int}}
"""
MODELS = {
    "clean": "select item, price from {{ source('SCHEMA_src', 'clicks') }} where item is not null",
    "views": "select item, count(*) as views from {{ source('SCHEMA_src', 'clicks') }} group by item",
}


class Following:
    """A running `penstock query --follow`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: queue.Queue[str] = queue.Queue()
        self.notes: list[str] = []
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._notes, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def _notes(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.notes.append(line)
            if line.startswith("Following"):
                self.ready.set()

    def until_ready(self) -> Following:
        deadline = time.monotonic() + 120
        while not self.ready.wait(0.2):
            assert self.process.poll() is None, "".join(self.notes)
            assert time.monotonic() < deadline, "".join(self.notes)
        return self

    def rows(self, count: int) -> list[dict[str, Any]]:
        return [json.loads(self.lines.get(timeout=60)) for _ in range(count)]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture
def project(platform: Platform, schema: str) -> Iterator[Path]:
    root = platform.paths.project
    (root / schema).mkdir()
    (root / "dbt_project.yml").write_text(
        f"name: followed\nprofile: followed\nmodel-paths: [{schema}]\nflags: {{send_anonymous_usage_stats: false}}\n"
    )
    (root / "profiles.yml").write_text(PROFILES.replace("SCHEMA", schema))
    yield root
    (root / "dbt_project.yml").unlink()


@pytest.fixture
def follow(project: Path, schema: str) -> Iterator[Callable[..., Following]]:
    running: list[subprocess.Popen[str]] = []

    def start(sql: str, *options: str) -> Following:
        command = [warm("penstock"), "query", "--follow", "--output", "json", *options, sql]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
        process = subprocess.Popen(
            command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        return Following(process)

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def left_behind(platform: Platform) -> list[str]:
    """Checkpoints of followed queries, and the sockets of those who followed."""
    return [path.name for path in (platform.paths.engine / "scratch").glob("follow-*")]


def test_rows_come_as_they_are_sent_and_ctrl_c_leaves_nothing_behind(
    platform: Platform,
    project: Path,
    schema: str,
    follow: Callable[..., Following],
    topic: MakeTopic,
    produce: Produce,
) -> None:
    name = topic(2)
    (project / schema / "sources.yml").write_text(SOURCE.format(schema=schema, topic=name))
    produce(name, [{"item": "old", "price": 1}], partition=0)
    commands = len(platform.store.all_desired())

    plain = follow(
        f"select item, price, _offset from {schema}_src.clicks where price > 1 or price is null"
    ).until_ready()
    grouped = follow(f"select item, count(*) as n from {schema}_src.clicks group by item").until_ready()
    assert len(left_behind(platform)) == 2
    produce(name, [{"item": "a", "price": 5}], partition=1)
    began = time.monotonic()
    assert plain.rows(1) == [{"item": "a", "price": 5, "_offset": 0}]
    took = time.monotonic() - began
    assert grouped.rows(1) == [{"item": "a", "n": 1}]
    produce(name, [{"item": "a", "price": 1}, "unreadable"], partition=1)
    assert plain.rows(1) == [{"item": None, "price": None, "_offset": 2}]
    assert {(row["item"], row["n"]) for row in grouped.rows(2)} == {("a", 2), (None, 1)}
    assert took < 10  # a second on an idle machine

    first = follow(f"select item from {schema}_src.clicks limit 2", "--from-beginning")
    assert {row["item"] for row in first.rows(2)} <= {"old", "a", None}
    assert first.process.wait(30) == 0
    assert plain.interrupt() == 130
    grouped.process.kill()  # without a word
    platform.until(lambda: not left_behind(platform), "nothing left behind", 30, lambda: left_behind(platform))
    assert len(platform.store.all_desired()) == commands


def test_new_rows_of_a_dynamic_table_and_changed_rows_of_another(
    platform: Platform,
    project: Path,
    schema: str,
    follow: Callable[..., Following],
    topic: MakeTopic,
    produce: Produce,
) -> None:
    name = topic(1)
    (project / schema / "sources.yml").write_text(SOURCE.format(schema=schema, topic=name))
    for model, sql in MODELS.items():
        text = "{{ config(materialized='dynamic_table') }}\n" + sql.replace("SCHEMA", schema)
        (project / schema / f"{model}.sql").write_text(text)
    dbt = warm("dbt")
    done = subprocess.run([dbt, "run"], cwd=project, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert f"Source {schema}_src.clicks can be queried" in done.stdout
    shown = subprocess.run(
        [dbt, "show", "--inline", f"select count(*) as n from {{{{ source('{schema}_src', 'clicks') }}}}"],
        cwd=project, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "|   0" in shown.stdout.replace("| 0", "|   0"), shown.stdout
    assert "can be queried" not in shown.stdout  # nothing has changed
    produce(name, [{"item": "a", "price": 1}, {"item": "b", "price": 1}])
    look = lambda: platform.sql(f"select count(*) from {schema}.views") == [(2,)]  # noqa: E731
    platform.until(look, "two groups", 120)

    new = follow("select item, price from clean where price > 1").until_ready()
    changed = follow("select item, views from views").until_ready()
    every = follow("select item, views from views", "--from-beginning")
    assert sorted(row["item"] for row in every.rows(2)) == ["a", "b"]
    produce(name, [{"item": "b", "price": 7}])
    assert new.rows(1) == [{"item": "b", "price": 7}]
    assert changed.rows(1) == every.rows(1) == [{"item": "b", "views": 2}]
    assert [each.interrupt() for each in (new, changed, every)] == [130, 130, 130]
    platform.until(lambda: not left_behind(platform), "nothing left behind", 30)
