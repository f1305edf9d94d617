"""Checkpoints whose streams go on with other tables, and whether a stream has read a table to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.moved import Place, move, moved
from penstock.checkpoint.offsets import committed_in_tables
from penstock.control.delta_log import has_changes_after


def at(table: str, version: int, index: int = -1, *, first: bool = False) -> dict[str, Any]:
    return {
        "sourceVersion": 1, "reservoirId": table, "reservoirVersion": version, "index": index,
        "isStartingVersion": first,
    }  # fmt: skip


def batch(*sources: Any) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *(each if each == "-" else json.dumps(each) for each in sources)])


KAFKA = {"clicks": {"0": 17}}
PLACES = {"hidden": Place("real", 9)}


def test_places_in_a_hidden_table_become_places_in_the_real_one() -> None:
    text = batch(KAFKA, at("hidden", 4, 2, first=True), "-", at("other", 3), at("hidden", 5))
    head, notes, *sources = moved(text, PLACES).split("\n")
    assert (head, notes) == ("v1", '{"batchWatermarkMs":0}')
    found = [each if each == "-" else json.loads(each) for each in sources]
    assert found == [KAFKA, at("real", 9), "-", at("other", 3), at("real", 9)]
    assert moved(moved(text, PLACES), PLACES) == moved(text, PLACES)


def test_every_batch_of_a_checkpoint_is_moved_once(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for number in (3, 4):
        (offsets / str(number)).write_text(batch(at("hidden", number)))
        (offsets / f".{number}.crc").write_bytes(b"of the text before")
    assert move(tmp_path, PLACES) == 2
    assert move(tmp_path, PLACES) == 0
    assert sorted(each.name for each in offsets.iterdir()) == ["3", "4"], "a checksum of before would be an error"
    assert json.loads((offsets / "4").read_text().split("\n")[2]) == at("real", 9)
    assert move(tmp_path / "none yet", PLACES) == 0


ADD, REMOVE, FEED = {"add": {"dataChange": True}}, {"remove": {"dataChange": True}}, {"cdc": {"dataChange": False}}
MOVED, NOTE = {"add": {"dataChange": False}}, {"commitInfo": {}}
# 0: made; 1: two files; 2: an update with its changes; 3: files put together; 4: fenced
COMMITS = [[NOTE], [ADD, ADD], [ADD, FEED, REMOVE], [MOVED, {"remove": {"dataChange": False}}], [{"txn": {}}]]


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (None, True),
        (at("t", 1), True),
        (at("t", 1, 0), True),
        (at("t", 1, 1), True),  # the whole of the first, but not the update
        (at("t", 2), True),
        (at("t", 2, 0), False),  # of an update the change feed is read, and that is one file
        (at("t", 3), False),
        (at("t", 5), False),
        (at("t", 5, first=True), True),  # it has still to read what was there when it began
    ],
)
def test_whether_a_table_was_read_to_its_end(tmp_path: Path, offset: dict[str, Any] | None, left: bool) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version, actions in enumerate(COMMITS):
        (log / f"{version:020d}.json").write_text("\n".join(json.dumps(each) for each in actions))
    assert has_changes_after(tmp_path, offset) is left


def test_places_in_tables_are_known_by_the_tables_ids(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "offsets" / "4").write_text(batch(KAFKA, at("z", 7, 3), "-", at("a", 5), at("z", 7, 1)))
    assert committed_in_tables(tmp_path) == {}
    (tmp_path / "commits" / "4").write_text("v1\n{}")
    found = committed_in_tables(tmp_path)
    assert found == {"a": at("a", 5), "z": at("z", 7, 1)}, "of a table that is read twice, the place further behind"


def test_a_table_without_rows_was_read_to_its_end_by_a_stream_without_a_batch(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text(json.dumps(NOTE))
    assert not has_changes_after(tmp_path, None)
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version": 7}')
    assert has_changes_after(tmp_path, at("t", 5)), "commits that are gone may have had rows"
