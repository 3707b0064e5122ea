"""NIXL on the host: registered memory, peers, transfers posted by the host, and handles for kernels' posts.

``DeviceHost`` follows the set-up flow of the NIXL Device API Kernel Guide, over one of two things. With a name it is a
NIXL agent of this process, and its peers are other processes, on this host or on others::

    host = DeviceHost("writer", "UCX", port=0)                      # pip install nixl
    host.register_dram(ptr, size)                                   # or register_vram(ptr, size, device_id)
    peer_name = host.add_remote_agent(remote_meta)                  # what the peer's get_metadata() returned
    req = host.create_write_req(ptr, size, 0, remote_descs, peer_name)
    host.transfer(req, b"written")                                  # a WRITE and a notification, posted by the host

With a :class:`ep_lib.Rank` its peers are the other ranks, on the emulator or on GPUs, and kernels written for NIXL's
device API (``<ep/nixl_device.cuh>``) post by themselves. The guide's flow is the same, and there is a shorter one:
memory is symmetric, so a peer's copy of an array is at the same offset and no exchange is needed::

    host = DeviceHost(rank)
    host.register(data), host.register(signal)
    handle = host.create_gpu_req(host.create_write_req(data, peer))   # rank's data -> peer's data
    signal_handle = host.create_gpu_req(host.create_signal_req(signal, peer))
    kernel.launch(rank, 1, 32, host.handle_array([handle]), 1, signal_handle, signal, data.nbytes, 1, 0)

and for the names of NIXL >= 1.0 ``prep_local_view`` and ``prep_remote_view``, whose ints are a kernel's nixlMemViewH.
A handle points to an ``ep::nixl::Table``, which is followed by its regions (``ep::nixl::Region``).
"""

from __future__ import annotations

import ctypes
import ipaddress
import operator
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from ep_lib.bootstrap import meeting, wire
from ep_lib.bootstrap.base import Bootstrap
from ep_lib.config import Config
from ep_lib.cuda.devices import import_cupy
from ep_lib.errors import ArgumentError, BufferClosedError, RankFailed
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import ArrayInfo, describe
from ep_lib.require import a_path, brief, flag, index, instance, refuse, seconds, several, show, text, whole_number
from ep_lib.runtime.rank import Rank
from ep_lib.transports.nixl import build, views
from ep_lib.transports.nixl.host import HostAgent, Memory, Telemetry, Transfer, check_range, pack, require_known, unpack

__all__ = ["DeviceHost", "Peer", "Region", "Request", "Signal", "Telemetry", "Transfer"]

_DEFAULT_SECONDS = 30.0  # default limit of waits
_WORD = 8  # bytes of a signal


@dataclass(frozen=True)
class Region:
    """Memory of ``rank``: ``bytes`` bytes at this process's ``address`` for them. A named peer's rank is -1."""

    address: int
    bytes: int
    rank: int


@dataclass(frozen=True)
class Request:
    """A request for ``create_gpu_req``. A write request's first region is its local side."""

    kind: str  # of ep::nixl::Kind
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Peer:
    """Another DeviceHost: its name for requests, and its published descriptors by name."""

    name: str
    descs: Mapping[str, bytes]


@dataclass(eq=False)
class Signal:
    """64-bit counters of a peer that this DeviceHost adds to. The host adds by writing its own count, so each counter
    must have only one sender."""

    remote: Memory
    peer: str
    counts: np.ndarray[Any, np.dtype[np.uint64]]
    transfers: dict[int, Transfer] = field(default_factory=dict)  # by offset


