"""What a killed engine leaves of a batch that was never planned is cleared; all else stays."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoint.leftovers import sweep


def checkpoint(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("v1")
    return folder


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_an_unfinished_first_batch_is_cleared_and_the_place_where_reading_began_is_kept(tmp_path: Path) -> None:
    left = checkpoint(tmp_path, "metadata", "sources/0/0", "offsets/.0.a1.tmp", "offsets/.0.crc", "state/0/_metadata/x")
    assert sweep(left) == ["offsets/.0.a1.tmp", "offsets/.0.crc", "state/0"]
    assert files(left) == {"metadata", "sources/0/0"}
    assert sweep(left) == []


def test_nothing_is_touched_once_a_batch_was_planned(tmp_path: Path) -> None:
    names = ("metadata", "sources/0/0", "offsets/0", "offsets/.1.b2.tmp", "commits/.0.c3.tmp", "state/0/0/1.zip")
    kept = checkpoint(tmp_path, *names)
    assert sweep(kept) == []
    assert files(kept) == set(names)


def test_a_checkpoint_that_is_not_there_yet_needs_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "new") == []
