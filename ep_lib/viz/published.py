"""A published table against what the virtual clock says: bars, a band of 15 %, and the line that nothing can pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import INK, QUIET, RANK_COLORS, ink_on, new_picture, tidy

TOLERANCE = 0.15
"""How far the model may be from a published number."""

_FIELDS = ("ranks", "what", "published_gbps", "logical_gbps", "wire_gbps", "line_gbps", "us")
_PUBLISHED, _LOGICAL, _WIRE = "#999999", RANK_COLORS[0], RANK_COLORS[4]
_BAR = 0.26


def published_and_model(rows: Sequence[Any], *, title: str | None = None) -> Figure:
    """``rows``: dataclasses or mappings with the fields that ``ep-lib bench pcie --model`` gives.

    These are ``ranks``, ``what`` ("FP8 dispatch"; a panel each), ``published_gbps`` (None: nobody published it),
    ``logical_gbps`` (bytes a rank receives, its own included, a second), ``wire_gbps`` (bytes that crossed its NIC a
    second), ``line_gbps`` (what the NIC could carry) and ``us``; GB/s count 10**9 bytes. Raises ArgumentError for a
    field that is missing or no number >= 0, for one (ranks, what) twice, and for no rows.
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
    panels[0].set_ylabel("GB/s a rank")
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    handles: list[Patch | Line2D] = [
        Patch(color=_PUBLISHED, label=f"published, ± {TOLERANCE:.0%}"),
        Patch(color=_LOGICAL, label="model: logical, own bytes included"),
        Patch(color=_WIRE, label="model: on the wire"),
        Line2D([], [], color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label="line rate of the NIC"),
    ]
    picture.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=QUIET)
    return picture


def _row(row: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        row = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    if not isinstance(row, Mapping) or any(name not in row for name in _FIELDS):
        got = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ArgumentError(f"a row of published_and_model needs {', '.join(_FIELDS)}; got {got}")
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
