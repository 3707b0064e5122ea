"""PCIe mode under the checker: silent on what is right, at 2 to 32 ranks; a word for every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from support.dispatch_combine_cases import Case, make_case
from support.pcie_cases import run_case
from wrong_variants import pcie_variants

import ep_lib
from ep_lib import Fabric, Rank

pytestmark = pytest.mark.slow


def results(rank: Rank, case: Case, variety: int) -> Any:
    result = run_case(rank, case, variety)
    return result["first"]["x"], result["plain"], result["weighted"], result["again"]["x"]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("ranks", "fabric", "variety"),
    [
        (2, "rc", 2),
        (2, "srd", 3),
        (3, "srd", 0),
        (4, Fabric("rc", 2, False), 1),
        (4, "srd", 3),
        (8, "rc", 2),
        (8, "srd", 1),
    ],
)
def test_nothing_is_said(ranks: int, fabric: Fabric | str, variety: int) -> None:
    case = make_case(ranks + variety, world_size=ranks, max_tokens=10, dtype="bfloat16")
    report = ep_lib.check(results, ranks, fabric, seeds=6, args=(case, variety))
    assert report.ok, str(report)


@pytest.mark.extended
@pytest.mark.slow
def test_nothing_is_said_over_many_schedules(seeds: int) -> None:
    case = make_case(7, world_size=4, max_tokens=8, dtype="bfloat16")
    for fabric, variety in (("rc", 2), ("srd", 3)):
        report = ep_lib.check(results, 4, fabric, seeds=seeds, args=(case, variety))
        assert report.ok, str(report)


@pytest.mark.extended
def test_nothing_is_said_of_what_the_variants_break() -> None:
    for fabric in ("rc", "srd"):
        report = ep_lib.check(pcie_variants.main, 3, fabric, seeds=10)
        assert report.ok, str(report)


@pytest.mark.parametrize("number", range(len(pcie_variants.VARIANTS)), ids=[v.name for v in pcie_variants.VARIANTS])
def test_every_mistake_is_flagged(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = pcie_variants.VARIANTS[number]
    pcie_variants.use_variant(monkeypatch, number)
    report = pcie_variants.all_in_one.look_for_mistake(pcie_variants.main, 3, variant.fabric, (variant.tokens,))
    assert {f.kind for f in report.findings} & variant.kinds, str(report)
