"""Copies arrived data to other GPUs of the host, many pieces in one launch (``<ep/peer_copy.cuh>``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Launcher, library_kernel
from ep_lib.jit.structs import header_struct
from ep_lib.require import at_least_one, refuse

TASK = header_struct("ep/peer_copy.cuh", "CopyTask")
CHUNK_BYTES = 64 << 10
_THREADS = 512


@dataclass(frozen=True)
class Copy:
    """A piece: addresses in this rank's symmetric heap; ``target`` and ``done`` are rank ``peer``'s copies.

    It waits until the 64-bit counter at ``arrived`` is at least ``expected`` (0: the data has already arrived). The one
    at ``done`` grows by 1 with every copied chunk (0: not counted); :func:`chunks` gives their number.
    """

    peer: int
    target: int
    source: int
    nbytes: int
    arrived: int = 0
    expected: int = 0
    done: int = 0


def chunks(nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """The number of chunks of a piece."""
    return -(-nbytes // chunk_bytes)


def peer_copy(rank: Any, copies: Sequence[Copy], *, chunk_bytes: int = CHUNK_BYTES, blocks: int = 8) -> None:
    """Launches the copies on ``rank`` and returns at once. Raises ArgumentError."""
    chunk_bytes, blocks = at_least_one("chunk_bytes", chunk_bytes), at_least_one("blocks", blocks)
    if chunk_bytes % 16:
        refuse("chunk_bytes", chunk_bytes, "a multiple of 16")
    rows = np.zeros(len(copies), TASK.dtype)
    for row, copy in zip(rows, copies, strict=True):
        if not 0 <= copy.peer < rank.world_size:
            refuse("peer", copy.peer, f"a rank, from 0 to {rank.world_size - 1}")
        row["target"], row["source"], row["bytes"] = copy.target, copy.source, copy.nbytes
        row["arrived"], row["expected"], row["done"], row["peer"] = copy.arrived, copy.expected, copy.done, copy.peer
    if len(rows):
        launcher: Launcher = rank
        kernel = library_kernel("transports/proxy/peer_copy.cu", "ep_peer_copy")
        tasks = rank.to_device(rows.view(np.uint8))
        kernel.launch(launcher, blocks, _THREADS, tasks, len(rows), chunk_bytes)
