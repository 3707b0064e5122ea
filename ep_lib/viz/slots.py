"""What lies where in a receive buffer: one cell a slot, in the colour of the rank that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import EMPTY, QUIET, ink_on, place, rank_color, rank_hatch, tidy

_MOST_LABELLED_SLOTS = 40  # more cells than this in a row are too narrow for a label


def slot_layout(
    sources: Sequence[Any],
    *,
    labels: Sequence[Sequence[object]] | None = None,
    capacity: int | None = None,
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """The receive buffers of all ranks, one row a rank.

    ``sources[rank][slot]`` is the rank that wrote the slot, -1 an empty one; ``labels[rank][slot]`` is written into the
    cell (a token number, say). ``capacity`` is the number of slots a buffer has; those not listed are empty.
    """
    rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in sources]
    longest = max((row.size for row in rows), default=0)
    slots = longest if capacity is None else capacity
    if not rows or slots < 1 or longest > slots:
        raise ArgumentError(
            f"slot_layout needs at least one rank and one slot, and no row longer than the capacity; got {len(rows)} "
            f"ranks, {longest} slots in the longest row, capacity {capacity}"
        )
    if labels is not None and [len(row) for row in labels] != [row.size for row in rows]:
        raise ArgumentError("slot_layout needs one label a slot: labels and sources differ in length")
    figure, axes = place(axes, min(13.0, 1.8 + 0.36 * slots), 1.5 + 0.5 * len(rows))
    for rank, row in enumerate(rows):
        for slot in range(slots):
            source = int(row[slot]) if slot < row.size else -1
            text = str(labels[rank][slot]) if labels is not None and slot < row.size else ""
            _cell(axes, slot, rank, source, text if slots <= _MOST_LABELLED_SLOTS else "")
    axes.set_xlim(0, slots)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([rank + 0.5 for rank in range(len(rows))], [f"rank {rank}" for rank in range(len(rows))])
    step = 1 if slots <= 24 else -(-slots // 16)
    axes.set_xticks([slot + 0.5 for slot in range(0, slots, step)], [str(slot) for slot in range(0, slots, step)])
    axes.tick_params(length=0)
    axes.set_xlabel("slot of the receive buffer")
    tidy(axes, title=title or "Receive buffers: who wrote which slot")
    axes.spines[:].set_visible(False)
    _legend(axes, rows, slots)
    return figure


def _cell(axes: Axes, slot: int, rank: int, source: int, text: str) -> None:
    color = EMPTY if source < 0 else rank_color(source)
    hatch = "" if source < 0 else rank_hatch(source)
    axes.add_patch(
        Rectangle((slot + 0.04, rank + 0.1), 0.92, 0.8, facecolor=color, hatch=hatch, edgecolor="white", linewidth=0.6)
    )
    if text:
        axes.text(
            slot + 0.5,
            rank + 0.5,
            text,
            ha="center",
            va="center_baseline",
            fontsize=8,
            color=ink_on(color),
            clip_on=True,
        )


def _legend(axes: Axes, rows: Sequence[Any], slots: int) -> None:
    writers = sorted({int(source) for row in rows for source in row if source >= 0})
    handles = [
        Patch(facecolor=rank_color(rank), hatch=rank_hatch(rank), edgecolor="white", label=f"written by rank {rank}")
        for rank in writers
    ]
    if any(row.size < slots or (row < 0).any() for row in rows):
        handles.append(Patch(facecolor=EMPTY, edgecolor="#DDDDDD", label="empty"))
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=8,
        labelcolor=QUIET,
        borderaxespad=0,
    )
