"""Pictures of what was measured on GPUs say what the rows say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes

from ep_lib import viz
from ep_lib.errors import ArgumentError

WIRE = {"fp8": 80_000_000, "bf16": 160_000_000}


def row(group: str, by: str, what: str, us: float, wire_bytes: float, **more: Any) -> dict[str, Any]:
    rate = wire_bytes / us / 1e3
    return {"group": group, "by": by, "what": what, "us": us, "wire_bytes": wire_bytes, "wire_gb_s": rate, **more}


def rows() -> list[dict[str, Any]]:
    made = [row("ceiling", "kernel", what, 500, 500 * 1e3 * rate, sms=24) for what, rate in
            (("stores", 400), ("loads", 320))]  # fmt: skip
    made.append(row("ceiling", "copy engine", "copies", 500, 500 * 1e3 * 450))
    for what, dtype in (("dispatch", "fp8"), ("dispatch", "bf16"), ("combine", "bf16")):
        size = {"dtype": dtype, "tokens": 4096, "routing": "random"}
        for sms, share in ((8, 0.5), (24, 0.8)):
            us = WIRE[dtype] / 400 / 1e3 / share
            made.append(row("normal", "ep_lib", what, us, WIRE[dtype], sms=sms, note="cached handle", **size))
            made.append(row("normal", "ep_lib", what, 2 * us, WIRE[dtype], sms=sms, note="counted", **size))
        copied = {**size, "note": "cached handle, copied out"}
        made.append(row("normal", "ep_lib", what, WIRE[dtype] / 280 / 1e3, WIRE[dtype], sms=24, **copied))
        made.append(row("normal", "ep_lib", what, 1, WIRE[dtype], sms=24, **{**size, "routing": "skewed"}))
        made.append(row("peer", "NCCL", what, 1000, WIRE[dtype], note="torch indexing", **size))
        made.append(row("peer", "torch", what, 1000, 2 * WIRE[dtype], **size))
        made.append(row("normal", "ep_lib", what, 10, 10_000, **{**size, "tokens": 1}, sms=24))
    made.append({"group": "transport", "by": "p2p", "what": "packets", "us": 0.8, "us_one_way": 0.8, "bytes": 64})
    return made


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_report_is_a_path_a_mapping_or_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"rows": rows()}))
    assert viz.ceiling_of(path) == viz.ceiling_of({"rows": rows()}) == viz.ceiling_of(rows()) == 400
    assert viz.ceiling_of(rows(), "loads") == 320


def test_shares_are_of_the_time_that_the_ceiling_needs() -> None:
    axes = viz.shares_of_ceiling(rows()).axes
    assert [a.get_title(loc="left").partition(":")[0] for a in axes] == [
        "FP8 dispatch",
        "BF16 dispatch",
        "BF16 combine",
    ]
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    ours = ["ep_lib, 24 SMs, copied out", "ep_lib, 8 SMs, view", "ep_lib, 24 SMs, view"]
    assert labels == [*ours, "NCCL\ntorch indexing", "torch"], "the quickest of each; first what is alike"
    assert texts(axes[0]) == ["286 µs, 70%", "400 µs, 50%", "250 µs, 80%", "1000 µs, 20%", "1000 µs, 20%"]
    light, bar = (axes[0].patches[number].get_width() for number in (8, 9))
    assert light == pytest.approx(2 * bar), "what a library carried beyond what must cross"


def test_the_roof_has_a_slope_only_where_a_latency_is_known() -> None:
    axes = viz.roofline(rows()).axes[0]
    assert any("400 GB/s" in text for text in texts(axes))
    assert any("0.8 µs" in text for text in texts(axes))
    roof = axes.lines[0]
    assert roof.get_ydata()[1] == 400
    assert roof.get_xdata()[1] == pytest.approx(400 * 1e3 * 0.8)
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[1:]]
    assert (WIRE["fp8"], pytest.approx(320)) in points, "the quickest, not the skewed one"
    bare = [r for r in rows() if r["group"] != "transport"]
    assert len(viz.roofline(bare).axes[0].lines[0].get_xdata()) == 2


def test_bandwidth_by_sms_takes_the_best_of_each_number() -> None:
    axes = viz.bandwidth_by_sms(rows()).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["FP8 dispatch"].get_xdata()) == [8, 24]
    assert list(lines["FP8 dispatch"].get_ydata()) == pytest.approx([200, 320])
    assert list(lines["bare stores"].get_ydata()) == [400]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "24"]


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: viz.roofline([]), "at least one"),
        (lambda: viz.roofline({"rows": "text"}), "a list"),
        (lambda: viz.roofline([{"us": 1}]), r"needs group, by, what and us; got \['us'\]"),
        (lambda: viz.roofline(rows()[:2]), "rows of dispatch or combine"),
        (lambda: viz.roofline(rows()[3:]), "no ceiling of bare kernels"),
        (lambda: viz.shares_of_ceiling(rows(), tokens=7), "with 7 tokens"),
        (lambda: viz.bandwidth_by_sms(rows()[-1:]), "with sms"),
    ],
)
def test_a_report_without_what_the_picture_shows_is_refused(draw: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        draw()
