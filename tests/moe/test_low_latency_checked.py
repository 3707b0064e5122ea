"""Low-latency mode under the checker: silent on what is right, at 1 to 8 ranks; a word for every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from support.low_latency_cases import low_latency_case, run_case
from wrong_variants import low_latency_variants as variants

import ep_lib
from ep_lib import Rank

pytestmark = pytest.mark.slow


def results(rank: Rank, case: Any, fp8: bool, rounds: int, hooks: bool, sms: int | None) -> Any:
    return run_case(rank, case, fp8, rounds, hooks, sms=sms)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("ranks", "fp8", "hooks", "sms"),
    [
        (1, True, False, None),
        (2, True, False, None),
        (2, False, False, 1),
        (2, True, True, 4),
        (3, False, True, None),
        (4, True, False, 2),
        (8, False, False, None),
    ],
)
def test_nothing_is_said(ranks: int, fp8: bool, hooks: bool, sms: int | None) -> None:
    case = low_latency_case(ranks + 7 * hooks, fp8=fp8, world_size=ranks, max_tokens=6)
    report = ep_lib.check(results, ranks, seeds=6, args=(case, fp8, 3, hooks, sms))
    assert report.ok, str(report)


@pytest.mark.extended
@pytest.mark.parametrize("many", [(1, 1, False), (3, 1, True), (1, 3, True)])
def test_nothing_is_said_of_what_the_variants_break(many: tuple[int, int, bool]) -> None:
    report = ep_lib.check(variants.main, 3, seeds=8, args=many)
    assert report.ok, str(report)


@pytest.mark.parametrize("number", range(len(variants.VARIANTS)), ids=[v.name for v in variants.VARIANTS])
def test_every_mistake_is_flagged(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = variants.VARIANTS[number]
    variants.use_variant(monkeypatch, number)
    many = (3, 1) if variant.kernel == "dispatch" else (1, 3)
    arguments = (*many, variant.alone)
    report = variants.all_in_one.look_for_mistake(variants.main, 3, None, arguments)
    assert {f.kind for f in report.findings} & variants.all_in_one.KINDS, str(report)
