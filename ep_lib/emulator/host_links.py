"""Emulated ranks that are processes of several hosts: which host each rank is on, and the TCP connections between them.

Inside a host, heaps are shared memory (``shared_heaps.py``). Between hosts the emulated NICs' operations travel over
TCP (``runtime/forwarder.hpp``). Sockets listen on EP_LIB_ADDRESS, else on loopback, and only for the time in which
ranks meet; only a peer that knows the run's secret may connect.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ep_lib.bootstrap import Bootstrap, meeting
from ep_lib.config import Config
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.emulator.machine import Machine
from ep_lib.errors import ArgumentError, BackendUnavailable, EpError

_LOOPBACK = "127.0.0.1"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GREETING_SECONDS = 5.0  # for a connected rank to send its number
_LOOK_SECONDS = 0.2
_RANK = struct.Struct("<I")
_PROBE_SECONDS = 5  # without traffic
_LOST_AFTER_MS = 20_000  # after this long without an answer of the other host, the connection has ended


def host_name() -> str:
    """The name of this host, equal for all of its ranks; its first word is readable."""
    return Config.from_environment().host or f"{socket.gethostname()} {_boot_id()}"


def gather_hosts(bootstrap: Bootstrap, timeout: float) -> list[str]:
    """Collective: the name of each rank's host."""
    return [str(host) for host in bootstrap.all_gather(host_name(), timeout)]


def fabric_of_hosts(fabric: Fabric | str | None, hosts: Sequence[str]) -> Fabric:
    """The fabric for ranks on these hosts. The default for several hosts is "rc" with a node for each. Raises
    ArgumentError, and BackendUnavailable if hosts and nodes differ."""
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        return make_fabric(fabric, len(hosts))
    size = hosts.count(names[0])
    if list(hosts) != [name for name in names for _ in range(size)]:
        listing = ", ".join(f"rank {rank} on {name.split()[0]}" for rank, name in enumerate(hosts))
        raise BackendUnavailable(
            f"ranks on the emulator go host by host, as many on each, but there are {listing}: start them so"
        )
    if fabric is None:
        return Fabric("rc", ranks_per_node=size)
    chosen = make_fabric(fabric, len(hosts))
    if chosen.kind == "p2p" or size % chosen.ranks_per_node:
        raise ArgumentError(
            f"fabric is {chosen.kind!r} with ranks_per_node={chosen.ranks_per_node}, and there are {size} ranks on "
            f"each of {len(names)} hosts, which only NICs connect: pass Fabric('rc', ranks_per_node={size}), or None"
        )
    return chosen


