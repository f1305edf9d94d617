"""Fixtures of dbt's adapter tests, on the engine of the run.

A class of the package brings a project of its own; all of them share one engine by sharing its directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dbt.tests.fixtures.project import *  # noqa: F403 (the package's fixtures, as it asks for)

if TYPE_CHECKING:
    from tests.conftest import Platform
else:
    Platform = Any


@pytest.fixture(scope="class")
def dbt_profile_target() -> dict[str, Any]:
    return {"type": "penstock", "threads": 4, "kafka": {"embedded": True}}


@pytest.fixture(scope="class")
def project_root(tmpdir_factory: Any, platform: Platform) -> Any:
    """The directory of a class's project, with the engine of the run in it."""
    platform.endpoint()
    root = tmpdir_factory.mktemp("project")
    (Path(root) / ".penstock").symlink_to(platform.paths.home)
    return root


@pytest.fixture(scope="class")
def logs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    os.environ["DBT_LOG_PATH"] = str(tmp_path_factory.mktemp("logs"))
    yield os.environ["DBT_LOG_PATH"]
    del os.environ["DBT_LOG_PATH"]
