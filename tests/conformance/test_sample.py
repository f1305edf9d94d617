"""A part of dbt's adapter tests that is quick enough for every run, and that nothing of the whole is forgotten."""

from __future__ import annotations

from pathlib import Path

import dbt_suite
import pytest
from dbt.tests.adapter.basic.test_base import BaseSimpleMaterializations
from dbt.tests.adapter.basic.test_ephemeral import BaseEphemeral
from dbt.tests.adapter.basic.test_incremental import BaseIncremental

HERE = Path(__file__).parent


@pytest.mark.deep
@pytest.mark.timeout(600)
class TestSimpleMaterializations(BaseSimpleMaterializations):
    pass


@pytest.mark.deep
@pytest.mark.timeout(600)
class TestEphemeral(BaseEphemeral):
    pass


@pytest.mark.deep
@pytest.mark.timeout(600)
class TestIncremental(BaseIncremental):
    pass


def test_every_class_of_the_package_is_run_or_has_a_reason() -> None:
    files = "".join(file.read_text() for file in HERE.glob("test_*.py"))
    paths = {path for path, _ in dbt_suite.found()}
    unread = {path for path in paths - set(dbt_suite.OUTSIDE) if f'"{path.split(".")[0]}"' not in files}
    assert not unread, "put their folders into a test file"
    assert {path.partition("::")[0] for path in dbt_suite.OUTSIDE} <= paths, "reasons for classes that are gone"


def test_the_published_table_has_every_class() -> None:
    page = (HERE.parents[1] / "docs" / "conformance.md").read_text()
    missing = [path for path, _ in dbt_suite.found() if f"`{path.rpartition('.')[2]}`" not in page]
    assert not missing, "run 'make conformance'"
