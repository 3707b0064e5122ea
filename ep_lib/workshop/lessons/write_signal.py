"""Notebooks 00, 01 and 01b: a sketch, a pipeline that takes notes, a board that is read while it is written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ep_lib
from ep_lib import viz
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.notebook import find

SLOTS, SLOT_BYTES, ROUNDS = 3, 1024, 14  # of the pipeline that takes notes
_TRACED = "tutorial_kernels/01_write_signal_traced.cu"
_WORDS = np.array([2026, 1789], np.uint64)  # of the board


def data_of(rank: int, size: int) -> NDArray[np.uint8]:
    """The data of a rank, without zeros: a zero means that nothing arrived."""
    return np.random.default_rng(rank).integers(1, 256, size, np.uint8)


def two_ways() -> viz.Picture:
    """A sketch: rank 1 needs a result of rank 0, with the help of CPUs and without."""
    cpu = [
        viz.Event(0, 0, 3, "compute", "kernel"),
        viz.Event(0, 3, 4.5, "CPU: notice, launch", "CPU"),
        viz.Event(0, 4.5, 6, "move data", "copy", to=1),
        viz.Event(1, 0, 6, "wait", "waits"),
        viz.Event(1, 6, 7.5, "CPU: notice, launch", "CPU"),
        viz.Event(1, 7.5, 10.5, "compute", "kernel"),
    ]
    gpu = [
        viz.Event(0, 0, 3, "compute", "kernel"),
        viz.Event(0, 3, 4.5, "move data", "store, signal", to=1),
        viz.Event(1, 0, 4.5, "wait", "the kernel polls its signal"),
        viz.Event(1, 4.5, 7.5, "compute", "kernel"),
    ]
    picture = viz.new_picture(viz.NARROW, 4.6)
    titles = "CPU-initiated: rank 1 needs what rank 0 computed", "GPU-initiated: the same work"
    kinds = ["compute", "move data", "CPU: notice, launch"]
    for axes, events, title in zip(picture.subplots(2, 1, sharex=True), (cpu, gpu), titles, strict=True):
        viz.timeline(events, kinds=kinds, title=title, axes=axes)
        axes.set(xlim=(0, 10.8), xticks=[], xlabel="")
        axes.get_legend().remove()  # the bars have names
    picture.axes[1].set_xlabel("time (a sketch, not measured)")
    return picture


def traced(rank: Rank, use_credits: bool) -> tuple[NDArray[Any], bool]:
    """Rank 0 streams to rank 1 through SLOTS slots. Returns the notes, [ROUNDS, (begin, end)] in the order of events of
    both ranks, and whether all rounds were right."""
    peer, size = 1 - rank.rank, ROUNDS * SLOT_BYTES
    slots = rank.symmetric(SLOTS * SLOT_BYTES, np.uint8)
    arrived, credits, counter = (rank.symmetric(1, np.uint64) for _ in range(3))
    source = rank.to_device(data_of(0, size))
    out = rank.to_device(np.zeros(size, np.uint8))
    notes = rank.to_device(np.zeros((ROUNDS, 2), np.uint64))
    pipe = (slots, SLOT_BYTES, SLOTS, arrived, credits)
    if rank.rank == 0:
        send = Kernel.from_file(find(_TRACED), "pipelined_send_traced")
        send.launch(rank, 1, 32, *pipe, source, ROUNDS, peer, int(use_credits), counter, notes)
    else:
        receive = Kernel.from_file(find(_TRACED), "pipelined_receive_traced")
        receive.launch(rank, 1, 32, *pipe, out, ROUNDS, peer, counter, notes)
    rank.barrier()
    right = rank.rank == 0 or bool((rank.to_host(out) == data_of(0, size)).all())
    return rank.to_host(notes).astype(int), right


def edition(rank: Rank, send: Kernel, receive: Kernel, seen: list[str]) -> list[int] | None:
    """Rank 0 publishes two words and the number of their edition; rank 1 reads them, and notes the values in
    ``seen``."""
    board, number = rank.symmetric(2, np.uint64), rank.symmetric(1, np.uint64)
    if rank.rank == 0:
        send.launch(rank, 1, 32, board, rank.to_device(_WORDS), 2, number, 1, 1)
        return None
    out = rank.to_device(np.zeros(2, np.uint64))
    receive.launch(rank, 1, 32, number, 1, board, 2, out, 0)
    words: list[int] = rank.to_host(out).tolist()
    seen.append("right" if words == _WORDS.tolist() else "older words")
    return words


def look(send: Kernel, receive: Kernel, memory: str, seeds: range) -> tuple[Counter[str], ep_lib.CheckReport]:
    """The values that rank 1 saw, over all ``seeds``, with a ``memory`` of ep_lib.check, and the report."""
    seen: list[str] = []
    report = ep_lib.check(edition, 2, args=(send, receive, seen), seeds=seeds, memory=memory)
    first = int(memory == "ptx")  # one run without older values comes before; behind come runs that shorten a schedule
    return Counter(seen[first : first + len(seeds)]), report
