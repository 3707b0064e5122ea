"""The kernels of hidden tests, with a learner's C++ piece linked as a separate object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ep_lib.jit.gxx import compile_half
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.source import KernelSource

CALLS = "calls"  # the folder with the tests' calls of pieces: hidden/calls/piece.cuh
_OF_A_PIECE = {"GRADER_PIECE": 1}  # defines the functions that calls/exNN_topic.cuh declares


def kernel_of(source: Path, name: str, mine: Path, given: Sequence[Path]) -> Kernel:
    """The kernel ``name`` of the test in ``source``, for the pieces in ``mine``. ``given``: folders with headers that
    are given to learners."""
    calls = _calls_of(source)
    piece = _source(calls, "piece", [mine, *given], _OF_A_PIECE) if calls.is_file() else None
    return Kernel(source.read_text("utf-8"), name, path=source, filename=str(source), include=given, closed=piece)


def compile_halves(kernels: Iterable[tuple[str, str]], given: Sequence[Path]) -> list[Path]:
    """Compiles the parts of these kernels (source and name) that are equal for all pieces: returns cache entries."""
    files = [(Path(source), name) for source, name in kernels]
    return [compile_half(_source(file, name, given)).parent for file, name in files if _calls_of(file).is_file()]


def _calls_of(source: Path) -> Path:
    return source.parent / CALLS / source.name


def _source(file: Path, name: str, include: Sequence[Path], defines: Mapping[str, int] | None = None) -> KernelSource:
    text = file.read_text("utf-8")
    return KernelSource(text, name, path=file, filename=str(file), include=include, defines=defines)
