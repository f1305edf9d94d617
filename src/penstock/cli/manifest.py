"""dbt's manifest of the project: the one that is there while it is newer than the project, else made now.

Rules
- dbt must not open a connection for it: that would start the engine.
- A manifest does not say which target it was made for, so with --target it is always made anew.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.cli import dbt
from penstock.cli.session import Session
from penstock.errors.catalogue import DBT_FAILED

_PATHS = {
    "model-paths": ["models"], "seed-paths": ["seeds"], "snapshot-paths": ["snapshots"], "macro-paths": ["macros"],
}  # fmt: skip


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
    return _read(dbt.target_dir(session.project) / "manifest.json")


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


def is_current(manifest: Path, project: Path, profiles: Path | None) -> bool:
    """Whether nothing that dbt reads was written, added or removed since."""
    try:
        made = manifest.stat().st_mtime
    except FileNotFoundError:
        return False
    return all(path.stat().st_mtime <= made for path in _read_by_dbt(project, profiles) if path.exists())


def _read_by_dbt(project: Path, profiles: Path | None) -> Iterator[Path]:
    yield from (project / name for name in ("dbt_project.yml", "packages.yml", "dependencies.yml", "package-lock.yml"))
    if profiles is not None:
        yield profiles / "profiles.yml"
    import yaml

    content = yaml.safe_load((project / "dbt_project.yml").read_text(encoding="utf-8")) or {}
    for key, default in _PATHS.items():
        for folder in content.get(key, default):
            yield project / folder
            yield from (project / folder).rglob("*")


def _read(file: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return manifest
