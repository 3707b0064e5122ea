"""The host half of ``<ep/nixl_device.cuh>``: handles that kernels written for NIXL's device API can post to.

It follows the set-up flow of the NIXL Device API Kernel Guide, without what symmetric memory makes unnecessary: no
metadata is exchanged, since a peer's copy of an array lies at the same offset::

    host = DeviceHost(rank)
    host.register(data), host.register(signal)              # the guide's register_vram
    write = host.create_write_req(data, peer)               # rank's data -> peer's data
    handle = host.create_gpu_req(write)                     # an int: the kernel's uintptr_t or nixlGpuXferReqH
    signal_handle = host.create_gpu_req(host.create_signal_req(signal, peer))
    kernel.launch(rank, 1, 32, host.handle_array([handle]), 1, signal_handle, signal, data.nbytes, 1, 0)

and for the names of NIXL >= 1.0 ``prep_local_view`` and ``prep_remote_view``, whose ints are a kernel's nixlMemViewH.
A handle points to an ``ep::nixl::Table``, which is followed by its regions (``ep::nixl::Region``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError, BufferClosedError
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import ArrayInfo, describe
from ep_lib.require import index, instance, refuse, several, show
from ep_lib.runtime.rank import Rank


@dataclass(frozen=True)
class Region:
    """Memory of ``rank``: ``bytes`` bytes from ``address``, as the kernels of the DeviceHost's rank reach it."""

    address: int
    bytes: int
    rank: int


@dataclass(frozen=True)
class Request:
    """What ``create_gpu_req`` makes a handle of. A write request's first region is its local side."""

    kind: str  # of ep::nixl::Kind
    regions: tuple[Region, ...]


