"""Data tests that a stream keeps: the rows that break the test, as a table that is always up to date.

Rules
- A test is live when its config says so: `config: {meta: {live: true}}`, which dbt takes without a word, or
  `config: {live: true}`.
- Its table is where dbt's `store_failures` would put it: the schema and the name of the test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.project.model import DynamicTable
from penstock.project.source import relation_of


def is_live_test(node: Mapping[str, Any]) -> bool:
    config = node.get("config") or {}
    said = {**(node.get("meta") or {}), **(config.get("meta") or {}), **config}
    return node.get("resource_type") == "test" and said.get("live") is True


def read_live_test(node: Mapping[str, Any]) -> DynamicTable:
    """The table of a live test: kept by a stream where that can be, else computed anew when an input changed."""
    return DynamicTable(
        unique_id=str(node["unique_id"]),
        name=relation_of(node),
        path=str(node.get("original_file_path") or node.get("path") or ""),
        raw_code=str(node.get("raw_code") or ""),
        time_window_ms=None,
        buffer_limit=None,
        target_lag_ms=None,
        refresh_mode="auto",
        emit=None,
        deduplicate_by=(),
        unique_key=None,
        watermark=None,
        shuffle_partitions=None,
        small_batch_rows=None,
        max_batch_rows=None,
    )
