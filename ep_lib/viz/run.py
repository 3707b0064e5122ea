"""A run on the virtual clock: the activity of every block over time, and messages in flight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import NARROW
from ep_lib.viz.style import (
    INK,
    QUIET,
    byte_unit,
    describe,
    draw_bars,
    draws,
    ink_on,
    legend_below,
    legend_outside,
    new_picture,
    place,
    short_number,
    tidy,
)

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Message, Span, Timeline

Floats = npt.NDArray[np.float64]

KERNEL_COLOR, REST_COLOR = "#E8E8E8", "#9FD8C6"  # the second if the rest of a kernel has a meaning
NAMES_HEIGHT = 0.4  # of the strip above a rank's lanes
SPAN_COLORS = {"wait": "#D0D0D0", "copy": "#5A5A5A", "post": "#B59A00"}  # no rank's colours; the last one on top
SPAN_WORDS = {"wait": "waits", "copy": "copies", "post": "posts to the NIC"}
MESSAGE_COLORS = {"put": "#56B4E9", "put_signal": "#009E73", "get": "#CC79A7", "add": "#D55E00"}
MESSAGE_WORDS = {"put": "put", "put_signal": "put with signal", "get": "get", "add": "atomic add (a signal)"}
_LETTERS_AN_INCH = 12.0
_LANE_INCHES = 5.0  # about what margins leave of the width of a picture
_BINS = 400
_MOST_BLOCK_LANES = 16  # with more than these, every rank gets one lane
_MOST_WARP_ROWS = 4  # if a block has more warps, they share a row
_MOST_MESSAGE_ROWS = 12  # if more are in flight at once, they are counted
_MOST_ARROWS = 40
_BETWEEN_RANKS = 0.25
_SHORTEST = 0.0015  # of the axis: what is shorter is drawn so long, and a copy left out


@dataclass(frozen=True)
class Lane:
    """One row of the picture.

    ``warps``: the sub-rows of a block, or () for the shares of many blocks; ``packed``: the sub-row of each message, or
    () if they are only counted.
    """

    rank: int
    label: str
    top: float
    height: float
    spans: tuple[Span, ...] = ()
    warps: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    packed: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """What a picture shows of a run: the rows, and the spans and messages in its window."""

    run: Timeline
    window: tuple[float, float]
    spans: Sequence[Span]
    blocks: dict[int, list[int]]
    single: bool
    rows: Sequence[Lane]

    @property
    def height(self) -> float:
        return self.rows[-1].top + self.rows[-1].height


@draws
def run_timeline(
    run: Timeline,
    *,
    lanes: str = "auto",
    begin_us: float | None = None,
    end_us: float | None = None,
    rest: str | None = None,
    clock: str = "virtual time",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the result of ``ep_lib.simulate``: for each rank its blocks, and below them the messages it sent.

    ``rest``: a name for kernels' other time (not copying, posting or waiting), to give it a colour: "the experts
    compute". ``clock``: the axis label, for a run that is no simulation.

    ``lanes``: "block" draws every block (and every message, if few are in flight at once); "rank" draws one lane per
    rank, with the shares of its blocks that copy, post and wait; "auto" is "block" up to 16 blocks in all. ``begin_us``
    and ``end_us`` select a part of the run, in virtual microseconds; an end after the run leaves room, so that two runs
    can have the same axis. Raises ArgumentError for a run without events, and for a part outside of it.
    """
    if lanes not in ("auto", "block", "rank"):
        raise ArgumentError(f"lanes is {lanes!r}; it must be 'auto', 'block' or 'rank'")
    piece = _piece(run, lanes, begin_us, end_us, {})
    is_alone = axes is None
    figure, axes = place(axes, NARROW, 1.5 + 0.32 * piece.height)
    handles = _draw_piece(figure, axes, piece, title, rest, clock)
    legend_outside(figure, axes, handles, below=is_alone)
    return figure


def _piece(run: Timeline, lanes: str, begin_us: float | None, end_us: float | None, names: Mapping[int, str]) -> _Piece:
    if not run.spans and not run.messages:
        raise ArgumentError("nothing happened in this run: no kernel was launched, and no message sent")
    begin, end = _window(run, begin_us, end_us)
    shortest = (end - begin) * _SHORTEST
    spans = [
        span
        for span in run.spans
        if span.end_ns >= begin
        and span.begin_ns <= end
        and (span.kind != "copy" or span.end_ns - span.begin_ns >= shortest)
    ]
    messages = [m for m in run.messages if until(run, m.completed_ns) >= begin and m.posted_ns <= end]
    blocks = {rank: sorted({span.block for span in run.spans if span.rank == rank}) for rank in range(run.ranks)}
    single = lanes == "block" or (lanes == "auto" and sum(map(len, blocks.values())) <= _MOST_BLOCK_LANES)
    rows = _lay_out(run, blocks, spans, messages, single, names)
    return _Piece(run, (begin, end), spans, blocks, single, rows)


