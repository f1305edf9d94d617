"""The program of a stream, written and loaded."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from penstock.compiler import render_job
from penstock.compiler.spec import StreamSpec
from penstock.paths import safe_name


def load(spec: StreamSpec, file: Path) -> ModuleType:
    """Write the job of a spec to a file and load it from there.

    Not by import: Python would keep the compiled file and take it for the next one that is written to the same place in
    the same second with the same length.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    text = render_job(spec)
    file.write_text(text, encoding="utf-8")
    module = ModuleType(f"penstock_job_{safe_name(spec.name).replace('.', '_').replace('-', '_')}")
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), module.__dict__)  # the program that was just made
    return module
