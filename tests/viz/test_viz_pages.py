"""Pages with sliders: their numbers are those of the library, and they answer to keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from support import ROOT
from support.browser import needs_chromium

from ep_lib import viz
from ep_lib.errors import ArgumentError
from ep_lib.viz import Page

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


@pytest.fixture
def opened(page: Any, tmp_path: Path) -> Callable[[Page], Any]:
    """Opens one of our pages in the browser."""

    def go(made: Page) -> Any:
        page.goto(made.save(tmp_path / "page.html").as_uri())
        return page

    return go


@pytest.mark.extended
@pytest.mark.slow
@needs_chromium
def test_networks_in_a_browser(opened: Any) -> None:
    page = opened(viz.networks_by_seed(seeds=3))
    page.keyboard.press("End")
    assert "RC (InfiniBand): 0 of 16 messages overtook" in page.inner_text("#now")
    assert page.locator("#chart line").count() == 32 and page.inner_text("#count") == "seed 2"
    page.locator("#slider").press("ArrowLeft")
    assert page.inner_text("#count") == "seed 1"


@pytest.mark.slow
@needs_chromium
def test_a_ring_in_a_browser(opened: Any) -> None:
    page = opened(viz.ring_step_by_step(WRITTEN, READ, 2))
    assert page.inner_text("#now").startswith("the sender begins to write round 0")
    page.keyboard.press("End")
    said = page.inner_text("#now")
    assert "Signals: 4, credits: 4; 0 of 2 slots" in said and said.endswith("before they were read: 2")
    page.click("#back")
    assert "credits: 3" in page.inner_text("#now")


@pytest.mark.slow
@needs_chromium
def test_tokens_in_a_browser(opened: Any) -> None:
    page = opened(viz.dispatch_flow(choices(4, 9, 16, 3), 16))
    page.keyboard.press("ArrowRight")
    first = page.locator("#chart path").count()
    page.keyboard.press("a")
    assert page.inner_text("#count") == "2 of 36" and page.locator("#chart path").count() > first
    page.locator('[data-token="20"]').click()
    assert page.inner_text("#count") == "21 of 36" and page.locator("#counts td").count() == 16


@pytest.mark.extended
@pytest.mark.slow
@needs_chromium
def test_the_calculator_in_a_browser(opened: Any) -> None:
    page = opened(viz.calculator({"2 H200": ROOT / "benchmarks" / "results" / "h200x2.json"}))
    rows = 4096 * 3 * (1 - comb(192, 8) / comb(256, 8))
    assert f"{rows * 14336 / 1e6:.1f} MB leave each rank ({rows:.0f} rows" in page.inner_text("#now")
    for name, value, said in (
        ("ranks", "3", "256 experts cannot be spread evenly over 3 ranks"),
        ("ranks", "8", "At least "),
        ("topk", "0", "topk must be a whole number"),
    ):
        page.locator(f"#{name}").press("Control+a")
        page.keyboard.type(value)
        assert page.inner_text("#now").startswith(said)
    page.locator("#dtype").press("f")  # FP8, by its first letter
    assert page.input_value("#dtype") == "fp8"