def _draw_piece(
    figure: Figure, axes: Axes, piece: _Piece, title: str | None, rest: str | None = None, clock: str = "virtual time"
) -> list[Patch | Line2D]:
    """Draws it, and returns the entries of a legend."""
    begin, end = piece.window
    axes.set_xlim(begin / 1000, end / 1000)
    axes.set_ylim(piece.height + 0.1, -0.1)
    ground = KERNEL_COLOR if rest is None else REST_COLOR
    for row in piece.rows:
        _draw(axes, piece.run, row, piece.blocks, ground)
    for rank, first in {row.rank: row for row in reversed(piece.rows)}.items():
        draw_names(axes, first.top, [span for span in piece.spans if span.rank == rank and span.kind == "kernel"])
    if piece.single and sum(map(len, (row.messages for row in piece.rows if row.packed))) <= _MOST_ARROWS:
        _arrows(axes, piece.rows)
    _label(axes, piece.rows)
    axes.set_xlabel(f"{clock} (µs)")
    tidy(axes, title=title or "Who did what, and what was on its way", grid="x")
    axes.spines["left"].set_visible(False)
    ranks = sorted({row.rank for row in piece.rows})
    describe(figure, title, *(_told(piece, rank) for rank in ranks))
    return _handles(piece.rows, ground, rest or "anything else in a kernel")


@draws
def timelines_compared(
    runs: Mapping[str, Timeline],
    *,
    rank: int | None = None,
    blocks: Mapping[int, str] | None = None,
    messages: int | None = None,
    lanes: str = "block",
    rest: str | None = None,
) -> Figure:
    """``runs`` by their titles, one below the other on one axis of virtual time that begins with the first message, or
    where there is none with the first kernel.

    ``rank``: the only one that is shown, and whose messages count; None: all. ``blocks``: names of the blocks that are
    shown; None: all. ``messages``: the axis ends when so many messages of the slowest run have arrived; None: with the
    slowest run. ``lanes``, ``rest``: those of :func:`run_timeline`. Raises ArgumentError where some runs have
    messages and others none, or a run has no events.
    """
    shown = [
        replace(
            run,
            spans=tuple(s for s in run.spans if rank in (None, s.rank) and (blocks is None or s.block in blocks)),
            messages=tuple(m for m in run.messages if rank in (None, m.source)),
        )
        for run in runs.values()
    ]
    sent = [bool(run.messages) for run in shown]
    events = [[m.posted_ns for m in run.messages] or [s.begin_ns for s in run.spans] for run in shown]
    if not all(events) or len(set(sent)) != 1 or (messages is not None and (messages < 1 or not all(sent))):
        raise ArgumentError("timelines_compared needs runs with messages, and shows at least one; or kernels only")
    begin = max(0.0, min(map(min, events)) / 1000 - 1)
    if messages is None:
        last = max(run.end_ns for run in shown) / 1000
    else:
        arrivals = (sorted(until(run, m.delivered_ns) for m in run.messages)[:messages] for run in shown)
        last = max(times[-1] for times in arrivals) / 1000
    end = last + 0.02 * (last - begin)
    pieces = [_piece(run, lanes, begin, end, blocks or {}) for run in shown]
    heights = [1.0 + 0.3 * piece.height for piece in pieces]
    picture = new_picture(NARROW, 0.6 + sum(heights))
    panels = picture.subplots(len(runs), 1, squeeze=False, height_ratios=heights)[:, 0]
    legend: dict[Any, Patch | Line2D] = {}
    for axes, (title, run), piece in zip(panels, runs.items(), pieces, strict=True):
        legend |= {handle.get_label(): handle for handle in _draw_piece(picture, axes, piece, title, rest)}
        axes.set_title(f"kernels take {run.kernel_us:.1f} µs", loc="right", fontsize=9, color=QUIET)
    legend_below(picture, list(legend.values()))
    return picture


def _told(piece: _Piece, rank: int) -> str:
    """A rank in words: the time with at least one active warp, and its messages."""
    parts = []
    for kind, words in SPAN_WORDS.items():
        busy = sum(
            end - begin
            for begin, end in union((s.begin_ns, s.end_ns) for s in piece.spans if (s.rank, s.kind) == (rank, kind))
        )
        if busy:
            parts.append(f"{words} {busy / 1000:.1f} µs")
    sent = sum(len(row.messages) for row in piece.rows if row.rank == rank)
    return f"rank {rank} {', '.join(parts) or 'only computes'}, sends {sent} messages"


