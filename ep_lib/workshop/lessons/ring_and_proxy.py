"""Notebook 04: messages from rank to rank through a ring of commands and a proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import describe
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn
from ep_lib.transports.proxy.rings import COMMAND, CREDITS, PRODUCER, RING
from ep_lib.workshop.lessons import of_the_tutorial
from ep_lib.workshop.notebook import find

BLOCKS = 3  # producers, the proxy, and the proxy's second thread


def rows_of(rank: int, count: int, words: int) -> Any:
    """The messages of a rank: uint64 [count, words], no word is zero."""
    return np.random.default_rng(rank).integers(1, 1 << 62, (count, words), np.uint64)


def new_ring(rank: Rank, slots: int) -> Any:
    """An ``ep::ProxyRing`` for this rank, all zero, in memory that lives as long as the rank."""
    return ring_in(rank.symmetric(ring_bytes(slots), np.uint8), slots)


def ring_bytes(slots: int) -> int:
    """The bytes of a ring's memory."""
    return slots * COMMAND.size + CREDITS.size + PRODUCER.size


def ring_in(memory: Any, slots: int) -> Any:
    """The ``ep::ProxyRing`` that lies in ``memory``, an array of :func:`ring_bytes` bytes."""
    begin = describe(memory).address
    credits = begin + slots * COMMAND.size
    return RING.pack(slots=begin, credits=credits, producer=credits + CREDITS.size, num_slots=slots, sealed=0)


def messages_of(source: Any, outbox: Any, inbox: Any, peer: int) -> bytes:
    """The kernels' struct for arrays whose rows are messages."""
    arrays, (count, words) = {"source": source, "outbox": outbox, "inbox": inbox}, inbox.shape
    sizes = {"count": count, "words": words, "outbox_rows": len(outbox)}
    return of_the_tutorial("04_ring_and_proxy.cuh", "Messages", **arrays, **sizes, peer=peer)


def send(
    rank: Rank,
    kernel: Kernel,
    count: int = 12,
    words: int = 4,
    slots: int = 4,
    threads: int = 32,
    outbox_rows: int = 0,
) -> bool:
    """Every rank sends ``count`` messages to the next one, by its proxy. Returns whether all that arrived here are
    right.

    ``outbox_rows``: of the outbox; 0: one for each message.
    """
    ranks, me = rank.world_size, rank.rank
    outbox = rank.symmetric((outbox_rows or count, words), np.uint64)
    inbox = rank.symmetric((count, words), np.uint64)
    source = rank.to_device(rows_of(me, count, words))
    ring = new_ring(rank, slots)
    rank.barrier()
    messages = messages_of(source, outbox, inbox, (me + 1) % ranks)
    kernel.launch(rank, BLOCKS, threads, ring, messages)
    rank.synchronize()
    rank.barrier()
    return bool(np.array_equal(rank.to_host(inbox), rows_of((me - 1) % ranks, count, words)))


def outcomes(kernel: Kernel, seeds: Iterable[int], **options: Any) -> Counter[str]:
    """How often :func:`send` went right or brought wrong data between two ranks, and in which errors it ended."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            right = spawn(lambda rank: send(rank, kernel, **options), 2, "emulator", fabric="rc", seed=seed)
            happened["right" if all(right) else "wrong data"] += 1
        except EpError as error:
            happened[type(error).__name__] += 1
    return happened


def noted(ahead: int, seed: int) -> tuple[Any, Any]:
    """Rank 0's :func:`traced` of 12 commands through 4 slots, with one interleaving."""
    kernel = Kernel.from_file(find("tutorial_kernels/04_ring_and_proxy_traced.cu"), "ring_traced")
    notes = spawn(lambda rank: traced(rank, kernel, 12, 4, ahead), 2, "emulator", fabric="rc", seed=seed)
    first: tuple[Any, Any] = notes[0]
    return first


def traced(rank: Rank, kernel: Kernel, count: int, slots: int, ahead: int) -> tuple[Any, Any]:
    """The times at which each command was filled in and taken, as (begin, end) in the order of events: two arrays
    [count, 2]."""
    words = 1
    outbox, inbox = (rank.symmetric((count, words), np.uint64) for _ in range(2))
    source = rank.to_device(rows_of(rank.rank, count, words))
    counter, notes = rank.to_device(np.zeros(1, np.uint64)), rank.to_device(np.zeros((2, count, 2), np.uint64))
    ring, peer = new_ring(rank, slots), (rank.rank + 1) % rank.world_size
    messages = messages_of(source, outbox, inbox, peer)
    rank.barrier()
    kernel.launch(rank, 2, 1, ring, messages, ahead, counter, notes)
    rank.synchronize()
    rank.barrier()
    filled, taken = rank.to_host(notes).astype(np.int64)
    return filled, taken
