"""How often idle streams ask their inputs."""

from __future__ import annotations

import pytest

from penstock.engine.polling import LONGEST, SHORTEST, rest_ms


@pytest.mark.parametrize(("streams", "rest"), [(0, 25), (1, 25), (2, 25), (4, 50), (10, 125), (16, 200), (500, 200)])
def test_streams_rest_the_longer_the_more_there_are(streams: int, rest: int) -> None:
    assert rest_ms(streams) == rest


def test_all_together_look_no_oftener_than_a_few_until_the_longest_rest_is_reached() -> None:
    looks = [streams / rest_ms(streams) for streams in range(2, 17)]
    assert max(looks) <= 2.2 / SHORTEST
    assert rest_ms(1_000) == LONGEST


@pytest.mark.parametrize(("streams", "rest"), [(1, 100), (2, 100), (3, 150), (50, 200)])
def test_the_profile_says_how_long_a_few_rest(streams: int, rest: int) -> None:
    assert rest_ms(streams, 100) == rest
    assert rest_ms(streams, 1_000) == 1_000
