"""The other half of ex02_handshake.py, in the child: a stream, a host and a peer around the learner's functions.

Every function notes what it saw and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ep_lib.errors import EpError

_MOST_CALLS = 10_000  # of receive(): more is an endless loop


class _Stream:
    """Gives ``pieces`` one after the other, never more than asked for, and then b"" three times."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self._after_the_end = 0
        self.asked: list[int] = []

    def receive(self, size: int) -> bytes:
        self.asked.append(int(size))
        if size < 1 or len(self.asked) > _MOST_CALLS:
            raise RuntimeError(f"receive({size}) was call {len(self.asked)} on this stream")
        if not self._pieces:
            self._after_the_end += 1
            if self._after_the_end > 3:
                raise RuntimeError('receive() was called on and on, although b"" says that the stream has ended')
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        return piece[:size]


def _hex(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"it returned {value!r:.80}, which is no bytes")
    return value.hex()


def _outcome(call: Callable[[], Any], show: Callable[[Any], Any] = _hex) -> dict[str, Any]:
    """What a call returned, or which error of the course's it raised. Others go on, with their line."""
    try:
        return {"got": show(call())}
    except EpError as error:
        return {"error": type(error).__name__, "message": str(error)[:300]}


def frames(piece: Any, bodies: Sequence[str]) -> list[str]:
    return [_hex(piece.frame(bytes.fromhex(body))) for body in bodies]


def reads(piece: Any, pieces: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    """read_exactly() for each of ``sizes``, from one stream."""
    stream = _Stream([bytes.fromhex(each) for each in pieces])
    outcomes = [_outcome(lambda size=size: piece.read_exactly(stream.receive, size)) for size in sizes]  # type: ignore[misc]
    return {"outcomes": outcomes}


def read_frames(piece: Any, pieces: Sequence[str], times: int) -> dict[str, Any]:
    """read_frame() so many times, from one stream."""
    stream = _Stream([bytes.fromhex(each) for each in pieces])
    outcomes = [_outcome(lambda: piece.read_frame(stream.receive)) for _ in range(times)]
    return {"outcomes": outcomes, "most_asked": max(stream.asked, default=0)}


class _Host:
    """Notes what is asked of a DeviceHost. Its metadata are ``tag`` and the names of what is registered by then."""

    def __init__(self, arrays: dict[str, Any], tag: str) -> None:
        self._arrays, self._tag, self.calls = arrays, tag, []  # type: ignore[var-annotated]
        self._registered: list[str] = []

    def _name(self, address: int, nbytes: int) -> str:
        for name, array in self._arrays.items():
            if (array.ctypes.data, array.nbytes) == (address, nbytes):
                return name
        return "?"

    def register(self, array: Any) -> int:
        name = self._name(array.ctypes.data, array.nbytes)
        self.calls.append(f"register {name}")
        self._registered.append(name)
        return len(self._registered)

    def register_dram(self, ptr: int, size: int) -> int:
        self.calls.append(f"register {self._name(ptr, size)}")
        self._registered.append(self._name(ptr, size))
        return len(self._registered)

    def serialize_xfer_descs(self, ptr: int, size: int, device_id: int = 0) -> bytes:
        name = self._name(ptr, size)
        self.calls.append(f"describe {name}")
        return f"{self._tag}:{name}".encode() if name in self._registered else b"not registered"

    def get_metadata(self) -> bytes:
        self.calls.append("metadata")
        return f"{self._tag} {' '.join(sorted(self._registered))}".encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        self.calls.append(f"add {bytes(metadata).hex()}")
        return f"peer of {self._tag}"


def says_hello(piece: Any, sizes: dict[str, int], tag: str) -> dict[str, Any]:
    arrays = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
    host = _Host(arrays, tag)
    body = piece.hello(host, arrays)
    return {"calls": host.calls, "body": _hex(body)}


def meets(piece: Any, mine: str, pieces: Sequence[str], tag: str) -> dict[str, Any]:
    """meet() with a peer that does the same: nothing comes from it before it was sent to, as on a slow network."""
    stream, sent, host = _Stream([bytes.fromhex(each) for each in pieces]), bytearray(), _Host({}, tag)

    def receive(size: int) -> bytes:
        if not sent:
            raise RuntimeError("it reads before it has sent: the peer does the same, and both wait for ever")
        return stream.receive(size)

    def describe(peer: Any) -> dict[str, Any]:
        return {"name": peer.name, "descs": {name: bytes(data).hex() for name, data in peer.descs.items()}}

    outcome = _outcome(lambda: piece.meet(host, bytes.fromhex(mine), sent.extend, receive), describe)
    return {"outcome": outcome, "sent": sent.hex(), "calls": host.calls}
