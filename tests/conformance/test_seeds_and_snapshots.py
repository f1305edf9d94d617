"""Seeds and snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.adapter.simple_seed import fixtures as seed_fixtures
from dbt_suite import ROOT, Translated, found, group, translated_project

pytestmark = pytest.mark.timeout(600)


class SparkTypes:
    """The same types under Spark's names; a whole number of a seed is a bigint."""

    @staticmethod
    def seed_enabled_types() -> dict[str, str]:
        return {"seed_id": "string", "birthday": "date"}

    @staticmethod
    def seed_tricky_types() -> dict[str, str]:
        return {"seed_id_str": "string", "looks_like_a_bool": "string", "looks_like_a_date": "string"}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        names = {
            "timestamp without time zone": "timestamp",
            "type: text": "type: string",
            "type: integer": "type: bigint",
        }
        text = seed_fixtures.properties__schema_yml
        for postgres, spark in names.items():
            text = text.replace(postgres, spark)
        return {"schema.yml": text}


class WithBOM(Translated):
    """The file with the mark is the package's."""

    @pytest.fixture(scope="class")
    def project(self, project: Any) -> Any:
        project.test_dir = str(ROOT / "simple_seed")
        return translated_project(project)


class Scratch:
    """The package writes a large file beside the test."""

    @pytest.fixture(scope="class")
    def test_data_dir(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("data") / "big"


own: dict[str, Any] = {
    "BaseSimpleSeedColumnOverride": SparkTypes,
    "BaseSeedSpecificFormats": Scratch,
    "BaseSimpleSeedWithBOM": WithBOM,
}
translated = {
    base.__name__: Translated
    for path, base in found()
    if path.split(".")[0] in ("simple_seed", "simple_snapshot") and base.__name__ not in own
}
globals().update(group("simple_seed", "simple_snapshot", **translated, **own))
