"""The pieces of :func:`ep_lib.viz.run_timeline`: bars of a block, messages of a rank, shares of many blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ep_lib.viz.lanes import covered, under_way, union
from ep_lib.viz.style import INK, QUIET, byte_unit, ink_on, short_number

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Message, Span, Timeline

KERNEL_COLOR = "#F2F2F2"
NAMES_HEIGHT = 0.4  # of the strip above a rank's lanes
SPAN_COLORS = {"wait": "#D0D0D0", "copy": "#0072B2", "post": "#E69F00"}  # drawn in this order, the last one on top
SPAN_WORDS = {"wait": "waits", "copy": "copies", "post": "posts to the NIC"}
MESSAGE_COLORS = {"put": "#56B4E9", "put_signal": "#009E73", "get": "#CC79A7", "add": "#D55E00"}
MESSAGE_WORDS = {"put": "put", "put_signal": "put with signal", "get": "get", "add": "atomic add (a signal)"}
_LETTERS_AN_INCH = 12.0
_LANE_INCHES = 8.0  # about what margins and legend leave of the picture's width
_BINS = 400


@dataclass(frozen=True)
class Lane:
    """One row of the picture.

    ``warps``: sub-rows of a block, () for shares of many; ``packed``: the sub-row of each message, () for a count.
    """

    rank: int
    label: str
    top: float
    height: float
    spans: tuple[Span, ...] = ()
    warps: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    packed: tuple[int, ...] = ()


def span_patch(kind: str) -> Patch:
    """What the legend shows for a kind of span."""
    hatch = "////" if kind == "wait" else ""
    return Patch(facecolor=SPAN_COLORS[kind], edgecolor="white", hatch=hatch, label=SPAN_WORDS[kind])


def until(run: Timeline, time_ns: float) -> float:
    """``time_ns`` of a message; the end of the run for what never happened, which is infinite (links break)."""
    return time_ns if math.isfinite(time_ns) else run.end_ns


def _write(
    axes: Axes,
    begin: float,
    end: float,
    y: float,
    text: str,
    color: str,
    size: int,
    *,
    box: str | None = None,
    left: bool = False,
) -> bool:
    """``text`` in a bar, if it fits there; whether it does. ``box``: on a patch of this colour, for hatched bars."""
    first, last = axes.get_xlim()
    begin, end = max(begin, first), min(end, last)
    if text and (end - begin) / (last - first) * _LANE_INCHES * _LETTERS_AN_INCH * 8 / size >= len(text) + 1:
        patch = {"facecolor": box, "edgecolor": "none", "pad": 0.6} if box else None
        at, align = (begin, "left") if left else ((begin + end) / 2, "center")
        axes.text(at, y, text, ha=align, va="center", fontsize=size, color=color, zorder=5, bbox=patch)
        return True
    return False


def draw_names(axes: Axes, top: float, kernels: Sequence[Span]) -> None:
    """Above a rank's lanes: the names of its kernels, from the first block's begin to the last one's end."""
    launches: dict[str, list[tuple[float, float]]] = {}
    for span in kernels:
        launches.setdefault(span.name, []).append((span.begin_ns / 1000, span.end_ns / 1000))
    for name, pairs in launches.items():
        for begin, end in union(pairs):
            _write(axes, begin, end, top - 0.2, name, QUIET, 7, box="white", left=True)


# ---- a lane a block --------------------------------------------------------------------------------------------------
def draw_blocks(axes: Axes, row: Lane) -> None:
    """The kernels of one block, and in them what its warps did."""
    step = (row.height - 0.1) / len(row.warps)
    for span in sorted((s for s in row.spans if s.kind == "kernel"), key=lambda s: s.begin_ns):
        length = (span.end_ns - span.begin_ns) / 1000
        axes.barh(
            row.top + row.height / 2,
            length,
            left=span.begin_ns / 1000,
            height=row.height - 0.1,
            color=KERNEL_COLOR,
            edgecolor="#BBBBBB",
            linewidth=0.7,
            zorder=1,
        )
    for kind, color in SPAN_COLORS.items():
        for span in row.spans:
            if span.kind != kind:
                continue
            place = row.warps.index(span.warp) if span.warp in row.warps else 0
            middle = row.top + 0.05 + (place + 0.5) * step
            high = step * (0.82 if span.warp in row.warps or len(row.warps) == 1 else len(row.warps))
            begin, end = span.begin_ns / 1000, span.end_ns / 1000
            first, last = axes.get_xlim()
            axes.barh(
                middle,
                max(end - begin, (last - first) * 0.0015),
                left=begin,
                height=high,
                color=color,
                edgecolor="white",
                linewidth=0.3,
                hatch="////" if kind == "wait" else "",
                zorder=2,
            )
            if kind == "wait":
                _write(axes, begin, end, middle, span.name, INK, 7, box=color)


