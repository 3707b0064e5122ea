"""tutorial_kernels/10_two_levels*.cu: right on every network and number of nodes, and each mistake is told."""

from __future__ import annotations

import numpy as np
import pytest
from support import ROOT

from ep_lib import Fabric, Kernel, check, spawn
from ep_lib.errors import PeerTimeout
from ep_lib.workshop.lessons import two_levels

pytestmark = pytest.mark.slow

TUTORIAL = ROOT / "tutorial_kernels"
BROKEN = "_broken"


def kernel(name: str, file: str = "") -> Kernel:
    return Kernel.from_file(TUTORIAL / f"10_two_levels{file}.cu", name)


PAIR = (kernel("dispatch_two_levels"), kernel("combine_two_levels"))


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(("ranks", "mates"), [(4, 2), (6, 3), (8, 4), (4, 4), (4, 1)])
def test_rows_and_sums_are_numpys(ranks: int, mates: int) -> None:
    wants = two_levels.draw_wants(ranks, tokens=5, top_k=3, seed=ranks)
    for seed in range(4):
        fabric = Fabric(("rc", "srd")[seed % 2], ranks_per_node=mates)
        one = (kernel("dispatch_one_level"), wants, mates)
        assert all(spawn(two_levels.dispatch, ranks, "emulator", seed=seed, fabric=fabric, args=one))
        both = (PAIR, wants, mates, 40)
        results = spawn(two_levels.there_and_back, ranks, "emulator", seed=seed, fabric=fabric, args=both)
        assert results == [(True, True)] * ranks


@pytest.mark.parametrize("fabric", ["rc", "srd"])
def test_the_checker_has_nothing_to_say(fabric: str) -> None:
    nodes, wants = Fabric(fabric, ranks_per_node=2), two_levels.draw_wants(4, tokens=4, top_k=3)
    report = check(two_levels.dispatch, 4, nodes, seeds=3, args=(kernel("dispatch_one_level"), wants, 2))
    assert report.ok, str(report)
    report = check(two_levels.there_and_back, 4, nodes, seeds=4, args=(PAIR, wants, 2, 40))
    assert report.ok, str(report)


def test_a_rank_that_waits_first_waits_for_ever() -> None:
    wants = two_levels.draw_wants(4, tokens=6, top_k=3)
    args = (kernel("dispatch_waits_first", BROKEN), wants, 2, 8, 2)
    with pytest.raises(
        PeerTimeout, match=r"waited too long for rank 2 .* and 1 was expected\nWho waited where:"
    ) as failed:
        spawn(two_levels.dispatch, 4, "emulator", fabric=Fabric("rc", ranks_per_node=2), args=args)
    (waits,) = (note for note in failed.value.__notes__ if note.startswith("Who waited where:"))
    assert "at tutorial_kernels/10_two_levels.cuh:57: if (!ep::wait_until_ge_warp(" in waits
    assert all(f"rank {rank} block 0 thread 0 on " in waits for rank in range(4)) and len(waits.splitlines()) == 6
    assert waits.count("(sees 0)") == 4  # not a row count that has come already: rank 1 has those of ranks 0 and 1


def test_what_crosses_is_counted() -> None:
    wants = np.zeros((4, 2, 4), np.bool_)
    wants[0, 0, [0, 2, 3]] = wants[1, 1, 1] = wants[3, 0, [0, 1]] = True
    assert two_levels.crossings(wants, 2) == (4, 2)
    assert two_levels.crossings(wants, 4) == (0, 0)
