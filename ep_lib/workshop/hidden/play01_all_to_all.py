"""The other half of ex01_all_to_all.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ep_lib


def _send(rank: ep_lib.Rank, kernel: ep_lib.Kernel, inbox: Any, signals: Any, chunks: Any) -> None:
    me = rank.rank
    for peer in reversed(range(rank.world_size)):
        kernel.launch(rank, 1, 32, inbox[me], chunks[peer], chunks[peer].nbytes, signals[me : me + 1], peer)


def _receive(rank: ep_lib.Rank, kernel: ep_lib.Kernel, inbox: Any, signals: Any, epoch: int) -> Any:
    out = rank.empty(inbox.shape, np.uint8)
    for peer in range(rank.world_size):
        word = signals[peer : peer + 1]
        kernel.launch(rank, 1, 64, word, epoch + 1, inbox[peer], inbox[peer].nbytes, out[peer], peer)
    return rank.to_host(out).copy()


def exchanges(
    piece: Any, kernels: str, epochs: Sequence[Any], own: Sequence[str], seed: int, checks: int, heap_bytes: int
) -> dict[str, Any]:
    """``epochs[rank][e][peer]`` are lists of bytes. ``own``: which functions are the learner's. ``checks``: how many
    schedules to try under the checker besides one run for the values."""
    send = ep_lib.Kernel.from_source(kernels, "write_signal_warp")
    wait = ep_lib.Kernel.from_source(kernels, "wait_and_read")
    data = np.array(epochs, np.uint8)  # [ranks, epochs, peers, bytes]
    real = {name: getattr(piece, name) for name in ("send_to_all", "receive_from_all")}
    for name, ours in (("send_to_all", _send), ("receive_from_all", _receive)):
        if name not in own:
            setattr(piece, name, ours)

    def main(rank: ep_lib.Rank) -> list[Any]:
        mine = list(data[rank.rank])
        if "all_to_all" in own:
            return [np.asarray(got).tolist() for got in piece.all_to_all(rank, send, wait, mine)]
        inboxes = [rank.symmetric(mine[0].shape, np.uint8) for _ in range(2)]
        signals = rank.symmetric(rank.world_size, np.uint64)
        received = []
        for epoch, chunks in enumerate(mine):
            piece.send_to_all(rank, send, inboxes[epoch % 2], signals, rank.to_device(chunks))
            got = piece.receive_from_all(rank, wait, inboxes[epoch % 2], signals, epoch)
            received.append(np.asarray(got).tolist())
        return received

    try:
        ranks = len(data)
        got = ep_lib.spawn(main, ranks, "emulator", seed=seed, heap_bytes=heap_bytes, timeout=5)
        findings = []
        if checks:
            report = ep_lib.check(
                main, ranks, seeds=checks, heap_bytes=heap_bytes, timeout=5, stop_at_first=True, memory="sc"
            )
            findings = [f"{found.kind}: {found.message}; {found.remedy}"[:300] for found in report.findings[:2]]
        return {"got": got, "findings": findings}
    finally:
        for name, function in real.items():
            setattr(piece, name, function)
