"""Contracts, constraints and new columns, on real Delta tables with both writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.compiler.spec import OutputMode
from penstock.errors import PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, CONSTRAINT_BROKEN, CONTRACT_BROKEN
from penstock.store import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.compiler.spec import StreamSpec

Platform = Any
pytestmark = pytest.mark.timeout(600)


def with_output(spec: StreamSpec, **changes: object) -> StreamSpec:
    return spec.model_copy(update={"output": spec.output.model_copy(update=changes)})


def test_a_broken_contract_is_an_error_before_anything_starts(
    platform: Platform, make_spec: Callable[..., StreamSpec], topic: Callable[..., str]
) -> None:
    spec = make_spec("kept", topic(), "select k, v, part from input")
    broken = with_output(spec, contract=(("K", "STRING"), ("v", "INT"), ("other", "DATE")))
    with pytest.raises(PenstockError) as caught:
        platform.deploy(broken)
    assert caught.value.kind is CONTRACT_BROKEN
    said = str(caught.value)
    assert "column v is bigint, not int" in said
    assert "column other is missing" in said
    assert "column part is not in it" in said
    assert platform.store.find_desired(spec.name) is None
    assert platform.sql(f"show tables in default like '{spec.name}'") == []
    kept = with_output(spec, contract=(("k", "STRING"), ("v", "BIGINT"), ("part", "INT")))
    assert platform.deploy(kept).verdict == "NEW"


@pytest.mark.parametrize("small_batch_rows", [20_000, 0], ids=["delta-rs", "spark"])
def test_a_row_that_breaks_a_constraint_fails_its_batch_and_nothing_of_it_is_written(
    platform: Platform,
    make_spec: Callable[..., StreamSpec],
    topic: Callable[..., str],
    produce: Callable[..., int],
    small_batch_rows: int,
) -> None:
    # Given: rows that are appended, replaced by key, and computed anew as a whole.
    name = topic()
    checks = (("k_not_null", "`k` is not null"), ("positive", "v > 0"))
    specs = [
        with_output(
            make_spec(mode.value, name, "select k, v from input", small_batch_rows=small_batch_rows),
            mode=mode, keys=("k",) if mode is OutputMode.UPSERT else (), checks=checks,
        )
        for mode in (OutputMode.APPEND, OutputMode.UPSERT, OutputMode.REPLACE)
    ]  # fmt: skip

    def become(*want: tuple[str, int]) -> None:
        for spec in specs:
            rows = lambda spec=spec: sorted(platform.sql(f"select k, v from {spec.name}"))  # noqa: E731
            platform.until(lambda rows=rows: rows() == [*want], f"the rows of {spec.name}", 90, rows)

    for spec in specs:
        platform.deploy(spec)
    produce(name, [{"k": "a", "v": 1}])
    become(("a", 1))
    produce(name, [{"k": "b", "v": -1}])
    for spec in specs:
        failed = platform.state(spec.name, StreamState.FAILED, StreamState.QUARANTINED)
        assert failed.error_code == CONSTRAINT_BROKEN.code
        assert platform.sql(f"select k, v from {spec.name}") == [("a", 1)]
    # Without the constraint the same message goes in: the change of it is no rebuild.
    for spec in specs:
        assert platform.deploy(with_output(spec, checks=())).verdict == "RESTART"
    become(("a", 1), ("b", -1))
    with pytest.raises(PenstockError) as caught:
        platform.deploy(specs[0])
    assert caught.value.kind is CONSTRAINT_BROKEN


def test_new_columns_are_appended_and_the_stream_goes_on(
    platform: Platform, make_spec: Callable[..., StreamSpec], topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    name = topic()
    old = with_output(make_spec("wider", name, "select k, v from input"), on_schema_change="append_new_columns")
    platform.deploy(old)
    produce(name, [{"k": "a", "v": 1}])
    platform.until(lambda: len(platform.sql(f"select * from {old.name}")) == 1, "the first row", 90)
    strict = with_output(old.model_copy(update={"sql": "select k, v + 1 as w, v from input"}), on_schema_change="fail")
    with pytest.raises(PenstockError) as caught:
        platform.deploy(strict)
    assert caught.value.kind is CHANGE_NEEDS_REBUILD
    wider = old.model_copy(update={"sql": "select k, v + 1 as w, v from input"})
    assert platform.deploy(wider).verdict == "RESTART"
    produce(name, [{"k": "b", "v": 2}])
    platform.until(lambda: len(platform.sql(f"select * from {old.name}")) == 2, "the second row", 90)
    assert platform.sql(f"select k, v, w from {old.name} order by k") == [("a", 1, None), ("b", 2, 3)]
    narrower = old.model_copy(update={"sql": "select k from input"})
    with pytest.raises(PenstockError) as gone:
        platform.deploy(narrower)
    assert gone.value.kind is CHANGE_NEEDS_REBUILD
