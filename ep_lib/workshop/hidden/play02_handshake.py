"""The other half of ex02_handshake.py, in the child: a stream, a host and a peer around the learner's functions.

Every function notes what it saw and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ep_lib.errors import EpError
from ep_lib.workshop.grader.process.far import Far, Guest

_MOST_CALLS = 10_000  # of receive(): more is an endless loop


class Stream:
    """The other end of a stream. ``receive`` gives ``pieces`` one after the other, never more than asked for, and then
    b"" three times; with ``meets``, nothing before the piece has sent something."""

    def __init__(self, pieces: Sequence[str], *, meets: bool = False) -> None:
        self._pieces = [bytes.fromhex(piece) for piece in pieces if piece]
        self._after_the_end = self._calls = 0
        self._meets = meets
        self.given = 0  # bytes
        self.sent = b""

    def receive(self, size: int) -> bytes:
        self._calls += 1
        if self._meets and not self.sent:
            raise RuntimeError("it reads before it has sent: the peer does the same, and both wait for ever")
        if size < 1 or self._calls > _MOST_CALLS:
            raise RuntimeError(f"receive({size}) was call {self._calls} on this stream")
        if not self._pieces:
            self._after_the_end += 1
            if self._after_the_end > 3:
                raise RuntimeError('receive() was called on and on, although b"" says that the stream has ended')
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        self.given += min(size, len(piece))
        return piece[:size]

    def send(self, data: bytes) -> None:
        self.sent += bytes(data)


class Host:
    """The part of a DeviceHost that the piece uses. Its metadata are ``tag`` and the names of the arrays registered so
    far. ``arrays``: names, addresses and numbers of bytes."""

    OPEN = ("register", "register_dram", "serialize_xfer_descs", "get_metadata", "add_remote_agent")

    def __init__(self, tag: str, arrays: Mapping[Far, tuple[str, int, int]]) -> None:
        self._tag, self._arrays = tag, arrays
        self._names = {(address, nbytes): name for name, address, nbytes in arrays.values()}
        self._registered: list[str] = []
        self.calls: list[str] = []

    def register(self, array: Any) -> int:
        return self.register_dram(*self._arrays[array][1:] if isinstance(array, Far) else (0, 0))

    def register_dram(self, ptr: int, size: int) -> int:
        name = self._names.get((int(ptr), int(size)), "?")
        self.calls.append(f"register {name}")
        self._registered.append(name)
        return len(self._registered)

    def serialize_xfer_descs(self, ptr: int, size: int, device_id: int = 0) -> bytes:
        name = self._names.get((int(ptr), int(size)), "?")
        self.calls.append(f"describe {name}")
        return f"{self._tag}:{name}".encode() if name in self._registered else b"not registered"

    def get_metadata(self) -> bytes:
        self.calls.append("metadata")
        return f"{self._tag} {' '.join(sorted(self._registered))}".encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        self.calls.append(f"add {bytes(metadata).hex()}")
        return f"peer of {self._tag}"


def _hex(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"it returned {value!r:.80}, which is no bytes")
    return value.hex()


def _outcome(call: Callable[[], Any], show: Callable[[Any], Any] = _hex) -> dict[str, Any]:
    """The result of a call, or the course's error that it raised. Other errors propagate, with their line."""
    try:
        return {"got": show(call())}
    except EpError as error:
        return {"error": type(error).__name__, "message": str(error)[:200]}


def frames(piece: Guest, bodies: Sequence[str]) -> list[str]:
    return [_hex(piece.call("frame", bytes.fromhex(body))) for body in bodies]


def reads(piece: Guest, pieces: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    """read_exactly() for each of ``sizes``, from one stream."""
    receive = Stream(pieces).receive
    return {"outcomes": [_outcome(lambda size=size: piece.call("read_exactly", receive, size)) for size in sizes]}  # type: ignore[misc]


def read_frames(piece: Guest, pieces: Sequence[str], times: int) -> dict[str, Any]:
    """``times`` calls of read_frame(), from one stream."""
    stream = Stream(pieces)
    receive = stream.receive
    return {
        "outcomes": [_outcome(lambda: piece.call("read_frame", receive)) for _ in range(times)],
        "given": stream.given,
    }


def says_hello(piece: Guest, tag: str, kinds: dict[str, tuple[str, Sequence[int]]], are_views: bool) -> dict[str, Any]:
    """``kinds``: dtype and shape of each array. ``are_views``: all are views of the beginning of one array."""
    whole = piece.make("numpy:full", 4096, 7, "uint8")

    def made(dtype: str, shape: Sequence[int]) -> Far:
        if not are_views:
            return piece.make("numpy:full", shape, 7, dtype)
        return whole.make("view", dtype).make("__getitem__", slice(math.prod(shape))).make("reshape", shape)

    arrays = {name: made(*kind) for name, kind in kinds.items()}
    known = {array: (name, array.get("ctypes.data"), array.get("nbytes")) for name, array in arrays.items()}
    host = Host(tag, known)
    body = piece.call("hello", host, arrays, unchanged="_ arrays")
    return {"body": _hex(body), "calls": host.calls}


def meets(piece: Guest, tag: str, mine: str, pieces: Sequence[str]) -> dict[str, Any]:
    """meet() with a peer that does the same, and sends nothing before it has received, as on a slow network."""
    stream, host = Stream(pieces, meets=True), Host(tag, {})

    def met() -> Far:
        return piece.make("meet", host, bytes.fromhex(mine), stream.send, stream.receive)

    def describe(peer: Far) -> dict[str, Any]:
        return {
            "name": peer.get("name"),
            "descs": {name: bytes(data).hex() for name, data in peer.get("descs").items()},
        }

    return {"outcome": _outcome(met, describe), "calls": host.calls, "sent": stream.sent.hex()}
