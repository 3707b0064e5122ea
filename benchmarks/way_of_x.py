"""The way of `x`: how many Python calls, in how many files of ep_lib, from Buffer.dispatch to its last launch.

    python benchmarks/way_of_x.py

It counts on the emulator, on the third dispatch of a Buffer (the first one compiles and remembers; the second makes the
launch for as many rows as came the first time), and on a dispatch with a handle. A call is a function of ep_lib entered
in the rank's own thread. tests/test_way_of_x.py holds the limits.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import ep_lib
from ep_lib import Buffer, Rank
from ep_lib.emulator.machine import Machine

_PACKAGE = str(Path(ep_lib.__file__).parent)
TOKENS, HIDDEN, TOP_K, EXPERTS = 16, 256, 2, 8


class Way(NamedTuple):
    """What lies between a call and its last launch."""

    calls: int
    files: dict[str, int]  # of ep_lib -> calls in it

    def __str__(self) -> str:
        lines = [f"{self.calls} calls in {len(self.files)} files"]
        return "\n".join([*lines, *(f"  {count:4} {file}" for file, count in self.files.items())])


class _Counter:
    """Counts from its first call of ``Buffer.dispatch`` on; what came before the last launch is the way."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.until_launch: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        self.counts[code.co_filename[len(_PACKAGE) + 1 :]] += 1
        if code is Machine.launch.__code__:
            self.until_launch = self.counts.copy()

    def way(self) -> Way:
        return Way(self.until_launch.total(), dict(self.until_launch.most_common()))


def _measure(rank: Rank) -> tuple[Way, Way]:
    x = np.ones((TOKENS, HIDDEN), np.float32)
    topk_idx = (np.arange(TOKENS)[:, None] + np.arange(TOP_K)) % EXPERTS
    weights = np.ones((TOKENS, TOP_K), np.float32)
    ways = []
    with Buffer(
        rank, num_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens=TOKENS, dtype="float32", num_sms=2
    ) as buffer:
        buffer.dispatch(x, topk_idx, weights)
        handle = buffer.dispatch(x, topk_idx, weights).handle
        buffer.dispatch(x, None, weights, handle=handle)
        for arguments in ((x, topk_idx, weights), (x, None, weights)):
            counter = _Counter()
            again = None if arguments[1] is not None else handle
            gc.collect()
            gc.disable()  # what goes away meanwhile calls functions of its own
            sys.setprofile(counter)
            try:
                buffer.dispatch(*arguments, handle=again)
            finally:
                sys.setprofile(None)
                gc.enable()
            ways.append(counter.way())
    return ways[0], ways[1]


def measure(ranks: int = 2) -> tuple[Way, Way]:
    """The way of a dispatch, and of one with a handle, on rank 0."""
    found: tuple[Way, Way] = ep_lib.spawn(_measure, ranks, "emulator")[0]
    return found


if __name__ == "__main__":
    for name, way in zip(("dispatch", "dispatch with a handle"), measure(), strict=True):
        print(f"{name}: {way}")
