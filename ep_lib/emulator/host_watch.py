"""Under checks: whether a rank's host writes an array while a kernel that has it may run.

On the emulator kernels run only while every host waits, so that such a write always comes before the kernel; on a GPU
it comes at any time. What an array holds is kept at the launch, and compared when the host launches again or waits.
Memory that hosts and kernels share on purpose (``rank.host_array``) is left out, and so is what the library's own
kernels have. Reads by a host, and writes that change nothing, are not seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ep_lib.callers import outer_frame
from ep_lib.memory.arrays import ArrayInfo

_PACKAGE = str(Path(__file__).resolve().parents[1])
_MOST_BYTES = 1 << 20  # of an array: the first


class HostWrite(NamedTuple):
    """The host of ``rank`` wrote ``nbytes`` of an array, from byte ``first`` on, after it had launched ``kernel``."""

    rank: int
    kernel: str
    array: str  # its shape and type
    first: int
    nbytes: int
    launched: str  # file:line
    seen: str  # likewise, of the next launch or wait


class _Kept(NamedTuple):
    info: ArrayInfo
    data: bytes
    kernel: str
    launched: str


def _where() -> str:
    """``file:line`` of the user's program."""
    frame = outer_frame()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _content(info: ArrayInfo) -> bytes:
    return ctypes.string_at(info.address, min(info.nbytes, _MOST_BYTES))


class HostWatch:
    """The arrays of one rank's launches under way."""

    def __init__(self, rank: int, found: list[HostWrite]) -> None:
        self._rank, self._found = rank, found
        self._kept: list[_Kept] = []
        self._shared: list[tuple[int, int]] = []  # of host arrays: begin, end

    def share(self, address: int, nbytes: int) -> None:
        """Hosts may touch this memory at any time."""
        self._shared.append((address, address + nbytes))

    def look(self) -> None:
        """Before this rank's next launch or wait: what has its host written since the last one?"""
        for number, (info, data, kernel, launched) in enumerate(self._kept):
            now = _content(info)
            if now == data:
                continue
            changed = [i for i, (a, b) in enumerate(zip(data, now, strict=True)) if a != b]
            array = f"shape {info.shape} and type {info.dtype}"
            first, nbytes = changed[0], changed[-1] + 1 - changed[0]
            self._found.append(HostWrite(self._rank, kernel, array, first, nbytes, launched, _where()))
            self._kept[number] = _Kept(info, now, kernel, launched)

    def launched(self, kernel: str, path: Path | None, arrays: Sequence[ArrayInfo]) -> None:
        """A kernel that has these arrays may run from now on."""
        if path is not None and str(path).startswith(_PACKAGE):
            return
        for info in arrays:
            if info.nbytes and not any(begin <= info.address < end for begin, end in self._shared):
                self._kept.append(_Kept(info, _content(info), kernel, _where()))

    def waited(self, *, all_ended: bool) -> None:
        """The rank goes on; kernels have run."""
        if all_ended:
            self._kept.clear()
        self._kept = [kept._replace(data=_content(kept.info)) for kept in self._kept]
