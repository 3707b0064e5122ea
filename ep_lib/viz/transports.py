"""What ``ep-lib bench p2p`` measured on GPUs: latency and bandwidth against the size of a message, by transport."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import INK, QUIET, RANK_COLORS, new_picture, tidy

_FIELDS = ("transport", "how", "bytes", "us_one_way", "gbytes_per_s")
_COPY, _STORES, _PACKETS = "copy engine", "bare stores", ("packets", "packets, good lines")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def transports_compared(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Figure:
    """Left, microseconds of one way (half a round trip); right, GB/s; both against bytes, the copy engine among them.

    ``rows`` are the ``results`` of ``ep-lib bench p2p --json`` on GPUs: mappings with ``transport``, ``how``,
    ``bytes``, ``us_one_way`` and ``gbytes_per_s``. The best rate of bare stores is drawn as the ceiling. Raises
    ArgumentError for rows without these fields (those of the emulator have none) and for no rows.
    """
    series: dict[str, list[Mapping[str, Any]]] = {}
    ceiling = None
    for row in rows:
        if any(name not in row for name in _FIELDS):
            raise ArgumentError(f"a row of transports_compared needs {', '.join(_FIELDS)}; got {sorted(row)}")
        if row["how"] == _STORES:
            ceiling = max(ceiling or 0.0, row["gbytes_per_s"])
        elif row["bytes"] > 0 and row["us_one_way"]:
            series.setdefault(_name(row), []).append(row)
    if not series:
        raise ArgumentError("transports_compared needs at least one row with bytes and a time")
    picture = new_picture(10.5, 4.8)
    latency, bandwidth = picture.subplots(1, 2)
    for number, (name, points) in enumerate(series.items()):
        points = sorted(points, key=lambda row: row["bytes"])
        sizes = [row["bytes"] for row in points]
        is_copy = points[0]["how"] == _COPY
        look: dict[str, Any] = {
            "color": INK if is_copy else RANK_COLORS[number % len(RANK_COLORS)],
            "linestyle": (0, (2, 2)) if is_copy else "-",
            "marker": "" if is_copy else _MARKERS[number % len(_MARKERS)],
            "markersize": 4.5,
            "linewidth": 1.6,
            "label": name,
        }
        latency.plot(sizes, [row["us_one_way"] for row in points], **look)
        if points[0]["how"] not in _PACKETS:
            bandwidth.plot(sizes, [row["gbytes_per_s"] for row in points], **look)
    if ceiling:
        bandwidth.axhline(ceiling, color=QUIET, linewidth=1.0, linestyle=(0, (6, 3)))
        words = f"bare stores, no signal: {ceiling:.0f} GB/s"
        smallest = min(row["bytes"] for points in series.values() for row in points)
        bandwidth.text(smallest, ceiling * 1.02, words, fontsize=8, color=QUIET, va="bottom")
    latency.set_yscale("log")
    _axis(latency, "one way, signal included", "µs")
    _axis(bandwidth, "one way", "GB/s")
    bandwidth.set_ylim(0, None)
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    handles, labels = latency.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=QUIET)
    return picture


def _name(row: Mapping[str, Any]) -> str:
    if row["how"] == _COPY:
        return "copy engine (no signal)"
    return f"{row['transport']}, {row['how']}"


def _axis(axes: Axes, title: str, unit: str) -> None:
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ticks = [power for power in powers if power % 5 == 0 or power == 3]
    axes.set_xticks([2.0**power for power in ticks], [_bytes(2**power) for power in ticks])
    axes.minorticks_off()
    axes.set_xlabel("bytes", color=QUIET)
    axes.set_ylabel(unit, color=QUIET)
    tidy(axes, title=title, grid="y")


def _bytes(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)
