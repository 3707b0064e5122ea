"""The contest's README says what benchmarks/results/ has about the virtual clock's order."""

from __future__ import annotations

import itertools
import json

from support import ROOT

REPORT = json.loads((ROOT / "benchmarks" / "results" / "clock-order-2026-11-22.json").read_text("utf-8"))


def table() -> str:
    by_name: dict[str, list[str]] = {}
    for row in REPORT["rows"]:
        name = row["what"].rpartition(", ")[0]
        by_name.setdefault(name, []).append(f"{row['measured_us']:.0f} | {row['clock_us']:.0f}")
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in by_name.items())


def test_the_document_has_the_kept_figures() -> None:
    text = (ROOT / "extras" / "contest" / "README.md").read_text("utf-8")
    assert table() in text, table()
    assert f"{REPORT['same']} of {REPORT['pairs']} pairs" in text


def test_the_kept_pairs_are_those_of_the_rows() -> None:
    rows = [(row["measured_us"], row["clock_us"]) for row in REPORT["rows"]]
    apart = [(a, b) for a, b in itertools.combinations(rows, 2) if abs(a[0] - b[0]) > 0.03 * min(a[0], b[0])]
    assert len(apart) == REPORT["pairs"]
    assert sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart) == REPORT["same"]


def test_the_measured_figures_are_those_of_the_gpus() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / REPORT["of"]).read_text("utf-8"))["rows"]
    assert {row["measured_us"] for row in REPORT["rows"]} <= {row["us"] for row in measured}
