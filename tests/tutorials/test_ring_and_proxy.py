"""tutorial_kernels/04_ring_and_proxy*.cu: every rung right, and what the checker says of every mistake."""

from __future__ import annotations

import numpy as np
import pytest
from support import Spmd
from support.proxy_cases import LADDER, TUTORIAL, through_proxy

from ep_lib import Kernel, Rank, check, spawn
from ep_lib.workshop.lessons import ring_and_proxy

pytestmark = pytest.mark.slow

BROKEN = "_broken"


@pytest.mark.parametrize("name", LADDER)
def test_all_messages_arrive_everywhere(name: str, spmd: Spmd) -> None:
    assert spmd(through_proxy, 2, name) == [True, True]


@pytest.mark.parametrize("name", LADDER)
def test_all_messages_arrive_on_every_seed(name: str) -> None:
    for seed in range(6):  # more of them under the checker: test_right_kernels.py
        ranks = 2 + seed % 3
        fabric = ("p2p", "rc", "srd")[seed % 3]
        assert all(spawn(through_proxy, ranks, "emulator", fabric=fabric, seed=seed, args=(name,))), seed


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("number_first", {}, "an earlier one than this write"),
        ("without_credits", {}, "deadlock"),
        ("early_credit", {}, "slot reused"),
        ("relaxed_credit", {}, "loaded without acquire"),
        ("one_count", {}, "race"),
        ("taken_for_completed", {"outbox_rows": 2}, "quiet before reuse of the source"),
        ("push_without_syncwarp", {"words": 40}, "wait for line"),
    ],
)
def test_every_mistake_is_told(name: str, options: dict[str, int], told: str) -> None:
    report = check(lambda rank: through_proxy(rank, name, BROKEN, **options), 2, "srd", seeds=6)
    assert told in str(report), str(report)


def test_a_relaxed_credit_is_right_in_every_run_here() -> None:
    """Notebook 04 says so: nothing but the checker finds it."""
    for seed in range(20):
        assert all(spawn(through_proxy, 2, "emulator", fabric="rc", seed=seed, args=("relaxed_credit", BROKEN)))


@pytest.mark.parametrize("ahead", [4, 6])
def test_notes_say_when_a_slot_is_filled_too_early(ahead: int) -> None:
    def clashes(rank: Rank) -> int:
        kernel = Kernel.from_file(TUTORIAL / "04_ring_and_proxy_traced.cu", "ring_traced")
        filled, taken = ring_and_proxy.traced(rank, kernel, count=16, slots=4, ahead=ahead)
        return int(np.sum(filled[4:, 0] < taken[:-4, 1]))

    found = [spawn(clashes, 2, "emulator", fabric="rc", seed=seed)[0] for seed in range(8)]
    assert (sum(found) > 0) == (ahead > 4)
