"""The other half of ex01_all_to_all.py, in the child: it runs the learner's functions on emulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank, spawn
from ep_lib.workshop.pieces import of_a_rank
from ep_lib.workshop.seal import Followed, Receives, Sends, Travels, findings_of, kernels, theirs, unchanged

KERNELS = kernels(
    Path(__file__).with_name("ex01_all_to_all.cu"), "write_signal_warp", "wait_and_read", "note", "canary"
)


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


Kept = Travels


def exchanges(
    piece: Any,
    ask: Callable[..., Any],
    epochs: Sequence[Any],
    own: Sequence[str],
    seed: int,
    checks: int,
    heap_bytes: int,
    first: int,
) -> dict[str, Any]:
    """``epochs[rank][e][peer]`` are lists of bytes. ``own``: which functions are the learner's. ``checks``: how many
    schedules to try under the checker besides one run for the values. ``first``: of task 2, how many epochs were
    before."""
    followed = Followed(KERNELS, ask)
    followed.kernel("write_signal_warp", sends=Sends(source=1, items=2, item_bytes=1, target=0, signal=3, peer=4))
    followed.kernel("wait_and_read", receives=Receives(data=2, items=3, item_bytes=1, signal=0, expected=1, peer=5))
    ranks, shape = len(epochs), np.shape(epochs)[1:]  # [ranks, epochs, peers, bytes]
    waiting = {number: np.array(mine, np.uint8) for number, mine in enumerate(epochs)}
    epochs = ()

    def main(rank: Rank) -> list[Any]:
        mine = list(waiting.pop(rank.rank))
        functions: Any = of_a_rank(piece, rank.rank)
        for name, ours in (("send_to_all", _send), ("receive_from_all", _receive)):
            if name not in own:
                setattr(functions, name, ours)
        rank.barrier()  # from now on, no rank finds the chunks of others here
        send, wait = followed.follow(rank)
        received = exchange(rank, functions, send, wait, mine)
        followed.tell(rank)
        return received

    def exchange(rank: Rank, functions: Any, send: Kernel, wait: Kernel, mine: list[Any]) -> list[Any]:
        if "all_to_all" in own:
            with unchanged(epochs=mine):
                all_received = functions.all_to_all(theirs(rank), send, wait, mine)
            return [np.asarray(got).tolist() for got in all_received]
        signals = rank.symmetric(rank.world_size, np.uint64)
        signals[:] = first  # before any rank sends: the next line is collective
        inboxes = [rank.symmetric(mine[0].shape, np.uint8) for _ in range(2)]
        received = []
        for epoch, chunks in enumerate(mine):
            functions.send_to_all(theirs(rank), send, inboxes[epoch % 2], signals, rank.to_device(chunks))
            got = functions.receive_from_all(theirs(rank), wait, inboxes[epoch % 2], signals, first + epoch)
            received.append(got)  # it stays as it is, whatever the next call does
        return [np.asarray(got).tolist() for got in received]

    def with_others(rank: Rank) -> None:
        waiting[rank.rank] = others[rank.rank]  # of these runs only the checker's words count
        main(rank)

    others = np.random.default_rng().integers(0, 256, (ranks, *shape), dtype=np.uint8)
    got = spawn(main, ranks, "emulator", seed=seed, heap_bytes=heap_bytes, timeout=5)
    followed.over()
    findings = findings_of(with_others, ranks, KERNELS["canary"], checks, heap_bytes)[:2] if checks else []
    return {"got": got, "findings": findings}
