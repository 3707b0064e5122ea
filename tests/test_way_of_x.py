"""The way of `x` from Buffer.dispatch to the launch of its last kernel stays short."""

from __future__ import annotations

import pytest
import way_of_x

MOST_FILES, MOST_CALLS = 9, 150


@pytest.mark.slow
def test_the_way_of_x_is_short() -> None:
    """Also of a second dispatch, and where the number of tokens is another one each time."""
    ways = way_of_x.measure()
    assert len(ways) == 3 + len(way_of_x.OTHER_TOKENS) and all(way.written for way in ways.values())
    for name, way in ways.items():
        assert len(way.files) <= MOST_FILES and way.calls <= MOST_CALLS, f"{name}: {way}"
