"""Golden files: what the fixture project compiles to. PENSTOCK_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.compiler import (
    StreamSpec,
    compile_project,
    compile_source_table,
    render_job,
    source_tables,
    write_target,
)

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
PROJECT = HERE / "fixtures" / "shop"
MANIFEST = json.loads((HERE / "fixtures" / "manifest.json").read_text())
SPECS = [
    *(
        compile_source_table(MANIFEST["sources"][each], project_dir=PROJECT)
        for each in source_tables(MANIFEST).values()
    ),
    *compile_project(MANIFEST, project_dir=PROJECT),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("file", ["job.py", "spec.json"])
def test_a_model_compiles_to_its_golden_file(spec: StreamSpec, file: str, tmp_path: Path) -> None:
    made = (write_target(spec, tmp_path) / file).read_text()
    golden = GOLDEN / spec.name / file
    if os.environ.get("PENSTOCK_UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(made)
    assert made == golden.read_text()


def test_every_golden_file_belongs_to_a_model() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {spec.name for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_job_is_python_whose_sql_is_the_specs(spec: StreamSpec) -> None:
    values = {
        target.id: node.value
        for node in ast.parse(render_job(spec)).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert ast.literal_eval(values["SQL"]) == f"\n{spec.sql}\n"


def test_jobs_are_formatted_and_clean_for_ruff(tmp_path: Path) -> None:
    for spec in SPECS:
        write_target(spec, tmp_path)
    ruff = Path(sys.executable).parent / "ruff"
    settings = ["--isolated", "--no-cache", "--line-length", "120"]
    formatted = subprocess.run(
        [str(ruff), "format", "--diff", *settings, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    linted = subprocess.run(
        [str(ruff), "check", *settings, "--select", "E,F,W,I,B,UP", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (formatted.returncode, formatted.stdout) == (0, "")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_spec_survives_its_json_with_the_same_hash(spec: StreamSpec) -> None:
    again = StreamSpec.from_json(spec.to_json())
    assert again == spec
    assert again.hash == spec.hash


def test_specs_come_upstream_first() -> None:
    names = [spec.name for spec in SPECS]
    assert names.index("shop.clicks_clean") < names.index("shop.views_per_minute")


def test_the_compiler_needs_neither_spark_nor_dbt() -> None:
    code = (
        "import sys, penstock.compiler, penstock.project.profile;"
        "print([name for name in ('pyspark', 'dbt', 'deltalake') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
