"""Who came when: one row a run, one cell a turn, in the colour of the rank that had it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import QUIET, place, rank_color, tidy


def interleavings(
    runs: Mapping[str, Sequence[int] | Any],
    *,
    names: Sequence[str] | None = None,
    unit: str = "turn",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """``runs[label][turn]`` is the rank that had this turn; runs of equal length, a row each.

    With ``names`` the numbers mean other things than ranks, and ``unit`` says what a column is.
    """
    rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in runs.values()]
    if not rows or rows[0].size == 0 or len({row.size for row in rows}) > 1 or min(row.min() for row in rows) < 0:
        raise ArgumentError("interleavings needs at least one run, all of the same length, of ranks >= 0")
    figure, axes = place(axes, 9.0, 1.2 + 0.32 * len(rows))
    axes.imshow(
        np.array([[to_rgb(rank_color(int(rank))) for rank in row] for row in rows]),
        aspect="auto",
        interpolation="nearest",
    )
    for row in range(1, len(rows)):
        axes.axhline(row - 0.5, color="white", linewidth=4)
    axes.set_yticks(range(len(rows)), list(runs))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(unit)
    tidy(axes, title=title or "Which rank's thread came when")
    axes.spines[:].set_visible(False)
    ranks = sorted({int(rank) for row in rows for rank in row})
    axes.legend(
        handles=[Patch(facecolor=rank_color(rank), label=names[rank] if names else f"rank {rank}") for rank in ranks],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=9,
        labelcolor=QUIET,
        borderaxespad=0,
    )
    return figure