def _window(run: Timeline, begin_us: float | None, end_us: float | None) -> tuple[float, float]:
    begin = 0.0 if begin_us is None else begin_us * 1000
    end = run.end_ns if end_us is None else end_us * 1000
    if not 0 <= begin < end or begin >= run.end_ns:
        raise ArgumentError(
            f"the piece from {begin / 1000:g} to {end / 1000:g} us is not in this run, which takes "
            f"{run.end_ns / 1000:g} us"
        )
    return begin, end


# ---- layout ----------------------------------------------------------------------------------------------------------
def _lay_out(
    run: Timeline,
    blocks: dict[int, list[int]],
    spans: Sequence[Span],
    messages: Sequence[Message],
    single: bool,
    names: Mapping[int, str],
) -> list[Lane]:
    rows: list[Lane] = []
    top = 0.0
    for rank in range(run.ranks):
        if not blocks[rank] and not any(message.source == rank for message in run.messages):
            continue
        mine = [span for span in spans if span.rank == rank]
        top += NAMES_HEIGHT
        sent = [message for message in messages if message.source == rank]
        if single:
            for block in blocks[rank]:
                of_block = tuple(span for span in mine if span.block == block)
                warps = _warps(of_block)
                name = names.get(block, f"block {block}")
                rows.append(Lane(rank, name, top, 0.8 + 0.3 * (len(warps) - 1), spans=of_block, warps=warps))
                top += rows[-1].height
        else:
            rows.append(Lane(rank, f"{len(blocks[rank])} blocks\n(height: how many)", top, 1.6, spans=tuple(mine)))
            top += rows[-1].height
        if any(message.source == rank for message in run.messages):
            packed = (
                pack([(m.posted_ns, until(run, m.completed_ns)) for m in sent], (run.end_ns or 1) * 0.004)
                if single
                else []
            )
            if max(packed, default=_MOST_MESSAGE_ROWS) >= _MOST_MESSAGE_ROWS:
                packed = []
            height = 0.35 + 0.42 * (1 + max(packed)) if packed else 1.0
            rows.append(Lane(rank, "network", top, height, messages=tuple(sent), packed=tuple(packed)))
            top += height
        top += _BETWEEN_RANKS
    if not rows:
        raise ArgumentError("nothing happened in this run: no kernel was launched, and no message sent")
    return rows


def _warps(spans: Iterable[Span]) -> tuple[int, ...]:
    """The warps with a row each; (-1,), one row for all, if there is only one warp or too many."""
    warps = sorted({span.warp for span in spans if span.warp is not None})
    return tuple(warps) if 1 < len(warps) <= _MOST_WARP_ROWS else (-1,)


def _draw(axes: Axes, run: Timeline, row: Lane, blocks: dict[int, list[int]], ground: str) -> None:
    if row.label == "network":
        if row.packed:
            draw_messages(axes, run, row)
        else:
            draw_in_flight(axes, run, row)
    elif row.warps:
        draw_blocks(axes, row, ground)
    else:
        draw_shares(axes, row, len(blocks[row.rank]), ground)


@dataclass(frozen=True)
class _Group:
    top: float
    bottom: float


def _arrows(axes: Axes, rows: Sequence[Lane]) -> None:
    """From a message's bar to the rank in whose memory it lands, at the time when it lands."""
    groups: dict[int, _Group] = {}
    for row in rows:
        if row.label != "network":
            known = groups.get(row.rank, _Group(row.top, row.top))
            groups[row.rank] = _Group(known.top, row.top + row.height)
    first, last = axes.get_xlim()
    for row in rows:
        for message, slot in zip(row.messages, row.packed, strict=False):
            at = message.delivered_ns / 1000
            target = groups.get(message.target)
            if target is None or message.target == row.rank or not first <= at <= last:
                continue
            down = message.target > row.rank
            start = row.top + 0.2 + 0.42 * slot + (0.3 if down else 0.0)
            axes.annotate(
                "",
                xy=(at, target.top if down else target.bottom),
                xytext=(at, start),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": MESSAGE_COLORS.get(message.kind, INK),
                    "linewidth": 1.0,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "mutation_scale": 8,
                },
                annotation_clip=False,
                zorder=0.8,  # behind the bars
            )


