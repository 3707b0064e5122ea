"""Programs that push into a proxy's ring: tests/kernels/proxy_ring.cu, and the ladder of notebook 04."""

from __future__ import annotations

import numpy as np

from ep_lib import Kernel, Rank
from ep_lib.workshop.lessons import ring_and_proxy
from support import ROOT, TESTS

SOURCE = TESTS / "kernels" / "proxy_ring.cu"
TUTORIAL = ROOT / "tutorial_kernels"
LADDER: dict[str, dict[str, int]] = {
    "mailbox": {},
    "ring_of_slots": {},
    "many_producers": {},
    "batches": {"count": 80, "slots": 32, "threads": 64},
    "completions": {"outbox_rows": 3, "words": 40},
}
WORDS = 40
RIGHT, SIGNAL_FIRST, SOURCE_REUSED, NO_BARRIER, NO_FENCE = range(5)


def kernel(name: str) -> Kernel:
    return Kernel.from_file(SOURCE, name)


def exchange(rank: Rank, how: int) -> list[int]:
    inbox, outbox = (rank.symmetric(WORDS, np.uint64) for _ in range(2))
    signal, out = rank.symmetric(1, np.uint64), rank.to_device(np.zeros(WORDS, np.uint64))
    peer = 1 - rank.rank
    kernel("send").launch(rank, 1, 64, inbox, outbox, WORDS, signal, peer, how)
    kernel("receive").launch(rank, 1, 64, inbox, WORDS, signal, out, peer)
    return [int(word) for word in rank.to_host(out)]


def add_many(rank: Rank, each: int, by_warps: bool) -> int:
    counter = rank.symmetric(1, np.uint64)
    kernel("add_many").launch(rank, 3, 64, counter, each, 1 - rank.rank, by_warps)
    rank.barrier()
    return int(counter[0])


def through_proxy(rank: Rank, name: str, file: str = "", **options: int) -> bool:
    """A kernel of tutorial_kernels/04_ring_and_proxy*.cu between neighbours. Did all come right?"""
    program = Kernel.from_file(TUTORIAL / f"04_ring_and_proxy{file}.cu", name)
    return ring_and_proxy.send(rank, program, **{**LADDER.get(name, {}), **options})
