"""The way of `x` from a call of a Buffer to its return stays short, in every mode."""

from __future__ import annotations

import pytest
import way_of_x

MOST_CALLS, MOST_FILES, MOST_MOVES = 115, 11, 60


@pytest.mark.slow
def test_the_way_of_x_is_short() -> None:
    """Also of a second dispatch, and where the number of tokens is another one."""
    ways = way_of_x.measure()
    assert len(ways) == 4 * len(way_of_x.MODES) + 2 and all(way.written for way in ways.values())
    for name, way in ways.items():
        figures = way.calls, len(way.files), way.moves
        limits = zip(figures, (MOST_CALLS, MOST_FILES, MOST_MOVES), strict=True)
        assert all(figure <= most for figure, most in limits), f"{name}: {way}"
