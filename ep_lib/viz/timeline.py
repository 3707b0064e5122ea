"""Actions over time: one lane per rank, one bar per action, an arrow for each write to another rank's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import RANK_COLORS
from ep_lib.viz.style import INK, describe, draws, ink_on, legend_beside, place, tidy

WAITING = "wait"
"""Events of this kind are drawn hatched and grey."""

_WAIT_COLOR = "#D9D9D9"
_BAR_HEIGHT = 0.5
_LETTERS_AN_INCH = 12.0


@dataclass(frozen=True)
class Event:
    """An action of ``rank`` of some ``kind`` ("write", "signal", "wait", ...) from ``start`` to ``end``.

    ``to`` is the rank whose memory it changes (an arrow points there), ``label`` is written on the bar.
    """

    rank: int
    start: float
    end: float
    kind: str
    label: str = ""
    to: int | None = None


@draws
def timeline(
    events: Sequence[Event],
    *,
    unit: str = "step",
    kinds: Sequence[str] = (),
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw ``events``; times are in ``unit`` ("us", "step", "turn of the scheduler", ...).

    ``kinds`` come first in the legend and take the first colours: pass the same to pictures shown side by side.
    """
    if not events:
        raise ArgumentError("timeline needs at least one event")
    for event in events:
        if event.end < event.start or event.rank < 0 or (event.to is not None and event.to < 0):
            raise ArgumentError(f"an event must not end before it starts, and its ranks must be >= 0: {event}")
    ranks = 1 + max(max(event.rank, -1 if event.to is None else event.to) for event in events)
    first, last = min(event.start for event in events), max(event.end for event in events)
    span = (last - first) or 1.0
    width = 9.0
    figure, axes = place(axes, width, 1.5 + 0.75 * ranks)
    colors = _colors([*kinds, *(event.kind for event in events)])
    for event in events:
        color = colors[event.kind]
        length = max(event.end - event.start, span * 0.004)  # so that an instant stays visible
        axes.barh(
            event.rank,
            length,
            left=event.start,
            height=_BAR_HEIGHT,
            color=color,
            edgecolor="white",
            hatch="///" if event.kind == WAITING else "",
            linewidth=0.8,
        )
        if event.label and length / span * width * _LETTERS_AN_INCH * 0.8 >= len(event.label):
            middle = event.start + length / 2
            box = {"facecolor": color, "edgecolor": "none", "pad": 1.0}
            axes.text(
                middle, event.rank, event.label, ha="center", va="center", fontsize=8, color=ink_on(color), bbox=box
            )
        if event.to is not None and event.to != event.rank:
            _arrow(axes, event, color)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xlim(first - 0.01 * span, last + 0.03 * span)
    axes.set_xlabel(f"time ({unit})")
    axes.tick_params(axis="y", length=0)
    tidy(axes, title=title or "Who wrote what, and when", grid="x")
    legend_beside(
        axes,
        [
            Patch(facecolor=color, edgecolor="white", hatch="///" if kind == WAITING else "", label=kind)
            for kind, color in colors.items()
        ],
    )
    told = (f"rank {e.rank} {e.label or e.kind} from {e.start:g} to {e.end:g}" for e in events)
    describe(figure, title, *told)
    return figure


def _colors(names: Sequence[str]) -> dict[str, str]:
    """One colour per kind, in the order of first appearance; waiting is grey."""
    kinds = list(dict.fromkeys(names))
    palette = iter(RANK_COLORS[2:] * (1 + len(kinds)))  # the first two are ranks 0 and 1
    return {kind: _WAIT_COLOR if kind == WAITING else next(palette) for kind in kinds}


def _arrow(axes: Axes, event: Event, color: str) -> None:
    assert event.to is not None
    down = event.to > event.rank
    edge = _BAR_HEIGHT / 2 if down else -_BAR_HEIGHT / 2
    axes.add_patch(
        FancyArrowPatch(
            (event.end, event.rank + edge),
            (event.end, event.to - edge),
            arrowstyle="-|>",
            mutation_scale=10,
            color=INK if color == _WAIT_COLOR else color,
            linewidth=1.3,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
        )
    )
