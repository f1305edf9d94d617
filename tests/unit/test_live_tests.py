"""Data tests that streams keep: how they are recognised and compiled, what is counted, and what Dagster is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckKey, AssetKey, SensorResult
from deltalake import DeltaTable
from worlds import NOW, healthy, limits_of, running, wanted

from penstock.cli.plan import project_tables
from penstock.compiler import compile_model, render_job
from penstock.compiler.spec import Origin, StreamSpec
from penstock.control.health import Severity
from penstock.dagster.findings import LIVE, live_findings
from penstock.dagster.project import Project
from penstock.dagster.sensors import health_tick
from penstock.engine.sink import ROWS, TableWriter, Target
from penstock.project.live import is_live_test
from penstock.store import StreamState

TEST = "test.shop.no_free_items"
STREAM = "shop_dbt_test__audit.no_free_items"


def a_test(**config: Any) -> dict[str, Any]:
    return {
        "unique_id": TEST, "resource_type": "test", "name": "no_free_items", "alias": "no_free_items",
        "schema": "shop_dbt_test__audit", "original_file_path": "tests/no_free_items.sql",
        "raw_code": "select k, v from {{ ref('items') }} where v = 0",
        "compiled_code": "select k, v from shop.items where v = 0",
        "config": {"severity": "ERROR", **config}, "depends_on": {"nodes": ["model.shop.items"]},
    }  # fmt: skip


def manifest(test: dict[str, Any]) -> dict[str, Any]:
    items = {
        "unique_id": "model.shop.items", "resource_type": "model", "language": "sql", "name": "items", "alias": "items",
        "schema": "shop", "original_file_path": "models/items.sql", "raw_code": "select k, v from shop.raw",
        "compiled_code": "select k, v from shop.raw", "config": {"materialized": "dynamic_table"},
        "depends_on": {"nodes": ["source.shop.shop.raw"]},
    }  # fmt: skip
    stream = {"meta": {"stream": {"topic": "raw", "value": {"format": "json"}}}}
    raw = {
        "unique_id": "source.shop.shop.raw", "resource_type": "source", "source_name": "shop", "name": "raw",
        "identifier": "raw", "schema": "shop", "original_file_path": "sources/shop.yml", "source_meta": {}, **stream,
        "config": stream,
        "columns": {"k": {"name": "k", "data_type": "string"}, "v": {"name": "v", "data_type": "int"}},
    }  # fmt: skip
    return {"nodes": {each["unique_id"]: each for each in (items, test)}, "sources": {raw["unique_id"]: raw}}


@pytest.mark.parametrize(
    ("config", "live"),
    [({}, False), ({"live": True}, True), ({"meta": {"live": True}}, True), ({"meta": {"live": False}}, False)],
)
def test_a_test_is_live_when_its_config_says_so(config: dict[str, Any], live: bool) -> None:
    assert is_live_test(a_test(**config)) is live
    assert not is_live_test({**a_test(**config), "resource_type": "model"})


def compiled(sql: str | None = None) -> StreamSpec:
    return compile_model(manifest(a_test(live=True)), TEST, sql, project_dir=Path("nowhere"))


def test_it_is_a_stream_like_any_other(tmp_path: Path) -> None:
    spec = compiled()
    assert (spec.name, spec.origin, spec.output.mode.value) == (STREAM, Origin.LIVE_TEST, "append")
    assert [each.relation for each in spec.inputs] == ["shop.items"]
    unique = compiled("select k as unique_field, count(*) as n from shop.items group by k having count(*) > 1")
    assert (unique.output.mode.value, unique.output.keys, unique.stateful) == ("upsert", ("unique_field",), True)
    assert compiled("select k from shop.items order by v limit 1").is_full
    file = tmp_path / "job.py"
    file.write_text(render_job(spec))
    assert "counts_rows=True" in file.read_text()
    ruff = [str(Path(sys.executable).parent / "ruff"), "format", "--check", "--isolated", "--line-length", "120"]
    assert subprocess.run([*ruff, str(file)], capture_output=True).returncode == 0


def test_it_is_part_of_the_project() -> None:
    assert project_tables(manifest(a_test(live=True)))[TEST] == STREAM
    assert TEST not in project_tables(manifest(a_test()))


class Batch:
    dtypes = [("k", "string")]

    def __init__(self, *keys: str) -> None:
        self._rows = pa.table({"k": pa.array(keys, pa.string())})

    def persist(self) -> Batch:
        return self

    unpersist = persist

    def count(self) -> int:
        return self._rows.num_rows

    def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
        return self._rows


def test_the_rows_that_are_there_are_told_with_each_batch(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "t"), schema=pa.schema([("k", pa.string())]))
    target = Target(
        stream=STREAM, table=STREAM, path=str(tmp_path / "t"), mode="upsert", keys=("k",), stateful=True,
        checkpoint=tmp_path / "c", checkpoint_id="c", small_batch_rows=10, counts_rows=True,
    )  # fmt: skip
    writer = TableWriter(target, 1)
    for number, (batch, rows) in enumerate(((Batch("a", "b"), 2), (Batch("b", "c"), 3), (Batch(), 3))):
        writer(batch, number)  # type: ignore[arg-type]
        written = writer.written(number)
        assert written is not None
        assert (written.violations, written.anew) == ({ROWS: rows}, True)


# -- Dagster -----------------------------------------------------------------------------------------------------------
KEY = AssetCheckKey(AssetKey(["shop", "items"]), "no_free_items")


def test_a_row_that_breaks_the_test_turns_the_check_red(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    project = Project.find(tmp_path)
    project.__dict__["manifest"] = {"nodes": {}, "sources": {}}  # as if dbt had parsed it
    world = healthy("shop.items", STREAM)
    keys = {"shop.items": AssetKey(["shop", "items"])}

    def told(cursor: str | None, rows: int, now: float) -> tuple[list[tuple[bool, str]], str | None]:
        seen = replace(
            world, at=now, supervisor_until=now + 10, violations={STREAM: {ROWS: (rows, now)}} if rows else {}
        )
        result = health_tick(seen, cursor, project, keys, {STREAM: KEY})
        assert isinstance(result, SensorResult)
        checks = [each for each in result.asset_events if each.check_name == KEY.name]  # type: ignore[union-attr]
        assert all(each.asset_key == KEY.asset_key for each in checks)
        return [(each.passed, str(each.description)) for each in checks], result.cursor  # type: ignore[union-attr]

    first, cursor = told(None, 0, NOW)
    assert first == [(True, "no row breaks the test")]
    broken, cursor = told(cursor, 3, NOW + 10)
    assert broken == [(False, "3 rows break the test")]
    again, cursor = told(cursor, 4, NOW + 20)
    assert again == [], "told once"
    mended, _ = told(cursor, 0, NOW + 30)
    assert mended == [(True, "no row breaks the test")]


def test_a_stream_that_fails_leaves_the_test_unknown() -> None:
    failed = running(STREAM, state=StreamState.FAILED, retry_at=NOW + 5, error="boom", error_code="PEN-4003")
    world = replace(healthy(STREAM), actual={STREAM: failed}, desired=(wanted(STREAM),))
    (finding,) = live_findings(world, limits_of, {STREAM})
    assert (finding.check, finding.verdict.severity) == (LIVE, Severity.WARN)
    assert finding.verdict.summary.startswith("not known: failed")
    assert live_findings(world, limits_of, set()) == []
