"""Faults are tested on an engine whose streams share the reading of a topic whenever two of them can."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def platform(sharing_platform: Any) -> Any:
    return sharing_platform
