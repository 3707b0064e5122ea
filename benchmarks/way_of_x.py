"""The way of `x`: how many Python calls, in how many files of ep_lib, a Buffer's operation makes until it returns.

    python benchmarks/way_of_x.py

It counts on the emulator, in each mode: a dispatch and a combine of a Buffer that did both before (the first ones
compile and remember), one with another number of tokens, and one with a handle. A call is a function of ep_lib entered
in the rank's own thread, or one that Python has written for a class of it (the constructor of a NamedTuple or
dataclass). A move is a call into another file than that of the call before. tests/benchmarks/ holds the limits.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ep_lib
from ep_lib import Buffer, Rank

_PACKAGE = str(Path(ep_lib.__file__).parent)
_WRITTEN = "<string>"  # where Python says that the functions of a NamedTuple or dataclass stand
TOKENS, OTHER_TOKENS, HIDDEN, TOP_K, EXPERTS = 16, 7, 256, 2, 8
MODES: dict[str, dict[str, Any]] = {
    "direct": {},
    "pcie": {"allow_nvlink_for_normal_mode": False},
    "hierarchical": {"hierarchical": True, "ranks_per_node": 1, "num_sms": 3},
}


class Way(NamedTuple):
    """What lies between a call and its return."""

    calls: int
    written: int  # of these, functions that Python has written
    moves: int
    files: dict[str, int]  # of ep_lib -> calls in it

    def __str__(self) -> str:
        head = f"{self.calls} calls ({self.written} of constructors) / {len(self.files)} files / {self.moves} moves"
        return "\n".join([head, *(f"  {count:4} {file}" for file, count in self.files.items())])


class _Counter:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.moves, self._file = 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith((_PACKAGE, _WRITTEN)):
            return
        file = code.co_filename.removeprefix(_PACKAGE).lstrip("/")
        self.counts[file] += 1
        if file not in (_WRITTEN, self._file):
            self.moves, self._file = self.moves + 1, file

    def way(self) -> Way:
        written = self.counts.pop(_WRITTEN, 0)
        return Way(self.counts.total() + written, written, self.moves, dict(self.counts.most_common()))


def _counted(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Way, Any]:
    """The way of a call, and what it returns."""
    counter = _Counter()
    gc.collect()
    gc.disable()  # what goes away meanwhile calls functions of its own
    sys.setprofile(counter)
    try:
        result = call(*arguments, **named)
    finally:
        sys.setprofile(None)
        gc.enable()
    return counter.way(), result


def _of_mode(rank: Rank, options: dict[str, Any]) -> Iterator[tuple[str, Way]]:
    x, idx, weights = _tokens(np.dtype(np.float32))
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "num_sms": 2}
    with Buffer(rank, **(shape | options), dtype="float32") as buffer:
        received = buffer.dispatch(x, idx, weights)
        buffer.combine(received.x, buffer.dispatch(x, None, weights, handle=received.handle).handle)
        way, received = _counted(buffer.dispatch, x, idx, weights)
        yield "dispatch", way
        yield "combine", _counted(buffer.combine, received.x, received.handle)[0]
        yield "dispatch with a handle", _counted(buffer.dispatch, x, None, weights, handle=received.handle)[0]
        n = OTHER_TOKENS
        yield f"dispatch of {n} tokens", _counted(buffer.dispatch, x[:n], idx[:n], weights[:n])[0]


def _of_low_latency(rank: Rank) -> Iterator[tuple[str, Way]]:
    x, idx, weights = _tokens(np.dtype(ml_dtypes.bfloat16))
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "num_sms": 2}
    with Buffer(rank, **shape, num_max_dispatch_tokens_per_rank=TOKENS) as buffer:
        for _ in range(2):
            of_dispatch, sent = _counted(buffer.low_latency_dispatch, x, idx, use_fp8=False)
            of_combine, _ = _counted(buffer.low_latency_combine, sent.recv_x, idx, weights, sent.handle)
        yield "dispatch", of_dispatch
        yield "combine", of_combine


def _tokens(dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    idx = (np.arange(TOKENS)[:, None] + np.arange(TOP_K)) % EXPERTS
    return np.ones((TOKENS, HIDDEN), dtype), idx, np.ones((TOKENS, TOP_K), np.float32)


def _measure(rank: Rank) -> dict[str, Way]:
    ways = {f"{mode}: {name}": way for mode, options in MODES.items() for name, way in _of_mode(rank, options)}
    return ways | {f"low latency: {name}": way for name, way in _of_low_latency(rank)}


def measure(ranks: int = 2) -> dict[str, Way]:
    """The ways of rank 0."""
    found: dict[str, Way] = ep_lib.spawn(_measure, ranks, "emulator")[0]
    return found


if __name__ == "__main__":
    for name, way in measure().items():
        print(f"{name}: {way}")
