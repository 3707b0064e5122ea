# Exercise 01_all_to_all, version 1. Leave this line: ep_lib reads it.
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
    # TASK 1 (2 points): send a chunk to every rank
    # The kernel takes (target, source, bytes, signal, peer): target and signal are *your own* copies of
    # symmetric arrays, and it finds the peer's. Chunks of different senders must not meet, and each sender has
    # a signal of its own: sender s uses row s of `inbox` and element s of `signals`. A slice of an array is an
    # array: signals[2:3]. With one block of 32 threads: send.launch(rank, 1, 32, ...). Your own chunk goes the
    # same way, to yourself.
    raise NotImplementedError("Task 1 is still to do: send a chunk to every rank")
    # end of TASK 1


def receive_from_all(rank: ep_lib.Rank, wait: ep_lib.Kernel, inbox: Any, signals: Any, epoch: int) -> Any:
    """Waits for the chunks of ``epoch`` (0, 1, 2 ...), and returns them [ranks, bytes], by sender, as a NumPy array.

    ``wait`` is wait_and_read of tutorial_kernels/01_write_signal.cu.
    """
    # TASK 2 (3 points): receive the chunks of an epoch
    # The kernel takes (signal, expected, data, bytes, out, peer), waits until the signal is at least
    # `expected`, and copies to `out`. Signals only grow, by 1 in each epoch: which value says that the chunk of
    # epoch 0 is there, and which that of epoch e? Launch it once for each sender, with one block of 64 threads,
    # and give the result to the host at the end: to_host() waits. Of other ranks you wait for signals alone: no
    # barrier, here or elsewhere.
    raise NotImplementedError("Task 2 is still to do: receive the chunks of an epoch")
    # end of TASK 2


def all_to_all(rank: ep_lib.Rank, send: ep_lib.Kernel, wait: ep_lib.Kernel, epochs: list[Any]) -> list[Any]:
    """``epochs[e][peer]`` is what this rank sends to ``peer`` in epoch e; returns by epoch and sender what it gets.

    All ranks call it with equally many epochs [ranks, bytes] of one shape; ``epochs`` stays as it is. No barrier, and
    memory for two epochs.
    """
    # TASK 3 (4 points): many epochs, in bounded memory
    # A rank that is quick sends the chunks of the next epoch while a slow one still reads those of this one. So
    # two inboxes, used in turn. Why are two enough? When a rank sends for epoch e + 2, it has received epoch e
    # + 1 from everybody, and whoever sent that was done with epoch e. symmetric() is collective and its memory
    # is not given back by itself: allocate once, not in every epoch.
    raise NotImplementedError("Task 3 is still to do: many epochs, in bounded memory")
    # end of TASK 3
