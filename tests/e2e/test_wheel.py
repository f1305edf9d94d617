"""The wheel has everything. What a project does with it from `penstock init` on: test_cli_project.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

WHERE = """
import json, importlib.metadata, pathlib
import dbt.adapters.penstock, dbt.include.penstock, penstock
include = pathlib.Path(dbt.include.penstock.__file__).parent
print(json.dumps({
    "penstock": penstock.__file__,
    "adapter": dbt.adapters.penstock.__file__,
    "macros": sorted(str(path.relative_to(include)) for path in include.rglob("*.sql")),
    "include": str(include),
    "version": importlib.metadata.version("penstock"),
}))
"""


def test_everything_comes_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*words: str) -> str:
        command = [str(wheel / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    found = json.loads(run("python", "-c", WHERE))
    for part in ("penstock", "adapter", "include"):
        assert found[part].startswith(str(wheel.parent)), found
    assert "macros/materializations/dynamic_table.sql" in found["macros"]
    assert found["version"] in run("penstock", "--version")
    assert (wheel / "penstock").read_text().startswith(f"#!{wheel / 'python'}")
