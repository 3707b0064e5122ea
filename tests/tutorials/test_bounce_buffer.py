"""tutorial_kernels/05_bounce_buffer*.cu: every rung right on every fabric and clean, every mistake explained."""

from __future__ import annotations

import numpy as np
import pytest
from support import Spmd
from support.bounce_buffer_cases import FABRICS, MAX_ROWS, counts_of, exchange, name_of

from ep_lib import CheckReport, Fabric, check, spawn
from ep_lib.errors import EpError

pytestmark = pytest.mark.slow

LADDER = [
    ("exchange_unbounded", 1),
    ("exchange_with_credits", 1),
    ("exchange_pipelined", 1),
    ("exchange_pipelined", 3),
    ("exchange_merged", 1),
    ("exchange_merged", 3),
    ("exchange_by_rings", 2),
]
NETWORKS = ["rc", "srd"]

any_rung = pytest.mark.parametrize(("name", "slots"), LADDER)
any_fabric = pytest.mark.parametrize("fabric", FABRICS, ids=name_of)


# ---- the ladder ------------------------------------------------------------------------------------------------------
@pytest.mark.extended(after=1)
@any_rung
@any_fabric
def test_all_rows_arrive_on_every_fabric(name: str, slots: int, fabric: Fabric | None) -> None:
    for seed in range(8):  # more of them under the checker: test_right_kernels.py
        ranks = 2 + 2 * (seed % 2)
        args = (name, counts_of(seed, ranks), slots)
        right = spawn(exchange, ranks=ranks, backend="emulator", seed=seed, fabric=fabric, args=args)
        assert right == [True] * ranks, f"seed {seed}"


@any_rung
def test_all_rows_arrive_everywhere(name: str, slots: int, spmd: Spmd) -> None:
    counts = counts_of(7, 2)
    assert spmd(exchange, 2, name, counts, slots) == [True, True]


@pytest.mark.parametrize("name", ["exchange_pipelined", "exchange_merged"])
@pytest.mark.parametrize("counts", [0, 1, MAX_ROWS], ids=["nothing", "a-row", "everything"])
def test_even_streams(name: str, counts: int) -> None:
    for ranks in (1, 3):
        all_equal = np.full((ranks, ranks), counts, np.int32)
        assert all(spawn(exchange, ranks=ranks, backend="emulator", fabric="srd", args=(name, all_equal, 2)))


# ---- the mistakes ----------------------------------------------------------------------------------------------------
def checked(name: str, fabric: Fabric | str | None, ranks: int = 2, slots: int = 2, seeds: int = 20) -> CheckReport:
    return check(exchange, ranks=ranks, fabric=fabric, seeds=seeds, args=(name, counts_of(1, ranks), slots))


def verdicts(name: str, fabric: str, seeds: int = 40) -> set[bool | str]:
    """What happens over the seeds: right, wrong, or an error's name."""
    seen: set[bool | str] = set()
    for seed in range(seeds):
        try:
            args = (name, counts_of(1, 2), 2)
            seen.add(all(spawn(exchange, ranks=2, backend="emulator", seed=seed, fabric=fabric, args=args)))
        except EpError as error:
            seen.add(type(error).__name__)
    return seen


@pytest.mark.extended
@pytest.mark.parametrize("fabric", NETWORKS)
def test_late_credits_are_waited_for_at_both_ends(fabric: str) -> None:
    said = str(checked("exchange_late_credit", fabric))
    assert "waited too long" in said and "ep::kPhaseCredit" in said and "arrived_of(ring, peer, chunk)" in said


SOURCE_REUSED = "quiet before reuse of the source (or wait for a credit from its receiver)"


@pytest.mark.parametrize("fabric", NETWORKS)
@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("exchange_without_credits", "source reused", SOURCE_REUSED),
        ("exchange_early_credit", "race", "missing __syncwarp between the read and its credit, which must follow it"),
        ("exchange_one_staging", "source reused", SOURCE_REUSED),
    ],
)
def test_every_mistake_is_found_and_explained(name: str, kind: str, remedy: str, fabric: str) -> None:
    report = checked(name, fabric)
    explained = [f for f in report.findings if f.kind == kind and f.remedy == remedy]
    assert explained and explained[0].first is not None and explained[0].second is not None, str(report)
    assert explained[0].where.startswith("ring."), str(report)  # a member of the kernel's struct
    if name == "exchange_early_credit":
        assert explained[0].place.startswith("give the credit (line "), str(report)
    places = explained[0].first.location + explained[0].second.location
    assert "05_bounce_buffer_broken.cu:" in places and "05_bounce_buffer.cuh:" in places
    if name != "exchange_early_credit":  # this one does harm so rarely that only a checker finds it
        assert verdicts(name, fabric) - {True}, "wrong rows, or worse, with some seed"


def test_without_credits_the_receiving_end_is_named_too() -> None:
    remedies = {finding.remedy for finding in checked("exchange_without_credits", "rc").findings}
    assert "credit before reuse" in remedies
