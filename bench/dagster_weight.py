"""Dagster's own weight: how long a look of a sensor takes, how many events a day has, how long loading takes.

Rules
- No JVM is needed: the store is filled as the engine and the supervisor would fill it, with a full history of batches.
- Loading is a process of its own, with a manifest that is current, as a run or a restart of the code server meets it;
  the rival is `dbt ls` on the same project, warmed up in the same way.
- Events are counted in a simulated day: in a quiet one, and in one in which every state flaps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import median, note, table

SIZES = (10, 50, 200)
_BATCHES = 1000  # the store's bound
_PROJECT = "name: bench\nprofile: bench\nflags: {send_anonymous_usage_stats: false}\n"
_PROFILE = "bench: {target: dev, outputs: {dev: {type: penstock, schema: shop, kafka: {embedded: true}}}}\n"
_SOURCE = """\
sources:
  - name: shop
    tables:
      - name: clicks
        config: {meta: {stream: {type: kafka, topic: clicks, value: {format: json}}}}
        columns: [{name: item_id, data_type: string}, {name: price, data_type: double}]
"""
_MODEL = """\
{{ config(materialized='dynamic_table') }}
select item_id, price from {{ source('shop', 'clicks') }} where price > 1
"""
_LOAD = "from penstock.dagster import penstock_definitions as p; p('.').get_repository_def()"


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print all three tables."""
    rounds = rounds or (2 if quick else 5)
    sizes = [rows] if rows else list(SIZES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        _loading(Path(scratch), sizes, rounds)
        _ticks(Path(scratch), sizes, rounds)
    _events(sizes)


def _loading(scratch: Path, sizes: list[int], rounds: int) -> None:
    lines = []
    for size in sizes:
        project = _project(scratch / f"load{size}", size)
        dbt = [str(Path(sys.executable).with_name("dbt")), "ls", "--quiet"]
        load = [sys.executable, "-c", _LOAD]
        _timed(dbt, project)  # parses; from here on both find what they need
        _timed(load, project)
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(_timed(dbt, project))
            ours.append(_timed(load, project))
        note(f"loaded {size} models")
        share = median(ours) / median(theirs)
        lines.append([size, f"{median(ours):.2f} s", f"{median(theirs):.2f} s", f"{share:.2f}"])
    table(
        f"Loading the code location, median of {rounds}",
        ["dynamic tables", "code location", "dbt ls", "code location / dbt ls (aim: at most 3)"],
        lines,
    )


def _timed(command: list[str], project: Path) -> float:
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=project, env=os.environ | {"DO_NOT_TRACK": "1"}, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.monotonic() - begun


def _project(root: Path, size: int) -> Path:
    (root / "models").mkdir(parents=True)
    (root / "dbt_project.yml").write_text(_PROJECT)
    (root / "profiles.yml").write_text(_PROFILE)
    (root / "models/shop.yml").write_text(_SOURCE)
    for number in range(size):
        (root / f"models/table_{number:03d}.sql").write_text(_MODEL)
    return root


def _ticks(scratch: Path, sizes: list[int], rounds: int) -> None:
    from dagster import build_sensor_context

    from penstock.dagster import penstock_definitions

    lines = []
    for size in sizes:
        project = scratch / f"load{size}"
        _fill(project, size)
        defs = penstock_definitions(project)
        row: list[object] = [size]
        for name in ("penstock_health", "penstock_lag", "penstock_restart"):
            sensor = defs.resolve_sensor_def(name)
            first, times, cursor = 0.0, [], None
            for number in range(rounds + 1):
                begun = time.monotonic()
                cursor = sensor.evaluate_tick(build_sensor_context(cursor=cursor)).cursor
                spent = time.monotonic() - begun
                if number:
                    times.append(spent)
                else:
                    first = spent  # everything is new: the most events
            row.append(f"{first * 1000:.0f} / {median(times) * 1000:.0f} ms")
        lines.append(row)
        note(f"looked at {size} streams")
    table(
        "One look of each sensor, the first (all is new) / the next ones (aim: at most 2 s)",
        ["streams", "health", "lag", "restart"],
        lines,
    )


def _fill(project: Path, size: int) -> None:
    """A store as it is after a day of batches, with a supervisor and an engine that live (this process)."""
    from sqlalchemy import insert

    from penstock.paths import ProjectPaths
    from penstock.project.profile import load_profile, save_settings
    from penstock.store import Store, StreamState, holder_id, schema

    paths = ProjectPaths(project)
    save_settings(paths, load_profile(project))
    store = Store.open(paths.store)
    now = time.time()
    for lease in ("supervisor", "engine"):
        store.acquire(lease, holder_id(), 86_400)
    batches = []
    for number in range(size):
        stream = f"shop.table_{number:03d}"
        store.deploy(stream, "{}", "hash", verdict="NEW", new_checkpoint=True)
        store.report(
            stream, state=StreamState.RUNNING, generation=1, engine_token=1, started_at=now - 86_400, batch_id=_BATCHES,
            last_batch_at=now, total_rows_in=1_000_000, total_rows_out=1_000_000, lag_rows=5, lag_seconds=0.5,
            lag_at=now + 86_400,
        )  # fmt: skip
        batches += [
            {
                "stream": stream, "generation": 1, "batch_id": batch, "at": now, "rows_in": 10, "rows_out": 10,
                "duration_ms": 200, "writer": "delta-rs", "rows_in_per_s": 50.0, "offsets": {}, "state_rows": 0,
                "state_bytes": 0,
            }
            for batch in range(_BATCHES)
        ]  # fmt: skip
    with store._write() as tx:
        tx.execute(insert(schema.progress), batches)
    store.close()


def _events(sizes: list[int]) -> None:
    from penstock.dagster.budget import events_per_day, quiet_events_per_day

    lines = [
        [size, f"{quiet_events_per_day(size, 4):,}", f"{events_per_day(size, 4):,}", events_per_day(size, 4) // size]
        for size in sizes
    ]
    table(
        "Events of a day in Dagster's log (tests/unit/test_dagster_day.py counts them)",
        ["streams", "quiet day, all tables get rows", "the most, whatever happens", "the most per stream"],
        lines,
    )
