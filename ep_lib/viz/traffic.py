"""The paths of tokens: bytes between ranks, load per expert, and text in the colours of the ranks that computed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ep_lib.errors import ArgumentError
from ep_lib.viz.page import NARROW
from ep_lib.viz.style import (
    INK,
    QUIET,
    byte_unit,
    counts_of,
    describe,
    draws,
    ink_on,
    place,
    rank_color,
    rank_hatch,
    short_number,
    tidy,
)

_HEADROOM = 1.8  # leaves the dark blues out: numbers stay readable
_MOST_NUMBERED_RANKS = 8  # the numbers of a larger matrix hide its shape, and are too small to read


_INCHES_A_COLUMN = 0.135
_INCHES_A_LINE = 0.27


@draws
def bytes_between_ranks(
    matrix: Any, *, most: float | None = None, title: str | None = None, axes: Axes | None = None
) -> Figure:
    """A map of ``matrix[source][destination]`` bytes. ``most`` have the darkest colour: pass the same to pictures shown
    side by side; None: the largest of ``matrix``.

    The diagonal (bytes that a rank sends to itself) never crosses a wire and is grey. The line below the picture gives
    both sums, because published bandwidths count one or the other. Up to 8 ranks, each cell has its number.
    """
    values = counts_of(matrix, 2, "the bytes between ranks")
    ranks = values.shape[0]
    if values.shape[1] != ranks:
        raise ArgumentError(f"the bytes between ranks must be a square matrix, got {values.shape}")
    figure, axes = place(axes, 1.6 + 0.62 * max(ranks, 4), 1.7 + 0.5 * max(ranks, 4))
    own = np.eye(ranks, dtype=bool)
    wire = np.where(own, np.nan, values)
    divisor, unit = byte_unit(float(values.max()) / 10)  # 950 and 1050 KiB read better than 0.93 and 1.03 MiB
    largest = float(values[~own].max()) if ranks > 1 else 0.0
    darkest = max((most or largest) * _HEADROOM, 1.0)
    image = axes.imshow(wire, cmap="Blues", vmin=0, vmax=darkest, aspect="auto")
    for rank in range(ranks):
        axes.add_patch(Rectangle((rank - 0.5, rank - 0.5), 1, 1, facecolor="#EDEDED", hatch="///", edgecolor="#CFCFCF"))
    is_numbered = ranks <= _MOST_NUMBERED_RANKS
    if is_numbered:
        for source in range(ranks):
            for target in range(ranks):
                value = values[source, target]
                inside = source != target
                red, green, blue, _ = image.cmap(image.norm(value))
                color = ink_on((red, green, blue)) if inside else INK
                label = short_number(value / divisor)
                axes.text(target, source, label, ha="center", va="center", color=color, fontsize=9)
    axes.set_xticks(range(ranks))
    axes.set_yticks(range(ranks))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    crossed, total = float(values[~own].sum()), float(values.sum())
    sum_divisor, sum_unit = byte_unit(total)
    crossed_in_words, total_in_words = (f"{each / sum_divisor:.3g} {sum_unit}" for each in (crossed, total))
    sums = f"{crossed_in_words} cross ranks" + (f", {total_in_words} with those to oneself" if total > crossed else "")
    axes.set_xlabel(f"to rank\n{sums}")
    describe(
        figure,
        title,
        f"{ranks} ranks, {sums}; from one rank to another at most {short_number(largest / divisor)} {unit}, "
        f"{int((values[~own] == 0).sum())} of {ranks * (ranks - 1)} pairs exchange nothing",
    )
    axes.set_ylabel("from rank")
    in_units = f" ({unit})" if is_numbered else ""
    axes.set_title(f"{title or 'Bytes between ranks'}{in_units}", loc="left", fontsize=11, color=INK)
    return figure


@draws
def load_per_expert(
    load: Any, *, ranks: int | None = None, title: str | None = None, axes: Axes | None = None
) -> Figure:
    """Bars of the number of tokens of each expert; ``load`` is ``[num_experts]``.

    With ``ranks`` the bars take the colour of the rank that holds the expert. The dashed line is an even share.
    """
    values = counts_of(load, 1, "the load per expert")
    experts = values.size
    if ranks is not None and (ranks < 1 or experts % ranks):
        raise ArgumentError(f"{experts} experts cannot be divided evenly over {ranks} ranks")
    figure, axes = place(axes, max(NARROW, 1.5 + 0.35 * experts), 3.2)
    owner = np.arange(experts) * (ranks or 1) // experts
    bars = axes.bar(range(experts), values, width=0.82, edgecolor="white", linewidth=0.5)
    for bar, rank in zip(bars, owner, strict=True):
        bar.set_facecolor(rank_color(int(rank)))
        bar.set_hatch(rank_hatch(int(rank)))
    mean = float(values.mean())
    axes.axhline(mean, color=INK, linestyle="--", linewidth=1)
    busiest = float(values.max()) / mean if mean else 0.0
    share = f"{mean:,.0f}" if mean >= 100 else short_number(mean)
    axes.set_title(f"dashed: even share, {share}; busiest {busiest:.2f}x", loc="right", fontsize=8, color=QUIET)
    step = 1 if experts <= 32 else experts // 16
    axes.set_xticks(range(0, experts, step))
    axes.set_xlim(-0.6, experts - 0.4)
    axes.set_ylim(0, max(1.0, float(values.max()) * 1.12))
    axes.set_xlabel("expert" + (f" (colour: its rank of {ranks})" if ranks else ""))
    axes.set_ylabel("tokens")
    tidy(axes, title=title or "Load per expert", grid="y")
    numbers = ", ".join(f"{value:.0f}" for value in values)
    describe(
        figure, title, f"tokens of experts 0 to {experts - 1}: {numbers}; the busiest has {busiest:.2f} times the mean"
    )
    return figure


@draws
def rank_legend(figure: Figure | Any, ranks: int, *, label: str = "rank", extra: Sequence[Patch] = ()) -> None:
    """A legend of rank colours in one line below the picture."""
    patches = [
        Patch(facecolor=rank_color(rank), hatch=rank_hatch(rank), edgecolor="white", label=f"{label} {rank}")
        for rank in range(ranks)
    ]
    legend = figure.legend(
        handles=[*patches, *extra],
        loc="outside lower center",
        ncols=min(len(patches) + len(extra), 9),
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        columnspacing=1.4,
    )
    for text in legend.get_texts():
        text.set_color(QUIET)


@draws
def routed_text(
    text: bytes, owner: Any, *, columns: int = 80, title: str | None = None, axes: Axes | None = None
) -> Figure:
    """``text`` as a grid of cells, each in the colour of ``owner[i]``, the rank that computed byte ``i``."""
    owners = np.asarray(owner)
    if owners.shape != (len(text),) or not text or columns < 1 or owners.min() < 0:
        raise ArgumentError(
            f"routed_text needs one rank >= 0 per byte and at least one column; got {len(text)} bytes, owners of shape "
            f"{owners.shape}, {columns} columns"
        )
    lines = -(-len(text) // columns)
    figure, axes = place(axes, 0.6 + _INCHES_A_COLUMN * columns, 0.7 + _INCHES_A_LINE * lines)
    colors = np.ones((lines, columns, 3))
    for position, rank in enumerate(owners):
        colors[position // columns, position % columns] = to_rgb(rank_color(int(rank)))
    axes.imshow(colors, aspect="auto", interpolation="nearest")
    for position, letter in enumerate(_letters(text)):
        if letter != " ":
            axes.text(
                position % columns,
                position // columns,
                letter,
                ha="center",
                va="center_baseline",
                family="monospace",
                fontsize=9,
                color=ink_on(rank_color(int(owners[position]))),
            )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    for column in range(1, columns):
        axes.axvline(column - 0.5, color="white", linewidth=0.4)
    for line in range(1, lines):
        axes.axhline(line - 0.5, color="white", linewidth=2.0)
    axes.set_title(title or "The rank that computed each byte", loc="left", fontsize=11, color=INK)
    told = (
        f"{int((owners == rank).sum())} of {len(text)} bytes by rank {rank}" for rank in sorted(set(owners.tolist()))
    )
    describe(figure, title, *told)
    return figure


def _letters(text: bytes) -> list[str]:
    """One character per byte: printable ASCII as it is, a newline as a return sign, other bytes as a dot."""
    return [chr(byte) if 32 <= byte < 127 else "\u21b5" if byte == 10 else "\u00b7" for byte in text]
