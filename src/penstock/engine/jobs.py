"""The program of a stream, written and loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from penstock.compiler import render_job
from penstock.compiler.spec import StreamSpec
from penstock.paths import safe_name


def load(spec: StreamSpec, file: Path) -> ModuleType:
    """Write the job of a spec to a file and import it from there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render_job(spec), encoding="utf-8")
    name = f"penstock_job_{safe_name(spec.name).replace('.', '_').replace('-', '_')}"
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
