"""Faults are tested on an engine whose streams share the reading of a topic whenever two of them can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.deep)


@pytest.fixture(scope="session")
def platform(sharing_platform: Any) -> Any:
    return sharing_platform
