"""Pictures: they are Figures, pyplot stays out of it, and what they say is what was passed in."""

from __future__ import annotations

import html
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ep_lib import viz
from ep_lib.errors import ArgumentError
from ep_lib.require import installs
from ep_lib.viz.style import byte_unit, ink_on, short_number

PNG = b"\x89PNG"
EVENTS = [
    viz.Event(0, 0, 3, "write", "64 B", to=1),
    viz.Event(1, 0, 3.5, viz.WAITING),
    viz.Event(0, 3, 3.5, "signal", to=1),
]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.extended(after=3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda: viz.bytes_between_ranks([[1, 2], [3, 4]]),
        lambda: viz.bytes_between_ranks(np.zeros((1, 1))),
        lambda: viz.bytes_between_ranks(np.ones((24, 24))),
        lambda: viz.load_per_expert([0, 5, 2, 9], ranks=2),
        lambda: viz.load_per_expert(np.zeros(64)),
        lambda: viz.slot_layout([[0, 1, 1], []], labels=[["a", "b", "c"], []], capacity=4),
        lambda: viz.timeline(EVENTS, unit="us"),
        lambda: viz.routed_text(b"a few bytes\nof text \xff", np.arange(21) % 3, columns=8),
    ],
)
def test_every_picture_is_a_figure_that_can_be_saved(draw, tmp_path: Path) -> None:
    figure = draw()
    assert isinstance(figure, viz.Picture)
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert figure.png().startswith(PNG)
    assert len(figure.description) > 20 and html.escape(figure.description) in figure._repr_html_()


def test_drawing_does_not_import_pyplot() -> None:
    code = (
        "import sys; from ep_lib import viz; viz.load_per_expert([1, 2]).png(); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_without_matplotlib_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from ep_lib.viz import time_travel, timeline"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"BackendUnavailable: pictures need matplotlib: {installs('lab')}" in done.stderr


def test_bytes_between_ranks_tells_wire_from_own() -> None:
    figure = viz.bytes_between_ranks([[100 << 10, 20 << 10], [30 << 10, 400 << 10]], title="Dispatch")
    axes = figure.axes[0]
    assert texts(figure) == ["100", "20", "30", "400"]
    assert axes.get_title(loc="left") == "Dispatch (KiB)"
    assert "50 KiB cross ranks, 550 KiB with those to oneself" in axes.get_xlabel()
    assert "Dispatch: 2 ranks, 50 KiB cross ranks" in figure.description and "at most 30 KiB" in figure.description
    both = [viz.bytes_between_ranks([[0, n], [n, 0]], most=8).axes[0].images[0].norm.vmax for n in (2, 8)]
    assert both[0] == both[1], "two maps with one scale"


def test_load_per_expert_colours_bars_by_rank_and_draws_the_mean() -> None:
    axes = viz.load_per_expert([1, 2, 3, 6], ranks=2).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, 6]
    colors = [bar.get_facecolor() for bar in axes.patches]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    assert "busiest 2.00x" in axes.get_title(loc="right")


def test_slot_layout_leaves_slots_beyond_the_row_empty() -> None:
    figure = viz.slot_layout([[0, 1], [1]], labels=[["t0", "t1"], ["t2"]], capacity=3)
    assert len(figure.axes[0].patches) == 6
    assert texts(figure) == ["t0", "t1", "t2"]
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["written by rank 0", "written by rank 1", "empty"]


def test_timeline_has_a_lane_a_rank_and_an_arrow_a_remote_write() -> None:
    axes = viz.timeline(EVENTS, unit="us").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert sum(type(patch).__name__ == "FancyArrowPatch" for patch in axes.patches) == 2
    assert axes.get_xlabel() == "time (us)"


def test_pictures_can_share_one_figure() -> None:
    picture = viz.new_picture(8, 4)
    left, right = picture.subplots(1, 2)
    assert viz.load_per_expert([1, 2], axes=left) is picture
    assert viz.bytes_between_ranks([[0, 1], [1, 0]], axes=picture.subfigures(1, 1).subplots()) is picture
    assert viz.timeline(EVENTS, axes=right) is picture
    viz.rank_legend(picture, 9)
    assert picture.png().startswith(PNG)


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: viz.bytes_between_ranks([[1, 2, 3], [4, 5, 6]]), r"square matrix, got \(2, 3\)"),
        (lambda: viz.bytes_between_ranks([[1, -2], [3, 4]]), "-2"),
        (lambda: viz.bytes_between_ranks([1, 2]), r"2 dimension\(s\), got shape \(2,\)"),
        (lambda: viz.load_per_expert([]), r"non-empty .* shape \(0,\)"),
        (lambda: viz.load_per_expert([1, float("nan")]), "finite"),
        (lambda: viz.load_per_expert([1, 2, 3], ranks=2), "3 experts cannot be divided evenly over 2 ranks"),
        (lambda: viz.slot_layout([[0, 1, 2]], capacity=2), "3 slots in the longest row, capacity 2"),
        (lambda: viz.slot_layout([[0]], labels=[[]]), "one label per slot"),
        (lambda: viz.timeline([]), "at least one event"),
        (lambda: viz.timeline([viz.Event(0, 2, 1, "write")]), "end before it starts"),
        (lambda: viz.routed_text(b"abc", [0, 1]), r"3 bytes, owners of shape \(2,\)"),
    ],
)
def test_bad_input_is_refused_with_its_value(draw, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        draw()


def test_small_helpers() -> None:
    assert [byte_unit(n)[1] for n in (0, 1023, 1024, 2e6, 3e9)] == ["B", "B", "KiB", "MiB", "GiB"]
    assert [short_number(n) for n in (0, 7.0, 0.42, 3.14, 31.4, 1234.5)] == ["0", "7", "0.42", "3.1", "31.4", "1234"]
    assert ink_on("#000000") == "white"
    assert ink_on("#F0E442") != "white"
    assert len({viz.rank_color(rank) for rank in range(8)}) == 8


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (IEEE TVCG
# 2009), table 1: what somebody without one kind of cones sees, in linear RGB (severity 1.0)
_SEEN_BY = {
    "everybody": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_APART = 15.0  # of CIE 1976: 2.3 is just noticeable, side by side


def lab(color: str, seen: list[list[float]]) -> np.ndarray:
    """What is seen of an sRGB colour, in CIELAB (D65)."""
    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    t = _XYZ @ np.clip(np.array(seen) @ linear, 0, 1) / (_XYZ @ np.ones(3))
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", _SEEN_BY)
def test_the_colours_of_ranks_are_told_apart_by(eyes: str) -> None:
    seen = {color: lab(color, _SEEN_BY[eyes]) for color in viz.RANK_COLORS}
    for one, other in itertools.combinations(seen, 2):
        apart = float(np.linalg.norm(seen[one] - seen[other]))
        assert apart > _APART, f"{one} and {other} are {apart:.1f} apart"
