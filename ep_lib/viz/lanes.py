"""Numbers behind the pictures of a run: packed rows, shares of time in bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def pack(intervals: Sequence[tuple[float, float]], apart: float = 0.0) -> list[int]:
    """A row for each (begin, end), so that those of one row do not overlap and lie ``apart``; as few rows as needed."""
    ends: list[float] = []
    rows = [0] * len(intervals)
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        begin, end = intervals[i]
        row = next((row for row, last in enumerate(ends) if last + apart <= begin), len(ends))
        if row == len(ends):
            ends.append(end)
        ends[row] = end
        rows[i] = row
    return rows


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time in intervals that do not overlap, in order."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def covered(intervals: Iterable[tuple[float, float]], edges: Floats) -> Floats:
    """For each bin between ``edges`` (ascending, equally wide), the sum of time that the intervals spend in it."""
    pairs = np.asarray(list(intervals), dtype=np.float64).reshape(-1, 2)
    # "How many are under way", integrated up to each edge; its differences are the bins.
    spent: Floats = np.diff(_integral(pairs[:, 0], edges) - _integral(pairs[:, 1], edges))
    return np.maximum(spent, 0.0)  # rounding


def _integral(times: Floats, edges: Floats) -> Floats:
    """sum(max(edge - time, 0)) for every edge, in n log n."""
    ordered = np.sort(times)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    number = np.searchsorted(ordered, edges, side="right")
    result: Floats = number * edges - sums[number]
    return result


def under_way(
    intervals: Iterable[tuple[float, float]], weights: Iterable[float] | None = None
) -> tuple[Floats, Floats]:
    """(times, values): from each time on, so much (``weights``, 1 each by default) is under way."""
    pairs = np.asarray(list(intervals), dtype=np.float64).reshape(-1, 2)
    each = np.ones(len(pairs)) if weights is None else np.asarray(list(weights), dtype=np.float64)
    times, index = np.unique(pairs.T.reshape(-1), return_inverse=True)
    changes = np.zeros(len(times))
    np.add.at(changes, index.reshape(-1), np.concatenate([each, -each]))
    return times, np.cumsum(changes)
