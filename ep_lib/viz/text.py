"""Text whose letters carry the colour of the rank they were sent to."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ep_lib.errors import ArgumentError
from ep_lib.viz.style import INK, ink_on, place, rank_color

_INCHES_A_COLUMN = 0.135
_INCHES_A_LINE = 0.27


def routed_text(
    text: bytes, owner: Any, *, columns: int = 80, title: str | None = None, axes: Axes | None = None
) -> Figure:
    """``text`` as a grid of cells, each coloured by ``owner[i]``, the rank that computed byte ``i``."""
    owners = np.asarray(owner)
    if owners.shape != (len(text),) or not text or columns < 1 or owners.min() < 0:
        raise ArgumentError(
            f"routed_text needs one rank >= 0 a byte and at least one column; got {len(text)} bytes, owners of shape "
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
    return figure


def _letters(text: bytes) -> list[str]:
    """One mark a byte: printable ASCII as it is, a newline as a return sign, other bytes as a dot."""
    return [chr(byte) if 32 <= byte < 127 else "\u21b5" if byte == 10 else "\u00b7" for byte in text]
