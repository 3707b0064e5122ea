"""Hidden tests of exercise 02_handshake: frames, strangers, the order of a hello, and a meeting; in Python."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, calling, drawn, one

_HEAD = struct.Struct("<8sIQ")
_MAGIC, _MAX_BYTES = b"EPHELLO\n", 1 << 20
_STRANGER = "Stranger"
# dtype and shape: neither len() nor .size of them counts bytes
_ARRAYS = {"data": ("float32", (16, 64)), "signal": ("int64", (1,)), "Weights": ("uint8", (3, 100))}


def _framed(body: bytes, magic: bytes = _MAGIC, length: int | None = None, checksum: int | None = None) -> bytes:
    crc = zlib.crc32(body) if checksum is None else checksum
    return _HEAD.pack(magic, crc, len(body) if length is None else length) + body


def _cut(rng: Rng, data: bytes, most: int) -> list[str]:
    """The data as pieces of 1 to ``most`` bytes."""
    pieces, at = [], 0
    while at < len(data):
        size = int(rng.integers(1, most + 1))
        pieces.append(data[at : at + size].hex())
        at += size
    return pieces


# ---- task 1 ----------------------------------------------------------------------------------------------------------
def _frames(rng: Rng) -> Case:
    bodies = [b"", b"x", *map(rng.bytes, map(int, rng.integers(257, 3000, 2)))]

    def judge(seen: Any) -> str | None:
        for body, got in zip(bodies, map(bytes.fromhex, seen), strict=True):
            if len(got) != _HEAD.size + len(body):
                return f"a body of {len(body)} bytes became a frame of {len(got)}, and HEAD takes {_HEAD.size}"
            magic, checksum, length = _HEAD.unpack_from(got)
            if (magic, length) != (_MAGIC, len(body)) or got[_HEAD.size :] != body:
                return f"the frame of {len(body)} bytes: MAGIC, the length or the body itself is not where HEAD says"
            if checksum != zlib.crc32(body):
                return "the checksum is not zlib.crc32 of the body"
        return None

    return calling("frames", judge, bodies=[body.hex() for body in bodies])


# ---- task 2 ----------------------------------------------------------------------------------------------------------
@drawn
def _reads(rng: Rng, *most: int) -> Iterator[Case]:
    for each in most:
        sizes = [int(rng.integers(2, 30)), 1, 0, *map(int, rng.integers(60, 300, 2))]
        data = rng.bytes(sum(sizes))

        def judge(seen: Any, sizes: list[int] = sizes, data: bytes = data) -> str | None:
            at = 0
            for size, outcome in zip(sizes, seen["outcomes"], strict=True):
                if "error" in outcome:
                    return f"{size} bytes of a stream that had them: it raised {outcome['message']}"
                if bytes.fromhex(outcome["got"]) != data[at : at + size]:
                    got = len(outcome["got"]) // 2
                    return f"it was to read bytes {at} to {at + size} of a stream and returned {got} bytes, or others"
                at += size
            return None

        yield calling("reads", judge, sizes=sizes, pieces=_cut(rng, data, each))


@drawn
def _ends_early(rng: Rng) -> Iterator[Case]:
    asked = int(rng.integers(40, 90))
    for came in (asked - int(rng.integers(1, 20)), 0):

        def judge(seen: Any, came: int = came) -> str | None:
            (outcome,) = seen["outcomes"]
            if outcome.get("error") != _STRANGER:
                did = f"returned {len(outcome['got']) // 2} bytes" if "got" in outcome else f"raised {outcome['error']}"
                return f"{asked} bytes of a stream that ended after {came}: it {did} instead of raising Stranger"
            told = re.findall(r"\d+", outcome["message"])
            wanted = f"{came} of {asked}"
            return (
                None if {str(came), str(asked)} <= {*told} else f"Stranger does not say how many bytes came: {wanted}"
            )

        yield calling("reads", judge, sizes=[asked], pieces=_cut(rng, rng.bytes(came), 20))


# ---- task 3 ----------------------------------------------------------------------------------------------------------
def _good_frames(rng: Rng) -> Case:
    bodies = [rng.bytes(int(rng.integers(257, 900))), b"", rng.bytes(int(rng.integers(1, 60)))]
    stream = b"".join(map(_framed, bodies))

    def judge(seen: Any) -> str | None:
        for body, outcome in zip(bodies, seen["outcomes"], strict=True):
            if "error" in outcome:
                return f"a right frame of {len(body)} bytes was refused: {outcome['message']}"
            if bytes.fromhex(outcome["got"]) != body:
                return f"the body of {len(body)} bytes came back as {len(outcome['got']) // 2} bytes, or others"
        return None

    return calling("read_frames", judge, times=len(bodies), pieces=_cut(rng, stream, 60))


def _refused(rng: Rng, what: str, make: Callable[[Rng], bytes], *, by_its_head: bool = False) -> Case:
    """A frame that is refused ``by_its_head``, or only after its bytes, or when bytes are missing."""
    frame = make(rng)

    def judge(seen: Any) -> str | None:
        (outcome,) = seen["outcomes"]
        if "got" in outcome:
            return f"{what} was taken for a right one"
        if outcome["error"] != _STRANGER:
            return f"{what}: it raised {outcome['error']} instead of Stranger"
        if by_its_head and seen["given"] > _HEAD.size:
            return f"{what}: it went on to read the body, although the head says enough"
        if not by_its_head and seen["given"] < len(frame):
            return f"{what}: it was refused when {seen['given']} bytes were read, and these were those of a right one"
        return None

    return calling("read_frames", judge, times=1, pieces=_cut(rng, frame, 90))


def _changed(frame: bytes, bit: int) -> bytes:
    data = bytearray(frame)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def _each_bit(rng: Rng, what: str, begin: int, end: int, most: int) -> Case:
    """Frames of up to ``most`` bytes, one behind the other, each with another changed bit in bytes ``begin`` to
    ``end``. A piece may read each to its end, so the next frame is read from its beginning."""
    bits = range(8 * begin, 8 * end)
    frames = [_changed(_framed(rng.bytes(int(rng.integers(most + 1)))), bit) for bit in bits]

    def judge(seen: Any) -> str | None:
        for outcome in seen["outcomes"]:
            if "got" in outcome:
                return f"a frame with one bit of {what} changed was taken for a right one"
            if outcome["error"] != _STRANGER:
                return f"a frame with one bit of {what} changed: it raised {outcome['error']} instead of Stranger"
        return None

    return calling("read_frames", judge, times=len(frames), pieces=_cut(rng, b"".join(frames), 90))


def _crc(rng: Rng) -> int:
    return int(rng.integers(1, 1 << 32))  # not 0, the CRC of 0 bytes


def _bit_changed(rng: Rng) -> bytes:
    return _changed(_framed(rng.bytes(200)), 8 * _HEAD.size + int(rng.integers(8 * 200)))


def _announces(length: int, there: int = 10) -> Callable[[Rng], bytes]:
    return lambda rng: _framed(rng.bytes(there), length=length)


_STRANGERS = (
    one(_refused, "a frame of another program", lambda rng: _framed(rng.bytes(64), b"HTTP/1.1"), by_its_head=True),
    one(_each_bit, "MAGIC", 0, len(_MAGIC), 0),
    one(_refused, "a frame with one bit of its body changed", _bit_changed),
    one(_each_bit, "its checksum", len(_MAGIC), len(_MAGIC) + 4, 60),
    one(_refused, "a frame without a body, with the checksum of another", lambda rng: _framed(b"", checksum=_crc(rng))),
    one(_refused, "a frame that announces 2**60 bytes and a few", _announces((1 << 60) + 10), by_its_head=True),
    one(_refused, "a frame of one byte more than MAX_BYTES", _announces(_MAX_BYTES + 1), by_its_head=True),
    one(_refused, "a frame of MAX_BYTES that ends too early", _announces(_MAX_BYTES, 80)),
    one(_refused, "a frame whose body ends too early", _announces(100, 80)),
    one(_refused, "a head that ends too early", lambda rng: _framed(b"")[:13]),
)


# ---- task 4 ----------------------------------------------------------------------------------------------------------
def _hello(rng: Rng, kinds: Mapping[str, tuple[str, Sequence[int]]] = _ARRAYS, *, are_views: bool = False) -> Case:
    tag = f"host{rng.integers(10**6)}"

    def judge(seen: Any) -> str | None:
        calls, body = seen["calls"], json.loads(bytes.fromhex(seen["body"]))
        if "register ?" in calls or "describe ?" in calls:
            return "it registers or describes what is none of the arrays: array.ctypes.data, and array.nbytes bytes"
        if missing := [name for name in kinds if f"register {name}" not in calls]:
            return f"{missing[0]!r} was never registered"
        metadata = base64.b64decode(body["metadata"]).decode()
        if not metadata.startswith(f"{tag} "):
            return f"the metadata in the hello of {len(kinds)} arrays are not what host.get_metadata() gives"
        if metadata != f"{tag} {' '.join(sorted(kinds))}":
            known = metadata.split()[1:]
            return f"the metadata were taken when only {known} were registered, so peers do not know the rest"
        found = {name: base64.b64decode(text).decode() for name, text in body["descs"].items()}
        if "not registered" in found.values():
            return "descriptors were made of memory that was not registered yet"
        wanted = {name: f"{tag}:{name}" for name in kinds}
        return None if found == wanted else f"the descriptors are of {found}; each name needs those of its own array"

    return calling("says_hello", judge, tag=tag, kinds=kinds, are_views=are_views)


# ---- task 5 ----------------------------------------------------------------------------------------------------------
def _encoded(metadata: bytes, descs: Mapping[str, bytes]) -> bytes:
    texts = {name: base64.b64encode(data).decode() for name, data in descs.items()}
    return json.dumps({"metadata": base64.b64encode(metadata).decode(), "descs": texts}).encode()


def _meeting(rng: Rng) -> Case:
    tag, mine, metadata = f"me{rng.integers(10**6)}", rng.bytes(77), rng.bytes(500)
    descs = {"data": rng.bytes(40), "signal": rng.bytes(30)}
    pieces = _cut(rng, _framed(_encoded(metadata, descs)), 200)

    def judge(seen: Any) -> str | None:
        outcome = seen["outcome"]
        if "error" in outcome:
            return f"it raised {outcome['error']}: {outcome['message']}"
        if bytes.fromhex(seen["sent"]) != _framed(mine):
            return "what it sent is not one frame with its own hello"
        if seen["calls"] != [f"add {metadata.hex()}"]:
            return "add_remote_agent() was not called once, with the peer's metadata"
        if outcome["got"]["name"] != f"peer of {tag}":
            return "the Peer's name is not what add_remote_agent() returned"
        wanted = {name: data.hex() for name, data in descs.items()}
        return None if outcome["got"]["descs"] == wanted else "the Peer's descriptors are not those that came"

    return calling("meets", judge, tag=tag, mine=mine.hex(), pieces=pieces)


def _a_stranger_comes(rng: Rng) -> Case:
    body = json.dumps({"hello": "world"}).encode()

    def judge(seen: Any) -> str | None:
        if seen["outcome"].get("error") != _STRANGER:
            return "a frame without metadata came, and meet() did not raise Stranger"
        return "add_remote_agent() was called with what a stranger sent" if seen["calls"] else None

    return calling("meets", judge, tag="", mine=b"me".hex(), pieces=[_framed(body).hex()])


_WHOLE = "One receive() may give less than was asked for, and must not take what belongs to the next frame."
_TRUST = "Check before you go on: MAGIC and length before the body is read, the checksum before it is used."
_HELLOS = all_of(one(_hello), one(_hello, {}), one(_hello, are_views=True))
_REGISTER = "First register, then describe; the metadata come last, since they list what is registered by then."
_BOTH = "Both sides run the same code: send first, then read; decode() refuses what is no hello."


BEHAVIOURS = (
    Behaviour(1, "a frame is head and body", one(_frames), "HEAD.pack(MAGIC, checksum, length), then the body."),
    Behaviour(2, "bytes come in pieces of any size", _reads(1000, 30, 1), _WHOLE),
    Behaviour(2, "the end of the stream is an error", _ends_early(), 'receive() returns b"" at the end, for ever.'),
    Behaviour(3, "right frames are read, one behind the other", one(_good_frames), _WHOLE),
    Behaviour(3, "strangers and accidents are refused", all_of(*_STRANGERS), _TRUST),
    Behaviour(4, "a hello says what is registered", _HELLOS, _REGISTER),
    Behaviour(5, "two that run it meet", one(_meeting), _BOTH),
    Behaviour(5, "a stranger is refused", one(_a_stranger_comes), _BOTH),
)

REHEARSED = 99  # cases of each, in the public checks
