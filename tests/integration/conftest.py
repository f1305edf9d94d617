"""Commands that start at once, and fixtures of the tests whose sources have a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from schema_streams import Streams

from penstock.dev.registry import RegistryService
from penstock.paths import ProjectPaths


@pytest.fixture(autouse=True, scope="module")
def _warm_commands() -> Iterator[None]:
    """What these tests start of dbt and penstock, directly or through Penstock's own code, is a fork of one process."""
    with pytest.MonkeyPatch.context() as patch:
        commands.use(commands.directory(), patch.setattr)
        yield


@pytest.fixture
def client(registry: RegistryService) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def with_registry(tmp_path: Path, registry: RegistryService) -> Path:
    """A project of the test's own, with the run's registry."""
    paths = ProjectPaths(tmp_path)
    paths.registry.mkdir(parents=True)
    (paths.registry / "registry.json").write_text(json.dumps({"url": registry.url}))
    return tmp_path


@pytest.fixture
def streams(platform: Any, with_registry: Path, schema: str) -> Streams:
    return Streams(platform, with_registry, schema)
