"""Where a stream starts and what it reads: ends, times, offsets, partitions and patterns."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from source_files import FILE, compiled, read_all, table

from penstock.compiler import render_job
from penstock.compiler.spec import FromTimestamp, KafkaInput
from penstock.errors import PenstockError
from penstock.project.source import StreamSource
from penstock.project.start import StartAt

NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)


def read(stream: str, tmp_path: Path) -> StreamSource:
    return read_all(table(stream), tmp_path)[0]


@pytest.mark.parametrize(
    "written",
    [
        '"2026-01-01T00:00:00Z"',
        '"2026-01-01T01:00:00+01:00"',
        "2026-01-01T00:00:00Z",  # YAML makes a time of it
        '"2026-01-01 00:00:00.000+00:00"',
    ],
)
def test_a_time_is_read_with_its_zone(written: str, tmp_path: Path) -> None:
    start = read(f"{{topic: t, start: {{timestamp: {written}}}}}", tmp_path).start
    assert isinstance(start, StartAt)
    assert start.timestamp == NEW_YEAR


def test_a_history_is_loaded_in_batches_from_a_time_or_from_the_beginning(tmp_path: Path) -> None:
    def topic(start: str) -> KafkaInput:
        (found,) = compiled(table(f"{{topic: t, start: {start}}}"), tmp_path, max_batch_rows=70).inputs
        assert isinstance(found, KafkaInput)
        return found

    by_time = topic("{from: '2026-01-01T00:00:00Z', backfill: batch}")
    assert (by_time.starting, by_time.backfill) == (FromTimestamp(timestamp=NEW_YEAR), True)
    first = topic("{from: earliest, backfill: batch}")
    assert (first.starting, first.backfill) == ("earliest", True)
    assert topic("{timestamp: '2026-01-01T00:00:00Z'}").backfill is False
    job = render_job(
        compiled(table("{topic: t, start: {from: earliest, backfill: batch}}"), tmp_path, max_batch_rows=70)
    )
    assert ".options(**runtime.paced(spark, 70))" in job
    assert "backfill=True" in job
    assert "maxOffsetsPerTrigger" not in job


@pytest.mark.parametrize(
    ("sql", "watermark", "paced"),
    [
        pytest.param("window(at, '1 hour')", True, "70, at_once=True", id="what is late is left out"),
        pytest.param("window(at, '1 hour')", False, "70", id="nothing is late"),
        pytest.param("item", True, "70", id="groups without a time are kept for ever"),
        pytest.param(None, True, "70", id="without state nothing is left out"),
    ],
)
def test_a_history_is_loaded_at_once_where_rows_could_be_taken_for_late(
    sql: str | None, watermark: bool, paced: str, tmp_path: Path
) -> None:
    delay = ", watermark: {column: at, delay: 1 minute}" if watermark else ""
    source = table(
        f"{{topic: t, start: {{from: earliest, backfill: batch}}{delay}}}",
        "{name: at, data_type: timestamp, meta: {stream: {from: timestamp}}}",
        "{name: item, data_type: string}",
    )
    text = (
        "select at from shop.clicks" if sql is None else f"select {sql} as w, count(*) as n from shop.clicks group by 1"
    )
    job = render_job(compiled(source, tmp_path, sql=text, max_batch_rows=70))
    assert f".options(**runtime.paced(spark, {paced}))" in job


def test_offsets_are_numbers_or_ends(tmp_path: Path) -> None:
    start = read("{topic: t, start: {offsets: {0: 42, 1: latest, 2: earliest}}}", tmp_path).start
    assert isinstance(start, StartAt)
    assert start.offsets == {0: 42, 1: -1, 2: -2}


def test_partitions_are_sorted_and_each_is_read_once(tmp_path: Path) -> None:
    assert read("{topic: t, partitions: [2, 0, 2]}", tmp_path).partitions == (0, 2)


def test_a_pattern_is_an_alternative_to_a_topic(tmp_path: Path) -> None:
    source = read("{topic_pattern: 'clicks_.*'}", tmp_path)
    assert (source.topic, source.topic_pattern) == (None, "clicks_.*")


def test_a_tables_own_topic_beats_the_pattern_of_its_source(tmp_path: Path) -> None:
    above = "  - name: shop\n    meta: {stream: {topic_pattern: x}}\n"
    source = read_all(table("{topic: t}").replace("  - name: shop\n", above), tmp_path)[0]
    assert (source.topic, source.topic_pattern) == ("t", None)


MISTAKES = [
    pytest.param("{topic: t, topic_pattern: x}", "1220", "both 'topic' and 'topic_pattern'", id="both"),
    pytest.param("{start: latest}", "1220", "has no topic", id="neither"),
    pytest.param("{topic_pattern: x, partitions: [1]}", "1220", "not of a pattern", id="partitions of a pattern"),
    pytest.param("{topic_pattern: 'x('}", "1202", "not a regular expression", id="no pattern"),
    pytest.param("{topic: t, partitions: []}", "1202", "'partitions'", id="no partitions"),
    pytest.param("{topic: t, partitions: [a]}", "1202", "a whole number", id="a word as partition"),
    pytest.param("{topic: t, partitions: 3}", "1202", "a list", id="a number of partitions"),
    pytest.param("{topic: t, start: latets}", "1221", "Did you mean 'latest'?", id="misspelt end"),
    pytest.param("{topic: t, start: 5}", "1221", "neither", id="a number"),
    pytest.param("{topic: t, start: {}}", "1221", "either 'timestamp', 'from' or 'offsets'", id="empty"),
    pytest.param("{topic: t, start: {from: latest}}", "1221", "not a time", id="from the end"),
    pytest.param("{topic: t, start: {backfill: batch}}", "1221", "either", id="a backfill from nowhere"),
    pytest.param("{topic: t, start: {from: earliest, backfill: stream}}", "1202", "'batch'", id="no such backfill"),
    pytest.param("{topic: t, start: {timestmp: x}}", "1201", "Did you mean 'timestamp'?", id="misspelt key"),
    pytest.param("{topic: t, start: {timestamp: yesterday}}", "1221", "not a time", id="no time"),
    pytest.param("{topic: t, start: {timestamp: '2026-01-01T00:00:00'}}", "1221", "no zone", id="no zone"),
    pytest.param("{topic: t, start: {offsets: {0: -5}}}", "1221", "'-5'", id="negative offset"),
    pytest.param("{topic: t, start: {offsets: {0: newest}}}", "1221", "latest", id="a word as offset"),
    pytest.param("{topic: t, start: {offsets: {zero: 1}}}", "1202", "whole number", id="a word as its partition"),
    pytest.param("{topic_pattern: x, start: {offsets: {0: 1}}}", "1221", "not of a pattern", id="offsets of a pattern"),
    pytest.param("{topic: t, partitions: [0, 2], start: {offsets: {0: 1}}}", "1221", "0, 2", id="other partitions"),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "code", "said"), MISTAKES)
def test_a_mistake_has_its_code_and_line(stream: str, code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        read(stream, tmp_path)
    assert (caught.value.code, str(caught.value.at)) == (f"PEN-{code}", f"{FILE}:5")
    assert said in str(caught.value)