class HostLinks:
    """The connections of this rank to those on other hosts. Making it is collective.

    Raises BackendUnavailable on every rank if one cannot be made.
    """

    far: list[int]  # the ranks of other hosts

    def __init__(self, bootstrap: Bootstrap, machine: Machine, hosts: Sequence[str], timeout: float) -> None:
        self._bootstrap, self._machine, self._timeout = bootstrap, machine, timeout
        self.rank = bootstrap.rank
        self.far = [rank for rank, host in enumerate(hosts) if host != hosts[bootstrap.rank]]
        self._left_out: set[int] = set()
        self._address = Config.from_environment().address or _LOOPBACK
        self._ours: dict[int, socket.socket] = {}
        self._theirs: dict[int, socket.socket] = {}
        try:
            self._connect()
        except BaseException:
            for connection in (*self._ours.values(), *self._theirs.values()):
                connection.close()
            raise
        for rank in self.far:
            machine.forward(rank, self._ours[rank].detach(), self._theirs[rank].detach())

    def ended(self) -> list[int]:
        """The ranks of other hosts whose processes have ended, or that are unreachable."""
        return [rank for rank in self.far if rank not in self._left_out and self._machine.link_ended(rank)]

    def leave_out(self, ranks: Collection[int]) -> None:
        """The end of these ranks' processes is no error from now on."""
        self._left_out |= set(ranks)

    def refuse_rejoin(self) -> None:
        """Raises BackendUnavailable: another process cannot take the place of a rank here."""
        raise BackendUnavailable(
            "a process can take the place of an emulated rank only where all ranks are on one host, and some of these "
            f"are on others (rank {self.far[0]}): leave ranks out (mask_ranks), or start all again"
        )

    def _connect(self) -> None:
        deadline = time.monotonic() + self._timeout
        listener: socket.socket | None = None
        failure, may_follow = None, False  # from the failure of another rank, which then has closed its door
        try:
            secret = meeting.run_secret()
            listener = meeting.listen(self._address, 0)
        except EpError as error:
            failure = f"{error} (EP_LIB_ADDRESS)"
        with listener or contextlib.nullcontext():
            port = listener.getsockname()[1] if listener is not None else 0
            told = self._together(failure, (self._address, port, _boot_id()))
            assert listener is not None
            self._refuse_loopback([(str(address), str(boot)) for address, _, boot in told])
            gave_up = threading.Event()
            accepting = threading.Thread(target=self._accept, args=(listener, secret, deadline, gave_up), daemon=True)
            accepting.start()
            try:
                for rank in self.far:
                    address, port, _ = told[rank]
                    self._ours[rank] = self._call(rank, str(address), int(port), secret, deadline)
            except (EpError, OSError) as error:
                failure, may_follow = str(error), isinstance(error, (OSError, meeting.HungUp))
                gave_up.set()
            accepting.join()
        missing = sorted(set(self.far) - set(self._theirs))
        if failure is None and missing:
            failure, may_follow = f"rank {missing[0]} did not connect within {self._timeout:g} s", True
        self._together(failure, None, may_follow)

    def _together(self, failure: str | None, value: object, may_follow: bool = False) -> list[Any]:
        """Exchanges an object among all ranks. Raises if one has failed: a failure that may follow from another one is
        named last."""
        said = self._bootstrap.all_gather((failure, may_follow, value), self._timeout)
        failed = [(follows, rank, text) for rank, (text, follows, _) in enumerate(said) if text is not None]
        if failed:
            _, rank, text = min(failed)
            raise BackendUnavailable(
                f"rank {rank} cannot connect to the ranks of other hosts: {text}. On each host, EP_LIB_ADDRESS "
                "must be its address on the network between them, and EP_LIB_SECRET the same"
            )
        return [theirs for *_, theirs in said]

    def _refuse_loopback(self, told: Sequence[tuple[str, str]]) -> None:
        for rank, (address, boot) in enumerate(told):
            if boot != told[0][1] and (_is_loopback(address) or _is_loopback(told[0][0])):
                raise BackendUnavailable(
                    f"ranks 0 and {rank} are on different machines, and listen on {told[0][0]} and {address}: set "
                    "EP_LIB_ADDRESS on each host to its address on the network between them, and EP_LIB_SECRET to the "
                    "same text on all"
                )

    def _call(self, rank: int, address: str, port: int, secret: bytes, deadline: float) -> socket.socket:
        """Connects to ``rank``, for this rank's operations there. Raises EpError, OSError."""
        try:
            connection = socket.create_connection((address, port), max(0.1, deadline - time.monotonic()))
        except OSError as error:
            raise BackendUnavailable(f"rank {rank} is not reached at {address}, port {port}: {error}") from error
        try:
            # Until the deadline: the peer may be busy with another program's connection.
            key = meeting.greet(connection, secret, is_server=False)
            meeting.send(connection, key, _RANK.pack(self.rank))
        except BaseException:
            connection.close()
            raise
        return _ready(connection)

    def _accept(self, listener: socket.socket, secret: bytes, deadline: float, gave_up: threading.Event) -> None:
        """Accepts connections from all ranks of other hosts; refuses those of other programs."""
        with meeting.Door(listener, secret) as door:
            while len(self._theirs) < len(self.far) and not gave_up.is_set() and time.monotonic() < deadline:
                if (met := door.next(_LOOK_SECONDS)) is not None:
                    self._let_in(met)

    def _let_in(self, met: meeting.Met) -> None:
        try:
            met.connection.settimeout(_GREETING_SECONDS)
            (rank,) = _RANK.unpack(meeting.receive(met.connection, met.key))
        except (EpError, OSError, struct.error):
            rank = -1
        if rank in self.far and rank not in self._theirs:
            self._theirs[rank] = _ready(met.connection)
        else:
            met.connection.close()


def _ready(connection: socket.socket) -> socket.socket:
    """Prepares a socket for the native threads: blocking, without delay, and closed when the other host is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_AFTER_MS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, _PROBE_SECONDS)
    return connection


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
