"""Pages with sliders: their numbers are those of the library, and they answer to keys."""

from __future__ import annotations

import json
import re
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from support.browser import needs_chromium, run_in_pages

from ep_lib import viz
from ep_lib.errors import ArgumentError
from ep_lib.viz import Page

ROOT = Path(__file__).resolve().parents[1]
WRITTEN, READ = [(0, 1), (2, 4), (3, 7), (9, 10)], [(3.5, 5), (8, 11), (14, 15), (16, 17)]


def data_of(page: Page) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html, re.S)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def choices(ranks: int, tokens: int, experts: int, top_k: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [np.stack([random.permutation(experts)[:top_k] for _ in range(tokens)]) for _ in range(ranks)]


def test_rc_keeps_the_order_of_each_seed_and_srd_does_not() -> None:
    data = data_of(viz.networks_by_seed(seeds=6))
    rc, srd = (panel["runs"] for panel in data["panels"])
    places = [[place for *_, place in run["messages"]] for run in rc]
    assert places == [list(range(16))] * 6 and not any(run["found"] for run in rc)
    assert all(sorted(place for *_, place in run["messages"]) == list(range(16)) for run in srd)
    assert any(place != sorted(place) for place in ([m[3] for m in run["messages"]] for run in srd))
    assert any(found.startswith("signal overtakes data") for run in srd for found in run["found"])


def test_each_token_has_a_slot_of_its_own() -> None:
    tables = choices(4, 9, 16, 3)
    data = data_of(viz.dispatch_flow(tables, 16))
    slots = [(d, slot) for *_, rows in data["tokens"] for d, slot in rows]
    assert len(set(slots)) == len(slots) == np.sum(data["sent"])
    for d in range(4):
        assert sorted(slot for there, slot in slots if there == d) == list(range(sum(row[d] for row in data["sent"])))
    for rank, number, experts, rows in data["tokens"]:
        assert experts == tables[rank][number].tolist() and {d for d, _ in rows} == {e // 4 for e in experts}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: viz.dispatch_flow([np.array([[16]])], 16), "experts below 16"),
        (lambda: viz.dispatch_flow(choices(3, 2, 16, 2), 16), "experts below 16"),
        (lambda: viz.dispatch_flow([], 16), "experts below 16"),
        (lambda: viz.ring_step_by_step([(0, 1)], [(0, 1), (2, 3)], 2), "needs \\(begin, end\\)"),
        (lambda: viz.ring_step_by_step(WRITTEN, READ, 0), "num_slots is 0"),
        (lambda: viz.networks_by_seed(lambda rank: None, seeds=1), "no message goes from rank 0 to rank 1"),
        (lambda: viz.networks_by_seed(seeds=0), "seeds is 0"),
        (lambda: viz.calculator({"x": []}), "needs rows"),
    ],
)
def test_bad_input(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


@pytest.mark.slow
@needs_chromium
def test_pages_in_a_browser(tmp_path: Path) -> None:
    pages = {
        "networks": (
            viz.networks_by_seed(seeds=3),
            """press("End"); window.seen = {now: text("now"), lines: document.querySelectorAll("#chart line").length};
            press("ArrowLeft"); seen.seed = text("count");""",
        ),
        "ring": (
            viz.ring_step_by_step(WRITTEN, READ, 2),
            """window.seen = []; press("End"); seen.push(text("now")); press("Home"); seen.push(text("now"));
            for (let i = 0; i < 4; i++) press("ArrowRight"); seen.push(text("now"));""",
        ),
        "tokens": (
            viz.dispatch_flow(choices(4, 9, 16, 3), 16),
            """press("ArrowRight"); press("a"); window.seen = {now: text("now"), count: text("count"),
            ways: document.querySelectorAll("#chart path").length};
            seen.table = document.querySelectorAll("#counts td").length;""",
        ),
        "calculator": (
            viz.calculator({"2 H200": ROOT / "benchmarks" / "results" / "h200x2.json"}),
            """window.seen = [text("now")];
            for (const [id, value] of [["ranks", "3"], ["ranks", "8"], ["topk", "0"]]) {
              document.getElementById(id).value = value;
              document.getElementById(id).dispatchEvent(new Event("input"));
              seen.push(text("now"));
            }""",
        ),
    }
    seen = run_in_pages(tmp_path, {name: (page.html, script) for name, (page, script) in pages.items()})
    assert "RC (InfiniBand): 0 of 16 messages overtook" in seen["networks"]["now"]
    assert seen["networks"]["lines"] == 32 and seen["networks"]["seed"] == "seed 1"
    last, first, fifth = seen["ring"]
    assert "Signals: 4, credits: 4; 0 of 2 slots" in last and last.endswith("before they were read: 2")
    assert first.startswith("the sender begins to write round 0") and "overwritten" in fifth
    assert seen["tokens"]["count"] == "2 of 36" and seen["tokens"]["table"] == 16 and seen["tokens"]["ways"] >= 2
    rows = 4096 * 3 * (1 - comb(192, 8) / comb(256, 8))
    assert f"{rows * 14336 / 1e6:.1f} MB leave each rank ({rows:.0f} rows" in seen["calculator"][0]
    assert "256 experts cannot be spread evenly over 3 ranks" in seen["calculator"][1]
    assert seen["calculator"][2].startswith("At least ") and "topk must be a whole number" in seen["calculator"][3]
