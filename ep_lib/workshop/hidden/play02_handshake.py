"""The other half of ex02_handshake.py, in the child: a stream, a host and a peer around the learner's functions.

Every function notes what it saw and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.workshop.scenario import RETURNED_NOTHING
from ep_lib.workshop.seal import unchanged

_MOST_CALLS = 10_000  # of receive(): more is an endless loop


class Kept:
    """The other end of a stream, and a host: what they still hold and what they were asked, out of the learner's reach.

    receive() gives ``pieces`` one after the other, never more than asked for, and then b"" three times; where
    ``meets``, nothing before something was sent.
    """

    def __init__(self, pieces: Sequence[str] = (), tag: str = "", meets: bool = False) -> None:
        self._pieces = [bytes.fromhex(piece) for piece in pieces if piece]
        self._after_the_end = 0
        self._calls_of_receive = self._given = 0
        self._sent: bytearray | None = bytearray() if meets else None
        self._tag, self._calls, self._registered = tag, [], []  # type: ignore[var-annotated]

    def receive(self, size: int) -> bytes:
        self._calls_of_receive += 1
        if self._sent is not None and not self._sent:
            raise RuntimeError("it reads before it has sent: the peer does the same, and both wait for ever")
        if size < 1 or self._calls_of_receive > _MOST_CALLS:
            raise RuntimeError(f"receive({size}) was call {self._calls_of_receive} on this stream")
        if not self._pieces:
            self._after_the_end += 1
            if self._after_the_end > 3:
                raise RuntimeError('receive() was called on and on, although b"" says that the stream has ended')
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        self._given += min(size, len(piece))
        return piece[:size]

    def send(self, data: str) -> None:
        if self._sent is not None:
            self._sent += bytes.fromhex(data)

    def register(self, name: str) -> int:
        self._calls.append(f"register {name}")
        self._registered.append(name)
        return len(self._registered)

    def describe(self, name: str) -> bytes:
        self._calls.append(f"describe {name}")
        return f"{self._tag}:{name}".encode() if name in self._registered else b"not registered"

    def metadata(self) -> bytes:
        self._calls.append("metadata")
        return f"{self._tag} {' '.join(sorted(self._registered))}".encode()

    def add(self, metadata: str) -> str:
        self._calls.append(f"add {metadata}")
        return f"peer of {self._tag}"

    def seen(self, told: Any) -> dict[str, Any]:
        sent = (self._sent or b"").hex()
        return {**told, "calls": self._calls, "sent": sent, "given": self._given}


# What a piece is handed are functions, and objects of classes made in functions: they have no attribute that leads to
# ``ask``, as a functools.partial would.
def _receiver(ask: Callable[..., Any]) -> Callable[[int], bytes]:
    def receive(size: int) -> bytes:
        data: bytes = ask("receive", int(size))
        return data

    return receive


def _hex(value: Any) -> str:
    if value is None:
        raise TypeError(f"it {RETURNED_NOTHING}")
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"it returned {value!r:.80}, which is no bytes")
    return value.hex()


def _outcome(call: Callable[[], Any], show: Callable[[Any], Any] = _hex) -> dict[str, Any]:
    """What a call returned, or which error of the course's it raised. Others go on, with their line."""
    try:
        return {"got": show(call())}
    except EpError as error:
        return {"error": type(error).__name__, "message": str(error)[:200]}


def frames(piece: Any, bodies: Sequence[str]) -> list[str]:
    return [_hex(piece.frame(bytes.fromhex(body))) for body in bodies]


def reads(piece: Any, ask: Callable[..., Any], sizes: Sequence[int]) -> dict[str, Any]:
    """read_exactly() for each of ``sizes``, from one stream."""
    receive = _receiver(ask)
    return {"outcomes": [_outcome(lambda size=size: piece.read_exactly(receive, size)) for size in sizes]}  # type: ignore[misc]


def read_frames(piece: Any, ask: Callable[..., Any], times: int) -> dict[str, Any]:
    """read_frame() so many times, from one stream."""
    receive = _receiver(ask)
    return {"outcomes": [_outcome(lambda: piece.read_frame(receive)) for _ in range(times)]}


def _host(arrays: dict[str, Any], ask: Callable[..., Any]) -> Any:
    """What of a DeviceHost the piece uses. Its metadata are ``tag`` and the names of what is registered by then."""

    def name_of(address: int, nbytes: int) -> str:
        for name, array in arrays.items():
            if (array.ctypes.data, array.nbytes) == (address, nbytes):
                return name
        return "?"

    class Host:
        def register(self, array: Any) -> int:
            return self.register_dram(array.ctypes.data, array.nbytes)

        def register_dram(self, ptr: int, size: int) -> int:
            number: int = ask("register", name_of(ptr, size))
            return number

        def serialize_xfer_descs(self, ptr: int, size: int, device_id: int = 0) -> bytes:
            descs: bytes = ask("describe", name_of(ptr, size))
            return descs

        def get_metadata(self) -> bytes:
            metadata: bytes = ask("metadata")
            return metadata

        def add_remote_agent(self, metadata: bytes) -> str:
            name: str = ask("add", bytes(metadata).hex())
            return name

    return Host()


def says_hello(piece: Any, ask: Callable[..., Any], sizes: dict[str, int], are_views: bool) -> dict[str, Any]:
    """``are_views``: of one array, from its beginning on."""
    whole = np.full(max(sizes.values(), default=0), 7, np.uint8)
    arrays = {name: whole[:size] if are_views else np.full(size, 7, np.uint8) for name, size in sizes.items()}
    with unchanged(arrays=arrays):
        body = piece.hello(_host(arrays, ask), arrays)
    return {"body": _hex(body)}


def meets(piece: Any, ask: Callable[..., Any], mine: str) -> dict[str, Any]:
    """meet() with a peer that does the same: nothing comes from it before it was sent to, as on a slow network."""

    def describe(peer: Any) -> dict[str, Any]:
        return {"name": peer.name, "descs": {name: bytes(data).hex() for name, data in peer.descs.items()}}

    def send(data: bytes) -> None:
        ask("send", bytes(data).hex())

    receive = _receiver(ask)
    return {"outcome": _outcome(lambda: piece.meet(_host({}, ask), bytes.fromhex(mine), send, receive), describe)}