class DeviceHost:
    """One rank's registered memory and handles. Handles are for this rank's kernels, until ``close`` or ``release``.

    Methods are local to the rank, none is collective. They raise :class:`ArgumentError` for memory that is not
    registered, not contiguous or empty, for peers that do not exist and for signals that are not 64-bit words, and
    :class:`BufferClosedError` after :meth:`close`. What only a kernel knows (offsets, sizes, indices) is checked on
    the device: a transfer out of range moves nothing and is raised as a KernelFault by the next
    ``rank.synchronize()``.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = instance("rank", rank, Rank, "the Rank that main got")
        self._registered: dict[int, ArrayInfo] = {}  # by address
        self._requests: set[Request] = set()
        self._tables: dict[int, Any] = {}  # handle -> the array that it points to
        self._closed = False

    # ---- registration ------------------------------------------------------------------------------------------
    def register(self, array: Any) -> None:
        """Allow transfers from and to an array: from ``rank.symmetric``, or, as a local side only, from
        ``rank.to_device`` or ``rank.empty``. A second call for the same array does nothing."""
        self._require_open()
        info = _contiguous(array, "a registered array")
        known = self._registered.get(info.address)
        if known is None or known.nbytes < info.nbytes:
            self._registered[info.address] = info

    def deregister(self, array: Any) -> None:
        """Refuse new requests on an array. Existing handles stay valid: release those you no longer want."""
        self._require_open()
        if self._registered.pop(describe(array).address, None) is None:
            raise ArgumentError("deregister() got an array that was not registered")

    # ---- requests: the guide's API ------------------------------------------------------------------------------
    def create_write_req(self, local: Any, peers: int | Iterable[int], *, remote: Any = None) -> Request:
        """Writes from ``local`` into the peers' copies of ``remote`` (a symmetric array; by default ``local`` itself).

        In the kernel ``dst_rkey_idx`` i means the i-th of ``peers``; offsets count in bytes from the arrays' starts.
        """
        source = self._local_region(local)
        target = local if remote is None else remote
        return self._request("kWriteRequest", (source, *self._remote_regions(target, peers)))

    def create_signal_req(self, signals: Any, peers: int | Iterable[int]) -> Request:
        """Adds to the peers' copies of ``signals``, a symmetric array of 64-bit integers."""
        dtype = describe(signals).dtype
        if dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
            raise ArgumentError(f"signals are 64-bit integers, the array has dtype {dtype}")
        return self._request("kSignalRequest", self._remote_regions(signals, peers))

    def create_gpu_req(self, request: Request) -> int:
        """The handle of a request, for a kernel's ``uintptr_t`` or ``nixlGpuXferReqH`` parameter."""
        if not isinstance(request, Request):
            raise ArgumentError(f"expected what create_write_req() returned, got {type(request).__name__}")
        if request not in self._requests:
            raise ArgumentError(f"{show(request)} is a request that no create_..._req() of this DeviceHost returned")
        return self._make_table(request.kind, request.regions)

    def handle_array(self, handles: Sequence[int]) -> int:
        """Address of a device array of handles, for the guide's ``data_req_handles_ptr``. Release it like a handle."""
        self._require_open()
        numbers = [self._require_handle(handle) for handle in several("handles", handles, "a list of handles")]
        if not numbers:
            raise ArgumentError("handle_array() needs at least one handle")
        return self._keep(np.array(numbers, np.uint64))

    # ---- memory views: NIXL 1.0 and later -------------------------------------------------------------------------
    def prep_local_view(self, arrays: Iterable[Any]) -> int:
        """A view of this rank's own arrays, for the source of ``nixlPut``; entry i is the i-th array."""
        return self._make_table(
            "kLocalView", tuple(self._local_region(a) for a in several("arrays", arrays, "a list of arrays"))
        )

    def prep_remote_view(self, entries: Iterable[tuple[Any, int]]) -> int:
        """A view of peers' memory, for targets and counters; entry i is the i-th (symmetric array, peer)."""
        regions = []
        for entry in several("entries", entries, "a list of pairs (symmetric array, peer)"):
            if not isinstance(entry, (tuple, list)) or len(entry) != 2:
                refuse("an entry of the view", entry, "a pair (symmetric array, peer)")
            regions.append(self._remote_regions(*entry)[0])
        return self._make_table("kRemoteView", tuple(regions))

    # ---- the end ---------------------------------------------------------------------------------------------------
    def release(self, handle: int) -> None:
        """Give back one handle, view or handle array, once no kernel uses it any more (this waits for them)."""
        self._require_open()
        number = self._require_handle(handle, "released twice?")
        self._rank.synchronize()
        del self._tables[number]

    def close(self) -> None:
        """Give back everything, once this rank's kernels are done. Calling it twice does no harm."""
        if not self._closed:
            if not self._rank.is_closed:
                self._rank.synchronize()
            self._closed = True
            self._tables.clear()
            self._requests.clear()
            self._registered.clear()

    # ---- inside -----------------------------------------------------------------------------------------------------
    def _require_handle(self, handle: Any, why: str = "released?") -> int:
        number = index(handle)
        if number is None or number not in self._tables:
            shown = show(handle) if number is None else f"{number:#x}"
            raise ArgumentError(f"{shown} is not a handle of this DeviceHost ({why})")
        return number

    def _request(self, kind: str, regions: tuple[Region, ...]) -> Request:
        request = Request(kind, regions)
        self._requests.add(request)
        return request

    def _local_region(self, array: Any) -> Region:
        info = self._require_registered(array)
        return Region(info.address, info.nbytes, self._rank.rank)

    def _remote_regions(self, array: Any, peers: int | Iterable[int]) -> tuple[Region, ...]:
        info = self._require_registered(array)
        numbers: list[Any] = [peers] if index(peers) is not None else several("peers", peers, "a rank, or a list")
        if not numbers:
            raise ArgumentError("a request needs at least one peer")
        return tuple(Region(self._rank.peer_address(array, p), info.nbytes, operator.index(p)) for p in numbers)

    def _require_registered(self, array: Any) -> ArrayInfo:
        self._require_open()
        info = _contiguous(array, "a transfer's array")
        for known in self._registered.values():
            if known.address <= info.address and info.address + info.nbytes <= known.address + known.nbytes:
                return info
        raise ArgumentError(
            f"the array at 0x{info.address:x} ({info.nbytes} bytes) is not registered; call register() with it first"
        )

    def _make_table(self, kind: str, regions: tuple[Region, ...]) -> int:
        self._require_open()
        if not regions:
            raise ArgumentError("a memory view needs at least one entry")
        head = header_struct("ep/nixl_device.cuh", "Table").pack(
            magic=header_constant("ep/nixl_device.cuh", "kMagic"),
            kind=header_constant("ep/nixl_device.cuh", kind),
            count=len(regions),
        )
        region = header_struct("ep/nixl_device.cuh", "Region")
        body = b"".join(region.pack(**vars(each)) for each in regions)
        return self._keep(np.frombuffer(head + body, np.uint64))

    def _keep(self, words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
        table = self._rank.to_device(words)
        address = describe(table).address
        self._tables[address] = table
        return address

    def _require_open(self) -> None:
        if self._closed:
            raise BufferClosedError("this DeviceHost was closed; make a new one")


def _contiguous(array: Any, what: str) -> ArrayInfo:
    info = describe(array)
    if info.strides_bytes is not None:
        raise ArgumentError(f"{what} must be contiguous, got shape {info.shape} with strides {info.strides_bytes}")
    if info.nbytes == 0:
        raise ArgumentError(f"{what} must not be empty, got shape {info.shape}")
    return info
