"""The code location loads on a fresh checkout and shows what dbt knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_LIST = """
from orchestration.definitions import defs

graph = defs.resolve_asset_graph()
for key in sorted(graph.get_all_asset_keys(), key=str):
    parents = sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
    print(key.to_user_string(), "<-", ",".join(parents))
"""


def test_every_model_and_source_of_the_demo_is_an_asset_with_its_upstreams(tmp_path: Path) -> None:
    for name in ("models", "sources", "seeds", "profiles", "orchestration", "tests/data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dbt_project.yml", tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", _LIST],
        cwd=tmp_path,
        env=os.environ | {"DAGSTER_DBT_PARSE_PROJECT_ON_LOAD": "0"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assets = dict(line.split(" <- ") for line in found.stdout.splitlines() if " <- " in line)
    assert assets["clicks_clean"] == "products,shop/clicks"
    assert assets["also_viewed"] == "co_views"
    assert assets["recommendations"] == "also_viewed,products"
    assert not (tmp_path / ".penstock").exists(), "loading must start nothing"
