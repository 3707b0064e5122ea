"""The way of `x` from Buffer.dispatch to the launch of its last kernel stays short."""

from __future__ import annotations

import way_of_x

MOST_FILES, MOST_CALLS = 8, 150


def test_the_way_of_x_is_short() -> None:
    for way in way_of_x.measure():
        assert len(way.files) <= MOST_FILES and way.calls <= MOST_CALLS, str(way)
