"""What benchmarks/gpu.sh measured on GPUs, against the ceiling of the same run: roofline, shares, and numbers of SMs.

Each function takes a report: the path of a JSON file under benchmarks/results, what ``json.load`` makes of one, or its
rows. benchmarks/gpu_rows.py says what a row holds. Raises ArgumentError for rows that lack what the picture shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import EMPTY, INK, QUIET, RANK_COLORS, byte_unit, new_picture, short_number, tidy

Row = Mapping[str, Any]
Report = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Row]

OPERATIONS = (("dispatch", "fp8"), ("dispatch", "bf16"), ("combine", "bf16"))
"""What all libraries are measured with, one panel each."""

_DASHES = (0, (4, 3))
_OURS = "ep_lib"
_MARKERS = {"dispatch": "o", "combine": "s"}
_FIRST_BYTES = 4096  # of the roofline's axis, at most


def rows_of(report: Report) -> list[Row]:
    """The rows of a report, whichever way it is given."""
    if isinstance(report, (str, os.PathLike)):
        report = json.loads(Path(report).read_text(encoding="utf-8"))
    rows = report.get("rows") if isinstance(report, Mapping) else report
    if isinstance(rows, str) or not isinstance(rows, Sequence) or not rows:
        raise ArgumentError("a report needs rows: a list of at least one, or a mapping with such a list as 'rows'")
    for row in rows:
        if not isinstance(row, Mapping) or any(name not in row for name in ("group", "by", "what", "us")):
            got = sorted(row) if isinstance(row, Mapping) else type(row).__name__
            raise ArgumentError(f"a row of a report needs group, by, what and us; got {got}")
    return list(rows)


def ceiling_of(report: Report, what: str = "") -> float:
    """GB/s a GPU: the best that bare kernels reached in that run, all GPUs at once; of "stores" or "loads", or any."""
    bare = [row for row in rows_of(report) if row["group"] == "ceiling" and row["by"] == "kernel"]
    found = [float(row["wire_gb_s"]) for row in bare if what in row["what"]]
    if not found:
        raise ArgumentError(f"this report has no ceiling of bare {what or 'kernels'}")
    return max(found)


def roofline(report: Report, *, latency_us: float | None = None, title: str | None = None) -> Figure:
    """GB/s on the wire against the bytes that leave a GPU: how far from the two things that nothing can pass.

    The flat part of the roof is the ceiling of bare kernels, the slope on its left is one latency: ``latency_us``, or
    the quickest one way of the report's own transports; without either there is no slope. Each point is the quickest
    that a library reached for an operation, a type and a number of tokens, with random routing.
    """
    rows = rows_of(report)
    ceiling = ceiling_of(rows)
    points = _quickest(row for row in rows if row["group"] in ("normal", "low latency", "peer") and "wire_gb_s" in row)
    if not points:
        raise ArgumentError("roofline needs rows of dispatch or combine with wire_gb_s")
    if latency_us is None:
        trips = (row for row in rows if row["group"] == "transport" and row["what"] != "one way")
        latency_us = min((row["us_one_way"] for row in trips), default=None)
    picture = new_picture(8.6, 5.0)
    axes = picture.add_subplot()
    least = min(_FIRST_BYTES, *(row["wire_bytes"] for row in points))
    most = 2.5 * max(row["wire_bytes"] for row in points)
    _draw_roof(axes, ceiling, latency_us, least, most)
    libraries = list(dict.fromkeys(row["by"] for row in points))
    for row in points:
        filled = row.get("dtype") == "fp8"
        color = _color(libraries, row["by"])
        axes.plot(
            row["wire_bytes"],
            row["wire_gb_s"],
            _MARKERS.get(row["what"], "^"),
            color=color,
            markerfacecolor=color if filled else "white",
            markeredgewidth=1.5,
            markersize=7,
            zorder=4,
        )
    _byte_axis(axes, least, most)
    axes.set_yscale("log")
    axes.set_ylabel("GB/s on the wire, a GPU", color=QUIET)
    lowest = min(row["wire_gb_s"] for row in points)
    axes.set_ylim(lowest / 2, ceiling * 1.8)
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
    tidy(axes, title=title, grid="y")
    plain: dict[str, Any] = {"linestyle": "", "color": QUIET, "markersize": 7, "markeredgewidth": 1.5}
    handles = [Line2D([], [], marker="D", linestyle="", color=_color(libraries, by), label=by) for by in libraries]
    handles += [
        Line2D([], [], marker=_MARKERS["dispatch"], label="FP8 dispatch", **plain),
        Line2D([], [], marker=_MARKERS["dispatch"], markerfacecolor="white", label="BF16 dispatch", **plain),
        Line2D([], [], marker=_MARKERS["combine"], markerfacecolor="white", label="BF16 combine", **plain),
    ]
    picture.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=QUIET)
    return picture


def shares_of_ceiling(report: Report, *, tokens: int | None = None, title: str | None = None) -> Figure:
    """A panel an operation, a bar a library and number of SMs: the share of the ceiling that its time comes to.

    A full bar would be the time in which the ceiling carries what must cross: a token once a rank. Light behind it:
    what a library made the links carry beyond that. ``tokens`` a rank; None: the most that the report has.
    """
    rows = [r for r in rows_of(report) if r["group"] in ("normal", "peer") and r.get("routing", "random") == "random"]
    ceiling = ceiling_of(report)
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=0) if tokens is None else tokens
    panels = [(kind, _bars([r for r in rows if r.get("tokens") == tokens], *kind)) for kind in OPERATIONS]
    panels = [(kind, bars) for kind, bars in panels if bars]
    if not panels:
        raise ArgumentError(f"shares_of_ceiling needs rows of dispatch or combine with {tokens} tokens")
    heights = [len(bars) + 0.8 for _, bars in panels]
    picture = new_picture(8.6, 0.9 + 0.34 * sum(heights))
    all_axes = picture.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, ((what, dtype), bars) in zip(all_axes[:, 0], panels, strict=True):
        needed = min(row["wire_bytes"] for row in bars)
        floor = needed / ceiling / 1e3
        for place, row in enumerate(bars):
            axes.barh(place, row["wire_bytes"] / row["us"] / 1e3 / ceiling, color="#DDDDDD", height=0.7)
            color = RANK_COLORS[0] if row["by"] == _OURS else RANK_COLORS[1]
            axes.barh(place, floor / row["us"], color=color, height=0.7)
            axes.text(1.02, place, f"{row['us']:.0f} µs, {floor / row['us']:.0%}", va="center", fontsize=8, color=INK)
        axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=_DASHES)
        axes.set_yticks(range(len(bars)), [_who(row) for row in bars], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25%", "50%", "75%", "100%"])
        words = f"{dtype.upper()} {what}: {needed / 1e6:.0f} MB must leave a GPU, {floor:.0f} µs at {ceiling:.0f} GB/s"
        tidy(axes, title=words, grid="x")
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    handles = [
        Patch(color=RANK_COLORS[0], label="ep_lib"),
        Patch(color=RANK_COLORS[1], label="others"),
        Patch(color="#DDDDDD", label="carried beyond what must cross"),
    ]
    picture.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=QUIET)
    return picture


def bandwidth_by_sms(report: Report, *, title: str | None = None) -> Figure:
    """GB/s on the wire against the number of SMs that a Buffer may use, and bare stores and loads with as many."""
    rows = rows_of(report)
    most = max((row["tokens"] for row in rows if row["group"] == "normal"), default=0)
    series: list[tuple[str, dict[int, float], dict[str, Any]]] = []
    for number, (what, dtype) in enumerate(OPERATIONS):
        ours = [r for r in rows if r["group"] == "normal" and r["tokens"] == most and r["by"] == _OURS]
        ours = [r for r in ours if r.get("routing", "random") == "random"]
        best = _by_sms(r for r in ours if (r["what"], r["dtype"]) == (what, dtype))
        series.append((f"{dtype.upper()} {what}", best, {"color": RANK_COLORS[number], "marker": "o"}))
    for what, color in (("stores", INK), ("loads", QUIET)):
        bare = _by_sms(r for r in rows if r["group"] == "ceiling" and r["by"] == "kernel" and what in r["what"])
        series.append((f"bare {what}", bare, {"color": color, "linestyle": _DASHES}))
    if not any(points for _, points, _ in series):
        raise ArgumentError("bandwidth_by_sms needs rows of group 'normal' or 'ceiling' with sms")
    picture = new_picture(7.2, 4.4)
    axes = picture.add_subplot()
    for name, points, look in series:
        if points:
            axes.plot(list(points), list(points.values()), linewidth=1.6, markersize=5, label=name, **look)
    ticks = sorted({sms for _, points, _ in series for sms in points})
    axes.set_xticks(ticks, [str(sms) for sms in ticks])
    axes.set_xlabel("SMs that move bytes", color=QUIET)
    axes.set_ylabel("GB/s on the wire, a GPU", color=QUIET)
    axes.set_ylim(0, None)
    tidy(axes, title=title, grid="y")
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=QUIET)
    return picture


def _draw_roof(axes: Axes, ceiling: float, latency_us: float | None, least: float, most: float) -> None:
    bend = least if latency_us is None else min(max(ceiling * 1e3 * latency_us, least), most)
    xs, ys = [bend, most], [ceiling, ceiling]
    if latency_us is not None and bend > least:
        xs, ys = [least, *xs], [least / latency_us / 1e3, *ys]
        middle = (least * bend) ** 0.5
        words = f"one latency, {latency_us:.2g} µs"
        axes.text(middle, middle / latency_us / 1e3 * 1.25, words, fontsize=8, color=QUIET, ha="right", va="bottom")
    axes.plot(xs, ys, color=INK, linewidth=1.4)
    axes.fill_between(xs, ys, 10 * ceiling, color=EMPTY, linewidth=0, zorder=0)
    words = f"bare kernels, all GPUs at once: {ceiling:.0f} GB/s"
    axes.text(most * 0.9, ceiling * 1.08, words, fontsize=8, color=INK, ha="right", va="bottom")


def _byte_axis(axes: Axes, least: float, most: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.xaxis.set_major_formatter(lambda value, _: _bytes(value))
    axes.minorticks_off()
    axes.set_xlabel("bytes that leave a GPU in one operation", color=QUIET)


def _bytes(size: float) -> str:
    divisor, unit = byte_unit(size)
    return f"{short_number(size / divisor)} {unit}"


def _color(libraries: Sequence[str], by: str) -> str:
    return RANK_COLORS[libraries.index(by) % len(RANK_COLORS)]


def _quickest(rows: Iterable[Row]) -> list[Row]:
    """One row a library, operation, type and number of tokens: the one that took least time, random routing only."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("group", "by", "what", "dtype", "tokens"))
        if row.get("routing", "random") == "random" and row["us"] < best.get(key, {"us": float("inf")})["us"]:
            best[key] = row
    return list(best.values())


def _by_sms(rows: Iterable[Row]) -> dict[int, float]:
    """Number of SMs -> the best GB/s with as many, in ascending order."""
    best: dict[int, float] = {}
    for row in rows:
        if row.get("sms") is not None and "wire_gb_s" in row:
            best[row["sms"]] = max(best.get(row["sms"], 0.0), float(row["wire_gb_s"]))
    return dict(sorted(best.items()))


def _bars(rows: Iterable[Row], what: str, dtype: str) -> list[Row]:
    """One row a library, note of a peer, and number of SMs; ours first, then by time."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if (row["what"], row.get("dtype")) == (what, dtype) and "wire_bytes" in row:
            key = (row["by"], row.get("sms"), None if row["by"] == _OURS else row.get("note"))
            if row["us"] < best.get(key, {"us": float("inf")})["us"]:
                best[key] = row
    return sorted(best.values(), key=lambda row: (row["by"] != _OURS, row.get("sms") or 0, row["us"]))


def _who(row: Row) -> str:
    if row["by"] == _OURS:
        return f"ep_lib, {row['sms']} SMs"
    return f"{row['by']}\n{row['note']}" if row.get("note") else str(row["by"])
