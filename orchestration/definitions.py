"""The demo project as a Dagster code location: `dagster dev -m orchestration.definitions`.

PENSTOCK_PROJECT_DIR names another project than the one this folder lies in.
"""

import os
from pathlib import Path

from penstock.dagster import penstock_definitions

defs = penstock_definitions(Path(os.environ.get("PENSTOCK_PROJECT_DIR", Path(__file__).parents[1])))
