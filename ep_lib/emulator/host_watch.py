"""Under checks: finds reads and writes of an array by a rank's host while a kernel or a NIC may use it.

The arrays that ranks create for a program are :class:`Watched`: they report reads and writes by indexing, by NumPy's
functions and by the methods below. Reads by other C code (``torch.from_numpy``) are not seen. The runtime treats each
report as an access of a thread and knows what orders it (``Checker::host_access``).

Unreported accesses are seen only if they write: the content of a launch's array is kept at the launch, and compared
when the host next launches or waits, since kernels on the emulator run only while every host waits. Left out are memory
that hosts and kernels share on purpose (``rank.host_array``), arrays of the library's own kernels, and writes that
change nothing.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ep_lib.callers import is_ours, outer_frame, place
from ep_lib.memory.arrays import ArrayInfo

_PACKAGE = str(Path(__file__).resolve().parents[1])
_NUMPY = f"{os.sep}numpy{os.sep}"
_MOST_BYTES = 1 << 20  # of an array: only the first bytes are compared
_MOST_RUNS = 4096  # contiguous pieces of a view with gaps


class HostAccess(NamedTuple):
    """The host of ``rank`` wrote ``nbytes`` of an array, from byte ``first`` on, after launching ``kernel``."""

    rank: int
    kernel: str
    array: str  # its shape and type
    first: int
    nbytes: int
    launched: str  # file:line
    seen: str  # file:line of the next launch or wait


class _Kept(NamedTuple):
    info: ArrayInfo
    data: bytes
    kernel: str
    launched: str


def _where(frame: FrameType | None = None) -> str:
    """``file:line`` of the user's program."""
    frame = outer_frame() if frame is None else frame
    return place(frame.f_code.co_filename, frame.f_lineno)


_numbers = itertools.count(1)
_watches: weakref.WeakValueDictionary[int, HostWatch] = weakref.WeakValueDictionary()


def _content(info: ArrayInfo) -> bytes:
    return ctypes.string_at(info.address, min(info.nbytes, _MOST_BYTES))


class HostWatch:
    """The arrays of one rank's running launches."""

    def __init__(self, rank: int, found: list[HostAccess], tell: Callable[[int, int, int, bool, str], None]) -> None:
        self._rank, self._found, self._tell_runtime = rank, found, tell
        self.number = next(_numbers)
        _watches[self.number] = self
        self._kept: list[_Kept] = []
        self._shared: list[tuple[int, int]] = []  # of host arrays: begin, end

    def share(self, address: int, nbytes: int) -> None:
        """Allows hosts to touch this memory at any time."""
        self._shared.append((address, address + nbytes))

    def look(self) -> None:
        """Finds what the host has written since the last launch or wait; called before the rank's next one."""
        for number, (info, data, kernel, launched) in enumerate(self._kept):
            now = _content(info)
            if now == data:
                continue
            changed = [i for i, (a, b) in enumerate(zip(data, now, strict=True)) if a != b]
            first, nbytes = changed[0], changed[-1] + 1 - changed[0]
            array = f"shape {info.shape} and type {info.dtype}"
            self._found.append(HostAccess(self._rank, kernel, array, first, nbytes, launched, _where()))
            self._kept[number] = _Kept(info, now, kernel, launched)

    def accessed(self, array: np.ndarray[Any, Any], writes: bool, frame: FrameType, ends: str = "") -> None:
        """The host program reads or writes this whole array. ``ends``: the operation that frees it."""
        where = _where(frame) + (f", by {ends}" if ends else "")
        begin, end = byte_bounds(array)
        if not ends and any(first < end and begin < last for first, last in self._shared):
            return
        for first, nbytes in _runs(array):
            self._tell_runtime(self._rank, first, nbytes, writes, where)
            if writes:  # look() need not find this write
                self._kept = [_with_bytes(kept, first, nbytes) for kept in self._kept]

    def launched(self, kernel: str, path: Path | None, arrays: Sequence[ArrayInfo]) -> None:
        """A kernel that has these arrays may run from now on."""
        if path is not None and str(path).startswith(_PACKAGE):
            return
        for info in arrays:
            if info.nbytes and not any(begin <= info.address < end for begin, end in self._shared):
                self._kept.append(_Kept(info, _content(info), kernel, _where()))

    def waited(self, *, all_ended: bool) -> None:
        """Ends the wait of a rank, after kernels have run."""
        if all_ended:
            self._kept.clear()
        self._kept = [kept._replace(data=_content(kept.info)) for kept in self._kept]