class _RankSide:
    """A rank's registered memory, and the other ranks as peers."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.name = f"rank {rank.rank}"
        self._regions: dict[int, tuple[Memory, Any]] = {}
        self._next_id = 1
        self._peers: dict[str, int] = {}

    def register(self, memory: Memory, owner: Any = None) -> int:
        known = self.registration_of(check_range(memory))
        if known is not None:
            return known
        number, self._next_id = self._next_id, self._next_id + 1
        self._regions[number] = (memory, owner)
        return number

    def deregister(self, number: int) -> None:
        if self._regions.pop(number, None) is None:
            raise ArgumentError(f"there is no registration {brief(number)}; pass what register() returned")

    def registration_of(self, memory: Memory) -> int | None:
        return next((number for number, (known, _) in self._regions.items() if known.holds(memory)), None)

    def find(self, address: int, nbytes: int, device: int) -> Memory:
        memory = check_range(Memory("DRAM", address, nbytes, 0))
        if self.registration_of(memory) is None:
            raise ArgumentError(
                f"the array at 0x{address:x} ({nbytes} bytes) is not registered; call register() with it first"
            )
        return memory

    def metadata(self) -> bytes:
        return pack("metadata", {"name": self.name, "rank": self.rank.rank, "world_size": self.rank.world_size})

    def add_peer(self, data: Any) -> str:
        found = unpack("metadata", data)
        number, size = index(found.get("rank")), self.rank.world_size
        name = f"rank {number}"
        if number is None or not 0 <= number < size or (found.get("world_size"), found.get("name")) != (size, name):
            raise ArgumentError(
                f"the metadata of {show(found.get('name'))} are not of a rank of this world of {size}: pass what the "
                "get_metadata() of its DeviceHost(rank) returned"
            )
        self._peers[name] = number
        return name

    def descriptors(self, memory: Memory) -> bytes:
        offset = self.rank.offset_of(self._as_array(memory))
        return pack("descriptors", {"name": self.name, "offset": offset, "nbytes": memory.nbytes})

    def remote(self, descriptors: Any, peer: Any) -> Region:
        require_known(peer, self._peers)
        found = unpack("descriptors", descriptors)
        offset, nbytes = index(found.get("offset")), index(found.get("nbytes"))
        if found.get("name") != peer or offset is None or nbytes is None:
            raise ArgumentError(f"the descriptors are of {show(found.get('name'))}, not of {peer!r}: pass the peer's")
        own = self._as_array(Memory("DRAM", self.rank._backend.heap_address(self.rank.rank) + offset, nbytes, 0))
        return Region(self.rank.peer_address(own, self._peers[peer]), nbytes, self._peers[peer])

    def close(self) -> None:
        if not self.rank.is_closed:
            self.rank.synchronize()
        self._regions.clear()

    def _as_array(self, memory: Memory) -> ArrayInfo:
        dtype = np.dtype(np.uint8)
        return ArrayInfo(memory.address, (memory.nbytes,), dtype, None, "cpu", "numpy", False, None, memory.nbytes)


class DeviceHost:
    """Registered memory, peers and requests of one rank, or of one process that has a name.

    ``name`` is a :class:`Rank` (the other arguments then keep their defaults), or a name of 1 to 64 characters, unique
    among peers. ``backend`` is one of NIXL's. ``port`` makes it listen for :meth:`connect` of peers on ``host`` (0: any
    free port; :attr:`port` says which; None: it does not listen). UCX and this object listen only on the loopback
    interface unless ``host`` is another address. ``secret``: must be equal on both sides (default: EP_LIB_SECRET, else
    this user's own on this machine). ``timeout`` is the default of all waits, in seconds (else EP_LIB_TIMEOUT_S, else
    30).

    Use it from one thread at a time; nothing here is collective. Raises :class:`ArgumentError` for memory that is not
    registered, not contiguous, empty or unmapped, for unknown peers and for signals that are not 64-bit words;
    :class:`BackendUnavailable` if NIXL, a backend or a port is unavailable; :class:`PeerTimeout` and
    :class:`RankFailed` for peers that do not answer; :class:`BufferClosedError` after :meth:`close`. A kernel's values
    (offsets, sizes, indices) are checked on the device: a transfer out of range moves nothing and is raised as a
    KernelFault by the next ``rank.synchronize()``.
    """

    def __init__(
        self,
        name: Rank | str,
        backend: str = "UCX",
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        secret: str | bytes | None = None,
        telemetry: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._tables: dict[int, Any] = {}  # handle -> the array that it points to
        self._closed = False
        self._published: dict[str, bytes] = {}
        self._requests: set[Request | Signal] = set()
        self._listener: socket.socket | None = None
        self._given_secret = None if secret is None else meeting.run_secret(secret)
        flag("telemetry", telemetry)
        limit = Config.from_environment().timeout_s if timeout is None else seconds("timeout", timeout)
        self._timeout = limit or _DEFAULT_SECONDS
        self._side: _RankSide | HostAgent
        if isinstance(name, Rank):
            if (backend, port, host, telemetry) != ("UCX", None, "127.0.0.1", False):
                raise ArgumentError(
                    "a rank's DeviceHost has no NIXL agent of its own, so backend, port, host and telemetry keep their "
                    "defaults; DeviceHost('a name', backend, port) makes an agent"
                )
            self._side = _RankSide(name)
            return
        instance("name", name, str, "a name, or the Rank that main got")
        if port is not None:
            whole_number("port", port, 0, 65535)
            self._listener = meeting.listen(host, port)
        try:
            self._side = HostAgent(name, backend, loopback=_is_loopback(host), telemetry=telemetry)
        except BaseException:
            if self._listener is not None:
                self._listener.close()
            raise

    @property
    def name(self) -> str:
        """Its name for peers."""
        return str(self._side.name)

    @property
    def port(self) -> int | None:
        """The port that it listens on, None if it does not."""
        return None if self._listener is None else int(self._listener.getsockname()[1])

    # ---- registration ------------------------------------------------------------------------------------------
    def register(self, array: Any) -> int:
        """Allow transfers from and to an array of NumPy, CuPy or torch, which is kept alive meanwhile.

        A rank registers arrays from ``rank.symmetric``, or, as a local side only, from ``rank.to_device`` or
        ``rank.empty``. Returns the registration's number: registering the same region again returns the same number.
        """
        self._require_open()
        return self._side.register(self._memory_of(array, "a registered array"), array)

    def register_dram(self, ptr: int, size: int) -> int:
        """The same for ``size`` bytes of the CPU's memory at the address ``ptr``; the caller keeps them alive."""
        self._require_open()
        return self._side.register(self._checked(Memory("DRAM", ptr, size, 0)))

    def register_vram(self, ptr: int, size: int, device_id: int = 0) -> int:
        """The same for memory of GPU ``device_id``; on a rank: for memory of its kernels."""
        self._require_open()
        return self._side.register(self._checked(Memory("VRAM", ptr, size, device_id)))

    def deregister(self, what: Any) -> None:
        """End a registration, given its number or array. A named host's requests have to be released before; a rank's
        existing handles stay valid: release unneeded ones."""
        self._require_open()
        number = index(what)
        if number is None:
            memory = self._memory_of(what, "a registered array")
            number = self._side.registration_of(memory)
            if number is None:
                raise ArgumentError("deregister() got an array that was not registered")
        self._side.deregister(number)

    # ---- peers: metadata and descriptors -------------------------------------------------------------------------
    def get_metadata(self) -> bytes:
        """The description of this host and its current registrations, for peers' add_remote_agent()."""
        self._require_open()
        return self._side.metadata()

    def add_remote_agent(self, remote_meta: bytes) -> str:
        """Add a peer by its get_metadata(); returns its name, for requests. Raises ArgumentError for truncated or
        corrupt metadata, for those of another version, and for a peer with this host's own name."""
        self._require_open()
        return self._side.add_peer(remote_meta)

    def serialize_xfer_descs(self, ptr: int, size: int, device_id: int = 0) -> bytes:
        """Descriptors of registered memory for a peer's requests. (A named host has the kind, DRAM or VRAM, from the
        registration.)"""
        self._require_open()
        return self._side.descriptors(self._side.find(ptr, size, device_id))

    def publish(self, name: str, descs: bytes) -> None:
        """Pass descriptors to every peer that this host meets later, as ``peer.descs[name]``."""
        self._require_open()
        unpack("descriptors", descs)
        self._published[text("name", name)] = bytes(descs)

    # ---- meeting peers ---------------------------------------------------------------------------------------------
    def accept(self, timeout: float | None = None) -> Peer:
        """Exchange metadata and published descriptors with the next peer that connects to this host's port.

        Peers prove that they know the secret; others are refused. Raises PeerTimeout."""
        self._require_open()
        if self._listener is None:
            raise ArgumentError("this DeviceHost does not listen; make it with port=0 (any free port) or a port number")
        secret = meeting.run_secret(self._given_secret)
        return self._add(meeting.accept(self._listener, secret, self._mine(), self._limit(timeout), self.name))

    def connect(self, address: str, port: int, timeout: float | None = None) -> Peer:
        """Exchange metadata and published descriptors with the DeviceHost that listens there; retries until it listens.

        Raises PeerTimeout if no process listens there, RankFailed if another program does, or one without the
        secret."""
        self._require_open()
        secret = meeting.run_secret(self._given_secret)
        return self._add(meeting.connect(address, port, secret, self._mine(), self._limit(timeout), self.name))

    def write_metadata(self, path: str | Path) -> None:
        """The same through a file that both sides see: each writes its own and reads the other's."""
        self._require_open()
        meeting.write_file(a_path("path", path), meeting.run_secret(self._given_secret), self._mine())

    def read_metadata(self, path: str | Path, timeout: float | None = None) -> Peer:
        """The metadata that a peer's write_metadata() has written to ``path``; waits for it."""
        self._require_open()
        secret = meeting.run_secret(self._given_secret)
        return self._add(meeting.read_file(a_path("path", path), secret, self._limit(timeout), self.name))

    def exchange(self, world: Rank | Bootstrap) -> dict[int, Peer]:
        """Collective: the same with all ranks of a world, over MPI or their launcher's bootstrap; returns peers by
        rank."""
        self._require_open()
        gathered = world.all_gather((self.get_metadata(), dict(self._published)))
        peers = {}
        for number, (metadata, descs) in enumerate(gathered):
            if number != world.rank:
                peers[number] = Peer(self.add_remote_agent(metadata), descs)
        return peers

    # ---- requests ----------------------------------------------------------------------------------------------
    @overload
    def create_write_req(
        self, local: int, peers: int, device_id: int, remote_descs: bytes, peer_name: str
    ) -> Request | Transfer: ...

    @overload
    def create_write_req(self, local: Any, peers: int | Iterable[int], *, remote: Any = None) -> Request: ...

    def create_write_req(
        self,
        local: Any,
        peers: Any,
        device_id: int = 0,
        remote_descs: bytes | None = None,
        peer_name: str | None = None,
        *,
        remote: Any = None,
    ) -> Request | Transfer:
        """Writes into peers' memory. Two forms::

            create_write_req(ptr, size, device_id, remote_descs, peer_name)     # the guide's
            create_write_req(array, peers, remote=None)                         # a rank's, without an exchange

        The second writes from ``array`` into the peers' copies of ``remote`` (a symmetric array; by default ``array``
        itself). In the kernel ``dst_rkey_idx`` i means the i-th of ``peers``; offsets count in bytes from the starts.
        """
        self._require_open()
        if index(local) is not None:
            memory = self._side.find(local, peers, device_id)
            if isinstance(self._side, HostAgent):
                return self._prepare("WRITE", memory, remote_descs, peer_name)
            target = self._side.remote(remote_descs, peer_name)
            if target.bytes != memory.nbytes:
                raise ArgumentError(f"the write has {memory.nbytes} bytes here and {target.bytes} at {peer_name!r}")
            return self._request("kWriteRequest", (self._local_region(memory), target))
        source = self._local_region(self._registered_memory(local))
        target = local if remote is None else remote
        return self._request("kWriteRequest", (source, *self._remote_regions(target, peers)))

    def create_read_req(self, ptr: int, size: int, device_id: int, remote_descs: bytes, peer_name: str) -> Transfer:
        """Reads a peer's memory into this process's own; posted by the host (kernels have no reads)."""
        agent = self._agent("create_read_req()")
        return self._prepare("READ", agent.find(ptr, size, device_id), remote_descs, peer_name)

    def create_signal_req(self, signals: Any, peers: Any) -> Request | Signal:
        """Adds to peers' 64-bit counters: ``create_signal_req(remote_descs, peer_name)``, or on a rank
        ``create_signal_req(array, peers)`` with a symmetric array of 64-bit integers."""
        self._require_open()
        if isinstance(signals, bytes):
            if isinstance(self._side, _RankSide):
                return self._request("kSignalRequest", (_words(self._side.remote(signals, peers)),))
            memory = self._side.remote(signals, peers)
            _words(Region(memory.address, memory.nbytes, -1))
            counts = np.zeros(memory.nbytes // _WORD, np.uint64)
            if memory.kind == "DRAM":  # kernels add on their own
                self._side.register(Memory("DRAM", counts.ctypes.data, counts.nbytes, 0), counts)
            signal = Signal(memory, peers, counts)
            self._requests.add(signal)
            return signal
        dtype = describe(signals).dtype
        if dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
            raise ArgumentError(f"signals are 64-bit integers, the array has dtype {dtype}")
        return self._request("kSignalRequest", self._remote_regions(signals, peers))

    # ---- transfers by the host ---------------------------------------------------------------------------------
    def transfer(self, request: Transfer, notification: bytes = b"", timeout: float | None = None) -> None:
        """Post a request and wait until it is complete. The notification reaches the peer after the bytes."""
        if type(request) is not Transfer or not request.agent.post(request, notification):
            self._checked_agent(request).wait(request, self._limit(timeout))

    def post(self, request: Transfer, notification: bytes = b"") -> bool:
        """Post a request without waiting; True if it is already complete."""
        return self._checked_agent(request).post(request, notification)

    def is_done(self, request: Transfer) -> bool:
        """Whether a posted request is complete. Polling also drives it."""
        return self._checked_agent(request).is_done(request)

    def wait(self, request: Transfer, timeout: float | None = None) -> None:
        """Return when a posted request is complete. Raises PeerTimeout, or RankFailed if the peer is gone."""
        self._checked_agent(request).wait(request, self._limit(timeout))

    def signal(self, request: Signal, value: int = 1, offset: int = 0, timeout: float | None = None) -> None:
        """Add ``value`` to the peer's counter at ``offset`` bytes, after all completed transfers of this host."""
        agent = self._agent("signal()")
        instance("request", request, Signal, "what create_signal_req(remote_descs, peer_name) returned")
        word = whole_number("offset", offset, 0, request.remote.nbytes - _WORD) // _WORD
        if offset % _WORD:
            raise ArgumentError(f"offset is {offset}; counters begin at multiples of {_WORD}")
        if request.remote.kind != "DRAM":
            raise ArgumentError(f"the signal is in {request.remote}: kernels add to it, by create_gpu_req()'s handle")
        if offset not in request.transfers:
            local = Memory("DRAM", request.counts.ctypes.data + offset, _WORD, 0)
            there = Memory("DRAM", request.remote.address + offset, _WORD, 0)
            request.transfers[offset] = agent.prepare("WRITE", local, there, request.peer)
        request.counts[word] += np.uint64(whole_number("value", value, 0, 2**63))
        agent.transfer(request.transfers[offset], b"", self._limit(timeout))

    def wait_signal(self, signal: Any, expected: int, peer_name: str, timeout: float | None = None) -> int:
        """The value of this host's own counter (an array or an address) once it is ``expected`` or more."""
        agent = self._agent("wait_signal()")
        number = index(signal)
        memory = agent.find(number, _WORD, 0) if number is not None else self._registered_memory(signal)
        _words(Region(memory.address, memory.nbytes, -1))
        word = ctypes.c_uint64.from_address(memory.address)
        seen = 0

        def look() -> int | None:
            nonlocal seen
            seen = word.value
            return seen if seen >= expected else None

        return agent.until(look, self._limit(timeout), peer_name, lambda: f"signal {expected} (sees {seen})")

    def telemetry(self, request: Transfer) -> Telemetry:
        """NIXL's measurements of the request's last run. Needs DeviceHost(..., telemetry=True)."""
        return self._checked_agent(request).telemetry(request)

    def notify(self, peer_name: str, message: bytes) -> None:
        """Send only a notification, 1 to 4096 bytes."""
        self._agent("notify()").notify(peer_name, message)

    def notifications(self) -> dict[str, list[bytes]]:
        """All notifications since the last call, by peer. The call also lets UCX answer peers."""
        return self._agent("notifications()").heard()

    def wait_notification(self, peer_name: str, message: bytes | None = None, timeout: float | None = None) -> bytes:
        """Waits for a peer's oldest notification, or for ``message``. Raises PeerTimeout."""
        return self._agent("wait_notification()").wait_for(peer_name, message, self._limit(timeout))

    # ---- handles for kernels -----------------------------------------------------------------------------------
    def create_gpu_req(self, request: Request | Transfer | Signal) -> int:
        """The handle of a request, for a kernel's ``uintptr_t`` or ``nixlGpuXferReqH`` parameter.

        A named host makes handles for requests with both sides in VRAM, whose remote side UCX has mapped."""
        self._require_open()
        if not isinstance(request, (Request, Transfer, Signal)):
            raise ArgumentError(f"expected what create_write_req() returned, got {show(request)}")
        is_mine = request.agent is self._side if isinstance(request, Transfer) else request in self._requests
        if not is_mine:
            raise ArgumentError(f"{show(request)} is a request that no create_..._req() of this DeviceHost returned")
        if isinstance(request, Request):
            return self._make_table(request.kind, request.regions)
        if isinstance(request, Transfer) and request.operation == "WRITE":
            local = Region(request.local.address, request.local.nbytes, -1)
            remote = self._mapped(request.local, request.remote, request.peer)
            return self._make_table("kWriteRequest", (local, remote))
        if isinstance(request, Signal):
            return self._make_table("kSignalRequest", (self._mapped(request.remote, request.remote, request.peer),))
        raise ArgumentError(f"{request} is a read, and kernels have none: let the host post it with transfer()")

    def handle_array(self, handles: Sequence[int]) -> int:
        """Address of a device array of handles, for the guide's ``data_req_handles_ptr``. Release it like a handle."""
        self._require_open()
        numbers = [self._require_handle(handle) for handle in several("handles", handles, "a list of handles")]
        if not numbers:
            raise ArgumentError("handle_array() needs at least one handle")
        return self._keep(np.array(numbers, np.uint64))

    # ---- memory views: NIXL 1.0 and later -------------------------------------------------------------------------
    def prep_local_view(self, arrays: Iterable[Any]) -> int:
        """A view of this host's own arrays, for the source of ``nixlPut``; entry i is the i-th array."""
        memories = [self._registered_memory(a) for a in several("arrays", arrays, "a list of arrays")]
        return self._make_table("kLocalView", tuple(map(self._local_region, memories)))

    def prep_remote_view(self, entries: Iterable[tuple[Any, int]]) -> int:
        """A view of ranks' memory, for targets and counters; entry i is the i-th (symmetric array, peer)."""
        regions = []
        for entry in several("entries", entries, "a list of pairs (symmetric array, peer)"):
            if not isinstance(entry, (tuple, list)) or len(entry) != 2:
                refuse("an entry of the view", entry, "a pair (symmetric array, peer)")
            regions.append(self._remote_regions(*entry)[0])
        return self._make_table("kRemoteView", tuple(regions))

    # ---- the end ---------------------------------------------------------------------------------------------------
    def release(self, what: int | Transfer) -> None:
        """Release one handle, view or handle array, after waiting for its kernels, or one request of the host."""
        self._require_open()
        if isinstance(what, Transfer):
            return self._checked_agent(what).release(what)
        number = self._require_handle(what, "released twice?")
        self._synchronize()
        del self._tables[number]
        return None

    def close(self) -> None:
        """Release everything after the kernels have finished. Calling it twice does no harm."""
        if self._closed:
            return
        self._closed = True
        if self._tables and isinstance(self._side, HostAgent):
            self._synchronize()
        self._side.close()
        self._tables.clear()
        self._requests.clear()
        if self._listener is not None:
            self._listener.close()

    def __enter__(self) -> DeviceHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- implementation ----------------------------------------------------------------------------------------
    def _agent(self, what: str) -> HostAgent:
        self._require_open()
        if not isinstance(self._side, HostAgent):
            raise ArgumentError(
                f"{what} is for transfers that the host posts, and this DeviceHost is {self._side.name}'s, whose "
                "kernels post: make DeviceHost('a name') for it"
            )
        return self._side

    def _ranks(self) -> _RankSide:
        self._require_open()
        if not isinstance(self._side, _RankSide):
            raise ArgumentError(
                f"peers given by arrays and ranks are for DeviceHost(rank); {self._side.name!r} is a NIXL agent: call "
                "create_write_req(ptr, size, device_id, remote_descs, peer_name)"
            )
        return self._side

    def _checked_agent(self, request: Any) -> HostAgent:
        agent = self._agent("a transfer")
        instance("request", request, Transfer, "what create_write_req() or create_read_req() returned")
        return agent

    def _prepare(self, operation: str, local: Memory, remote_descs: Any, peer_name: Any) -> Transfer:
        agent = self._agent("a transfer")
        return agent.prepare(operation, local, agent.remote(remote_descs, peer_name), peer_name)

    def _mine(self) -> bytes:
        return wire.dumps({"metadata": self.get_metadata(), "descs": self._published})

    def _add(self, payload: bytes) -> Peer:
        found = wire.loads(payload, -1)
        if not isinstance(found, dict) or not isinstance(found.get("descs"), dict):
            raise RankFailed(f"the peer handed over {show(found)}, not what a DeviceHost does", rank=-1)
        return Peer(self.add_remote_agent(found.get("metadata", b"")), found["descs"])

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds("timeout", timeout)

    def _checked(self, memory: Memory) -> Memory:
        """Checks the kind of a rank's memory: its kernels must reach it."""
        check_range(memory)
        return Memory("DRAM", memory.address, memory.nbytes, 0) if isinstance(self._side, _RankSide) else memory

    def _memory_of(self, array: Any, what: str) -> Memory:
        info = _contiguous(array, what)
        if info.device == "cpu" or isinstance(self._side, _RankSide):
            return Memory("DRAM", info.address, info.nbytes, 0)
        return Memory("VRAM", info.address, info.nbytes, int(info.device.partition(":")[2]))

    def _registered_memory(self, array: Any) -> Memory:
        self._require_open()
        memory = self._memory_of(array, "a transfer's array")
        return self._side.find(memory.address, memory.nbytes, memory.device)

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

    def _local_region(self, memory: Memory) -> Region:
        return Region(memory.address, memory.nbytes, self._ranks().rank.rank)

    def _remote_regions(self, array: Any, peers: int | Iterable[int]) -> tuple[Region, ...]:
        rank = self._ranks().rank
        memory = self._registered_memory(array)
        numbers: list[Any] = [peers] if index(peers) is not None else several("peers", peers, "a rank, or a list")
        if not numbers:
            raise ArgumentError("a request needs at least one peer")
        return tuple(Region(rank.peer_address(array, p), memory.nbytes, operator.index(p)) for p in numbers)

    def _mapped(self, local: Memory, remote: Memory, peer: str) -> Region:
        """The address of a peer's VRAM for this process's kernels."""
        agent = self._agent("create_gpu_req()")
        if (local.kind, remote.kind) != ("VRAM", "VRAM"):
            raise ArgumentError(
                f"kernels post from VRAM to VRAM, and this request has {local} and {remote} of {peer!r}: let the host "
                "post it with transfer() and signal(), or take DeviceHost(rank) for kernels on the emulator"
            )
        cuda = import_cupy().cuda
        found = build.find(agent.wheel.cuda_major)
        view = agent.remote_view(remote, peer)
        views.require_version(cuda.runtime, found, view, 1)
        [address] = views.mapped_addresses(cuda.runtime, cuda.driver, local.device, view, 1)
        if not address:
            raise ArgumentError(
                f"UCX has not mapped {remote} of {peer!r} here, so kernels do not reach it by stores: both GPUs have "
                "to be of one host and reach each other over NVLink or PCIe; else let the host post it with transfer()"
            )
        return Region(address, remote.nbytes, -1)

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
        side = self._side
        table = side.rank.to_device(words) if isinstance(side, _RankSide) else import_cupy().asarray(words)
        address = describe(table).address
        self._tables[address] = table
        return address

    def _synchronize(self) -> None:
        if isinstance(self._side, _RankSide):
            self._side.rank.synchronize()
        else:
            import_cupy().cuda.runtime.deviceSynchronize()

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


def _words(region: Region) -> Region:
    if region.address % _WORD or region.bytes % _WORD:
        raise ArgumentError(f"signals are 64-bit words; this memory has {region.bytes} bytes at 0x{region.address:x}")
    return region


def _is_loopback(host: str) -> bool:
    """Whether ``host`` names only the loopback interface."""
    instance("host", host, str, "an address, such as '127.0.0.1' or a host's name")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        refuse("host", host, "an address of this machine, or a name that resolves to one")
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
