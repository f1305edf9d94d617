"""Seeds and snapshots."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.adapter.simple_seed import fixtures as seed_fixtures
from dbt.tests.adapter.simple_snapshot import (
    fixtures,
    new_record_dbt_valid_to_current,
    new_record_timestamp_mode,
)
from dbt.tests.util import check_relations_equal, run_dbt
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
    """The package writes a large file beside the test. A table of Spark has no dots in its name, its file may have."""

    @pytest.fixture(scope="class")
    def test_data_dir(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("data") / "big"

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"seeds": {"quote_columns": False, "test": {"seed.with.dots": {"alias": "seed_with_dots"}}}}


class NoCascade(Translated):
    """A view of Spark outlives the table that it reads: it is there again when the table is."""

    def _check_relation_end_state(self, run_result: Any, project: Any, exists: bool) -> None:
        super()._check_relation_end_state(run_result, project, exists=True)  # type: ignore[misc]


def without_database(sql: str) -> str:
    """Spark has no database above a schema."""
    return sql.replace("{{target.database}}.", "")


class Snapshot(Translated):
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"snapshot.sql": without_database(fixtures.snapshot_actual_sql)}


class ValidToCurrent(Snapshot):
    """The same rows, found by their id: a table of Spark has no order."""

    def test_valid_to_current(self, project: Any) -> None:
        current = datetime(2099, 12, 31, tzinfo=timezone.utc)
        ended = datetime(2016, 8, 20, 16, 44, 49, tzinfo=timezone.utc)
        for sql in (fixtures.create_seed_sql, fixtures.create_snapshot_expected_sql, fixtures.seed_insert_sql,
                    fixtures.populate_snapshot_expected_valid_to_current_sql):  # fmt: skip
            project.run_sql(sql)

        assert len(run_dbt(["snapshot"])) == 1
        rows = project.run_sql("select id, test_valid_to from {schema}.snapshot_actual order by id", fetch="all")
        assert rows == [(number, current) for number in range(1, 21)]

        project.run_sql(fixtures.invalidate_sql)
        project.run_sql(fixtures.update_with_current_sql)
        assert len(run_dbt(["snapshot"])) == 1
        rows = project.run_sql("select id, test_valid_to from {schema}.snapshot_actual order by 1, 2", fetch="all")
        assert [row for row in rows if row[0] < 10] == [(number, current) for number in range(1, 10)]
        assert [row for row in rows if row[0] == 10] == [(10, ended), (10, current)]
        assert len(rows) == 31
        check_relations_equal(project.adapter, ["snapshot_actual", "snapshot_expected"])


class SeveralKeys(Translated):
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "seed.sql": without_database(fixtures.model_seed_sql),
            "snapshots.yml": fixtures.snapshots_multi_key_yml,
            "ref_snapshot.sql": fixtures.ref_snapshot_sql,
        }


class NewRecord(Translated):
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"snapshot.sql": without_database(new_record_timestamp_mode._snapshot_actual_sql)}


class NewRecordValidToCurrent(Translated):
    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"snapshot.sql": without_database(new_record_dbt_valid_to_current._snapshot_actual_sql)}


class NewColumn(Translated):
    """Delta gives the rows that are there no default of a column that is added."""

    @pytest.fixture(scope="class")
    def source_alter_sql(self) -> str:
        table = "{schema}.src_customers"
        return f"alter table {table} add column dummy_column text; update {table} set dummy_column = 'dummy_value'"

    def add_fact_column(self, column: str, definition: str) -> None:
        super().add_fact_column(column, definition.removesuffix(" default null"))  # type: ignore[misc]


own: dict[str, Any] = {
    "BaseSimpleSeedColumnOverride": SparkTypes,
    "BaseSeedSpecificFormats": Scratch,
    "BaseSimpleSeedWithBOM": WithBOM,
    "BaseBasicSeedTests": NoCascade,
    "BaseSeedConfigFullRefreshOn": NoCascade,
    "BaseSnapshotNewRecordCheckMode": NewRecord,
    "BaseSnapshotNewRecordTimestampMode": NewRecord,
    "BaseSnapshotNewRecordDbtValidToCurrent": NewRecordValidToCurrent,
    "BaseSnapshotEphemeralHardDeletes": NewColumn,
    "BaseSnapshotNewColumnTimestampStrategy": NewColumn,
    "BaseSnapshotNewColumnSpecificCheckCols": NewColumn,
    "BaseSnapshotNewColumnWithDeletes": NewColumn,
    "BaseSimpleSnapshot": NewColumn,
    "BaseSnapshotColumnNames": Snapshot,
    "BaseSnapshotColumnNamesFromDbtProject": Snapshot,
    "BaseSnapshotInvalidColumnNames": Snapshot,
    "BaseSnapshotDbtValidToCurrent": ValidToCurrent,
    "BaseSnapshotMultiUniqueKey": SeveralKeys,
}
translated = {
    base.__name__: Translated
    for path, base in found()
    if path.split(".")[0] in ("simple_seed", "simple_snapshot") and base.__name__ not in own
}
globals().update(group("simple_seed", "simple_snapshot", **translated, **own))
