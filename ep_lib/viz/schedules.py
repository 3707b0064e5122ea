"""Pictures of many schedules: the order of turns, and the outcome of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import NARROW, RANK_COLORS
from ep_lib.viz.style import describe, draws, ink_on, legend_outside, place, rank_color, tidy

RIGHT = "right"
"""Drawn first and in green; everything else is a way to go wrong."""

_RIGHT_COLOR = "#009E73"


@draws
def interleavings(
    runs: Mapping[str, Sequence[int] | Any],
    *,
    names: Sequence[str] | None = None,
    unit: str = "turn",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """``runs[label][turn]`` is the rank with this turn; one row per run, all of the same length.

    With ``names`` the numbers mean these instead of ranks, in shades of grey; ``unit``: the meaning of a column.
    """
    rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in runs.values()]
    if not rows or rows[0].size == 0 or len({row.size for row in rows}) > 1 or min(row.min() for row in rows) < 0:
        raise ArgumentError("interleavings needs at least one run, all of the same length, of ranks >= 0")
    most = max(int(row.max()) for row in rows)

    def color(number: int) -> str:
        return rank_color(number) if names is None else to_hex(str(0.92 - 0.7 * number / max(most, 1)))

    is_alone = axes is None
    figure, axes = place(axes, NARROW, 1.6 + 0.32 * len(rows))
    axes.imshow(
        np.array([[to_rgb(color(int(rank))) for rank in row] for row in rows]),
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
    labels = {rank: names[rank] if names else f"rank {rank}" for rank in ranks}
    handles = [Patch(facecolor=color(rank), label=label) for rank, label in labels.items()]
    legend_outside(figure, axes, handles, below=is_alone)
    told = (
        f"{run}: {', '.join(f'{int((row == rank).sum())} {label}' for rank, label in labels.items())}"
        for run, row in zip(runs, rows, strict=True)
    )
    orders = len({row.tobytes() for row in rows})
    describe(figure, title, f"{len(rows)} runs of {rows[0].size} {unit}, {orders} of them different", *told)
    return figure


@draws
def outcomes(counts: Mapping[str, Mapping[str, int]], *, title: str | None = None, axes: Axes | None = None) -> Figure:
    """``counts[program][outcome]`` is a number of runs, one bar per program; "right" is the desired outcome."""
    if not counts or any(n < 0 for row in counts.values() for n in row.values()):
        raise ArgumentError("outcomes needs at least one program, and numbers of runs >= 0")
    kinds = list(dict.fromkeys([RIGHT, *(kind for row in counts.values() for kind in row)]))
    kinds = [kind for kind in kinds if any(row.get(kind, 0) for row in counts.values())]
    palette = iter([color for color in ("#D55E00", "#8A8A8A", *RANK_COLORS) if color != _RIGHT_COLOR])
    colors = {kind: _RIGHT_COLOR if kind == RIGHT else next(palette) for kind in kinds}
    is_alone = axes is None
    figure, axes = place(axes, NARROW, 1.5 + 0.42 * len(counts))
    most = max(sum(row.values()) for row in counts.values()) or 1
    left = [0.0] * len(counts)
    for kind in kinds:
        sizes = [row.get(kind, 0) for row in counts.values()]
        axes.barh(range(len(counts)), sizes, left=left, height=0.68, color=colors[kind], edgecolor="white", label=kind)
        for row, size in enumerate(sizes):
            if size >= 0.03 * most:
                ink = ink_on(colors[kind])
                axes.text(left[row] + size / 2, row, str(size), ha="center", va="center", fontsize=9, color=ink)
            left[row] += size
    axes.set_yticks(range(len(counts)), list(counts))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(counts) - 0.5, -0.5)
    axes.set_xlim(0, most)
    axes.set_xlabel("runs, one seed each")
    tidy(axes, title=title or "What came of it")
    legend_outside(figure, axes, below=is_alone)
    told = (
        f"{name}, {', '.join(f'{number} {kind}' for kind, number in row.items() if number)}"
        for name, row in counts.items()
    )
    describe(figure, title, *told)
    return figure
