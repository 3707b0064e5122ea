"""Values recorded by kernels on the virtual clock (``ep::trace_value``): credits, slots in use, bytes in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ep_lib.errors import ArgumentError
from ep_lib.viz.run import under_way, until
from ep_lib.viz.style import (
    EMPTY,
    INK,
    byte_unit,
    describe,
    draws,
    headline,
    legend_beside,
    new_picture,
    rank_color,
    short_number,
    tidy,
)

if TYPE_CHECKING:
    from ep_lib.emulator.timeline import Sample, Timeline

MESSAGES_ON_THEIR_WAY = "messages on their way"
"""A name for :func:`samples_over_time` that kernels need not record: counted from the messages of a run."""

BYTES_ON_THEIR_WAY = "bytes on their way"
"""The same, in bytes."""

_MOST_LINES = 8  # with more lines in one panel, only each rank's mean is drawn
_STYLES = ("-", "--", ":", "-.")


@draws
def samples_over_time(
    run: Timeline,
    names: Iterable[str] | str | None = None,
    *,
    limits: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """One panel for each of ``names`` (by default all recorded ones), one stepped line per rank and block.

    ``limits[name]`` is drawn as a dashed line: the slots of a ring, the bytes of a buffer. If there are more than eight
    lines, each rank's mean is drawn instead, in a grey band from the smallest to the largest value. Raises
    ArgumentError for a name that no kernel recorded; ``"messages on their way"`` and ``"bytes on their way"`` are
    always there.
    """
    noted = list(dict.fromkeys(sample.name for sample in run.samples))
    wanted = [names] if isinstance(names, str) else noted if names is None else list(names)
    limits = dict(limits or {})
    there = [*noted, MESSAGES_ON_THEIR_WAY, BYTES_ON_THEIR_WAY]
    unknown = [name for name in [*wanted, *limits] if name not in there]
    if unknown or not wanted:
        raise ArgumentError(
            f"no kernel of this run recorded {unknown[0]!r}; there are: {', '.join(map(repr, there))}"
            if unknown
            else "no kernel of this run recorded anything: call ep::trace_value(name, value) of <ep/trace.cuh> in it, "
            f"or ask for {MESSAGES_ON_THEIR_WAY!r}"
        )
    picture = new_picture(10.0, 1.1 + 1.75 * len(wanted))
    panels = picture.subplots(len(wanted), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, wanted, strict=True):
        lines = _of_messages(run, name) if name not in noted else _of_samples(run.samples, name)
        _panel(axes, lines, name, run.end_ns / 1000, limits.get(name))
        most = max((float(values.max()) for _, values in lines.values() if len(values)), default=0.0)
        describe(picture, title, f"{name}, {len(lines)} lines, at most {short_number(most)}")
    panels[0].set_xlim(0, run.end_ns / 1000)
    panels[-1].set_xlabel("virtual time (µs)")
    headline(picture, title)
    return picture


_Lines = dict[tuple[int, int | None], tuple[Any, Any]]  # (rank, block) -> times in us, values


def _of_samples(samples: Iterable[Sample], name: str) -> _Lines:
    grouped: dict[tuple[int, int | None], list[Sample]] = {}
    for sample in samples:
        if sample.name == name:
            grouped.setdefault((sample.rank, sample.block), []).append(sample)
    lines: _Lines = {}
    for key in sorted(grouped):
        ordered = sorted(grouped[key], key=lambda sample: sample.at_ns)
        lines[key] = (np.array([s.at_ns / 1000 for s in ordered]), np.array([float(s.value) for s in ordered]))
    return lines


def _of_messages(run: Timeline, name: str) -> _Lines:
    lines: _Lines = {}
    for rank in range(run.ranks):
        mine = [m for m in run.messages if m.source == rank]
        pairs = [(m.posted_ns / 1000, until(run, m.delivered_ns) / 1000) for m in mine]
        weights = [m.bytes for m in mine] if name == BYTES_ON_THEIR_WAY else None
        if pairs:
            times, values = under_way(pairs, weights)
            lines[rank, None] = (np.append(0.0, times), np.append(0.0, values))
    if not lines:
        raise ArgumentError(f"no message was sent in this run, so there is nothing to show for {name!r}")
    return lines


def _panel(axes: Axes, lines: _Lines, name: str, end: float, limit: float | None) -> None:
    highest = max([limit or 0.0, *(float(values.max()) for _, values in lines.values() if len(values))], default=0.0)
    divisor, unit = byte_unit(highest) if "bytes" in name else (1.0, "")
    if len(lines) <= _MOST_LINES:
        _draw_lines(axes, lines, end, divisor)
    else:
        _draw_bands(axes, lines, end, divisor)
    if limit is not None:
        axes.axhline(limit / divisor, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.text(
            1.0,
            limit / divisor,
            f"limit {limit / divisor:g} ",
            ha="right",
            va="bottom",
            fontsize=8,
            color=INK,
            transform=axes.get_yaxis_transform(),
        )
    axes.set_ylim(0, (highest / divisor or 1.0) * 1.18)
    tidy(axes, title=f"{name} ({unit})" if unit and unit != "B" else name, grid="y")
    legend_beside(axes, top=1.05, fontsize=8)


def _draw_lines(axes: Axes, lines: _Lines, end: float, divisor: float) -> None:
    seen: dict[int, int] = {}
    for number, ((rank, block), (times, values)) in enumerate(lines.items()):
        style = _STYLES[seen.get(rank, 0) % len(_STYLES)]
        seen[rank] = seen.get(rank, 0) + 1
        axes.step(
            np.append(times, end),
            np.append(values, values[-1]) / divisor,
            where="post",
            color=rank_color(rank),
            linestyle=style,
            # Later lines are thinner, so that a line below another stays visible.
            linewidth=1.4 + (2.4 if len(lines) <= 4 else 0.8) * (1 - number / max(len(lines) - 1, 1)),
            label=f"rank {rank}" if block is None else f"rank {rank}, block {block}",
        )


def _draw_bands(axes: Axes, lines: _Lines, end: float, divisor: float) -> None:
    grid = np.linspace(0, end, 400)
    everything = []
    for rank in dict.fromkeys(rank for rank, _ in lines):
        rows = []
        for (owner, _), (times, values) in lines.items():
            if owner == rank:
                index = np.searchsorted(times, grid, side="right") - 1
                rows.append(np.where(index >= 0, values[np.maximum(index, 0)], 0.0) / divisor)
        label = f"rank {rank}, mean of {len(rows)}" if len(rows) > 1 else f"rank {rank}"
        axes.plot(grid, np.mean(rows, axis=0), color=rank_color(rank), linewidth=1.4, label=label)
        everything += rows
    low, high = np.min(everything, axis=0), np.max(everything, axis=0)
    axes.fill_between(grid, low, high, color=EMPTY, linewidth=0, zorder=0, label="smallest to largest")
