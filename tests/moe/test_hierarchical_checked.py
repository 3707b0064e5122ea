"""Hierarchical mode under the checker: silent on what is right; a word for every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from support.dispatch_combine_cases import Case, make_case
from support.hierarchical_cases import run_case
from wrong_variants import hierarchical_variants as variants

import ep_lib
from ep_lib import Fabric, Rank

pytestmark = pytest.mark.slow


def results(rank: Rank, case: Case) -> Any:
    result = run_case(rank, case)
    return result["first"]["x"], result["plain"], result["weighted"], result["again"]["x"]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(("ranks", "node"), [(2, 1), (4, 2), (6, 2), (8, 4)])
@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_nothing_is_said(ranks: int, node: int, kind: str) -> None:
    case = make_case(ranks, world_size=ranks, max_tokens=10, dtype="bfloat16")
    report = ep_lib.check(results, ranks, Fabric(kind, node), seeds=6, args=(case,))
    assert report.ok, str(report)


@pytest.mark.extended
def test_nothing_is_said_over_many_schedules(seeds: int) -> None:
    case = make_case(7, world_size=4, max_tokens=8, dtype="bfloat16")
    for kind in ("rc", "srd"):
        report = ep_lib.check(results, 4, Fabric(kind, 2), seeds=seeds, args=(case,))
        assert report.ok, str(report)


@pytest.mark.extended
def test_nothing_is_said_of_what_the_variants_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ep_lib.moe.hierarchical.memory._MESSAGES_PER_RING", 1)
    monkeypatch.setattr("ep_lib.moe.hierarchical.memory.MAX_ROWS_PER_MESSAGE", 1)
    for kind in ("rc", "srd"):
        for transport in ("emulated", "by_pair"):
            report = ep_lib.check(variants.main, 4, variants.fabric(kind), seeds=6, transport=transport)
            assert report.ok, str(report)


@pytest.mark.parametrize("number", range(len(variants.VARIANTS)), ids=[v.name for v in variants.VARIANTS])
def test_every_mistake_is_flagged(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = variants.VARIANTS[number]
    variants.use_variant(monkeypatch, number)
    report = variants.all_in_one.look_for_mistake(variants.main, 4, variants.fabric(variant.fabric), (variant.tokens,))
    assert {f.kind for f in report.findings} & variant.kinds, str(report)
