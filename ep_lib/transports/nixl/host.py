"""One process's NIXL agent: registers memory of any kind once, knows its peers, and transfers bytes for the host.

NIXL accepts many invalid arguments: unmapped addresses, regions of zero bytes, metadata of another version until the
first transfer fails. This module checks what it can, and refuses it with the value and a remedy.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ep_lib.bootstrap import wire
from ep_lib.errors import ArgumentError, BackendUnavailable, BufferClosedError, PeerTimeout, RankFailed
from ep_lib.require import brief, index, instance, one_of, refuse, show, text
from ep_lib.transports.nixl.agent import as_text, load
from ep_lib.transports.nixl.build import Wheel, find_wheel, pip_line
from ep_lib.version import __version__

T = TypeVar("T")

MEMORY = ("DRAM", "VRAM")
OPERATIONS = ("WRITE", "READ")
MAX_NOTIFICATION_BYTES = 4096  # more belongs into registered memory

_MAGIC, _FORMAT = b"EP_NIXL\n", 1
_HEAD = struct.Struct("<8sIIQ")  # magic, format, CRC-32 of the body, bytes of the body
_SPINS = 256  # polls of a transfer before the clock is read: short ones end here
_EAGER_SECONDS = 0.05  # then polls that yield the core in between, then sleeps
_NAP_SECONDS = 0.0002
_environment = threading.Lock()  # held while an agent is made with its own UCX_NET_DEVICES
_closed: set[str] = set()  # the keys of this process's closed agents: UCX may still write to their memory


class Memory(NamedTuple):
    """``nbytes`` bytes at ``address`` of "DRAM" or of GPU ``device``'s "VRAM"."""

    kind: str
    address: int
    nbytes: int
    device: int

    def holds(self, other: Memory) -> bool:
        ours, theirs = self.address + self.nbytes, other.address + other.nbytes
        is_same = (self.kind, self.device) == (other.kind, other.device)
        return is_same and self.address <= other.address and theirs <= ours

    def __str__(self) -> str:
        where = self.kind if self.kind == "DRAM" else f"{self.kind} of GPU {self.device}"
        return f"{self.nbytes} bytes of {where} at 0x{self.address:x}"


@dataclass(frozen=True)
class Telemetry:
    """NIXL's measurements of a transfer's last run: times in microseconds, ``start_us`` on the monotonic clock."""

    start_us: int
    post_us: int
    transfer_us: int
    nbytes: int
    descriptors: int


@dataclass(eq=False, repr=False, slots=True)
class Transfer:
    """A request between this process's memory and one peer's. It can be posted repeatedly, one run at a time."""

    agent: HostAgent
    operation: str
    local: Memory
    remote: Memory
    peer: str
    peer_key: str
    handle: int  # NIXL's; 0 once it was released
    has_notified: bool = False

    def __repr__(self) -> str:
        arrow = "->" if self.operation == "WRITE" else "<-"
        return f"<{self.operation}: {self.local} {arrow} {self.remote} of {self.peer!r}>"


# ---- metadata and descriptors as bytes -------------------------------------------------------------------------------
def pack(what: str, body: Mapping[str, Any]) -> bytes:
    """Bytes for :func:`unpack` in another process."""
    data = wire.dumps({"what": what, "ep_lib": __version__, **body})
    return _HEAD.pack(_MAGIC, _FORMAT, zlib.crc32(data), len(data)) + data


