"""Where the project is. dbt's credentials do not say; its runtime config, its flags and the directory do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def project_dir(config: Any) -> Path:
    """The project that dbt runs: as dbt resolved it, as the command line named it, or here."""
    if root := getattr(config, "project_root", None):
        return Path(root).resolve()
    from dbt.flags import get_flags  # `dbt debug` knows a profile only

    named = getattr(get_flags(), "PROJECT_DIR", None) or os.environ.get("DBT_PROJECT_DIR")
    return Path(named).resolve() if named else Path.cwd()


def target_dir(config: Any) -> Path:
    """Where dbt writes what it compiles."""
    target = getattr(config, "project_target_path", None) or getattr(config, "target_path", None) or "target"
    return project_dir(config) / target
