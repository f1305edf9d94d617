"""`penstock lock` and what `penstock describe` says of schemas; the registry is a fake, dbt is not called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from source_files import column, entries, table
from typer.testing import CliRunner

from penstock.cli import dbt
from penstock.cli.main import app
from penstock.control import locking
from penstock.paths import ProjectPaths
from penstock.project.lockfile import FILE
from penstock.registry import client
from penstock.registry.client import Registered

FIRST = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
SECOND = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}]}'
SOURCES = table("{topic: orders, value: {format: avro}}", column("k", "string", **{"from": "key"}))
PROFILES = """shop: {target: dev, outputs: {dev: {type: penstock, schema: shop,
  kafka: {bootstrap.servers: '127.0.0.1:1'}, schema_registry: {url: 'http://registry.example'}}}}"""


class FakeRegistry:
    versions_of: dict[str, list[str]] = {}

    def __init__(self, url: str, options: Any) -> None:
        assert url == "http://registry.example"

    def versions(self, subject: str) -> list[int]:
        return list(range(1, len(self.versions_of[subject]) + 1))

    def version(self, subject: str, number: int) -> Registered:
        return Registered(number + 40, "AVRO", self.versions_of[subject][number - 1], {}, subject, number)

    def latest(self, subject: str) -> Registered:
        return self.version(subject, len(self.versions_of[subject]))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one Avro source and a manifest that is newer than its files."""
    for name in (
        "DBT_PROFILES_DIR",
        "DBT_PROJECT_DIR",
        "DBT_TARGET_PATH",
        "PENSTOCK_KAFKA",
        "PENSTOCK_SCHEMA_REGISTRY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(dbt, "run", lambda *_args, **_options: pytest.fail("dbt was called"))
    monkeypatch.setattr(FakeRegistry, "versions_of", {"orders-value": [FIRST]})
    monkeypatch.setattr(locking, "Registry", FakeRegistry)
    monkeypatch.setattr(client, "Registry", FakeRegistry)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\nmodel-paths: [models, sources]\n")
    (tmp_path / "profiles.yml").write_text(PROFILES)
    found = {each["unique_id"]: each for each in entries(SOURCES, tmp_path)}
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "manifest.json").write_text(json.dumps({"nodes": {}, "sources": found}))
    return tmp_path


def run(project: Path, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*args, "--project-dir", str(project)])
    return result.exit_code, result.stdout, result.stderr


def test_lock_pins_and_check_fails_when_the_registry_has_something_newer(project: Path) -> None:
    code, out, _ = run(project, "lock")
    assert (code, "orders-value version 1 (id 41)" in out) == (0, True)
    assert "BIGINT" in (project / FILE).read_text()
    assert run(project, "lock", "--check")[0] == 0

    FakeRegistry.versions_of["orders-value"].append(SECOND)
    before = (project / FILE).read_text()
    code, _, said = run(project, "lock", "--check")
    assert code == 1
    assert "PEN-1257" in said
    assert "\n+          n: INT\n" in said
    assert (project / FILE).read_text() == before, "a check writes nothing"
    assert run(project, "lock")[1].strip() == f"{FILE} is up to date."

    code, out, _ = run(project, "lock", "--update", "--output", "json")
    assert (code, json.loads(out)["changes"][0]["after"]) == (0, "orders-value version 2 (id 42)")
    assert "n: INT" in (project / FILE).read_text()


def test_check_and_update_do_not_go_together(project: Path) -> None:
    assert run(project, "lock", "--check", "--update")[0] == 2


def test_a_source_is_described_with_its_schema_ids_and_versions(project: Path) -> None:
    run(project, "lock")
    FakeRegistry.versions_of["orders-value"].append(SECOND)
    code, out, _ = run(project, "describe", "clicks", "--output", "json")
    assert code == 4, "the broker does not answer"
    found = json.loads(out)
    (schema,) = found["schemas"]
    assert (schema["subject"], schema["version"], schema["id"]) == ("orders-value", 1, 41)
    assert schema["in_registry"] == [{"version": 1, "id": 41}, {"version": 2, "id": 42}]
    assert found["schema_registry"] == "http://registry.example"
    assert found["value"] == {"format": "avro"}
    page = run(project, "describe", "clicks")[1]
    assert "version 2 (id 42)" in page
    assert not ProjectPaths(project).store.exists()
