"""How far a stream is behind, from checkpoints, brokers and tables."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.offsets import by_relation, committed, newest_committed, parse_offset_log
from penstock.checkpoint.refreshes import Inputs, TableVersion, write_commit, write_inputs
from penstock.compiler.spec import (
    Column,
    FromOffsets,
    FromTimestamp,
    KafkaInput,
    Output,
    OutputMode,
    StreamSpec,
    TableInput,
    TableStreamInput,
)
from penstock.control.behind import NONE, UNKNOWN, Lag, age, total, unread
from penstock.control.delta_log import DeltaLog, parse_commit
from penstock.control.lag import LagMeter, table_path
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings
from penstock.store import Actual, Desired, Wanted

NOW = 5000.0
CLICKS = KafkaInput(
    view="c", relation="shop.clicks", topic="clicks", columns=(Column(name="a", type="string", origin="value.a"),)
)
VIEWS = CLICKS.model_copy(update={"relation": "shop.views", "topic": "views"})
UP = TableStreamInput(view="u", relation="shop.up")
META = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
DELTA = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": 5, "index": -1, "isStartingVersion": False}


# -- the checkpoint ---------------------------------------------------------------------------------------------------
def test_an_offset_log_has_one_offset_for_each_source() -> None:
    text = f'v1\n{META}\n{{"clicks":{{"0":42,"1":7}}}}\n-\n{json.dumps(DELTA)}'
    assert parse_offset_log(text) == [{"clicks": {"0": 42, "1": 7}}, None, DELTA]


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}", "v1\n{}\n[1]", "v1\n{}\n{half"])
def test_what_is_no_offset_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"offset|Expecting"):
        parse_offset_log(text)


def test_offsets_find_their_inputs_by_topic_whatever_their_order() -> None:
    offsets: list[dict[str, Any] | None] = [DELTA, {"views": {"0": 1}}, {"clicks": {"0": 2}}]
    assert by_relation(offsets, [CLICKS, TableInput(relation="shop.dim"), VIEWS, UP]) == {
        "shop.clicks": {"clicks": {"0": 2}},
        "shop.views": {"views": {"0": 1}},
        "shop.up": DELTA,
    }


def test_offsets_in_several_tables_are_known_by_the_ids_of_these() -> None:
    # Spark's order of sources is not that of the inputs; and a table may be read twice, further and less far.
    other = UP.model_copy(update={"view": "o", "relation": "shop.other"})
    offsets: list[dict[str, Any] | None] = [DELTA | {"reservoirId": "o"}, DELTA | {"reservoirVersion": 7}, DELTA]
    found = by_relation(offsets, [UP, other, UP], {"t": "shop.up", "o": "shop.other"})
    assert found == {"shop.other": offsets[0], "shop.up": DELTA}


def test_what_a_full_refresh_has_read_is_read_like_any_offsets(tmp_path: Path) -> None:
    other = UP.model_copy(update={"view": "o", "relation": "shop.other"})
    tables = {"/a": TableVersion("t", 4), "/b": TableVersion("o", 7)}
    write_inputs(tmp_path, 0, Inputs("v1", tables=tables), ["/a", "/b"])
    write_commit(tmp_path, 0)
    found = committed(tmp_path, [other, UP], {"t": "shop.up", "o": "shop.other"})
    assert {name: offset["reservoirVersion"] for name, offset in found.items()} == {"shop.up": 5, "shop.other": 8}
    assert committed(tmp_path, [UP]) != {}, "of one table nobody has to ask"


def test_the_newest_commit_counts_as_a_number_and_other_files_do_not() -> None:
    assert newest_committed(["9", "10", ".10.crc", "11.tmp"]) == 10
    assert newest_committed([]) is None


def checkpoint(directory: Path, commits: list[int], offsets: dict[int, dict[str, Any]]) -> Path:
    for name in ("commits", "offsets"):
        (directory / name).mkdir(parents=True)
    for number in commits:
        (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for number, offset in offsets.items():
        (directory / "offsets" / str(number)).write_text(f"v1\n{META}\n{json.dumps(offset)}")
    return directory


def test_a_planned_batch_that_was_not_committed_was_not_read(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, [0, 1], {n: {"clicks": {"0": 10 * n}} for n in range(3)})
    assert committed(where, [CLICKS]) == {"shop.clicks": {"clicks": {"0": 10}}}


def test_before_the_first_commit_nothing_was_read(tmp_path: Path) -> None:
    assert committed(tmp_path / "none", [CLICKS]) == {}
    assert committed(checkpoint(tmp_path, [], {0: {"clicks": {"0": 9}}}), [CLICKS]) == {}


# -- the arithmetic ---------------------------------------------------------------------------------------------------
def test_what_is_unread_starts_at_the_committed_offset_or_at_what_retention_left() -> None:
    begin = {0: 0, 1: 50, 2: 3, 3: 0}
    end = {0: 10, 1: 60, 2: 9, 3: 4}
    assert unread({0: 10, 1: 20, 3: 1}, begin, end) == {1: (50, 10), 2: (3, 6), 3: (1, 3)}


def test_a_stream_is_as_far_behind_as_all_inputs_and_as_late_as_the_latest() -> None:
    assert total([Lag(3, 1.0), Lag(4, 9.0)]) == Lag(7, 9.0)
    assert total([Lag(3, None), NONE]) == Lag(3, None)
    assert total([UNKNOWN, NONE]) == UNKNOWN
    assert total([]) == NONE


def test_the_age_is_that_of_the_oldest_and_never_negative() -> None:
    assert age([NOW - 5, NOW - 9], NOW) == 9
    assert age([NOW + 3], NOW) == 0
    assert age([NOW, None], NOW) is None


# -- tables -----------------------------------------------------------------------------------------------------------
def commit(table: Path, version: int, files: list[int | None], *, at: float = NOW - 60, change: bool = True) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": int(at * 1000), "operation": "WRITE"}}]
    for rows in files:
        stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
        lines.append({"add": {"path": "f", "dataChange": change, **stats}})
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(line) for line in lines))


def test_a_commit_counts_its_new_rows_and_not_the_moved_ones() -> None:
    text = (
        '{"protocol":{}}\n{"add":{"dataChange":true,"stats":"{\\"numRecords\\":3}"}}\n'
        '{"add":{"dataChange":false,"stats":"{\\"numRecords\\":9}"}}\n{"remove":{"path":"x"}}\n{"add":{"dataChange":true}}'
    )
    assert parse_commit(text).added == (3, None)


def test_commits_below_the_offset_are_read_and_the_oldest_other_gives_the_age(tmp_path: Path) -> None:
    for version in range(8):
        commit(tmp_path, version, [10], at=NOW - 100 + version)
    assert DeltaLog().lag(tmp_path, DELTA, NOW) == Lag(30, 95.0)


def test_a_caught_up_stream_has_no_lag_and_an_empty_commit_makes_none(tmp_path: Path) -> None:
    commit(tmp_path, 4, [10])
    assert DeltaLog().lag(tmp_path, DELTA, NOW) == NONE
    commit(tmp_path, 5, [])
    assert DeltaLog().lag(tmp_path, DELTA, NOW) == NONE


def test_a_half_read_commit_counts_with_its_other_half(tmp_path: Path) -> None:
    commit(tmp_path, 5, [1, 2, 4, 8])
    commit(tmp_path, 6, [16])
    assert DeltaLog().lag(tmp_path, DELTA | {"index": 1}, NOW).rows == 4 + 8 + 16


def test_a_half_read_first_snapshot_counts_files_from_the_first_commit_on(tmp_path: Path) -> None:
    for version, rows in enumerate([1, 2, 4, 8]):
        commit(tmp_path, version, [rows])
    half = {"reservoirVersion": 2, "index": 1, "isStartingVersion": True}
    assert DeltaLog().lag(tmp_path, half, NOW).rows == 4 + 8


def test_before_the_first_batch_the_whole_table_is_unread(tmp_path: Path) -> None:
    commit(tmp_path, 0, [])
    commit(tmp_path, 1, [5])
    assert DeltaLog().lag(tmp_path, None, NOW) == Lag(5, 60.0)
    assert DeltaLog().lag(tmp_path / "not there yet", None, NOW) == NONE


def test_commits_of_a_table_that_was_made_anew_are_read_anew(tmp_path: Path) -> None:
    log = DeltaLog()
    for version in range(8):
        commit(tmp_path, version, [10])
    assert log.lag(tmp_path, DELTA, NOW).rows == 30
    shutil.rmtree(tmp_path / "_delta_log")
    for version in range(7):
        commit(tmp_path, version, [1])
    assert log.lag(tmp_path, DELTA, NOW).rows == 2


def test_commits_that_were_cleaned_away_make_the_lag_unknown(tmp_path: Path) -> None:
    commit(tmp_path, 20, [5])
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version":20,"size":3}')
    assert DeltaLog().lag(tmp_path, DELTA, NOW) == UNKNOWN


def test_rows_without_statistics_make_the_rows_unknown_and_not_the_age(tmp_path: Path) -> None:
    commit(tmp_path, 5, [None])
    assert DeltaLog().lag(tmp_path, DELTA, NOW) == Lag(None, 60.0)


def test_a_table_lies_in_the_directory_of_its_schema(project_paths: ProjectPaths) -> None:
    assert table_path(project_paths, "shop.up") == project_paths.warehouse / "shop.db" / "up"
    assert table_path(project_paths, "default.up") == project_paths.warehouse / "up"


# -- streams ----------------------------------------------------------------------------------------------------------
class Topics:
    """A broker with two partitions; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def watermarks(self, bootstrap: str, topic: str, options: object) -> tuple[dict[int, int], dict[int, int]]:
        return {0: 0, 1: 2}, {0: 10, 1: 12}

    def time_of(self, bootstrap: str, topic: str, options: object, partition: int, offset: int) -> float | None:
        self.asked.append((bootstrap, partition, offset))
        return NOW - 100 + offset

    def offsets_at(
        self, bootstrap: str, topic: str, options: object, milliseconds: int, partitions: tuple[int, ...]
    ) -> dict[int, int]:
        return dict.fromkeys(partitions, 8)

    def names(self, bootstrap: str, options: object) -> list[str]:
        return ["clicks_a", "clicks_b", "other", "__clicks_c"]

    def close(self) -> None:
        return


