"""The other half of ex01_all_to_all.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank, spawn
from ep_lib.workshop.grader.followed import Followed, Receives, Sends, TheKernel, TheRank, findings_of, kernels
from ep_lib.workshop.grader.process.far import Far, Guest

KERNELS = kernels(Path(__file__).with_name("ex01_all_to_all.cu"), "write_signal_warp", "wait_and_read")


def _send(rank: Rank, kernel: Kernel, inbox: Any, signals: Any, chunks: Any) -> None:
    me = rank.rank
    for peer in reversed(range(rank.world_size)):
        kernel.launch(rank, 1, 32, inbox[me], chunks[peer], chunks[peer].nbytes, signals[me : me + 1], peer)


def _receive(rank: Rank, kernel: Kernel, inbox: Any, signals: Any, epoch: int) -> Any:
    out = rank.empty(inbox.shape, np.uint8)
    for peer in range(rank.world_size):
        word = signals[peer : peer + 1]
        kernel.launch(rank, 1, 64, word, epoch + 1, inbox[peer], inbox[peer].nbytes, out[peer], peer)
    return rank.to_host(out).copy()


def exchanges(
    pieces: Sequence[Guest],
    epochs: Sequence[Any],
    own: Sequence[str],
    seed: int,
    checks: int,
    heap_bytes: int,
    first: int,
) -> dict[str, Any]:
    """``epochs[rank][e][peer]`` are lists of bytes. ``own``: which functions are the learner's. ``checks``: how many
    schedules to try under the checker besides one run for the values. ``first``: in task 2, the number of earlier
    epochs."""
    followed = Followed(KERNELS)
    followed.kernel("write_signal_warp", sends=Sends(source=1, items=2, item_bytes=1, target=0, signal=3, peer=4))
    followed.kernel("wait_and_read", receives=Receives(data=2, items=3, item_bytes=1, signal=0, expected=1, peer=5))
    ranks, chunks = len(epochs), np.array(epochs, np.uint8)  # [ranks, epochs, peers, bytes]

    def main(rank: Rank) -> list[Any]:
        pieces[rank.rank].anew()
        followed.follow(rank)
        received = exchange(rank, pieces[rank.rank], list(chunks[rank.rank]))
        followed.tell(rank)
        return [np.asarray(got).tolist() for got in received]

    def exchange(rank: Rank, piece: Guest, mine: list[Any]) -> list[Any]:
        send, wait = KERNELS["write_signal_warp"], KERNELS["wait_and_read"]
        handed, its_send, its_wait = TheRank(rank, piece), TheKernel(send), TheKernel(wait)
        if "all_to_all" in own:
            all_received: list[Any] = piece.call(
                "all_to_all", handed, its_send, its_wait, mine, unchanged="_ _ _ epochs"
            )
            return all_received
        signals = rank.symmetric(rank.world_size, np.uint64)
        signals[:] = first  # before any rank sends: the next line is collective
        inboxes = [rank.symmetric(mine[0].shape, np.uint8) for _ in range(2)]
        received = []
        for epoch, chunks in enumerate(mine):
            inbox, given = inboxes[epoch % 2], rank.to_device(chunks)
            if "send_to_all" in own:
                there = map(piece.array, (inbox, signals, given))
                piece.call("send_to_all", handed, its_send, *there, may_be_none=True)
            else:
                _send(rank, send, inbox, signals, given)
            if "receive_from_all" in own:
                there = map(piece.array, (inbox, signals))
                received.append(piece.make("receive_from_all", handed, its_wait, *there, first + epoch))
            else:
                received.append(_receive(rank, wait, inbox, signals, first + epoch))
        # The next call must not change an earlier one's result.
        return [each.get() if isinstance(each, Far) else each for each in received]

    got = spawn(main, ranks, "emulator", seed=seed, heap_bytes=heap_bytes, timeout=5)
    followed.over()
    # these runs are only for the checker
    findings = findings_of(main, ranks, KERNELS["canary"], checks, heap_bytes)[:2] if checks else []
    return {**followed.seen(), "got": got, "findings": findings}
