"""The program of a stream, loaded from where it was written."""

from __future__ import annotations

from pathlib import Path

from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.engine import jobs

SPEC = StreamSpec(
    name="shop.a", unique_id="model.shop.a", path="models/a.sql", sql="select k from clicks", stateful=False,
    inputs=(KafkaInput(view="clicks", relation="shop.clicks", topic="clicks",
                       columns=(Column(name="k", type="STRING", origin="value.k"),)),),
    output=Output(relation="shop.a", mode=OutputMode.APPEND), small_batch_rows=100,
)  # fmt: skip


def test_a_program_of_the_same_length_at_the_same_place_in_the_same_second_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "prepare" / "job.py"
    found = [jobs.load(SPEC.model_copy(update={"small_batch_rows": rows}), file) for rows in (100, 200, 300)]
    assert [each.STREAM.small_batch_rows for each in found] == [100, 200, 300]
    assert [each.name for each in file.parent.iterdir()] == ["job.py"]
    assert found[-1].__file__ == str(file)
