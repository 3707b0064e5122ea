"""The same program on two networks: the order of departures, and the order of arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import NARROW
from ep_lib.viz.run import MESSAGE_COLORS, MESSAGE_WORDS
from ep_lib.viz.style import (
    INK,
    QUIET,
    byte_unit,
    describe,
    draws,
    headline,
    legend_below,
    new_picture,
    short_number,
    tidy,
)

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Message, Timeline

_MOST_NUMBERED = 24  # more messages than these are bars without numbers
_EARLY = "#D55E00"


@draws
def fabrics_side_by_side(
    rc: Timeline,
    srd: Timeline,
    *,
    source: int = 0,
    target: int = 1,
    labels: Sequence[str] = ("RC (InfiniBand)", "SRD (EFA)"),
    title: str | None = None,
) -> Figure:
    """Messages from ``source`` to ``target`` in two runs, one below the other on one scale of virtual time.

    One row per message, queue pair by queue pair in the order of posting: a line while the message waits to leave, a
    bar from the first byte on the wire to the last one written, and then its place in the order of arrival on its queue
    pair. The dark line joins the arrivals of a queue pair; it turns back only where a message overtakes. Messages that
    overtook an earlier one are bold, and each panel counts them. Raises ArgumentError if a run has no such message.
    """
    if len(labels) != 2:
        raise ArgumentError(f"fabrics_side_by_side needs two labels, one per run; got {list(labels)}")
    sent = [_between(run, source, target, label) for run, label in zip((rc, srd), labels, strict=True)]
    begin = min(m.posted_ns for messages in sent for m in messages) / 1000
    end = max(m.delivered_ns for messages in sent for m in messages) / 1000
    longest = max(map(len, sent))
    picture = new_picture(NARROW, 2.2 + 2 * min(0.22 * longest, 5.0))
    panels = picture.subplots(2, 1, sharex=True)
    panels[0].set_xlim(begin, end + 0.16 * (end - begin))
    for axes, messages, label in zip(panels, sent, labels, strict=True):
        axes.set_ylim(longest - 0.4, -0.6)
        _panel(axes, messages, label)
    panels[-1].set_xlabel("virtual time (µs)")
    headline(picture, title)
    kinds = {message.kind for messages in sent for message in messages}
    handles: list[Patch | Line2D] = [
        Patch(color=color, label=MESSAGE_WORDS[kind]) for kind, color in MESSAGE_COLORS.items() if kind in kinds
    ]
    handles.append(Line2D([], [], color=INK, marker="o", ms=3, lw=1.0, label=f"arrives at rank {target}"))
    legend_below(picture, handles, columns=len(handles))
    told = (
        f"on {label} {sum(overtakers(messages))} of {len(messages)} messages overtook an earlier one"
        for messages, label in zip(sent, labels, strict=True)
    )
    describe(picture, title, *told)
    return picture


def _between(run: Timeline, source: int, target: int, label: str) -> list[Message]:
    """The messages queue pair by queue pair, in the order of posting."""
    found = [m for m in run.messages if m.source == source and m.target == target and math.isfinite(m.delivered_ns)]
    if not found:
        raise ArgumentError(
            f"no message from rank {source} to rank {target} in the run on {label} ({run.ranks} ranks, "
            f"{len(run.messages)} messages): name two ranks of different nodes as source and target"
        )
    return sorted(found, key=lambda m: (m.queue_pair, m.posted_ns, m.number))


def overtakers(messages: Sequence[Message]) -> list[bool]:
    """For each message, in the order of posting: whether it arrived before an earlier one of its queue pair."""
    latest: dict[int, float] = {}
    early = []
    for message in messages:
        last = latest.get(message.queue_pair, float("-inf"))
        early.append(message.delivered_ns < last)
        latest[message.queue_pair] = max(last, message.delivered_ns)
    return early


def _panel(axes: Axes, messages: Sequence[Message], label: str) -> None:
    early = overtakers(messages)
    arrivals = [message.delivered_ns / 1000 for message in messages]
    first, last = axes.get_xlim()
    for row, (message, bold) in enumerate(zip(messages, early, strict=True)):
        color = MESSAGE_COLORS.get(message.kind, QUIET)
        departed = message.departed_ns / 1000
        axes.hlines(row, message.posted_ns / 1000, departed, color=color, linewidth=1.0, zorder=2)
        axes.barh(row, arrivals[row] - departed, left=departed, height=0.56, color=color, zorder=2)
        if len(messages) <= _MOST_NUMBERED:
            place = 1 + sum(
                other.queue_pair == message.queue_pair and other.delivered_ns < message.delivered_ns
                for other in messages
            )
            axes.text(
                arrivals[row] + 0.014 * (last - first),
                row,
                _ordinal(place),
                ha="left",
                va="center",
                fontsize=8,
                color=_EARLY if bold else INK,
                fontweight="bold" if bold else "normal",
            )
    size = 3.0 if len(messages) <= _MOST_NUMBERED else 1.0
    pairs = sorted({message.queue_pair for message in messages})
    for pair in pairs:
        rows = [row for row, message in enumerate(messages) if message.queue_pair == pair]
        axes.plot([arrivals[r] for r in rows], rows, color=INK, lw=1.0, marker="o", markersize=size, zorder=3)
    if len(messages) <= _MOST_NUMBERED:
        names = [f"{row}: {_name(m, len(pairs) > 1)}" for row, m in enumerate(messages)]
        axes.set_yticks(range(len(messages)), names, fontsize=8)
    else:
        axes.set_ylabel(f"{len(messages)} messages, in the order of posting")
        axes.set_yticks([])
    axes.tick_params(axis="y", length=0)
    number = sum(early)
    words = "in the order of posting" if number == 0 else f"{number} of {len(messages)} overtook an earlier one"
    tidy(axes, title=f"{label}: {words}", grid="x")
    axes.spines["left"].set_visible(False)


def _name(message: Message, name_pair: bool) -> str:
    divisor, unit = byte_unit(message.bytes)
    what = "add" if message.kind == "add" else f"{message.kind[:3]} {short_number(message.bytes / divisor)} {unit}"
    return f"{what}, pair {message.queue_pair}" if name_pair else what


def _ordinal(number: int) -> str:
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"
