"""Rows of a table that are copied keep the order in which they came, whatever the size of their files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.engine.compaction import files

pytestmark = pytest.mark.timeout(300)

COPY = """
import sys
from pathlib import Path
from penstock.engine import session, tables
from penstock.paths import ProjectPaths

project, old, new = sys.argv[1:]
spark = session.for_tests(ProjectPaths(Path(project)))
rows = tables.rows_in_order(spark, old)
rows.write.format("delta").mode("overwrite").option("maxRecordsPerFile", "20000").save(new)
spark.stop()
"""


def test_rows_that_are_copied_keep_their_order(tmp_path: Path) -> None:
    # Given: files of all sizes, in which Spark reads the largest first; one is read by several tasks.
    old, new, count = tmp_path / "old", tmp_path / "new", 0
    for size in (1, 2000, 5, 90_000, 3, 40, 1):
        rows = pa.table({
            "v": range(count, count + size), "_metadata": [str(hash(n)) * 9 for n in range(size)], "a.b": [1] * size,
        })  # fmt: skip
        write_deltalake(str(old), rows, mode="append")
        count += size

    # When
    run = subprocess.run(
        [sys.executable, "-c", COPY, str(tmp_path), str(old), str(new)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]

    # Then
    found = files(DeltaTable(str(new)))
    assert len(found) > 4
    assert [v for file in found for v in pq.read_table(new / file.name)["v"].to_pylist()] == list(range(count))
    assert pa.schema(DeltaTable(str(new)).schema().to_arrow()).names == ["v", "_metadata", "a.b"]
