"""A batch's identity in the table's log: token and batch in one number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.identity import NO_BATCH, Mark, application

tokens = st.integers(min_value=0, max_value=(1 << 24) - 1)
batches = st.integers(min_value=NO_BATCH, max_value=(1 << 38) - 2)


@given(tokens, batches)
def test_a_mark_comes_back_from_its_version(token: int, batch: int) -> None:
    mark = Mark(token, batch)
    assert Mark.of(mark.version) == mark


@given(tokens, batches, tokens, batches)
def test_versions_are_ordered_as_marks_are(token: int, batch: int, other_token: int, other_batch: int) -> None:
    one, two = Mark(token, batch), Mark(other_token, other_batch)
    assert (one < two) == (one.version < two.version)


@given(tokens, batches)
def test_a_version_fits_into_the_long_of_the_log(token: int, batch: int) -> None:
    assert 0 <= Mark(token, batch).version < 1 << 63


def test_a_table_that_knows_no_batch_has_the_lowest_mark() -> None:
    assert Mark.of(None) == Mark(0, NO_BATCH)


def test_each_checkpoint_is_an_application_of_its_own() -> None:
    assert application("shop.clicks", "g1-a") != application("shop.clicks", "g2-b")