# ---- messages --------------------------------------------------------------------------------------------------------
def draw_messages(axes: Axes, run: Timeline, row: Lane) -> None:
    """Each message from its post to its completion; the coloured part is its way from NIC to NIC."""
    for message, slot in zip(row.messages, row.packed, strict=True):
        color = MESSAGE_COLORS.get(message.kind, QUIET)
        y = row.top + 0.35 + 0.42 * slot
        posted, completed = message.posted_ns / 1000, until(run, message.completed_ns) / 1000
        axes.hlines(y, posted, completed, color=color, linewidth=0.9, zorder=2)
        axes.vlines([posted, completed], y - 0.1, y + 0.1, color=color, linewidth=0.9, zorder=2)
        if not math.isfinite(message.departed_ns):
            continue
        departed, delivered = message.departed_ns / 1000, until(run, message.delivered_ns) / 1000
        first, last = axes.get_xlim()
        length = max(delivered - departed, (last - first) * 0.002)
        axes.barh(y, length, left=departed, height=0.3, color=color, zorder=3)
        divisor, unit = byte_unit(message.bytes)
        size = f"{short_number(message.bytes / divisor)} {unit} " if message.bytes else ""
        for text in (f"{size}to {message.target}", f"to {message.target}"):
            if _write(axes, departed, departed + length, y, text, ink_on(color), 7):
                break


def draw_in_flight(axes: Axes, run: Timeline, row: Lane) -> None:
    """How many of a rank's messages are between post and delivery, as a filled curve with its largest value."""
    bottom = row.top + row.height - 0.08
    times, number = under_way((m.posted_ns / 1000, until(run, m.delivered_ns) / 1000) for m in row.messages)
    most = float(number.max()) if len(number) else 0.0
    axes.hlines(bottom, *axes.get_xlim(), color="#CCCCCC", linewidth=0.6)
    if most == 0:
        return
    heights = bottom - number / most * (row.height - 0.3)
    axes.fill_between(times, bottom, heights, step="post", color=MESSAGE_COLORS["put"], linewidth=0, zorder=2)
    first, last = axes.get_xlim()
    words = f"at most {most:.0f} of {len(row.messages)} messages at once"
    axes.text(
        last - 0.005 * (last - first),
        row.top + 0.12,
        words,
        ha="right",
        va="center",
        fontsize=7,
        color=QUIET,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
    )


# ---- a lane a rank ---------------------------------------------------------------------------------------------------
def draw_shares(axes: Axes, row: Lane, blocks: int) -> None:
    """What share of a rank's blocks is in a kernel, and of these how many wait, copy and post, over time."""
    first, last = axes.get_xlim()
    edges = np.linspace(first, last, _BINS + 1)
    width, bottom = edges[1] - edges[0], row.top + row.height - 0.05
    scale = (row.height - 0.25) / max(blocks, 1) / width
    shares = _shares(row.spans, edges)
    level: Any = np.zeros(_BINS)
    for kind, color in (("copy", SPAN_COLORS["copy"]), ("post", SPAN_COLORS["post"]), ("wait", SPAN_COLORS["wait"])):
        upper = level + shares[kind] * scale
        axes.fill_between(
            edges,
            bottom - np.append(level, level[-1]),
            bottom - np.append(upper, upper[-1]),
            step="post",
            facecolor=color,
            edgecolor="white",
            hatch="//" if kind == "wait" else "",
            linewidth=0,
            zorder=2,
        )
        level = upper
    rest = np.maximum(shares["kernel"] * scale, level)
    axes.fill_between(
        edges,
        bottom - np.append(level, level[-1]),
        bottom - np.append(rest, rest[-1]),
        step="post",
        facecolor="#E4E4E4",
        linewidth=0,
        zorder=1,
    )
    axes.hlines(bottom, first, last, color="#CCCCCC", linewidth=0.6)


def _shares(spans: Sequence[Span], edges: Any) -> dict[str, Any]:
    """Block-microseconds of each kind in each bin. Several warps of a block count as parts of it.

    Lanes of one warp may wait for different things at once, which counts once; together a block's warps do no more than
    the block is in a kernel.
    """
    found = {kind: np.zeros(len(edges) - 1) for kind in ("kernel", *SPAN_COLORS)}
    blocks: dict[int, dict[str, dict[int | None, list[tuple[float, float]]]]] = {}
    for span in spans:
        kinds = blocks.setdefault(span.block, {})
        kinds.setdefault(span.kind, {}).setdefault(span.warp, []).append((span.begin_ns / 1000, span.end_ns / 1000))
    for kinds in blocks.values():
        warps = {warp for kind, of_kind in kinds.items() if kind != "kernel" for warp in of_kind}
        mine = {kind: np.zeros(len(edges) - 1) for kind in found}
        for kind, of_kind in kinds.items():
            parts = 1 if kind == "kernel" else len(warps)
            for pairs in of_kind.values():
                mine[kind] += covered(union(pairs), edges) / parts
        busy = sum(mine[kind] for kind in SPAN_COLORS)
        room = np.minimum(mine["kernel"] / np.maximum(busy, 1e-9), 1.0)
        for kind in found:
            found[kind] += mine[kind] * (1 if kind == "kernel" else room)
    return found
