"""Colours, figures and labels that all pictures share.

Pictures are :class:`matplotlib.figure.Figure` objects made without pyplot: they are not displayed, change no global
state, and choose no backend. Save one with ``figure.savefig(path)``; a notebook shows the last expression of a cell.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people with any kind of colour blindness
can distinguish; a grey, dark enough for that too, replaces black, so that text stays readable on every colour. (Many
cannot distinguish a light grey from the pink: tests/viz/test_viz.py measures it.)
"""

from __future__ import annotations

import base64
import functools
import html
import inspect
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import show
from ep_lib.viz.page import RANK_COLORS

P = ParamSpec("P")
T = TypeVar("T")

# Errors of Python, NumPy and matplotlib for unsuitable data
_NO_PICTURE = (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, OSError, RuntimeError)

INK = "#222222"
QUIET = "#777777"
EMPTY = "#F2F2F2"
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_DPI = 110
_PAD_INCHES = 0.1
_LEAST_SHARE = 0.65  # of its width: a narrow page shrinks a picture to this at most, then scrolls


class Picture(Figure):
    """A Figure that a notebook shows without pyplot, with a description in words: its text form, also for screen
    readers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sentences: list[str] = []

    def describe(self, sentence: str) -> None:
        """Adds a sentence to the description."""
        self._sentences.append(sentence)

    @property
    def description(self) -> str:
        """The picture in words."""
        return " ".join(self._sentences) or " ".join(axes.get_title(loc="left") for axes in self.axes).strip()

    def png(self) -> bytes:
        """The picture as the content of a PNG file."""
        memory = io.BytesIO()
        self.savefig(memory, format="png", dpi=_DPI)
        return memory.getvalue()

    def __repr__(self) -> str:
        return f"Picture: {self.description}"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png()).decode()
        least = _LEAST_SHARE * self.get_figwidth() * _DPI
        scrolls = "overflow-x:auto; width:0; min-width:100%"  # no wider than what it stands in, a prediction's box, too
        return (
            f'<div style="{scrolls}"><img style="max-width:100%; min-width:{least:.0f}px; background:white; '
            f'border-radius:4px" alt="{html.escape(self.description)}" src="data:image/png;base64,{data}"></div>'
        )


def new_picture(width: float, height: float) -> Picture:
    """An empty picture of ``width`` x ``height`` inches that arranges its own margins."""
    margins = ConstrainedLayoutEngine(w_pad=_PAD_INCHES, h_pad=_PAD_INCHES)
    return Picture(figsize=(width, height), dpi=_DPI, layout=margins)


def place(axes: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    """``axes`` and its figure, or the one axes of a new picture."""
    if axes is None:
        picture = new_picture(width, height)
        return picture, picture.add_subplot()
    figure: Any = axes.get_figure()
    while not isinstance(figure, Figure):
        if figure is None:
            raise ArgumentError("the axes handed in belong to no figure")
        figure = figure._parent  # axes may sit in a subfigure; get_figure(root=True) needs matplotlib 3.10
    return figure, axes


def describe(figure: Figure, title: str | None, *parts: str) -> None:
    """Adds a sentence to a picture's description: the title, then its parts."""
    if isinstance(figure, Picture):
        head = f"{title.rstrip('.')}: " if title else ""
        figure.describe(f"{head}{'; '.join(parts)}.")


def draws(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a drawing function: data that it cannot draw raises an ArgumentError that shows all of the data."""

    @functools.wraps(function)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except EpError:
            raise
        except _NO_PICTURE as error:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
            shown = ", ".join(f"{name} is {show(value)}" for name, value in given.items())
            raise ArgumentError(
                f"{function.__name__}() cannot draw this: {shown} ({type(error).__name__}: {error}); "
                f"help({function.__name__}) says what it takes"
            ) from error

    return drawn


@draws
def rank_color(rank: int) -> str:
    """The colour of a rank."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def rank_hatch(rank: int) -> str:
    """The hatching that distinguishes rank 9 from rank 1; none for the first eight ranks."""
    return _HATCHES[rank // len(RANK_COLORS) % len(_HATCHES)]


def ink_on(color: str | tuple[float, float, float]) -> str:
    """Dark or white text, whichever is easier to read on ``color`` (relative luminance of WCAG 2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.25 else INK


def draw_bars(axes: Axes, bars: Iterable[tuple[float, float, float, float]], **look: Any) -> None:
    """Horizontal bars, each (begin, middle, length, height), as one artist: matplotlib takes a millisecond for a bar of
    its own, and a run has hundreds. They do not change the limits of the axes. ``look``: of a PolyCollection."""
    boxes = [
        ((begin, low), (begin + length, low), (begin + length, low + height), (begin, low + height))
        for begin, low, length, height in ((x, y - high / 2, long, high) for x, y, long, high in bars)
    ]
    if boxes:
        axes.add_collection(PolyCollection(boxes, **look), autolim=False)


def tidy(axes: Axes, *, title: str | None = None, grid: str | None = None) -> None:
    """No frame on top and on the right, a title on the left, light grid lines along ``grid`` ('x' or 'y')."""
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, loc="left", fontsize=11, color=INK)
    if grid == "x":
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    elif grid == "y":
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)


def legend_beside(axes: Axes, handles: Sequence[Artist] | None = None, *, top: float = 1.0, fontsize: int = 9) -> None:
    """The legend on the right of ``axes``, with ``handles`` or the labelled artists."""
    look: dict[str, Any] = {} if handles is None else {"handles": handles}
    look |= {"bbox_to_anchor": (1.01, top), "fontsize": fontsize, "labelcolor": QUIET}
    axes.legend(loc="upper left", frameon=False, borderaxespad=0, **look)


def legend_below(picture: Figure, handles: Sequence[Artist] | None = None, *, columns: int = 3) -> None:
    """The legend of the whole picture, below it."""
    look: dict[str, Any] = {} if handles is None else {"handles": handles}
    look |= {"ncols": columns, "fontsize": 9, "labelcolor": QUIET}
    picture.legend(loc="outside lower center", frameon=False, **look)


def legend_outside(figure: Figure, axes: Axes, handles: Sequence[Artist] | None = None, *, below: bool) -> None:
    """The legend of a picture with one panel: below it, which needs no width, or beside ``axes`` among others."""
    if below:
        legend_below(figure, handles)
    else:
        legend_beside(axes, handles)


def headline(picture: Figure, title: str | None) -> None:
    """A title above all panels of a picture."""
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)


def byte_unit(largest: float) -> tuple[float, str]:
    """(divisor, unit) in which ``largest`` bytes are readable; powers of two, as for buffers and messages."""
    for divisor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if largest >= divisor:
            return divisor, unit
    return 1.0, "B"


def short_number(value: float) -> str:
    """Three significant digits at most, no exponent: 0, 7, 0.42, 3.1, 128, 12345."""
    if value == int(value) or value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def counts_of(values: Any, dimensions: int, name: str) -> npt.NDArray[np.float64]:
    """``values`` as a float array with that many dimensions; no other shape, negative number, NaN or empty array."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0:
        raise ArgumentError(f"{name} must be a non-empty array of {dimensions} dimension(s), got shape {array.shape}")
    if not np.all(np.isfinite(array)) or array.min() < 0:
        raise ArgumentError(f"{name} must hold finite numbers >= 0, got {array.min()} as the smallest")
    return array
