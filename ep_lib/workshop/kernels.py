"""The kernels of hidden tests, with a learner's piece in C++ beside them as an object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ep_lib.jit.kernel import Kernel
from ep_lib.jit.source import KernelSource

CALLS = "calls"  # the folder with what tests call of pieces: hidden/calls/piece.cuh


def kernel_of(source: Path, name: str, mine: Path, given: Sequence[Path]) -> Kernel:
    """The kernel ``name`` of the test in ``source``, for the pieces in ``mine``. ``given``: folders with headers that
    learners get and do not write."""
    calls = source.parent / CALLS / source.name
    piece = None
    if calls.is_file():
        text = calls.read_text("utf-8")
        piece = KernelSource(text, "piece", path=calls, filename=str(calls), include=[mine, *given])
    text = source.read_text("utf-8")
    return Kernel(text, name, path=source, filename=str(source), include=given, closed=piece)
