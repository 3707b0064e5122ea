"""The same program on two networks: what left in which order, and what arrived in which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ep_lib.errors import ArgumentError
from ep_lib.viz.lanes import spread
from ep_lib.viz.run_parts import MESSAGE_COLORS, MESSAGE_WORDS
from ep_lib.viz.style import INK, QUIET, new_picture, tidy

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Message, Timeline

_MOST_NUMBERED = 24  # more messages than these are lines without numbers


def fabrics_side_by_side(
    rc: Timeline,
    srd: Timeline,
    *,
    source: int = 0,
    target: int = 1,
    labels: Sequence[str] = ("RC (InfiniBand)", "SRD (EFA)"),
    title: str | None = None,
) -> Figure:
    """Messages from ``source`` to ``target`` in two runs, one below the other on one axis of virtual time.

    Each message is a line from the sender (above) to the receiver (below). The numbers above say in which order they
    were posted, those below in which order they came. A message that overtook an earlier one is drawn bold, and the
    line below each panel counts them. Raises ArgumentError where one of the runs has no such message.
    """
    if len(labels) != 2:
        raise ArgumentError(f"fabrics_side_by_side needs two labels, one a run; got {list(labels)}")
    runs = (rc, srd)
    sent = [_between(run, source, target, label) for run, label in zip(runs, labels, strict=True)]
    begin = min(m.posted_ns for messages in sent for m in messages) / 1000
    end = max(m.delivered_ns for messages in sent for m in messages) / 1000
    margin = 0.03 * (end - begin or 1.0)
    picture = new_picture(10.0, 5.6)
    panels = picture.subplots(2, 1, sharex=True)
    panels[0].set_xlim(begin - margin, end + margin)
    for axes, messages, label in zip(panels, sent, labels, strict=True):
        _panel(axes, messages, source, target, label)
    panels[1].set_xlabel("virtual time (µs)")
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    kinds = {message.kind for messages in sent for message in messages}
    handles = [Line2D([], [], color=c, lw=1.6, label=MESSAGE_WORDS[k]) for k, c in MESSAGE_COLORS.items() if k in kinds]
    handles.append(Line2D([], [], color=QUIET, lw=3.2, label="overtook an earlier one"))
    picture.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9, labelcolor=QUIET
    )
    return picture


def _between(run: Timeline, source: int, target: int, label: str) -> list[Message]:
    """In the order in which they were posted."""
    found = [m for m in run.messages if m.source == source and m.target == target and m.delivered_ns > 0]
    if not found:
        raise ArgumentError(
            f"no message from rank {source} to rank {target} in the run on {label} ({run.ranks} ranks, "
            f"{len(run.messages)} messages): name two ranks of different nodes as source and target"
        )
    return sorted(found, key=lambda m: (m.posted_ns, m.number))


def overtakers(messages: Sequence[Message]) -> list[bool]:
    """For each message, in the order of posting: did it arrive before one that was posted earlier?"""
    latest = float("-inf")
    early = []
    for message in messages:
        early.append(message.delivered_ns < latest)
        latest = max(latest, message.delivered_ns)
    return early


def _panel(axes: Axes, messages: Sequence[Message], source: int, target: int, label: str) -> None:
    early = overtakers(messages)
    for message, bold in zip(messages, early, strict=True):
        color = MESSAGE_COLORS.get(message.kind, QUIET)
        ends = (message.posted_ns / 1000, message.delivered_ns / 1000)
        width = 3.2 if bold else 1.6 if len(messages) <= _MOST_NUMBERED else 0.7
        axes.plot(ends, (1, 0), color=color, linewidth=width, solid_capstyle="round", zorder=3 if bold else 2)
    axes.hlines((0, 1), *axes.get_xlim(), color="#BBBBBB", linewidth=1.0, zorder=1)
    axes.set_ylim(-0.42, 1.42)
    axes.set_yticks((1, 0), (f"rank {source} posts", f"rank {target} gets"))
    axes.tick_params(axis="y", length=0)
    tidy(axes, title=label)
    axes.spines["left"].set_visible(False)
    if len(messages) <= _MOST_NUMBERED:
        _numbers(axes, [m.posted_ns / 1000 for m in messages], range(1, len(messages) + 1), 1, 1.26)
        _numbers(axes, [m.delivered_ns / 1000 for m in messages], range(1, len(messages) + 1), 0, -0.26)
    number = sum(early)
    words = "in the order of posting" if number == 0 else f"{number} of {len(messages)} overtook an earlier one"
    axes.set_title(words, loc="right", fontsize=9, color=INK if number else QUIET)


def _numbers(axes: Axes, times: Sequence[float], names: Sequence[int], line: float, y: float) -> None:
    """A number a message near ``line``, moved sideways where they would overlap."""
    first, last = axes.get_xlim()
    places = spread(times, 0.021 * (last - first), first, last)
    for at, place, name in zip(times, places, names, strict=True):
        axes.plot((at, place), (line, y - 0.09 if y > line else y + 0.09), color="#CCCCCC", linewidth=0.6, zorder=1)
        axes.text(place, y, str(name), ha="center", va="center", fontsize=8, color=INK)
