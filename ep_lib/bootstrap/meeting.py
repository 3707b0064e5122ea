"""Exchange of a few bytes between two DeviceHosts that know the run's secret: over TCP, or through a file.

Both sides of a connection send a greeting with a random number, prove by an HMAC over both numbers that they know the
secret, and seal every message with a key made from all three. A file is sealed with the secret. Payloads are plain
bytes, which this module does not interpret.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import math
import os
import queue
import secrets
import socket
import struct
import threading
import time
from collections import deque
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from ep_lib.config import Config
from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout, RankFailed
from ep_lib.processes import private_folder
from ep_lib.require import instance, refuse, whole_number

VERSION = 1
MAX_BYTES = 64 << 20  # of one message

_MAGIC = b"EP_MEET\n"
_GREETING = struct.Struct("<8sI32s")  # magic, version, random number
_LENGTH = struct.Struct("<Q")
_SEAL_BYTES = 32
_GREETING_SECONDS = 2.0  # for a silent connection of another program
_MOST_GREETED = 64  # concurrent greetings: one more ends the oldest
_BACKLOG = 128  # connections that wait for accept(): one without room retries after a second
_RETRY_SECONDS = 0.05
_YES, _NO = b"Y", b"N"


class Stranger(RankFailed):
    """The other end is no DeviceHost of this run; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, rank=-1)


class HungUp(Stranger):
    """The other end closed the connection, perhaps since it had failed itself."""


