"""Slots of a receive buffer: the writer of each, and a ring of slots over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ep_lib.errors import ArgumentError
from ep_lib.require import whole_number
from ep_lib.viz.page import NARROW
from ep_lib.viz.style import (
    EMPTY,
    describe,
    draws,
    ink_on,
    legend_below,
    legend_beside,
    place,
    rank_color,
    rank_hatch,
    tidy,
)

_MOST_LABELLED_SLOTS = 40  # with more cells in a row, they are too narrow for labels


_FULL = "#D9D9D9"
_CLASH = "#D55E00"
_SHORTEST = 0.8  # of a bar, so that its number fits


@draws
def slot_layout(
    sources: Sequence[Any],
    *,
    labels: Sequence[Sequence[object]] | None = None,
    capacity: int | None = None,
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """The receive buffers of all ranks: one row per rank, one cell per slot in the colour of its writer.

    ``sources[rank][slot]`` is the rank that wrote the slot, or -1 if it is empty; ``labels[rank][slot]`` is
    written into the cell (a token number, say). ``capacity`` is the number of slots of a buffer; those not listed are
    empty.
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
        raise ArgumentError("slot_layout needs one label per slot: labels and sources differ in length")
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
    told = []
    for rank, row in enumerate(rows):
        by = [f"{int((row == source).sum())} by rank {source}" for source in sorted({int(s) for s in row if s >= 0})]
        told.append(f"in the buffer of rank {rank} {', '.join(by) or 'none'} of {slots} slots written")
    describe(figure, title, *told)
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
    legend_beside(axes, handles, fontsize=8)


@draws
def slots_over_time(
    written: Any,
    read: Any,
    num_slots: int,
    *,
    reader: int = 1,
    unit: str = "order of events",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """``written[round]`` and ``read[round]`` are (begin, end) of a round; round r uses slot ``r % num_slots``.

    Rank 0 writes, and rank ``reader`` reads; if that is rank 0 as well (its proxy, say), reads are hollow. A slot that
    is written again before its previous round has been read is outlined in red: that round is lost.
    """
    writes, reads = np.asarray(written, dtype=float), np.asarray(read, dtype=float)
    num_slots, reader = whole_number("num_slots", num_slots, 1, 1000), whole_number("reader", reader, 0, 1000)
    if writes.ndim != 2 or writes.shape[1] != 2 or writes.shape != reads.shape or not len(writes):
        raise ArgumentError(
            f"slots_over_time needs (begin, end) of each round's write and read; got shapes {writes.shape} and "
            f"{reads.shape}"
        )
    is_alone = axes is None
    figure, axes = place(axes, NARROW, 1.6 + 0.62 * num_slots)
    clashes = 0
    for number, (begin, end) in enumerate(writes):
        slot = number % num_slots
        taken_from, taken = reads[number]
        if taken_from > end:
            axes.barh(slot, taken_from - end, left=end, height=0.12, color=_FULL, zorder=1)
        _bar(axes, slot - 0.18, begin, end, number, rank_color(0))
        _bar(axes, slot + 0.18, taken_from, taken, number, rank_color(reader), hollow=reader == 0)
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
        Patch(facecolor=rank_color(reader) if reader else "white", edgecolor=rank_color(reader), label="being read"),
    ]
    if clashes:
        handles.append(Patch(facecolor="none", edgecolor=_CLASH, linewidth=1.8, label=f"too early ({clashes}x)"))
    if is_alone:
        legend_below(figure, handles, columns=len(handles))
    else:
        legend_beside(axes, handles)
    early = f"{clashes} written before the round before it had been read" if clashes else "none written too early"
    describe(figure, title, f"{len(writes)} rounds through {num_slots} slots, {early}")
    return figure


def _bar(axes: Axes, height: float, begin: float, end: float, number: int, color: str, *, hollow: bool = False) -> None:
    length = max(end - begin, _SHORTEST)
    look: dict[str, Any] = {"color": color, "edgecolor": "white", "linewidth": 0.6}
    if hollow:
        look = {"color": "white", "edgecolor": color, "linewidth": 1.4}
    axes.barh(height, length, left=begin, height=0.34, zorder=2, **look)
    ink = ink_on("white" if hollow else color)
    axes.text(begin + length / 2, height, str(number), ha="center", va="center", fontsize=7, color=ink, zorder=4)
