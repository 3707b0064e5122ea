"""What came of many runs: one bar a program, divided by what happened."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import QUIET, RANK_COLORS, ink_on, place, tidy

RIGHT = "right"
"""Drawn first and in green; everything else is a way to go wrong."""

_RIGHT_COLOR = "#009E73"


def outcomes(counts: Mapping[str, Mapping[str, int]], *, title: str | None = None, axes: Axes | None = None) -> Figure:
    """``counts[program][what happened]`` is a number of runs; ``"right"`` is what should happen."""
    if not counts or any(n < 0 for row in counts.values() for n in row.values()):
        raise ArgumentError("outcomes needs at least one program, and numbers of runs >= 0")
    kinds = list(dict.fromkeys([RIGHT, *(kind for row in counts.values() for kind in row)]))
    kinds = [kind for kind in kinds if any(row.get(kind, 0) for row in counts.values())]
    palette = iter([color for color in ("#D55E00", "#E69F00", *RANK_COLORS) if color != _RIGHT_COLOR])
    colors = {kind: _RIGHT_COLOR if kind == RIGHT else next(palette) for kind in kinds}
    figure, axes = place(axes, 9.0, 1.3 + 0.42 * len(counts))
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
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9, labelcolor=QUIET, borderaxespad=0
    )
    return figure
