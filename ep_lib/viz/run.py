"""A run on the virtual clock: what every block did when, and what was on its way over the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.lanes import pack
from ep_lib.viz.run_parts import (
    KERNEL_COLOR,
    MESSAGE_COLORS,
    MESSAGE_WORDS,
    NAMES_HEIGHT,
    SPAN_COLORS,
    Lane,
    draw_blocks,
    draw_in_flight,
    draw_messages,
    draw_names,
    draw_shares,
    span_patch,
    until,
)
from ep_lib.viz.style import INK, QUIET, place, tidy

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Message, Span, Timeline

_WIDTH = 11.0
_MOST_BLOCK_LANES = 16  # more than these, and every rank gets one lane
_MOST_WARP_ROWS = 4  # more warps of a block than these share a row
_MOST_MESSAGE_ROWS = 8  # more messages than these under way at once are counted
_MOST_ARROWS = 40
_BETWEEN_RANKS = 0.25


def run_timeline(
    run: Timeline,
    *,
    lanes: str = "auto",
    begin_us: float | None = None,
    end_us: float | None = None,
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw what ``ep_lib.simulate`` returned: for each rank its blocks, and below them the messages it sent.

    ``lanes``: "block" draws every block (and every message, while few are under way at once), "rank" one lane a rank,
    which shows the share of its blocks that copy, post and wait; "auto" takes "block" up to 16 blocks in all.
    ``begin_us`` and ``end_us`` cut a piece out, in virtual microseconds (a later end leaves room: two runs that stand
    below each other can have one axis). Raises ArgumentError for a run in which
    nothing happened, and for a piece that does not lie in it.
    """
    if lanes not in ("auto", "block", "rank"):
        raise ArgumentError(f"lanes is {lanes!r}; it must be 'auto', 'block' or 'rank'")
    if not run.spans and not run.messages:
        raise ArgumentError("nothing happened in this run: no kernel was launched, and no message sent")
    begin, end = _window(run, begin_us, end_us)
    spans = [span for span in run.spans if span.end_ns >= begin and span.begin_ns <= end]
    messages = [m for m in run.messages if until(run, m.completed_ns) >= begin and m.posted_ns <= end]
    blocks = {rank: sorted({span.block for span in run.spans if span.rank == rank}) for rank in range(run.ranks)}
    single = lanes == "block" or (lanes == "auto" and sum(map(len, blocks.values())) <= _MOST_BLOCK_LANES)
    rows = _lay_out(run, blocks, spans, messages, single)
    height = rows[-1].top + rows[-1].height
    figure, axes = place(axes, _WIDTH, 1.5 + 0.36 * height)
    axes.set_xlim(begin / 1000, end / 1000)
    axes.set_ylim(height + 0.1, -0.1)
    for row in rows:
        _draw(axes, run, row, blocks)
    for rank, first in {row.rank: row for row in reversed(rows)}.items():
        draw_names(axes, first.top, [span for span in spans if span.rank == rank and span.kind == "kernel"])
    if single and sum(map(len, (row.messages for row in rows if row.packed))) <= _MOST_ARROWS:
        _arrows(axes, rows)
    _label(axes, rows)
    axes.set_xlabel("virtual time (µs)")
    tidy(axes, title=title or "Who did what, and what was on its way", grid="x")
    axes.spines["left"].set_visible(False)
    _legend(axes, rows, single)
    return figure


def _window(run: Timeline, begin_us: float | None, end_us: float | None) -> tuple[float, float]:
    begin = 0.0 if begin_us is None else begin_us * 1000
    end = run.end_ns if end_us is None else end_us * 1000
    if not 0 <= begin < end or begin >= run.end_ns:
        raise ArgumentError(
            f"the piece from {begin / 1000:g} to {end / 1000:g} us is not in this run, which takes "
            f"{run.end_ns / 1000:g} us"
        )
    return begin, end


# ---- where everything goes -------------------------------------------------------------------------------------------
def _lay_out(
    run: Timeline, blocks: dict[int, list[int]], spans: Sequence[Span], messages: Sequence[Message], single: bool
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
                rows.append(
                    Lane(rank, f"block {block}", top, 0.8 + 0.3 * (len(warps) - 1), spans=of_block, warps=warps)
                )
                top += rows[-1].height
        else:
            rows.append(Lane(rank, f"{len(blocks[rank])} blocks", top, 1.6, spans=tuple(mine)))
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
    """The warps that get a row of their own; () where there is one only, or too many."""
    warps = sorted({span.warp for span in spans if span.warp is not None})
    return tuple(warps) if 1 < len(warps) <= _MOST_WARP_ROWS else (-1,)


def _draw(axes: Axes, run: Timeline, row: Lane, blocks: dict[int, list[int]]) -> None:
    if row.label == "network":
        if row.packed:
            draw_messages(axes, run, row)
        else:
            draw_in_flight(axes, run, row)
    elif row.warps:
        draw_blocks(axes, row)
    else:
        draw_shares(axes, row, len(blocks[row.rank]))


@dataclass(frozen=True)
class _Group:
    top: float
    bottom: float


def _arrows(axes: Axes, rows: Sequence[Lane]) -> None:
    """From a message's bar to the rank in whose memory it lands, when it does."""
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


def _legend(axes: Axes, rows: Sequence[Lane], single: bool) -> None:
    kinds = {span.kind for row in rows for span in row.spans}
    handles: list[Patch | Line2D] = [span_patch(kind) for kind in SPAN_COLORS if kind in kinds]
    if "kernel" in kinds:
        handles.append(Patch(facecolor=KERNEL_COLOR, edgecolor="#BBBBBB", label="anything else in a kernel"))
    sent = {message.kind for row in rows if row.packed for message in row.messages}
    handles += [
        Patch(color=color, label=f"on its way: {MESSAGE_WORDS[k]}") for k, color in MESSAGE_COLORS.items() if k in sent
    ]
    if sent:
        handles.append(
            Line2D([], [], color=QUIET, linewidth=0.9, label="before: queues; after: until the\nsender knows")
        )
    if any(row.label == "network" and not row.packed for row in rows):
        handles.append(Patch(color=MESSAGE_COLORS["put"], label="messages on their way"))
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=9,
        labelcolor=QUIET,
        borderaxespad=0,
    )
