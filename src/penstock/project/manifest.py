"""Whether dbt's manifest is newer than all that it is made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PATHS = {
    "model-paths": ["models"], "seed-paths": ["seeds"], "snapshot-paths": ["snapshots"], "macro-paths": ["macros"],
    "function-paths": ["functions"],
}  # fmt: skip


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