def _label(axes: Axes, rows: Sequence[Lane]) -> None:
    axes.set_yticks(
        [row.top + row.height / 2 for row in rows], [f"rank {row.rank}  {row.label}" for row in rows], fontsize=9
    )
    axes.tick_params(axis="y", length=0)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(QUIET if row.label == "network" else INK)
    for above, below in pairwise(rows):
        if above.rank != below.rank:
            axes.axhline(below.top - NAMES_HEIGHT - _BETWEEN_RANKS / 2, color="#BBBBBB", linewidth=0.8)


def _handles(rows: Sequence[Lane], ground: str, rest: str) -> list[Patch | Line2D]:
    kinds = {span.kind for row in rows for span in row.spans}
    handles: list[Patch | Line2D] = [span_patch(kind) for kind in SPAN_COLORS if kind in kinds]
    if "kernel" in kinds:
        handles.append(Patch(facecolor=ground, edgecolor="#BBBBBB", label=rest))
    sent = {message.kind for row in rows if row.packed for message in row.messages}
    handles += [
        Patch(color=color, label=f"on its way: {MESSAGE_WORDS[k]}") for k, color in MESSAGE_COLORS.items() if k in sent
    ]
    if sent:
        handles.append(
            Line2D(
                [],
                [],
                color=QUIET,
                linewidth=0.9,
                label="before the bar: queued; after\nit: the sender cannot know yet",
            )
        )
    if any(row.label == "network" and not row.packed for row in rows):
        handles.append(Patch(color=MESSAGE_COLORS["put"], label="messages on their way"))
    return handles


def span_patch(kind: str) -> Patch:
    """The legend's entry for a kind of span."""
    hatch = "////" if kind == "wait" else ""
    return Patch(facecolor=SPAN_COLORS[kind], edgecolor="white", hatch=hatch, label=SPAN_WORDS[kind])


def until(run: Timeline, time_ns: float) -> float:
    """``time_ns`` of a message; the end of the run if it is infinite (over a broken link)."""
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
    """Writes ``text`` into a bar if it fits; returns whether it does. ``box``: the colour of a patch below it."""
    first, last = axes.get_xlim()
    begin, end = max(begin, first), min(end, last)
    if text and (end - begin) / (last - first) * _LANE_INCHES * _LETTERS_AN_INCH * 8 / size >= len(text) + (not left):
        patch = {"facecolor": box, "edgecolor": "none", "pad": 0.6} if box else None
        at, align = (begin, "left") if left else ((begin + end) / 2, "center")
        axes.text(at, y, text, ha=align, va="center", fontsize=size, color=color, zorder=5, bbox=patch)
        return True
    return False


def draw_names(axes: Axes, top: float, kernels: Sequence[Span]) -> None:
    """The names of a rank's kernels, above its lanes, from where the first block begins to the next name."""
    launches: dict[str, list[tuple[float, float]]] = {}
    for span in kernels:
        name = span.name.partition("<")[0]  # of a template
        launches.setdefault(name, []).append((span.begin_ns / 1000, span.end_ns / 1000))
    begins = sorted((begin, name) for name, pairs in launches.items() for begin, _ in union(pairs))
    for (begin, name), (end, _) in pairwise([*begins, (axes.get_xlim()[1], "")]):
        _write(axes, begin, end, top - 0.2, name, QUIET, 7, left=True)


# ---- one lane per block ----------------------------------------------------------------------------------------------
def draw_blocks(axes: Axes, row: Lane, ground: str = KERNEL_COLOR) -> None:
    """The kernels of one block, with its warps' activities."""
    step = (row.height - 0.1) / len(row.warps)
    first, last = axes.get_xlim()
    shortest, centre = (last - first) * _SHORTEST, row.top + row.height / 2
    kernels = sorted((s for s in row.spans if s.kind == "kernel"), key=lambda s: s.begin_ns)
    draw_bars(
        axes,
        ((s.begin_ns / 1000, centre, (s.end_ns - s.begin_ns) / 1000, row.height - 0.1) for s in kernels),
        facecolor=ground,
        edgecolor="#BBBBBB",
        linewidth=0.7,
        zorder=1,
    )
    for kind, color in SPAN_COLORS.items():
        bars = []
        for span in row.spans:
            if span.kind != kind:
                continue
            place = row.warps.index(span.warp) if span.warp in row.warps else 0
            middle = row.top + 0.05 + (place + 0.5) * step
            high = step * (0.82 if span.warp in row.warps or len(row.warps) == 1 else len(row.warps))
            begin, end = span.begin_ns / 1000, span.end_ns / 1000
            bars.append((begin, middle, max(end - begin, shortest), high))
            if kind == "wait":
                _write(axes, begin, end, middle, span.name, INK, 7, box=color)
        hatch = "////" if kind == "wait" else None
        draw_bars(axes, bars, facecolor=color, edgecolor="white", linewidth=0.3, hatch=hatch, zorder=2)


