"""How many messages a batch reads, as the checkpoint tells it before the batch runs."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoint.offsets import kafka_rows


def offsets(checkpoint: Path, batch: int, *sources: str) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join(["v1", "{}", *sources]))


def test_the_messages_between_two_batches_are_counted_over_all_topics_and_partitions(tmp_path: Path) -> None:
    offsets(tmp_path, 4, '{"a": {"0": 10, "1": 5}}', '{"b": {"0": 1}}')
    offsets(tmp_path, 5, '{"a": {"0": 13, "1": 5, "2": 2}}', '{"b": {"0": 2}}')
    assert kafka_rows(tmp_path, 5) == 3 + 2 + 1


def test_rows_of_a_table_are_not_counted_as_messages(tmp_path: Path) -> None:
    for batch in (1, 2):
        offsets(tmp_path, batch, f'{{"reservoirVersion": {batch}, "index": -1}}')
    assert kafka_rows(tmp_path, 2) is None


def test_a_first_batch_is_counted_from_where_the_stream_began(tmp_path: Path) -> None:
    offsets(tmp_path, 0, '{"clicks":{"0":7,"1":2}}', '{"orders":{"0":3}}')
    for source, began in ((0, '{"clicks":{"0":5,"1":0}}'), (1, '{"orders":{"0":3}}')):
        folder = tmp_path / "sources" / str(source)
        folder.mkdir(parents=True)
        (folder / "0").write_text(f"\0v1\n{began}")
    assert kafka_rows(tmp_path, 0) == 2 + 2


def test_a_first_batch_of_a_source_whose_beginning_is_not_known_is_not_counted(tmp_path: Path) -> None:
    offsets(tmp_path, 0, '{"clicks":{"0":7}}')
    assert kafka_rows(tmp_path, 0) is None