def run_secret(given: str | bytes | None = None) -> bytes:
    """``given``, else EP_LIB_SECRET, else this user's own on this machine, created on first use."""
    found = given if given is not None else Config.from_environment().secret
    if found is not None:
        if not isinstance(found, (str, bytes)) or len(found) < 8:
            size = f"{len(found)} characters long" if isinstance(found, (str, bytes)) else f"a {type(found).__name__}"
            raise ArgumentError(
                f"the secret is {size}; it must be a str or bytes of at least 8 (EP_LIB_SECRET, secret=)"
            )
        return found.encode() if isinstance(found, str) else found
    place = private_folder() / "secret"
    with contextlib.suppress(FileNotFoundError):
        return place.read_bytes()
    fresh = place.with_name(f"secret-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.link(fresh, place)
    fresh.unlink()
    return place.read_bytes()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` (an address of this machine) and ``port`` (0: any that is free)."""
    whole_number("port", port, 0, 65535)
    listener = socket.socket(_family(host))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BackendUnavailable(
                f"port {port} of {host} is in use, perhaps by another program of ep_lib; take another port, or 0 "
                "for any that is free (DeviceHost.port says which)"
            ) from error
        raise BackendUnavailable(
            f"cannot listen on {host}, port {port}: {error.strerror}; pass host= an address of this machine and a port "
            "from 1024 on"
        ) from error
    return listener


def accept(listener: socket.socket, secret: bytes, mine: bytes, timeout: float, who: str) -> bytes:
    """Accepts the next peer: returns its bytes and sends ``mine``. Refuses other programs, and names them if no peer
    comes."""
    theirs, connection = accept_and_keep(listener, secret, mine, timeout, who)
    connection.close()
    return theirs


def accept_and_keep(
    listener: socket.socket, secret: bytes, mine: bytes, timeout: float, who: str
) -> tuple[bytes, socket.socket]:
    """The same, with the connection, which ends with the peer."""
    deadline = time.monotonic() + timeout
    with Door(listener, secret) as door:
        while (met := door.next(_left(deadline))) is not None:
            with contextlib.ExitStack() as closing:
                closing.push(met.connection)
                try:
                    met.connection.settimeout(_left(deadline))
                    theirs = receive(met.connection, met.key)
                    send(met.connection, met.key, mine)
                    closing.pop_all()
                    return theirs, met.connection
                except (Stranger, OSError) as error:
                    door.turned_away.append(f"{met.address}: {error}")
    others = f"; turned away: {'; '.join(door.turned_away)}" if door.turned_away else ""
    place = "{}, port {}".format(*listener.getsockname()[:2])
    raise _nobody(f"{who!r} waited {timeout:g} s for a peer on {place}; did it connect there?{others}")


class Met(NamedTuple):
    """A peer that has proved that it knows the secret: the connection, its key and its address."""

    connection: socket.socket
    key: bytes
    address: str


class Door:
    """Greets all connections to ``listener`` concurrently, a thread each, so that silent ones do not block others.

    ``turned_away``: recently refused addresses, and why. Leaving the block ends the connections that :meth:`next` did
    not return.
    """

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self.turned_away: deque[str] = deque(maxlen=3)
        self._listener, self._secret = listener, secret
        self._met: queue.SimpleQueue[Met] = queue.SimpleQueue()
        self._greeted: dict[socket.socket, threading.Thread] = {}  # the current ones, oldest first
        self._lock = threading.Lock()  # of self._greeted and self._met
        self._wakes, self._waker = socket.socketpair()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up(len(self._greeted))
        while not self._met.empty():
            self._met.get().connection.close()
        self._wakes.close()
        self._waker.close()

    def next(self, seconds: float) -> Met | None:
        """The next peer that has proved it; None after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(queue.Empty):
                return self._met.get_nowait()
            left = until - time.monotonic()
            ready = wait([self._listener, self._wakes], max(0.0, left))
            if self._wakes in ready:
                self._wakes.recv(1)
            elif not ready or left < 0:  # a listener that accepts nothing is always ready
                return None
            if self._listener in ready:
                self._listener.settimeout(0)
                with contextlib.suppress(OSError):  # it has disconnected meanwhile
                    self._greet(*self._listener.accept())

    def _greet(self, connection: socket.socket, address: Any) -> None:
        self._hang_up(len(self._greeted) + 1 - _MOST_GREETED)

        def greets() -> None:
            met = None
            try:
                connection.settimeout(_GREETING_SECONDS)
                met = Met(connection, greet(connection, self._secret, is_server=True), address[0])
            except (Stranger, OSError) as error:
                connection.close()
                self.turned_away.append(f"{address[0]}: {error}")
            with self._lock:  # atomically: a greeted peer is not hung up on
                del self._greeted[connection]
                if met is not None:
                    self._met.put(met)
                self._waker.send(b".")

        thread = threading.Thread(target=greets, name="ep_lib-greeting", daemon=True)
        self._greeted[connection] = thread
        thread.start()

    def _hang_up(self, count: int) -> None:
        """Ends so many connections in greeting, the oldest first, and their threads."""
        with self._lock:
            ended = list(self._greeted.items())[: max(0, count)]
            for connection, _ in ended:
                with contextlib.suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
        for _, thread in ended:
            thread.join()


def connect(address: str, port: int, secret: bytes, mine: bytes, timeout: float, who: str) -> bytes:
    """Connects to the DeviceHost at that address: returns its bytes and sends ``mine``. Retries until it listens."""
    theirs, connection = connect_and_keep(address, port, secret, mine, timeout, who)
    connection.close()
    return theirs


def connect_and_keep(
    address: str, port: int, secret: bytes, mine: bytes, timeout: float, who: str
) -> tuple[bytes, socket.socket]:
    """The same, with the connection, which ends with the peer."""
    whole_number("port", port, 1, 65535)
    family, deadline = _family(address), time.monotonic() + timeout
    while True:
        connection = socket.socket(family)
        with contextlib.ExitStack() as closing:
            closing.push(connection)
            connection.settimeout(_left(deadline))
            try:
                connection.connect((address, port))
            except OSError as error:
                if time.monotonic() + _RETRY_SECONDS < deadline:
                    time.sleep(_RETRY_SECONDS)  # it may start later
                    continue
                reason = error.strerror or str(error)
                raise _nobody(
                    f"{who!r} found no peer at {address}, port {port}, within {timeout:g} s ({reason}): is the "
                    "peer started, are address and port its own, and does it listen on that address (host=)?"
                ) from error
            try:
                # Until the deadline: the peer may already listen but accept later.
                connection.settimeout(_left(deadline))
                key = greet(connection, secret, is_server=False)
                send(connection, key, mine)
                theirs = receive(connection, key)
                closing.pop_all()
                return theirs, connection
            except Stranger as error:
                raise Stranger(f"{address}, port {port}: {error}") from None
            except OSError as error:
                raise Stranger(
                    f"{address}, port {port}: what accepted the connection did not answer within {timeout:g} s "
                    f"({error}): is it another program, or a peer that never calls accept()?"
                ) from error


def write_file(path: Path, secret: bytes, mine: bytes) -> None:
    """Writes ``mine`` to ``path`` atomically, readable by this user only."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _seal(secret, mine) + mine)
        fresh.replace(path)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}; pass a path in a folder that is yours") from error


def read_file(path: Path, secret: bytes, timeout: float, who: str) -> bytes:
    """Waits for the file of another DeviceHost; returns its bytes."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            data = path.read_bytes()
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise _nobody(f"{who!r} waited {timeout:g} s for the file {path}; does the peer write there?") from None
            time.sleep(_RETRY_SECONDS)
        except OSError as error:
            raise ArgumentError(f"cannot read {path}: {error.strerror}; pass the file that the peer writes") from error
    start = len(_MAGIC) + _SEAL_BYTES
    if len(data) < start or not data.startswith(_MAGIC):
        raise Stranger(f"{path} ({len(data)} bytes) was not written by DeviceHost.write_metadata()")
    if not hmac.compare_digest(data[len(_MAGIC) : start], _seal(secret, data[start:])):
        raise Stranger(
            f"{path} ({len(data)} bytes) was cut short or changed, or its writer does not know this run's secret: set "
            "EP_LIB_SECRET to the same on both sides"
        )
    return data[start:]


def greet(connection: socket.socket, secret: bytes, *, is_server: bool) -> bytes:
    """The key of this connection, after both ends have proved that they know the secret. Raises Stranger.

    The connection's timeout applies to the whole greeting, even if its bytes arrive slowly; the same holds for
    receive().
    """
    until = _deadline(connection)
    mine = secrets.token_bytes(32)
    connection.sendall(_GREETING.pack(_MAGIC, VERSION, mine))
    magic, version, theirs = _GREETING.unpack(_exactly(connection, _GREETING.size, until))
    if magic != _MAGIC:
        raise Stranger(f"it greets with {magic!r}, and is no peer of ep_lib; check address and port")
    if version != VERSION:
        raise Stranger(f"it speaks version {version}, this ep_lib version {VERSION}: install the same ep_lib on both")
    numbers = theirs + mine if is_server else mine + theirs
    ours, others = (b"server", b"client") if is_server else (b"client", b"server")
    connection.sendall(_seal(secret, ours + numbers))
    knows = hmac.compare_digest(_exactly(connection, _SEAL_BYTES, until), _seal(secret, others + numbers))
    connection.sendall(_YES if knows else _NO)
    # Always read: closing with unread bytes would reset the peer's connection.
    answer = _exactly(connection, 1, until)
    if not knows or answer != _YES:
        raise Stranger("it does not know this run's secret; set EP_LIB_SECRET (or secret=) to the same on both sides")
    return _seal(secret, b"key" + numbers)


def send(connection: socket.socket, key: bytes, message: bytes) -> None:
    """Sends a message, sealed with the connection's key."""
    connection.sendall(_LENGTH.pack(len(message)) + _seal(key, message) + message)


def receive(connection: socket.socket, key: bytes) -> bytes:
    """Receives a message. Raises Stranger if it was changed."""
    until = _deadline(connection)
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, until))
    if length > MAX_BYTES:
        raise Stranger(f"it announces {length} bytes; messages have at most {MAX_BYTES}")
    seal = _exactly(connection, _SEAL_BYTES, until)
    message = _exactly(connection, length, until)
    if not hmac.compare_digest(seal, _seal(key, message)):
        raise Stranger("its message was changed on the way")
    return message


def _left(deadline: float) -> float:
    """The seconds left, as a timeout for sockets."""
    return min(max(deadline - time.monotonic(), 0.001), 3600.0)


def _deadline(connection: socket.socket) -> float:
    timeout = connection.gettimeout()
    return math.inf if timeout is None else time.monotonic() + timeout


def _exactly(connection: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if time.monotonic() >= until:
            raise TimeoutError(f"{len(data)} of {size} bytes came in time")
        connection.settimeout(_left(until))
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise HungUp(f"it closed the connection after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def _seal(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _family(host: str) -> socket.AddressFamily:
    instance("host", host, str, "an address, such as '127.0.0.1' or a host's name")
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError):
        refuse("host", host, "an address or a host's name that resolves")


def _nobody(message: str) -> PeerTimeout:
    return PeerTimeout(message, rank=-1, peer=-1, phase="bootstrap")
