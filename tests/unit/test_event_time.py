"""The watermark of a dynamic table's own, against the columns that Spark finds."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructType, TimestampNTZType, TimestampType

from penstock.engine.tables import check_event_time
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import WATERMARK_INVALID

AT = Location("models/m.sql")
WINDOW = StructType().add("start", TimestampType()).add("end", TimestampType())
COLUMNS = (
    StructType().add("at", TimestampType()).add("local", TimestampNTZType()).add("window", WINDOW).add("n", LongType())
)


@pytest.mark.parametrize("column", [None, "at", "AT", "local", "window"])
def test_a_timestamp_or_a_window_carries_the_event_time(column: str | None) -> None:
    check_event_time(COLUMNS, column, AT)


@pytest.mark.parametrize(
    ("column", "message"),
    [("loca", "'loca' does not exist. Did you mean 'local'?"), ("n", "'n' is bigint, not a timestamp.")],
)
def test_another_column_is_an_error_before_anybody_streams_from_the_table(column: str, message: str) -> None:
    with pytest.raises(PenstockError) as caught:
        check_event_time(COLUMNS, column, AT)
    assert caught.value.kind is WATERMARK_INVALID
    assert message in str(caught.value)
