"""dbt's manifest of the project: the one that is there while it is newer than the project, else made now.

Rules
- dbt must not open a connection for it: that would start the engine.
- A manifest does not say which target it was made for, so with --target it is always made anew.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.cli import dbt
from penstock.cli.session import Session
from penstock.errors.catalogue import DBT_FAILED
from penstock.project.manifest import is_current


def make_manifest(session: Session, args: Sequence[str]) -> dict[str, Any]:
    """The manifest that a dbt command writes."""
    line = [*args, "--no-use-colors", "--project-dir", str(session.project)]
    if session.profiles:
        line += ["--profiles-dir", str(session.profiles)]
    if session.target:
        line += ["--target", session.target]
    code, printed = dbt.run([*line, "--log-level", "error"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if code:
        session.ui.note(printed.rstrip())
        raise DBT_FAILED.error(f"dbt could not {args[0]} the project.")
    return _read(dbt.target_dir(session.project, args) / "manifest.json")


def current_manifest(session: Session) -> dict[str, Any]:
    """The manifest without compiled SQL being needed: read when it is newer than all it is made from, else parsed."""
    file = dbt.target_dir(session.project) / "manifest.json"
    if session.target is None and is_current(file, session.project, session.profiles):
        try:
            return _read(file)
        except json.JSONDecodeError:
            pass  # dbt was ended while it wrote
    with session.ui.working("dbt parses the project"):
        return make_manifest(session, ["parse"])


def _read(file: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return manifest