def _with_bytes(kept: _Kept, first: int, nbytes: int) -> _Kept:
    """The array with its current content."""
    at = kept.info.address
    begin, end = max(first - at, 0), min(first + nbytes - at, len(kept.data))
    if begin >= end:
        return kept
    return kept._replace(data=kept.data[:begin] + ctypes.string_at(at + begin, end - begin) + kept.data[end:])


def _runs(array: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Address and size of each contiguous piece of the array; none if there are too many."""
    if array.flags.forc:
        yield array.__array_interface__["data"][0], array.nbytes
    elif array.size <= _MOST_RUNS:
        for part in array if array.ndim > 1 else (array[i : i + 1] for i in range(len(array))):
            yield from _runs(part)


# ---- arrays that report accesses ------------------------------------------------------------------------------------
# Functions of NumPy that look at shapes and types only. All others read, unless what they return is a view.
_LOOKING_AT = (
    "shape ndim size empty_like zeros_like ones_like full_like result_type can_cast common_type min_scalar_type "
    "iscomplexobj isrealobj may_share_memory shares_memory"
)
_LOOKING = frozenset(getattr(np, name) for name in _LOOKING_AT.split())
# Methods that read, and hand no array to a ufunc or to an index in a way that shows
# fmt: off
_METHODS = (
    "item", "tolist", "tobytes", "tofile", "dump", "dumps", "copy", "flatten", "repeat", "trace", "astype", "argmax",
    "argmin", "argsort", "argpartition", "searchsorted", "nonzero", "take", "dot", "cumsum", "cumprod", "choose",
    "compress", "__array__", "__copy__", "__deepcopy__", "__int__", "__float__", "__complex__", "__index__", "__bool__",
    "__contains__", "__repr__", "__str__", "__format__", "__reduce_ex__",
)
# fmt: on
_CHANGING = ("fill", "sort", "partition", "put", "setfield")


class Watched(np.ndarray[Any, Any]):
    """An array of a rank. Its views are watched too; arrays computed from it are ordinary ones."""

    watch: int = 0  # the watch's number, not a reference: an array must not keep the watch alive, which keeps arrays

    def __array_finalize__(self, other: Any) -> None:
        if isinstance(other, Watched):
            self.watch = other.watch

    def read(self, writes: bool = False) -> np.ndarray[Any, Any]:
        """The same as an ordinary array, after a read or write of the whole array was reported."""
        plain: np.ndarray[Any, Any] = _plain(self)
        watch = _watches.get(self.watch)
        if watch is not None and self.size:
            reader = _reader()
            if not is_ours(reader):  # the library's own reads are safe
                watch.accessed(plain, writes, reader)
        return plain

    def _part(self, key: Any) -> Any:
        """The view that an index gives; the whole array, if the index makes a copy."""
        keys = key if isinstance(key, tuple) else (key,)
        one_each = tuple(slice(i, i + 1 or None) if isinstance(i, (int, np.integer)) else i for i in keys)
        part = super().__getitem__(one_each)
        return part if isinstance(part, Watched) and np.may_share_memory(part, self) else self

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, Watched) and np.may_share_memory(found, self):
            return found  # a view: nothing has been read yet
        self._part(key).read()
        return _plain(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, _read(value))
        part = self._part(key)
        if part is not self:  # a list's positions are not reported
            part.read(writes=True)

    def byteswap(self, inplace: bool = False) -> Any:
        made = _plain(self).byteswap(inplace)
        self.read(writes=inplace)
        return self if inplace else made

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [x.read() if isinstance(x, Watched) else x for x in inputs]
        written = [x for x in options.get("out", ()) if isinstance(x, Watched)]
        for name, value in options.items():
            if name == "out":
                options[name] = tuple(map(_plain, value))
            elif isinstance(value, Watched):
                options[name] = value.read()
        result = getattr(ufunc, method)(*plain, **options)
        for array in written:
            array.read(writes=True)
        return self if "out" in options and result is not None and np.shares_memory(result, self) else result

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        made = super().__array_function__(function, types, args, options)
        if function in _LOOKING:
            return made
        out = options.get("out")
        given = list(_watched_of([*args, *(value for name, value in options.items() if name != "out")]))
        parts = [part for part in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(part, np.ndarray)]
        if any(np.may_share_memory(part, array) for part in parts for array in given):
            return made  # views: nothing has been read yet
        for array in given:
            array.read(writes=made is None and array is args[0])  # as np.copyto, np.put, np.place
        for array in _watched_of(out):
            array.read(writes=True)
        return made if made is out else _plain(made)

    def view(self, *args: Any, **options: Any) -> Any:
        made = super().view(*args, **options)
        if not isinstance(made, Watched):
            self.read()  # who uses it later is not seen
        return made


def _plain(value: Any) -> Any:
    return np.ndarray.view(value, np.ndarray) if isinstance(value, Watched) else value


def _watched_of(value: Any) -> Iterator[Watched]:
    if isinstance(value, Watched):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _watched_of(part)


def _read(value: Any) -> Any:
    if isinstance(value, Watched):
        return value.read()
    return type(value)(map(_read, value)) if type(value) in (list, tuple) else value


def _reader() -> FrameType:
    """The frame that reads, perhaps through NumPy."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (_NUMPY in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return frame


def _reading(name: str) -> Any:
    def method(self: Watched, *args: Any, **options: Any) -> Any:
        return getattr(self.read(), name)(*args, **options)

    return method


def _changing(name: str) -> Any:
    def method(self: Watched, *args: Any, **options: Any) -> Any:
        made = getattr(_plain(self), name)(*args, **options)
        self.read(writes=True)
        return made

    return method


for _name in _METHODS:
    setattr(Watched, _name, _reading(_name))
for _name in _CHANGING:
    setattr(Watched, _name, _changing(_name))


# ---- functions of NumPy that bypass an array's type: replaced while a check runs -------------------------------------
_TAKERS = ("array", "asarray", "ascontiguousarray", "asfortranarray")
_ORDINARY = {name: getattr(np, name) for name in _TAKERS}
_lock = threading.Lock()
_checks = 0  # under way


def _taker(name: str) -> Any:
    @functools.wraps(_ORDINARY[name])
    def take(value: Any, *args: Any, **options: Any) -> Any:
        if name == "asarray" and isinstance(value, Watched) and _is_as_it_is(value, *args, **options):
            return value  # nothing has been read yet
        return _ORDINARY[name](_read(value), *args, **options)

    return take


def _is_as_it_is(array: Watched, dtype: Any = None, **options: Any) -> bool:
    return not options and (dtype is None or np.dtype(dtype) == array.dtype)


@contextmanager
def told_of_copies() -> Iterator[None]:
    """Within this context, ``np.array(x)`` and similar functions report reads, too."""
    global _checks
    with _lock:
        _checks += 1
        for name in _TAKERS:
            setattr(np, name, _taker(name))
    try:
        yield
    finally:
        with _lock:
            _checks -= 1
            if not _checks:
                for name, function in _ORDINARY.items():
                    setattr(np, name, function)
