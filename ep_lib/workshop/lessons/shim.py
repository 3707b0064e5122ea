"""Notebook 03: messages from rank to rank through the shim's kernels, and one counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib.compat import ibgda
from ep_lib.emulator.fabric import Fabric
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn

BYTES, MESSAGES, CHANNELS, CHUNK = 200, 5, 2, 2
ADDITIONS = 20  # of count(): two ranks, two blocks each, five times


def data_of(rank: int, size: int) -> NDArray[np.uint8]:
    """The data of a rank, without zeros: a zero means that nothing arrived."""
    return np.random.default_rng(rank).integers(1, 256, size, np.uint8)


def ring(
    rank: Rank,
    send: Kernel,
    receive: Kernel,
    size: int = BYTES,
    n: int = MESSAGES,
    senders: Sequence[int] = (0, 1),
) -> NDArray[np.bool_]:
    """Sends ``n`` messages of ``size`` bytes to the next rank. Returns whether each byte received is right."""
    ranks, me = rank.world_size, rank.rank
    following, previous = (me + 1) % ranks, (me - 1) % ranks
    channels = CHANNELS if "channel" in send.name else 1
    total = size * n * channels
    inbox, outbox, staging = (rank.symmetric(total, np.uint8) for _ in range(3))
    counters, signals = rank.symmetric(CHANNELS, np.uint32), rank.symmetric(n, np.uint64)
    out = rank.to_device(np.zeros(total, np.uint8))
    outbox[:] = rank.xp.asarray(data_of(me, total))
    ibgda.init_efa_device_state(rank, num_channels=4)
    to: tuple[Any, ...]
    come: tuple[Any, ...]
    if channels > 1:
        to, come = (inbox, outbox, size, n, CHUNK, counters), (counters, n, CHUNK, inbox, size, out)
    else:
        sources = (staging, outbox) if "staged" in send.name else (outbox,)
        flags = signals if receive.name == "receive_each" else counters
        to, come = (inbox, *sources, size, n, flags), (flags, n, inbox, size, out)
    if me in senders:
        send.launch(rank, channels, 32, *to, following)
    if previous not in senders:
        return np.array([True])  # nothing to receive
    receive.launch(rank, channels, 64, *come, previous)
    right: NDArray[np.bool_] = rank.to_host(out) == data_of(previous, total)
    return right


def outcomes(network: str, seeds: Iterable[int], *kernels: Kernel) -> Counter[str]:
    """How often :func:`ring` went right and wrong."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        results = spawn(ring, 2, "emulator", fabric=network, seed=seed, args=kernels)
        happened["right" if all(result.all() for result in results) else "wrong data"] += 1
    return happened


def count(rank: Rank, add: Kernel) -> list[int]:
    """Both ranks add to rank 0's counters; returns the final values of this rank's counters."""
    counters = rank.symmetric(rank.world_size, np.uint32)
    ibgda.init_efa_device_state(rank, num_channels=4)
    add.launch(rank, 2, 32, counters, 5, 0)
    rank.barrier()
    values: list[int] = rank.to_host(counters).tolist()
    return values


def totals(network: str | Fabric, seeds: Iterable[int], add: Kernel) -> Counter[str]:
    """How often additions were lost, and how many."""
    runs = (spawn(count, 2, "emulator", fabric=network, seed=seed, args=(add,)) for seed in seeds)
    lost = [ADDITIONS - sum(counters) for counters, _ in runs]
    return Counter("right" if n == 0 else "1 to 4 lost" if n < 5 else "5 or more lost" for n in lost)


def damage(seeds: Iterable[int], *kernels: Kernel, most: int = 6) -> dict[str, Any]:
    """For failed runs on EFA: whether nothing (0), a part (1) or all (2) of each message had arrived."""
    found: dict[str, Any] = {}
    for seed in seeds:
        results = spawn(ring, 2, "emulator", fabric="srd", seed=seed, args=kernels)
        rank = min(range(2), key=lambda r: bool(results[r].all()))  # the one with wrong bytes, if any
        share = results[rank].reshape(CHANNELS * MESSAGES, -1).mean(axis=1)
        if not results[rank].all() and len(found) < most:
            found[f"seed {seed}, rank {rank}"] = np.where(share == 0, 0, np.where(share == 1, 2, 1))
    return found