def lag_of(paths: ProjectPaths, found: Actual, topics: Topics, **changes: Any) -> Lag:
    spec = StreamSpec(
        name="shop.a", unique_id="model.a", path="models/a.sql", sql="select 1", stateful=False,
        inputs=(CLICKS.model_copy(update=changes),), output=Output(relation="shop.a", mode=OutputMode.APPEND),
    )  # fmt: skip
    want = Desired("shop.a", 2, spec.hash, spec.to_json(), "g1", Wanted.RUNNING, 0.0)
    return LagMeter(paths, topics).measure(want, found, KafkaSettings(bootstrap="broker:1"), NOW)


def test_a_running_stream_is_measured_by_what_it_reported(project_paths: ProjectPaths) -> None:
    topics = Topics()
    found = Actual("shop.a", generation=2, offsets={"shop.clicks": {"clicks": {"0": 10, "1": 9}}})
    assert lag_of(project_paths, found, topics) == Lag(3, 91.0)
    assert topics.asked == [("broker:1", 1, 9)]


def test_offsets_kept_as_text_count_as_well(project_paths: ProjectPaths) -> None:
    found = Actual("shop.a", generation=2, offsets={"shop.clicks": '{"clicks":{"0":10,"1":12}}'})
    assert lag_of(project_paths, found, Topics()) == NONE


