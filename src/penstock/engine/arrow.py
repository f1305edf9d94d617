"""Arrow tables of one batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows; the last row alone when there is no key."""
    if not keys:
        return rows.slice(max(rows.num_rows - 1, 0))
    position = "__position"
    numbered = rows.select(list(keys)).append_column(position, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(position, "max")])
    return rows.take(last.column(f"{position}_max").combine_chunks().sort())
