"""The way of `x`: how many Python calls, in how many files of ep_lib, from Buffer.dispatch to its last launch.

    python benchmarks/way_of_x.py

It counts on the emulator: the second and the third dispatch of a Buffer (the first one compiles and remembers), some
with other numbers of tokens than before, and one with a handle. A call is a function of ep_lib entered in the rank's
own thread, or one that Python has written for a class of it (the constructor of a NamedTuple or dataclass).
tests/test_way_of_x.py holds the limits.
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
_WRITTEN = "<string>"  # where Python says that the functions of a NamedTuple or dataclass stand
TOKENS, HIDDEN, TOP_K, EXPERTS = 16, 256, 2, 8
OTHER_TOKENS = (7, 12, 3)


class Way(NamedTuple):
    """What lies between a call and its last launch."""

    calls: int
    written: int  # of these, functions that Python has written
    files: dict[str, int]  # of ep_lib -> calls in it

    def __str__(self) -> str:
        lines = [f"{self.calls} calls in {len(self.files)} files, {self.written} of them constructors of Python's"]
        return "\n".join([*lines, *(f"  {count:4} {file}" for file, count in self.files.items())])


class _Counter:
    """Counts from its first call of ``Buffer.dispatch`` on; what came before the last launch is the way."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.until_launch: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith((_PACKAGE, _WRITTEN)):
            return
        self.counts[code.co_filename.removeprefix(_PACKAGE).lstrip("/")] += 1
        if code is Machine.launch.__code__:
            self.until_launch = self.counts.copy()

    def way(self) -> Way:
        written = self.until_launch.pop(_WRITTEN, 0)
        return Way(self.until_launch.total() + written, written, dict(self.until_launch.most_common()))


def _counted(buffer: Buffer, *arguments: Any, handle: Any = None) -> tuple[Way, Any]:
    """The way of a dispatch, and the handle that it returns."""
    counter = _Counter()
    gc.collect()
    gc.disable()  # what goes away meanwhile calls functions of its own
    sys.setprofile(counter)
    try:
        received = buffer.dispatch(*arguments, handle=handle)
    finally:
        sys.setprofile(None)
        gc.enable()
    return counter.way(), received.handle


def _measure(rank: Rank) -> dict[str, Way]:
    x = np.ones((TOKENS, HIDDEN), np.float32)
    topk_idx = (np.arange(TOKENS)[:, None] + np.arange(TOP_K)) % EXPERTS
    weights = np.ones((TOKENS, TOP_K), np.float32)
    ways = {}
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS}
    with Buffer(rank, **shape, dtype="float32", num_sms=2) as buffer:
        buffer.dispatch(x, topk_idx, weights)
        for name in ("second", "third"):
            ways[f"{name} dispatch"], handle = _counted(buffer, x, topk_idx, weights)
        buffer.dispatch(x, None, weights, handle=handle)
        ways["dispatch with a handle"], _ = _counted(buffer, x, None, weights, handle=handle)
        for n in OTHER_TOKENS:
            ways[f"dispatch of {n} tokens"], _ = _counted(buffer, x[:n], topk_idx[:n], weights[:n])
    return ways


def measure(ranks: int = 2) -> dict[str, Way]:
    """The ways of rank 0."""
    found: dict[str, Way] = ep_lib.spawn(_measure, ranks, "emulator")[0]
    return found


if __name__ == "__main__":
    for name, way in measure().items():
        print(f"{name}: {way}")