def unpack(what: str, data: Any) -> dict[str, Any]:
    """The data that another process has packed as ``what``. Raises ArgumentError for bytes that are truncated, corrupt,
    of another version or of another kind. Nothing is unpickled."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        refuse(f"the {what}", data, "the bytes that the peer's DeviceHost returned")
    data = bytes(data)
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        cut = " (cut short?)" if data and _MAGIC.startswith(data[: len(_MAGIC)]) else ""
        raise ArgumentError(
            f"the {what} of {len(data)} bytes is not what a DeviceHost returns{cut}: it begins with {data[:8]!r}; pass "
            "the peer's bytes on whole and unchanged"
        )
    _, version, checksum, length = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise ArgumentError(
            f"the {what} has format {version}, and ep_lib {__version__} reads format {_FORMAT}: install the same "
            "version of ep_lib on both sides"
        )
    body = data[_HEAD.size :]
    if len(body) < length:
        raise ArgumentError(
            f"the {what} was cut short: {len(data)} of {_HEAD.size + length} bytes arrived; read until all are there"
        )
    if len(body) > length or zlib.crc32(body) != checksum:
        raise ArgumentError(
            f"the {what} of {len(data)} bytes was changed on the way (its checksum differs); pass the peer's bytes on "
            "whole and unchanged"
        )
    try:
        found = wire.loads(body, -1)
    except RankFailed as error:
        raise ArgumentError(f"the {what} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("what") != what:
        kind = found.get("what") if isinstance(found, dict) else None
        raise ArgumentError(f"expected a DeviceHost's {what}, got its {kind or show(found)}")
    return found


def _memory_of(fields: Any, what: str) -> Memory:
    kind, address, nbytes, device = fields if isinstance(fields, (list, tuple)) and len(fields) == 4 else (None,) * 4
    numbers = [number for each in (address, nbytes, device) if (number := index(each)) is not None]
    if kind not in MEMORY or len(numbers) != 3:
        raise ArgumentError(f"the {what} names no memory: {show(fields)}; it was not made by a DeviceHost")
    return Memory(kind, *numbers)


class _Peer(NamedTuple):
    regions: tuple[Memory, ...]
    key: str


class HostAgent:
    """An agent called ``name`` over one of NIXL's backends. Use it in one thread at a time.

    ``loopback``: UCX listens and connects on the loopback interface alone, unless UCX_NET_DEVICES says otherwise, and
    peers are processes of this host. Raises BackendUnavailable with NIXL's message and a remedy.
    """

    def __init__(self, name: str, backend: str = "UCX", *, loopback: bool = True, telemetry: bool = False) -> None:
        if not 0 < len(text("name", name)) <= 64:
            refuse("name", name, "1 to 64 characters")
        self.name, self.backend = name, text("backend", backend)
        self.wheel = _wheel_for_cupy()
        library = load(self.wheel)
        self._failures, self._bindings = library.failures, library.bindings
        self._lost = getattr(library.bindings, "nixlRemoteDisconnectError", ())
        self._telemetry = telemetry
        config = library.api.nixl_agent_config(enable_prog_thread=False, backends=[], capture_telemetry=telemetry)
        self._api = self._call("making an agent", lambda: library.api.nixl_agent(name, config))
        plugins = list(self._api.plugin_list)
        if backend not in plugins:
            raise BackendUnavailable(
                f"backend is {backend!r}, and {self.wheel} has {', '.join(sorted(plugins))}: take one of these, or "
                f"reinstall: {pip_line(self.wheel.cuda_major)} --force-reinstall"
            )
        # Mode "peer" detects a lost peer, but excludes shared memory: 64 bytes then take milliseconds. On one host the
        # operating system shows that a process has ended.
        parameters = {"ucx_error_handling_mode": "none" if loopback else "peer"} if backend == "UCX" else {}
        with _loopback_only() if loopback else contextlib.nullcontext():
            self._call(f"loading {backend}", lambda: self._api.create_backend(backend, parameters))
        self._post = self._api.agent.postXferReq
        self._status = self._api.agent.getXferStatus
        self._done = library.bindings.NIXL_SUCCESS
        self._regions: dict[int, tuple[Memory, Any, Any]] = {}  # id -> memory, NIXL's descriptors, owner of the memory
        self._next_id = 1
        self._peers: dict[str, _Peer] = {}
        self._transfers: set[Transfer] = set()
        self._views: list[int] = []
        self._heard: dict[str, list[bytes]] = {}
        self._closed = False
        self._key = secrets.token_hex(8)  # names are reused

    # ---- memory ------------------------------------------------------------------------------------------------
    def register(self, memory: Memory, owner: Any = None) -> int:
        """Registers ``memory``; returns the registration's number. A region, or a part of one, is registered once."""
        self._require_open()
        check_range(memory)
        if (number := self.registration_of(memory)) is not None:
            return number
        if memory.kind == "DRAM":
            _require_mapped(memory)
        else:
            _require_gpu_memory(memory)
        regions = [(memory.address, memory.nbytes, memory.device, "")]
        descs = self._call(
            f"registering {memory}",
            lambda: self._api.register_memory(self._api.get_reg_descs(regions, mem_type=memory.kind)),
        )
        number, self._next_id = self._next_id, self._next_id + 1
        self._regions[number] = (memory, descs, owner)
        return number

    def deregister(self, number: int) -> None:
        self._require_open()
        if number not in self._regions:
            known = ", ".join(map(str, self._regions)) or "none"
            raise ArgumentError(f"there is no registration {brief(number)}; there are: {known}")
        memory, descs, _ = self._regions[number]
        using = [each for each in self._transfers if memory.holds(each.local)]
        if using:
            raise ArgumentError(f"{len(using)} requests still use the {memory}, {using[0]} for one: release them first")
        self._call(f"deregistering {memory}", lambda: self._api.deregister_memory(descs))
        del self._regions[number]

    def registration_of(self, memory: Memory) -> int | None:
        return next((number for number, (known, _, _) in self._regions.items() if known.holds(memory)), None)

    def find(self, address: int, nbytes: int, device: int) -> Memory:
        """Registered memory by its address: the registration has its kind, DRAM or VRAM."""
        for kind in MEMORY:
            memory = check_range(Memory(kind, address, nbytes, device))
            if self.registration_of(memory) is not None:
                return memory
        known = "; ".join(str(region) for region, _, _ in self._regions.values()) or "nothing"
        raise ArgumentError(
            f"{nbytes} bytes at 0x{address:x} (device {device}) are not registered; registered: {known}. Register them "
            "first"
        )

    # ---- peers -------------------------------------------------------------------------------------------------
    def metadata(self) -> bytes:
        self._require_open()
        return pack(
            "metadata",
            {
                "name": self.name,
                "key": self._key,
                "backend": self.backend,
                "nixl": self.wheel.version,
                "agent": bytes(self._call("getting the metadata", self._api.get_agent_metadata)),
                "regions": [list(memory) for memory, _, _ in self._regions.values()],
            },
        )

    def add_peer(self, data: Any) -> str:
        """Adds a peer; returns its name. New metadata of a known peer replace the old ones."""
        self._require_open()
        found = unpack("metadata", data)
        name, backend, version, agent = (found.get(key) for key in ("name", "backend", "nixl", "agent"))
        if not (isinstance(name, str) and isinstance(agent, bytes) and isinstance(found.get("regions"), list)):
            raise ArgumentError("the metadata are not a NIXL agent's: do both sides make DeviceHost(name, ...)?")
        if name == self.name:
            raise ArgumentError(f"the peer is called {name!r} as this agent is; give each DeviceHost its own name")
        if backend != self.backend:
            raise ArgumentError(
                f"the peer {name!r} uses backend {backend!r}, this agent {self.backend!r}: take the same"
            )
        if not isinstance(version, str) or version.split(".")[:2] != self.wheel.version.split(".")[:2]:
            raise BackendUnavailable(
                f"the peer {name!r} runs NIXL {version}, this process NIXL {self.wheel.version}, and their metadata "
                f"differ: install one version on both sides: {pip_line(self.wheel.cuda_major)}"
            )
        regions, key = tuple(_memory_of(each, "metadata") for each in found["regions"]), str(found.get("key"))
        loaded = self._load(name, key, agent)
        if loaded != name:
            raise ArgumentError(f"the metadata are of agent {loaded!r} and say {name!r}; exchange them again")
        self._call(f"connecting with {name!r}", lambda: self._api.make_connection(name))
        self._peers[name] = _Peer(regions, key)
        return name

    def _load(self, name: str, key: str, metadata: bytes) -> str:
        if name in self._peers and self._peers[name].key != key:
            # Another process has replaced the peer under its name; NIXL still has the old connection.
            self._call(f"forgetting the old {name!r}", lambda: self._api.remove_remote_agent(name))
            del self._peers[name]
        return as_text(self._call(f"reading {name!r}'s metadata", lambda: self._api.add_remote_agent(metadata)))

    def descriptors(self, memory: Memory) -> bytes:
        return pack("descriptors", {"name": self.name, "memory": list(memory)})

    def remote(self, descriptors: Any, peer: Any) -> Memory:
        """The descriptors that ``peer`` has serialized, if it can be reached."""
        self._require_peer(peer)
        found = unpack("descriptors", descriptors)
        memory = _memory_of(found.get("memory"), "descriptors")
        if found.get("name") != peer:
            raise ArgumentError(
                f"the descriptors are of {found.get('name')!r}, not of {peer!r}: pass those of the peer"
            )
        if not any(region.holds(memory) for region in self._peers[peer].regions):
            known = "; ".join(map(str, self._peers[peer].regions)) or "nothing"
            raise ArgumentError(
                f"the {memory} of {peer!r} are not in its metadata, which have {known}: register first, exchange "
                "metadata then (again, if memory was registered since)"
            )
        return memory

    # ---- transfers ---------------------------------------------------------------------------------------------
    def prepare(self, operation: str, local: Memory, remote: Memory, peer: str) -> Transfer:
        self._require_open()
        one_of("operation", operation, OPERATIONS)
        self._require_peer(peer)
        if local.nbytes != remote.nbytes:
            raise ArgumentError(
                f"the {operation} has {local.nbytes} bytes here and {remote.nbytes} at {peer!r}; give both one size"
            )
        handle = self._handle(operation, local, remote, peer)
        transfer = Transfer(self, operation, local, remote, peer, self._peers[peer].key, handle)
        self._transfers.add(transfer)
        return transfer

    def _handle(self, operation: str, local: Memory, remote: Memory, peer: str) -> int:
        sides = [
            self._api.get_xfer_descs([(side.address, side.nbytes, side.device)], mem_type=side.kind)
            for side in (local, remote)
        ]
        number = self._call(
            f"preparing a {operation} of {local.nbytes} bytes with {peer!r}",
            lambda: self._api.agent.createXferReq(
                self._api.nixl_ops[operation], *sides, peer, b"", [self._api.backends[self.backend]]
            ),
        )
        return int(number)

    def post(self, transfer: Transfer, notification: bytes = b"") -> bool:
        """Start a transfer; True if it is already complete. The notification reaches the peer after the bytes."""
        if transfer.agent is not self or not transfer.handle:
            self._refuse_transfer(transfer)
        if transfer.peer_key in _closed:
            raise _closed_error(str(transfer), transfer.peer)
        if notification and len(notification) > MAX_NOTIFICATION_BYTES:
            _check_notification(notification)
        if transfer.has_notified and not notification:  # NIXL would send the last notification again
            self._call(f"renewing {transfer}", lambda: self._api.agent.releaseXferReq(transfer.handle))
            transfer.handle = self._handle(transfer.operation, transfer.local, transfer.remote, transfer.peer)
        transfer.has_notified = bool(notification)
        try:
            status = self._post(transfer.handle, notification)
        except self._failures as error:
            raise self._error(f"posting {transfer}", error, transfer.peer) from error
        return bool(status == self._done)

    def is_done(self, transfer: Transfer) -> bool:
        """Whether it is complete; polling also drives it. Raises RankFailed if its peer is gone."""
        if transfer.agent is not self or not transfer.handle:
            self._refuse_transfer(transfer)
        try:
            status = self._status(transfer.handle)
        except self._failures as error:
            raise self._error(f"{transfer}", error, transfer.peer) from error
        return bool(status == self._done)

    def wait(self, transfer: Transfer, timeout: float) -> None:
        """Return when it is complete. Raises PeerTimeout after ``timeout`` seconds."""
        for _ in range(_SPINS):
            if self.is_done(transfer):
                return
        self._until(lambda: self.is_done(transfer) or None, timeout, transfer.peer, lambda: f"the end of {transfer}")

    def transfer(self, transfer: Transfer, notification: bytes, timeout: float) -> None:
        if not self.post(transfer, notification):
            self.wait(transfer, timeout)

    def telemetry(self, transfer: Transfer) -> Telemetry:
        if transfer.agent is not self or not transfer.handle:
            self._refuse_transfer(transfer)
        if not self._telemetry:
            raise ArgumentError("this DeviceHost takes no telemetry; make it with telemetry=True")
        found = self._call(
            f"reading telemetry of {transfer}", lambda: self._api.agent.getXferTelemetry(transfer.handle)
        )
        numbers = (found.startTime, found.postDuration, found.xferDuration, found.totalBytes, found.descCount)
        return Telemetry(*map(int, numbers))

    def release(self, transfer: Transfer) -> None:
        if transfer.agent is not self or not transfer.handle:
            self._refuse_transfer(transfer)
        self._call(f"releasing {transfer}", lambda: self._api.agent.releaseXferReq(transfer.handle))
        self._transfers.discard(transfer)
        transfer.handle = 0

    # ---- notifications -----------------------------------------------------------------------------------------
    def notify(self, peer: str, message: bytes) -> None:
        self._require_peer(peer)
        if self._peers[peer].key in _closed:
            raise _closed_error("a notification", peer)
        _check_notification(message)
        self._call(f"notifying {peer!r}", lambda: self._api.send_notif(peer, message), peer)

    def heard(self) -> dict[str, list[bytes]]:
        """The notifications since the last call. The call also lets UCX answer the peers."""
        self._listen()
        found, self._heard = self._heard, {}
        return found

    def wait_for(self, peer: str, message: bytes | None, timeout: float) -> bytes:
        """Waits for the oldest message of ``peer``, or for ``message``; others are kept."""
        self._require_peer(peer)
        wanted = "a notification" if message is None else f"the notification {message!r}"

        def look() -> bytes | None:
            self._listen()
            waiting = self._heard.get(peer, [])
            if not waiting or (message is not None and message not in waiting):
                return None
            return waiting.pop(0 if message is None else waiting.index(message))

        return self._until(look, timeout, peer, lambda: wanted)

    def until(self, look: Callable[[], T | None], timeout: float, peer: str, what: Callable[[], str]) -> T:
        """Waits for a result of ``look``, while answering peers."""

        def listening() -> T | None:
            self._listen()
            return look()

        return self._until(listening, timeout, peer, what)

    def _listen(self) -> None:
        self._require_open()
        for name, messages in self._call("reading notifications", self._api.get_new_notifs).items():
            self._heard.setdefault(as_text(name), []).extend(bytes(message) for message in messages)

    # ---- views, for kernels --------------------------------------------------------------------------------------
    def remote_view(self, memory: Memory, peer: str) -> int:
        """NIXL's memory view of a peer's VRAM, which has one entry."""
        if not getattr(self._bindings, "HAVE_UCX_GPU_DEVICE_API", False):
            raise BackendUnavailable(
                f"{self.wheel} was built with a UCX that has no device API: {pip_line(self.wheel.cuda_major)}"
            )
        regions = [(memory.address, memory.nbytes, memory.device, peer)]
        view = self._call(
            f"making a memory view of {memory} of {peer!r}",
            lambda: self._api.prep_mem_view(
                self._api.get_remote_descs(regions, mem_type=memory.kind), backends=[self.backend]
            ),
        )
        self._views.append(int(view))
        return int(view)

    # ---- the end ---------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Release transfers, then views, peers and memory. Calling it twice, or after a peer has ended, does no
        harm."""
        if self._closed:
            return
        self._closed = True
        _closed.add(self._key)
        steps: list[Callable[[], Any]] = []
        steps += [lambda t=t: self._api.agent.releaseXferReq(t.handle) for t in self._transfers]  # type: ignore[misc]
        steps += [lambda view=view: self._api.release_mem_view(view) for view in self._views]  # type: ignore[misc]
        steps += [lambda name=name: self._api.remove_remote_agent(name) for name in self._peers]  # type: ignore[misc]
        steps += [lambda d=d: self._api.deregister_memory(d) for _, d, _ in self._regions.values()]  # type: ignore[misc]
        for step in steps:
            with contextlib.suppress(*self._failures):  # objects of a lost peer are freed with the agent
                step()
        for transfer in self._transfers:
            transfer.handle = 0
        self._transfers.clear()
        self._regions.clear()
        self._peers.clear()
        self._api = self._post = self._status = None  # the agent ends with its last reference

    # ---- implementation ----------------------------------------------------------------------------------------
    def _until(self, look: Callable[[], T | None], timeout: float, peer: str, what: Callable[[], str]) -> T:
        start = time.monotonic()
        while True:
            found = look()
            if found is not None:
                return found
            waited = time.monotonic() - start
            if waited > timeout:
                raise PeerTimeout(
                    f"{self.name!r} waited {timeout:g} s for {what()} of {peer!r}: has it ended, or does it never call "
                    "its DeviceHost, so that UCX cannot answer?",
                    rank=-1,
                    peer=-1,
                    phase="nixl",
                )
            if waited < _EAGER_SECONDS:
                os.sched_yield()
            else:
                time.sleep(_NAP_SECONDS)

    def _require_open(self) -> None:
        if self._closed:
            raise BufferClosedError("this DeviceHost was closed; make a new one")

    def _require_peer(self, peer: Any) -> None:
        self._require_open()
        require_known(peer, self._peers)

    def _refuse_transfer(self, transfer: Any) -> None:
        self._require_open()
        instance("request", transfer, Transfer, "what create_write_req() or create_read_req() returned")
        whose = "of another DeviceHost" if transfer.agent is not self else "was released"
        raise ArgumentError(f"{transfer!r} {whose}; make one with create_write_req() or create_read_req()")

    def _call(self, what: str, call: Callable[[], Any], peer: str = "") -> Any:
        try:
            return call()
        except self._failures as error:
            raise self._error(what, error, peer) from error

    def _error(self, what: str, error: Exception, peer: str) -> Exception:
        if isinstance(error, self._lost):
            return RankFailed(
                f"{what}: the peer {peer!r} is gone ({error}); exchange metadata with the one that takes its place",
                rank=-1,
            )
        return BackendUnavailable(
            f"{self.name!r}: {what} failed with {type(error).__name__}: {error}. {self.wheel}; NIXL_LOG_LEVEL=DEBUG "
            "and UCX_LOG_LEVEL=info make them say why"
        )


def _closed_error(what: str, peer: str) -> RankFailed:
    return RankFailed(
        f"{what}: the peer {peer!r} was closed, in this process; exchange metadata with the one that takes its place",
        rank=-1,
    )


def _wheel_for_cupy() -> Wheel:
    """NIXL for CuPy's CUDA version if CuPy is in use; else any, since host memory needs no CUDA."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with contextlib.suppress(BackendUnavailable):
            return find_wheel(int(cupy.cuda.runtime.runtimeGetVersion()) // 1000)
    return find_wheel()


# ---- checks that NIXL does not make ----------------------------------------------------------------------------
def check_range(memory: Memory) -> Memory:
    """Raises ArgumentError for impossible memory: no type, no address, no bytes, beyond 64 bits."""
    one_of("the type of memory", memory.kind, MEMORY)
    for name, value, low in (("ptr", memory.address, 1), ("size", memory.nbytes, 1), ("device_id", memory.device, 0)):
        number = index(value)
        if number is None or not low <= number < 2**64:
            refuse(name, value, f"a whole number, at least {low}")
    if memory.address + memory.nbytes > 2**64:
        raise ArgumentError(f"{memory} end beyond the last address; ptr or size is wrong")
    return memory


def require_known(peer: Any, peers: Mapping[str, Any]) -> None:
    """Raises ArgumentError unless ``peer`` is the name of one of the peers."""
    if not isinstance(peer, str) or peer not in peers:
        known = ", ".join(map(repr, peers)) or "none"
        raise ArgumentError(f"there is no peer {show(peer)}; known: {known}. Call add_remote_agent() with its metadata")


def _require_mapped(memory: Memory) -> None:
    """Checks that every page from the first to the last byte belongs to this process, and is readable and writable."""
    if memory.device != 0:
        raise ArgumentError(f"device_id is {memory.device} for DRAM; it must be 0 (or call register_vram())")
    reached, end = memory.address, memory.address + memory.nbytes
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        bounds, mode = line.split(maxsplit=2)[:2]
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= reached < high and mode.startswith("rw"):
            reached = high
        if reached >= end:
            return
    raise ArgumentError(
        f"0x{reached:x} is not in memory that this process can read and write, so the {memory} cannot be registered; "
        "check ptr and size (an array's address is array.ctypes.data, its size array.nbytes)"
    )


def _require_gpu_memory(memory: Memory) -> None:
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
    except ImportError as error:
        raise BackendUnavailable(
            f"registering {memory} needs CUDA, and CuPy cannot be imported ({error}): pip install cupy-cuda13x (or "
            "cupy-cuda12x), or register_dram() for memory of the CPU"
        ) from error
    try:
        found = runtime.pointerGetAttributes(memory.address)
    except runtime.CUDARuntimeError as error:
        raise ArgumentError(
            f"CUDA does not know 0x{memory.address:x} ({error}): pass a GPU array's own address"
        ) from error
    if found.type != runtime.memoryTypeDevice or found.device != memory.device:
        where = f"of GPU {found.device}" if found.type == runtime.memoryTypeDevice else "not a GPU's"
        raise ArgumentError(f"the memory at 0x{memory.address:x} is {where}, and device_id is {memory.device}")


def _check_notification(message: Any) -> None:
    if not isinstance(message, bytes) or not message or len(message) > MAX_NOTIFICATION_BYTES:
        size = f"{len(message)} bytes" if isinstance(message, bytes) else show(message)
        raise ArgumentError(f"the notification is {size}; it must be bytes, 1 to {MAX_NOTIFICATION_BYTES}")


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Within this context, new UCX instances listen only on the loopback interface. NIXL's own option for devices does
    not limit that."""
    with _environment:
        is_mine = "UCX_NET_DEVICES" not in os.environ
        if is_mine:
            os.environ["UCX_NET_DEVICES"] = "lo"
        try:
            yield
        finally:
            if is_mine:
                del os.environ["UCX_NET_DEVICES"]
