"""Streams and events of a rank, and the Event that an asynchronous operation returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank
from ep_lib.moe.event import Event

SOURCE = """
#include <ep/memory.cuh>
extern "C" __global__ void set_late(int* value, int to, int microseconds) {
    for (int i = 0; i < microseconds; ++i) ep::sleep_ns(1000);
    *value = to;
}
extern "C" __global__ void copy_value(const int* value, int* to) { *to = *value; }
"""


def kernels() -> tuple[Kernel, Kernel]:
    return Kernel.from_source(SOURCE, "set_late"), Kernel.from_source(SOURCE, "copy_value")


def overlap(rank: Rank) -> list[int]:
    """A slow kernel beside the caller's stream; the stream sees its result behind the event."""
    set_late, copy = kernels()
    streams, value, seen = rank.streams, rank.to_device(np.zeros(1, np.int32)), rank.empty(1, np.int32)
    rank.synchronize()
    beside, current = streams.new(), streams.current()
    streams.order(current, beside)
    with streams.on(beside):
        set_late.launch(rank, 1, 1, value, 7, 3000)
    event = Event(rank, beside, rank.xp.__name__, keep=(value,))
    with event:
        pass
    with streams.on(streams.current()):
        copy.launch(rank, 1, 1, value, seen)
    event.synchronize()
    assert event.is_done()
    return [int(rank.to_host(seen)[0])]


def test_an_event_orders_a_stream_behind_another(spmd: Callable[..., list[Any]]) -> None:
    assert spmd(overlap, 1) == [[7]]
