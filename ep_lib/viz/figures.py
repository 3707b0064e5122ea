"""Pictures of speed: measured on GPUs, modelled on the virtual clock, published by others.

``roofline``, ``shares_of_ceiling`` and ``bandwidth_by_sms`` draw a report of benchmarks/gpu.sh, against the ceiling of
the same run. They take the path of a JSON file in benchmarks/results, its loaded content, or its rows;
benchmarks/gpu_rows.py documents a row. ``transports_compared`` draws measurements of ``ep-lib bench p2p`` on GPUs,
``published_and_model`` the results of ``ep-lib bench pcie --model``. All raise ArgumentError for rows that lack the
needed fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import RANK_COLORS
from ep_lib.viz.style import (
    EMPTY,
    INK,
    QUIET,
    byte_unit,
    describe,
    draws,
    headline,
    ink_on,
    legend_below,
    new_picture,
    short_number,
    tidy,
)

Row = Mapping[str, Any]
Report = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Row]

OPERATIONS = (("dispatch", "fp8"), ("dispatch", "bf16"), ("combine", "bf16"))
"""What all libraries are measured with; one panel for each."""

_DASHES = (0, (4, 3))
_OURS = "ep_lib"
_MARKERS = {"dispatch": "o", "combine": "s"}
_FIRST_BYTES = 4096  # of the roofline's axis, at most


TOLERANCE = 0.15
"""How far the model may be from a published number, relative to it."""

_PUBLISHED_FIELDS = ("ranks", "what", "published_gbps", "logical_gbps", "wire_gbps", "line_gbps", "us")
_PUBLISHED, _LOGICAL, _WIRE = "#999999", RANK_COLORS[0], RANK_COLORS[4]
_BAR = 0.26


_TRANSPORT_FIELDS = ("transport", "how", "bytes", "us_one_way", "gbytes_per_s")
_COPY, _STORES, _PACKETS = "copy engine", "bare stores", ("packets", "packets, good lines")
_SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def rows_of(report: Report) -> list[Row]:
    """The rows of a report in any of its forms."""
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


@draws
def ceiling_of(report: Report, what: str = "") -> float:
    """GB/s per GPU: the best that bare kernels reached in that run, all GPUs at once; "stores", "loads", or either."""
    bare = [row for row in rows_of(report) if row["group"] == "ceiling" and row["by"] == "kernel"]
    found = [float(row["wire_gb_s"]) for row in bare if what in row["what"]]
    if not found:
        raise ArgumentError(f"this report has no ceiling of bare {what or 'kernels'}")
    return max(found)


@draws
def roofline(report: Report, *, latency_us: float | None = None, title: str | None = None) -> Figure:
    """GB/s on the wire against the bytes that leave a GPU, below the two limits: bandwidth and latency.

    The flat part of the roof is the ceiling of bare kernels. The slope on its left is one latency: ``latency_us``, or
    the shortest one-way time of the report's own transports; without either there is no slope. Each point is a
    library's best result for an operation, a type and a number of tokens, with random routing.
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
    axes.set_ylabel("GB/s on the wire, per GPU", color=QUIET)
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
    legend_below(picture, handles)
    best = {by: max(row["wire_gb_s"] for row in points if row["by"] == by) for by in libraries}
    told = (f"{by} reaches {rate:.0f} GB/s" for by, rate in best.items())
    describe(picture, title, *told, f"the ceiling is {ceiling:.0f} GB/s")
    return picture


@draws
def shares_of_ceiling(report: Report, *, tokens: int | None = None, title: str | None = None) -> Figure:
    """One panel per operation, one bar per library and number of SMs: its share of the ceiling. Dispatches that copy
    rows to the caller's tensors, as NCCL does, come before those that return a view.

    A full bar means the time for the necessary bytes at the ceiling: each token once to each rank. The light bar behind
    it shows further bytes that a library sent. ``tokens`` is per rank; None: the most in the report.
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
        describe(picture, words, *(f"{' '.join(_who(row).split())} {row['us']:.0f} µs" for row in bars))
        tidy(axes, title=words, grid="x")
    headline(picture, title)
    handles = [
        Patch(color=RANK_COLORS[0], label="ep_lib"),
        Patch(color=RANK_COLORS[1], label="others"),
        Patch(color="#DDDDDD", label="carried beyond what must cross"),
    ]
    legend_below(picture, handles)
    return picture


@draws
def bandwidth_by_sms(report: Report, *, title: str | None = None) -> Figure:
    """GB/s on the wire against the number of SMs that a Buffer may use, beside bare stores and loads with as many."""
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
    axes.set_ylabel("GB/s on the wire, per GPU", color=QUIET)
    axes.set_ylim(0, None)
    tidy(axes, title=title, grid="y")
    legend_below(picture)
    told = (
        f"{name} {', '.join(f'{rate:.0f} GB/s with {sms} SMs' for sms, rate in points.items())}"
        for name, points, _ in series
        if points
    )
    describe(picture, title, *told)
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
    """The fastest row for each library, operation, type and number of tokens, with random routing only."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("group", "by", "what", "dtype", "tokens"))
        if row.get("routing", "random") == "random" and row["us"] < best.get(key, {"us": float("inf")})["us"]:
            best[key] = row
    return list(best.values())


