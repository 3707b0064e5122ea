"""``ep-lib bench remote --rank 0|1 --peer HOST``: the proxy between two processes, or two hosts.

Rank 1 listens, rank 0 connects; both have to know the run's secret (EP_LIB_SECRET, else this user's own on this
machine), and their messages are JSON. Then rank 0 pushes WRITEs into its ring, its proxy posts them to NIXL (UCX), and
the last one of each size has a signal. Rank 1 compares the bytes, and its proxy answers. It is the source's
``benchmark_remote``.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import socket
import threading
import time
from typing import Any

import numpy as np

from ep_lib.bootstrap import meeting
from ep_lib.commands.bench import show
from ep_lib.commands.bench.local import SLOTS, Live, add_proxy_arguments, check_proxy_arguments, row, table_of
from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout, RankFailed, RankMismatchError
from ep_lib.require import whole_number
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import Rings, op
from ep_lib.version import __version__

PORT = 18515
_HEAD_BYTES = 4096  # of a heap, before the data: the counters below
# offsets: counts of sizes that arrived at rank 1, that it answered, and that were wrong
_ARRIVED, _ANSWERED, _WRONG = 0, 64, 128
_TRIAL = 64  # trial WRITEs, which determine the number to measure
_MOST = 1 << 22
_POLL_SECONDS = 20e-6
_BEAT_SECONDS = 0.1
_LONGEST_STEP = 1.0  # seconds of silence that count between two beats: this process may have been stopped itself
_BEAT, _GOODBYE = b".", b"!"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True, help="0 sends, 1 receives; start both")
    parser.add_argument("--peer", default="127.0.0.1", help="the other one's host (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="where rank 1 listens (default: %(default)s)")
    parser.add_argument("--host", help="the address on which rank 1 listens (default: 127.0.0.1 if the peer is there)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for the peer (default: 30)")
    add_proxy_arguments(parser)


def run(args: argparse.Namespace) -> int:
    cpus = check_proxy_arguments(args, 1)
    whole_number("--port", args.port, 1, 65535)
    if not 0 < args.timeout <= 3600:
        raise ArgumentError(f"--timeout is {args.timeout:g}; it must be above 0, at most 3600")
    is_loopback = _is_loopback(args.peer)
    host = args.host or ("127.0.0.1" if is_loopback else None)
    if args.rank == 1 and host is None:
        raise ArgumentError(f"--peer is {args.peer}, another host: pass --host, the address of this one to listen on")
    if is_loopback:
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    secret = meeting.run_secret()
    heap = np.zeros(_HEAD_BYTES + max(args.bytes), np.uint8)
    # Rank 0 gets an unused socket.
    with meeting.listen(host, args.port) if args.rank == 1 and host else socket.socket() as listener:
        name = f"ep_lib bench remote, rank {args.rank}"
        executor = engine.Nixl(heap, name, ranks=2, rank=args.rank, is_loopback=is_loopback)
        proxy = engine.Proxy(Rings(1, SLOTS), executor, cpus=cpus)
        try:
            mine = {"version": __version__, "rank": args.rank, "bytes": list(args.bytes), "address": heap.ctypes.data}
            mine["metadata"] = executor.metadata().hex()
            said, connection = _exchange(args, listener, secret, json.dumps(mine).encode(), name)
            with _Lifeline(connection, args) as lifeline:
                theirs = _understand(said, mine)
                executor.connect(1 - args.rank, theirs["metadata"], theirs["address"])
                peer = _Peer(args, heap, proxy, lifeline)
                if args.rank == 1:
                    return peer.receive()
                results = [peer.send(number, size) for number, size in enumerate(args.bytes)]
        finally:
            proxy.stop()
    report = {"benchmark": "remote", "executor": "nixl", "results": results}
    title = f"WRITEs to {args.peer} by the proxy and NIXL, until the peer has compared them:"
    show(report, args, f"{title}\n{table_of(results)}")
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, UnicodeError) as error:
        raise ArgumentError(
            f"--peer is {host!r}, which does not resolve ({error}): pass a host's name or address"
        ) from None


def _exchange(
    args: argparse.Namespace, listener: socket.socket, secret: bytes, mine: bytes, who: str
) -> tuple[bytes, socket.socket]:
    if args.rank == 1:
        return meeting.accept_and_keep(listener, secret, mine, args.timeout, who)
    return meeting.connect_and_keep(args.peer, args.port, secret, mine, args.timeout, who)


def _understand(said: bytes, mine: dict[str, Any]) -> dict[str, Any]:
    """Parses the peer's description of itself. Raises RankMismatchError."""
    try:
        theirs = json.loads(said)
        version, rank, sizes = theirs["version"], theirs["rank"], theirs["bytes"]
        address, metadata = int(theirs["address"]), bytes.fromhex(theirs["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise RankMismatchError(
            f"the peer sent {len(said)} bytes that are cut short or no description of a proxy ({error!r}): start "
            "`ep-lib bench remote` of the same ep_lib on both sides"
        ) from None
    if version != mine["version"]:
        raise RankMismatchError(
            f"the peer has ep_lib {version}, this side {mine['version']}: install the same one on both sides"
        )
    if rank == mine["rank"]:
        raise RankMismatchError(f"both sides are rank {rank}: pass --rank 0 on one and --rank 1 on the other")
    if sizes != mine["bytes"]:
        raise RankMismatchError(
            f"--bytes is {mine['bytes']} here and {sizes} on the peer's side: pass the same to both"
        )
    return {"address": address, "metadata": metadata}


class _Lifeline:
    """Watches whether the peer lives: both sides send a byte now and then over their first connection.

    UCX does not report that a peer on this host has ended, nor that one is stopped.
    """

    def __init__(self, connection: socket.socket, args: argparse.Namespace) -> None:
        self._connection, self._args = connection, args
        self._silence, self._has_ended, self._said_goodbye = 0.0, False, False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="bench: lifeline", daemon=True)

    def __enter__(self) -> _Lifeline:
        self._connection.setblocking(False)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        with contextlib.suppress(OSError), self._connection as connection:
            if kind is None:
                connection.send(_GOODBYE)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._leaving.wait(_BEAT_SECONDS):
            now = time.monotonic()
            self._silence, last = self._silence + min(now - last, _LONGEST_STEP), now
            try:
                with contextlib.suppress(BlockingIOError):  # a peer that is stopped reads nothing
                    self._connection.send(_BEAT)
                said = self._connection.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            self._silence = 0.0
            self._said_goodbye |= _GOODBYE in said
            if not said:
                self._has_ended = True
                return

    def look(self) -> None:
        """Raises RankFailed, PeerTimeout."""
        me, other = self._args.rank, 1 - self._args.rank
        who = f"rank {other}, at {self._args.peer}"
        if self._has_ended and not self._said_goodbye:
            raise RankFailed(f"rank {me} has lost {who}: its process has ended; its own output may say why", rank=other)
        if self._silence > self._args.timeout:
            raise _timeout(self._args, f"a sign of life of {who} (--timeout): is it stopped, or its host not reached?")


