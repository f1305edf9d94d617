"""The code location that `penstock ui` opens: the project that PENSTOCK_PROJECT_DIR names, or the current directory."""

import os

from penstock.dagster.definitions import penstock_definitions

defs = penstock_definitions(
    os.environ.get("PENSTOCK_PROJECT_DIR") or ".",
    profiles_dir=os.environ.get("PENSTOCK_PROFILES_DIR") or None,
    target=os.environ.get("PENSTOCK_TARGET") or None,
)