def _by_sms(rows: Iterable[Row]) -> dict[int, float]:
    """Number of SMs -> the best GB/s with that many, in ascending order."""
    best: dict[int, float] = {}
    for row in rows:
        if row.get("sms") is not None and "wire_gb_s" in row:
            best[row["sms"]] = max(best.get(row["sms"], 0.0), float(row["wire_gb_s"]))
    return dict(sorted(best.items()))


def _bars(rows: Iterable[Row], what: str, dtype: str) -> list[Row]:
    """One row per library, note of a peer library, and number of SMs; ours first, then by time."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if (row["what"], row.get("dtype")) == (what, dtype) and "wire_bytes" in row:
            key = (row["by"], row.get("sms"), _outputs(row) if row["by"] == _OURS else row.get("note"))
            if row["us"] < best.get(key, {"us": float("inf")})["us"]:
                best[key] = row
    return sorted(best.values(), key=lambda row: (row["by"] != _OURS, _outputs(row), row.get("sms") or 0, row["us"]))


def _outputs(row: Row) -> str:
    """Differences between the peers' rows and one of ours: results as views, inputs in place."""
    if row["by"] != _OURS:
        return ""
    if row["what"] == "combine":
        return ", rows in place" if row.get("note") == "from combine_input" else ""
    return ", copied out" if "copied out" in row.get("note", "") else ", view"


def _who(row: Row) -> str:
    if row["by"] == _OURS:
        return f"ep_lib, {row['sms']} SMs{_outputs(row)}"
    return f"{row['by']}\n{row['note']}" if row.get("note") else str(row["by"])


