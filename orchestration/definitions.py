"""Every dynamic table and dbt model of the project as a Dagster asset: `dagster dev -m orchestration.definitions`.

Rules
- Assets come from dbt's manifest through dagster-dbt, with dbt's names, groups, tags and descriptions.
- Materialising a dynamic table deploys it and returns; the stream lives in the engine, not in the run.
- PENSTOCK_PROJECT_DIR names another project than the one this folder lies in.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagster import AssetExecutionContext, Definitions
from dagster_dbt import DbtCliResource, DbtProject, dbt_assets


def penstock_definitions(project_dir: Path) -> Definitions:
    """The code location of a project; its manifest is made when it is missing."""
    profiles = project_dir / "profiles"
    project = DbtProject(
        project_dir=project_dir, profiles_dir=profiles if (profiles / "profiles.yml").is_file() else project_dir
    )
    dbt = DbtCliResource(project_dir=project, dbt_executable=_dbt())
    if not project.manifest_path.exists():
        dbt.cli(["parse", "--quiet"], target_path=project.manifest_path.parent).wait()

    @dbt_assets(manifest=project.manifest_path, project=project)
    def models(context: AssetExecutionContext, dbt: DbtCliResource) -> Iterator[Any]:
        yield from dbt.cli(["build"], context=context).stream()

    return Definitions(assets=[models], resources={"dbt": dbt})


def _dbt() -> str:
    """dbt of this Python's environment, which need not be on the PATH."""
    beside = Path(sys.executable).with_name("dbt")
    return str(beside) if beside.exists() else "dbt"


defs = penstock_definitions(Path(os.environ.get("PENSTOCK_PROJECT_DIR", Path(__file__).parents[1])))
