"""All to all: every rank sends a chunk to every rank, in epoch after epoch, with the kernels of notebook 01.

Exercise 01_all_to_all replaces this file by the learner's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ep_lib


def send_to_all(rank: ep_lib.Rank, send: ep_lib.Kernel, inbox: Any, signals: Any, chunks: Any) -> None:
    """Sends ``chunks[peer]`` to every rank ``peer``, this one included.

    ``inbox`` [ranks, bytes] uint8 and ``signals`` [ranks] uint64 are symmetric, ``chunks`` [ranks, bytes] is this
    rank's own; with 0 bytes, signals come all the same. ``send`` is write_signal_warp of
    tutorial_kernels/01_write_signal.cu.
    """
    me = rank.rank
    for peer in range(rank.world_size):
        send.launch(rank, 1, 32, inbox[me], chunks[peer], chunks[peer].nbytes, signals[me : me + 1], peer)


def receive_from_all(rank: ep_lib.Rank, wait: ep_lib.Kernel, inbox: Any, signals: Any, epoch: int) -> Any:
    """Waits for the chunks of ``epoch`` (0, 1, 2 ...), and returns them [ranks, bytes], by sender, as a NumPy array.

    ``wait`` is wait_and_read of tutorial_kernels/01_write_signal.cu.
    """
    out = rank.empty(inbox.shape, np.uint8)
    for sender in range(rank.world_size):
        signal = signals[sender : sender + 1]
        wait.launch(rank, 1, 64, signal, epoch + 1, inbox[sender], inbox[sender].nbytes, out[sender], sender)
    return rank.to_host(out).copy()


def all_to_all(rank: ep_lib.Rank, send: ep_lib.Kernel, wait: ep_lib.Kernel, epochs: list[Any]) -> list[Any]:
    """``epochs[e][peer]`` is what this rank sends to ``peer`` in epoch e; returns by epoch and sender what it gets.

    All ranks call it with equally many epochs [ranks, bytes] of one shape; ``epochs`` stays as it is. No barrier, and
    memory for two epochs.
    """
    inboxes = [rank.symmetric(epochs[0].shape, np.uint8) for _ in range(2)]
    signals = rank.symmetric(rank.world_size, np.uint64)
    received = []
    for epoch, chunks in enumerate(epochs):
        inbox = inboxes[epoch % 2]
        send_to_all(rank, send, inbox, signals, rank.to_device(chunks))
        received.append(receive_from_all(rank, wait, inbox, signals, epoch))
    return received
