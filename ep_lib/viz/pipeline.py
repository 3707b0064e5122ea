"""A ring of slots over time: which round is written into a slot, and read from it, when."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import QUIET, ink_on, place, rank_color, tidy

_FULL = "#D9D9D9"
_CLASH = "#D55E00"
_SHORTEST = 0.8  # of a bar, so that its number fits


def slots_over_time(
    written: Any,
    read: Any,
    num_slots: int,
    *,
    unit: str = "order of events",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """``written[round]`` and ``read[round]`` are (begin, end); round r uses slot ``r % num_slots``.

    A slot that is written again before its previous round has been read is outlined in red: that round is lost.
    """
    writes, reads = np.asarray(written, dtype=float), np.asarray(read, dtype=float)
    if writes.ndim != 2 or writes.shape[1] != 2 or writes.shape != reads.shape or num_slots < 1 or not len(writes):
        raise ArgumentError(
            f"slots_over_time needs (begin, end) of each round's write and read and at least one slot; got shapes "
            f"{writes.shape} and {reads.shape}, {num_slots} slots"
        )
    figure, axes = place(axes, 10.0, 1.4 + 0.62 * num_slots)
    clashes = 0
    for number, (begin, end) in enumerate(writes):
        slot = number % num_slots
        taken_from, taken = reads[number]
        if taken_from > end:
            axes.barh(slot, taken_from - end, left=end, height=0.12, color=_FULL, zorder=1)
        _bar(axes, slot - 0.18, begin, end, number, rank_color(0))
        _bar(axes, slot + 0.18, taken_from, taken, number, rank_color(1))
        if number >= num_slots and begin < reads[number - num_slots][1]:
            clashes += 1
            length = max(end - begin, _SHORTEST)
            axes.barh(
                slot - 0.18, length, left=begin, height=0.42, fill=False, edgecolor=_CLASH, linewidth=2.0, zorder=3
            )
    axes.set_yticks(range(num_slots), [f"slot {slot}" for slot in range(num_slots)])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(num_slots - 0.5, -0.5)
    axes.set_xlim(min(writes.min(), reads.min()), max(writes.max(), reads.max()) + 1)
    axes.set_xlabel(unit)
    tidy(axes, title=title or "A ring of slots over time; the numbers are rounds")
    handles = [
        Patch(facecolor=rank_color(0), label="being written"),
        Patch(facecolor=_FULL, label="full, not yet read"),
        Patch(facecolor=rank_color(1), label="being read"),
    ]
    if clashes:
        handles.append(Patch(facecolor="none", edgecolor=_CLASH, linewidth=1.8, label=f"too early ({clashes}x)"))
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=9,
        labelcolor=QUIET,
        borderaxespad=0,
    )
    return figure


def _bar(axes: Axes, height: float, begin: float, end: float, number: int, color: str) -> None:
    length = max(end - begin, _SHORTEST)
    axes.barh(height, length, left=begin, height=0.34, color=color, edgecolor="white", linewidth=0.6, zorder=2)
    ink = ink_on(color)
    axes.text(begin + length / 2, height, str(number), ha="center", va="center", fontsize=7, color=ink, zorder=4)