@draws
def transports_compared(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Figure:
    """Above, microseconds of one way (half a round trip); below, GB/s; both against bytes, with the copy engine.

    ``rows`` are the ``results`` of ``ep-lib bench p2p --json`` on GPUs: mappings with ``transport``, ``how``,
    ``bytes``, ``us_one_way`` and ``gbytes_per_s``. The best rate of bare stores is drawn as the ceiling. Raises
    ArgumentError for rows without these fields (those of the emulator have none) and if there are no rows.
    """
    series: dict[str, list[Mapping[str, Any]]] = {}
    ceiling = None
    for row in rows:
        if any(name not in row for name in _TRANSPORT_FIELDS):
            raise ArgumentError(f"a row of transports_compared needs {', '.join(_TRANSPORT_FIELDS)}; got {sorted(row)}")
        if row["how"] == _STORES:
            ceiling = max(ceiling or 0.0, row["gbytes_per_s"])
        elif row["bytes"] > 0 and row["us_one_way"]:
            series.setdefault(_series_name(row), []).append(row)
    if not series:
        raise ArgumentError("transports_compared needs at least one row with bytes and a time")
    picture = new_picture(6.7, 7.2)
    latency, bandwidth = picture.subplots(2, 1)
    for number, (name, points) in enumerate(series.items()):
        points = sorted(points, key=lambda row: row["bytes"])
        sizes = [row["bytes"] for row in points]
        is_copy = points[0]["how"] == _COPY
        look: dict[str, Any] = {
            "color": INK if is_copy else RANK_COLORS[number % len(RANK_COLORS)],
            "linestyle": (0, (2, 2)) if is_copy else "-",
            "marker": "" if is_copy else _SERIES_MARKERS[number % len(_SERIES_MARKERS)],
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
    latency.yaxis.set_major_formatter("{x:g}")
    _size_axis(latency, "time, one way", "µs")
    _size_axis(bandwidth, "bandwidth, one way", "GB/s")
    bandwidth.set_ylim(0, None)
    headline(picture, title)
    legend_below(picture, latency.get_legend_handles_labels()[0])
    told = (
        f"{name} {min(row['us_one_way'] for row in points):.2g} µs at best and up to "
        f"{max(row['gbytes_per_s'] for row in points):.3g} GB/s"
        for name, points in series.items()
    )
    describe(picture, title, *told)
    return picture


def _series_name(row: Mapping[str, Any]) -> str:
    if row["how"] == _COPY:
        return "copy engine (no signal)"
    return f"{row['transport']}, {row['how']}"


def _size_axis(axes: Axes, title: str, unit: str) -> None:
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ticks = [power for power in powers if power % 6 == 3]
    axes.set_xticks([2.0**power for power in ticks], [_power_of_two(2**power) for power in ticks])
    axes.minorticks_off()
    axes.set_xlabel("bytes", color=QUIET)
    axes.set_ylabel(unit, color=QUIET)
    tidy(axes, title=title, grid="y")


def _power_of_two(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


@draws
def published_and_model(rows: Sequence[Any], *, title: str | None = None) -> Figure:
    """Draws ``rows``: dataclasses or mappings with the fields of ``ep-lib bench pcie --model``.

    These are ``ranks``, ``what`` ("FP8 dispatch"; one panel each), ``published_gbps`` (None if not published),
    ``logical_gbps`` (received by a rank, its own rows included), ``wire_gbps`` (through its NIC), ``line_gbps`` (the
    NIC's line rate) and ``us``; GB/s count 10**9 bytes per second. Raises ArgumentError for a missing field, or one
    that is no number >= 0, for two rows of the same (ranks, what), and if there are no rows.
    """
    table = [_row(row) for row in rows]
    if not table:
        raise ArgumentError("published_and_model needs at least one row")
    keys = [(row["what"], row["ranks"]) for row in table]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ArgumentError(f"published_and_model was given two rows for {twice[0]} on {twice[1]} ranks")
    kinds = list(dict.fromkeys(row["what"] for row in table))
    widest = max(sum(row["what"] == kind for row in table) for kind in kinds)
    picture = new_picture(1.4 + len(kinds) * max(2.6, 1.25 * widest), 4.6)
    panels = picture.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    highest = max(
        max((row["published_gbps"] or 0.0) * (1 + TOLERANCE), row["logical_gbps"], row["wire_gbps"], row["line_gbps"])
        for row in table
    )
    for axes, kind in zip(panels, kinds, strict=True):
        _panel(axes, sorted((row for row in table if row["what"] == kind), key=lambda row: row["ranks"]), kind)
        axes.set_ylim(0, highest * 1.05)
    panels[0].set_ylabel("GB/s per rank")
    headline(picture, title)
    handles: list[Patch | Line2D] = [
        Patch(color=_PUBLISHED, label=f"published, ± {TOLERANCE:.0%}"),
        Patch(color=_LOGICAL, label="model: logical, own bytes included"),
        Patch(color=_WIRE, label="model: on the wire"),
        Line2D([], [], color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label="line rate of the NIC"),
    ]
    legend_below(picture, handles, columns=2)
    told = (
        f"{row['what']} on {row['ranks']} ranks: published {row['published_gbps'] or 'nothing'}, model "
        f"{row['logical_gbps']:.1f} GB/s logical and {row['wire_gbps']:.1f} on the wire"
        for row in table
    )
    describe(picture, title, *told)
    return picture


def _row(row: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        row = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    if not isinstance(row, Mapping) or any(name not in row for name in _PUBLISHED_FIELDS):
        got = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ArgumentError(f"a row of published_and_model needs {', '.join(_PUBLISHED_FIELDS)}; got {got}")
    for name in ("ranks", "logical_gbps", "wire_gbps", "line_gbps", "us"):
        _number(name, row[name])
    if row["published_gbps"] is not None:
        _number("published_gbps", row["published_gbps"])
    return dict(row)


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ArgumentError(f"{name} is {value!r}; it must be a finite number >= 0")


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], kind: str) -> None:
    for place, row in enumerate(rows):
        published = row["published_gbps"]
        bars = [(published, _PUBLISHED), (row["logical_gbps"], _LOGICAL), (row["wire_gbps"], _WIRE)]
        for (value, color), shift in zip(bars, (-1, 0, 1), strict=True):
            at = place + shift * (_BAR + 0.02)
            if value is None:
                words = "not published"
                axes.text(at, 1.0, words, ha="center", va="bottom", fontsize=8, color=QUIET, rotation=90)
                continue
            axes.bar(at, value, width=_BAR, color=color)
            ink = ink_on(color)
            axes.text(at, value * 0.5, f"{value:.1f}", ha="center", va="center", fontsize=8, color=ink, rotation=90)
        if published is not None:
            low, high = published * (1 - TOLERANCE), published * (1 + TOLERANCE)
            left = place - 1.6 * _BAR
            axes.fill_between((left, place + 0.55 * _BAR), low, high, color=INK, alpha=0.13, linewidth=0, zorder=3)
        reach = (place - 0.45, place + 0.45)
        axes.hlines(row["line_gbps"], *reach, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4)
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(rows) - 0.45)
    tidy(axes, title=kind, grid="y")


def _label(row: Mapping[str, Any]) -> str:
    lines = [f"EP{row['ranks']}", f"{row['us']:,.0f} µs"]
    if row["published_gbps"]:
        lines.append(f"{row['logical_gbps'] / row['published_gbps'] - 1:+.1%}")
    return "\n".join(lines)
