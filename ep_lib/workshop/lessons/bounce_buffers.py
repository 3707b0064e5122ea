"""Notebook 05: streams of rows between all ranks, through the kernels of tutorial_kernels/05_bounce_buffer*.cu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib import viz
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.timeline import Timeline
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.simulate import simulate
from ep_lib.workshop.lessons import of_the_tutorial

_STRUCTS = "05_bounce_buffer.cuh"
HEADER_BYTES = 16  # of a slot
ROW_BYTES = 256
SCALE = 56  # rows are so many times shorter than 14 KiB: simulate() counts each byte so many times


def rows_of(source: int, ranks: int, max_rows: int, row_bytes: int = ROW_BYTES) -> NDArray[np.uint8]:
    """The rows that a rank may send: [ranks, max_rows, row_bytes], without zeros."""
    return np.random.default_rng(source).integers(1, 256, (ranks, max_rows, row_bytes), np.uint8)


def expected(rank: int, counts: NDArray[Any], max_rows: int, row_bytes: int = ROW_BYTES) -> NDArray[np.uint8]:
    """The oracle: the expected ``out`` of a rank, [ranks, max_rows, row_bytes], zeros where nothing came."""
    out = np.zeros((len(counts), max_rows, row_bytes), np.uint8)
    for source, number in enumerate(counts[:, rank]):
        out[source, :number] = rows_of(source, len(counts), max_rows, row_bytes)[rank, :number]
    return out


def exchange(
    rank: Rank,
    kernel: Kernel,
    counts: NDArray[Any],
    slots: int = 0,
    slot_rows: int = 2,
    blocks_a_peer: int = 2,
    max_rows: int | None = None,
    row_bytes: int = ROW_BYTES,
) -> bool:
    """``counts[source, destination]`` rows, in rings of ``slots`` slots for each pair of ranks; 0: room for everything.

    Returns whether all rows are right on this rank.
    """
    ranks, me = rank.world_size, rank.rank
    max_rows = int(counts.max()) if max_rows is None else max_rows
    area = (ranks, max_rows, row_bytes)
    out, received = rank.to_device(np.zeros(area, np.uint8)), rank.to_device(np.zeros(ranks, np.int32))
    mine = rank.to_device(np.ascontiguousarray(counts[me], np.int32))
    memory: tuple[Any, ...]
    if slots == 0:
        source, inbox = (rank.symmetric(area, np.uint8) for _ in range(2))
        memory, blocks_a_peer = (inbox, rank.symmetric(ranks, np.uint64)), 1
    else:
        source = rank.empty(area, np.uint8)
        slot_bytes = HEADER_BYTES + slot_rows * row_bytes
        inbox, staging = (rank.symmetric((ranks, slots, slot_bytes), np.uint8) for _ in range(2))
        arrays = {"inbox": inbox, "staging": staging, "arrived": rank.symmetric((ranks, slots), np.uint64)}
        arrays["credits"] = rank.symmetric(ranks, np.uint64)
        memory = (of_the_tutorial(_STRUCTS, "Ring", **arrays, num_slots=slots, slot_rows=slot_rows),)
    source[...] = rank.to_device(rows_of(me, ranks, max_rows, row_bytes))
    rank.barrier()
    rows = {"source": source, "counts": mine, "out": out, "received": received}
    streams = of_the_tutorial(_STRUCTS, "Streams", **rows, max_rows=max_rows, row_bytes=row_bytes)
    kernel.launch(rank, blocks_a_peer * ranks, 32, streams, *memory)
    right = np.array_equal(rank.to_host(out), expected(me, counts, max_rows, row_bytes))
    return right and np.array_equal(rank.to_host(received), counts[:, me])


def clocked(kernel: Kernel, counts: NDArray[Any], slots: int, fabric: str = "rc", blocks_a_peer: int = 2) -> Timeline:
    """The same on the virtual clock, with the times of rows of 14 KiB, four in a slot."""
    args = (kernel, counts, slots, 4, blocks_a_peer)
    hardware = HARDWARE["h20-cx7"].scaled(SCALE)
    return simulate(exchange, len(counts), fabric=fabric, hardware=hardware, args=args)


def memory_picture(ways: Mapping[str, Callable[[int], int]], title: str) -> Any:
    """Registered MB of a rank against the number of ranks; ``ways``: the bytes for so many ranks, by their names."""
    ranks = [2, 4, 8, 16, 32]
    picture = viz.new_picture(viz.NARROW, 3.2)
    axes = picture.add_subplot()
    for number, (name, of) in enumerate(ways.items()):
        axes.plot(ranks, [of(each) / 1e6 for each in ranks], "o-", color=viz.rank_color(number + 2), label=name)
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="registered MB of a rank")
    axes.set_xticks(ranks, map(str, ranks))
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False)
    told = ", ".join(f"{name} {of(ranks[-1]) / 1e6:,.0f} MB" for name, of in ways.items())
    picture.describe(f"{title}; registered memory of a rank among {ranks[-1]}: {told}.")
    return picture
