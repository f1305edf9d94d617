"""The latencies that the benchmarks read from a table's log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.commits import latencies

SENT = 1_700_000_000.0


def commit(table: Path, version: int, *sent: float) -> None:
    """A version of the table that adds a file of rows with these timestamps."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    stamps = pa.array([datetime.fromtimestamp(each, UTC) for each in sent], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"at": stamps}), table / f"{version}.parquet")
    added = {"path": f"{version}.parquet", "dataChange": True, "stats": json.dumps({"numRecords": len(sent)})}
    (log / f"{version:020}.json").write_text(json.dumps({"add": added}))


@pytest.mark.parametrize(("replaced", "rows"), [(False, 4), (True, 2)])
def test_an_appended_row_counts_each_time_and_a_rewritten_one_once(tmp_path: Path, replaced: bool, rows: int) -> None:
    commit(tmp_path, 0, SENT)
    commit(tmp_path, 1, SENT, SENT, SENT + 1)
    commit(tmp_path, 2, SENT + 100)
    found = latencies(tmp_path, sent_from=SENT, sent_to=SENT + 10, replaced=replaced)
    assert len(found) == rows