def test_a_dead_stream_is_measured_by_its_checkpoint(project_paths: ProjectPaths) -> None:
    checkpoint(project_paths.checkpoint("shop.a", "g1"), [0], {0: {"clicks": {"0": 4, "1": 12}}})
    assert lag_of(project_paths, Actual("shop.a"), Topics()).rows == 6


def test_offsets_of_an_older_generation_do_not_count(project_paths: ProjectPaths) -> None:
    found = Actual("shop.a", generation=1, offsets={"shop.clicks": {"clicks": {"0": 10, "1": 12}}})
    assert lag_of(project_paths, found, Topics()).rows == 20


def test_a_stream_that_never_ran_is_behind_by_what_it_will_read(project_paths: ProjectPaths) -> None:
    assert lag_of(project_paths, Actual("shop.a"), Topics()).rows == 20
    assert lag_of(project_paths, Actual("shop.a"), Topics(), starting="latest") == NONE


def test_a_source_with_its_own_broker_is_asked_there(project_paths: ProjectPaths) -> None:
    topics = Topics()
    lag_of(project_paths, Actual("shop.a"), topics, bootstrap="other:2")
    assert {asked[0] for asked in topics.asked} == {"other:2"}


# -- starts, partitions, patterns -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("starting", "rows"),
    [
        ("earliest", 20),
        ("latest", 0),
        (FromOffsets(offsets=((0, 4), (1, -1))), 6),
        (FromOffsets(offsets=((0, -2), (1, 10))), 12),
        (FromTimestamp(timestamp=datetime(2026, 1, 1, tzinfo=timezone.utc)), 6),
    ],
)
def test_before_its_first_batch_a_stream_is_behind_by_what_comes_after_its_start(
    starting: Any, rows: int, project_paths: ProjectPaths
) -> None:
    assert lag_of(project_paths, Actual("shop.a"), Topics(), starting=starting).rows == rows


def test_partitions_that_are_not_read_do_not_count(project_paths: ProjectPaths) -> None:
    assert lag_of(project_paths, Actual("shop.a"), Topics(), partitions=(1,)).rows == 10


def test_all_topics_of_a_pattern_count_and_a_new_one_from_its_beginning(project_paths: ProjectPaths) -> None:
    pattern = {"topic": None, "topic_pattern": "clicks_.*"}
    assert lag_of(project_paths, Actual("shop.a"), Topics(), **pattern).rows == 40
    found = Actual("shop.a", generation=2, offsets={"shop.clicks": {"clicks_a": {"0": 10, "1": 12}}})
    assert lag_of(project_paths, found, Topics(), **pattern).rows == 20


def test_a_pattern_recognises_the_offsets_of_its_topics_and_no_others() -> None:
    pattern = CLICKS.model_copy(update={"topic": None, "topic_pattern": "c.*"})
    offsets: list[dict[str, Any] | None] = [DELTA, {"views": {"0": 1}}, {"clicks": {"0": 2}, "calls": {"0": 3}}]
    assert by_relation(offsets, [pattern, VIEWS]) == {"shop.clicks": offsets[2], "shop.views": offsets[1]}
