"""The checker has nothing to say of any right kernel: 6 schedules, 1,000 in `make nightly`."""

from __future__ import annotations

import pytest
from support.right_kernels import CASES, RightKernel

from ep_lib import check

pytestmark = pytest.mark.slow


@pytest.mark.extended(after=20)
@pytest.mark.parametrize(
    ("case", "fabric"),
    [pytest.param(case, fabric, id=f"{case.name}-{fabric}") for case in CASES for fabric in case.fabrics],
)
def test_nothing_is_said(case: RightKernel, fabric: str, seeds: int) -> None:
    seeds = max(1, seeds // case.share)
    report = check(case.main, case.ranks, case.fabrics[fabric], seeds=seeds, args=case.args, timeout=300)
    assert report.ok, str(report)
    assert len(report.seeds) == seeds