def _timeout(args: argparse.Namespace, what: str) -> PeerTimeout:
    return PeerTimeout(
        f"rank {args.rank} waited {args.timeout:g} s for {what}",
        rank=args.rank,
        peer=1 - args.rank,
        phase="signal",
        slot=-1,
        seen=0,
        expected=1,
    )


class _Peer:
    """One side of the measurement."""

    def __init__(
        self, args: argparse.Namespace, heap: np.ndarray[Any, Any], proxy: engine.Proxy, lifeline: _Lifeline
    ) -> None:
        self._args, self._heap, self._proxy, self._lifeline = args, heap, proxy, lifeline
        self._live = Live(args.json)

    def _count(self, offset: int) -> int:
        return int(self._heap[offset : offset + 8].view(np.uint64)[0])

    def _push(self, name: str, count: int = 1, **fields: int) -> None:
        peer = 1 - self._args.rank
        engine.push(self._proxy.rings, 0, {"op": op(name), "peer": peer, **fields}, count, timeout=3600)

    def _flush(self) -> None:
        engine.flush(self._proxy.rings, 0, self._args.timeout)

    def _wait(self, counter: int, more_than: int) -> None:
        """Waits for the peer, as long as it lives: its work takes as long as --seconds says."""
        while self._count(counter) <= more_than:
            if reason := self._proxy.failure():
                raise BackendUnavailable(f"rank {self._args.rank}'s proxy has given up: {reason}")
            self._lifeline.look()
            time.sleep(_POLL_SECONDS)

    def receive(self) -> int:
        """Rank 1: compares the bytes of each size, and reports the result."""
        for number, size in enumerate(self._args.bytes):
            self._wait(_ARRIVED, number)
            right = bool((self._heap[_HEAD_BYTES : _HEAD_BYTES + size] == number + 1).all())
            if not right:
                self._push("kProxyAdd64", signal=_WRONG, value=1)
                self._push("kProxyFence")
            self._push("kProxyAdd64", signal=_ANSWERED, value=1)
            self._flush()
        return 0

    def send(self, number: int, size: int) -> dict[str, Any]:
        """Rank 0: measures a row of the table."""
        self._heap[_HEAD_BYTES:] = number + 1
        data = {"target": _HEAD_BYTES, "source": _HEAD_BYTES, "bytes": size}

        def trial() -> None:
            self._push("kProxyWrite", _TRIAL, **data)
            self._flush()

        def measured() -> None:
            self._push("kProxyWrite", count - 1, **data)
            self._push("kProxyFence")
            self._push("kProxyWriteAddSignal", signal=_ARRIVED, value=1, **data)
            self._wait(_ANSWERED, number)

        look = self._lifeline.look
        _, seconds = self._live.watch(f"{size} bytes", self._proxy, trial, look)
        count = min(_MOST, max(2, int(_TRIAL / seconds * self._args.seconds)))
        _, seconds = self._live.watch(f"{size} bytes", self._proxy, measured, look)
        if self._count(_WRONG):
            raise BackendUnavailable(f"rank 1 has seen wrong bytes: {size} bytes that rank 0's proxy wrote")
        return row("nixl", size, count, seconds)