# ---- messages --------------------------------------------------------------------------------------------------------
def draw_messages(axes: Axes, run: Timeline, row: Lane) -> None:
    """Each message from its post to its completion; the bar is the time from NIC to NIC."""
    first, last = axes.get_xlim()
    lines, bars = [], []
    colors, bar_colors = [], []
    for message, slot in zip(row.messages, row.packed, strict=True):
        color = MESSAGE_COLORS.get(message.kind, QUIET)
        y = row.top + 0.35 + 0.42 * slot
        posted, completed = message.posted_ns / 1000, until(run, message.completed_ns) / 1000
        lines.append([(posted, y), (completed, y)])
        lines += [[(at, y - 0.1), (at, y + 0.1)] for at in (posted, completed)]
        colors += [color] * 3
        if not math.isfinite(message.departed_ns):
            continue
        departed, delivered = message.departed_ns / 1000, until(run, message.delivered_ns) / 1000
        length = max(delivered - departed, (last - first) * 0.002)
        bars.append((departed, y, length, 0.3))
        bar_colors.append(color)
        divisor, unit = byte_unit(message.bytes)
        size = f"{short_number(message.bytes / divisor)} {unit} " if message.bytes else ""
        for text in (f"{size}to {message.target}", f"to {message.target}"):
            if _write(axes, departed, departed + length, y, text, ink_on(color), 7):
                break
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=0.9, zorder=2), autolim=False)
    draw_bars(axes, bars, color=bar_colors, linewidth=1.0, joinstyle="miter", zorder=3)


def draw_in_flight(axes: Axes, run: Timeline, row: Lane) -> None:
    """The number of a rank's messages between post and delivery, as a filled curve with its largest value."""
    bottom = row.top + row.height - 0.08
    times, number = under_way((m.posted_ns / 1000, until(run, m.delivered_ns) / 1000) for m in row.messages)
    most = float(number.max()) if len(number) else 0.0
    axes.hlines(bottom, *axes.get_xlim(), color="#CCCCCC", linewidth=0.6)
    if most == 0:
        return
    heights = bottom - number / most * (row.height - 0.3)
    axes.fill_between(times, bottom, heights, step="post", color=MESSAGE_COLORS["put"], linewidth=0, zorder=2)
    first, last = axes.get_xlim()
    words = f"at most {most:.0f} messages at once"
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


# ---- one lane per rank -----------------------------------------------------------------------------------------------
def draw_shares(axes: Axes, row: Lane, blocks: int, ground: str = KERNEL_COLOR) -> None:
    """Over time, the share of a rank's blocks in a kernel, and the shares of these that wait, copy and post."""
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
        facecolor=ground,
        linewidth=0,
        zorder=1,
    )
    axes.hlines(bottom, first, last, color="#CCCCCC", linewidth=0.6)


def _shares(spans: Sequence[Span], edges: Any) -> dict[str, Any]:
    """Microseconds of blocks that each kind takes in each bin; each of a block's warps counts as a part of it.

    Lanes of one warp may wait for different things at once: that counts once. The sum over a block's warps is at most
    the time that the block is in a kernel.
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


def pack(intervals: Sequence[tuple[float, float]], apart: float = 0.0) -> list[int]:
    """A row for each (begin, end), as few rows as possible; those of one row are at least ``apart``."""
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
    """The union of intervals, as ordered intervals that do not overlap."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def covered(intervals: Iterable[tuple[float, float]], edges: Floats) -> Floats:
    """For each bin between ``edges`` (ascending, equally wide), the total time of the intervals in it."""
    pairs = np.asarray(list(intervals), dtype=np.float64).reshape(-1, 2)
    # The number of active intervals, integrated up to each edge; the differences are the bins.
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
    """(times, values): the sum of ``weights`` (by default 1 each) of the active intervals from each time on."""
    pairs = np.asarray(list(intervals), dtype=np.float64).reshape(-1, 2)
    each = np.ones(len(pairs)) if weights is None else np.asarray(list(weights), dtype=np.float64)
    times, index = np.unique(pairs.T.reshape(-1), return_inverse=True)
    changes = np.zeros(len(times))
    np.add.at(changes, index.reshape(-1), np.concatenate([each, -each]))
    return times, np.cumsum(changes)
