"""How two processes introduce their memory to each other, before one of them may write into the other's.

    register memory                                       register memory
    hello: metadata, descriptors  ---- a stream ---->     read, check, add_remote_agent
    read, check, add_remote_agent <--- a stream -----     hello: metadata, descriptors
    create_write_req(..., descriptors of "data", name)

A stream (TCP, a pipe) knows no messages: bytes come in pieces of any size, and they may end too early, have been
changed, or be those of a stranger that has connected to the port. Nothing that arrives is unpickled, since unpickling
runs code of the sender's choice.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ep_lib.errors import RankFailed

MAGIC = b"EPHELLO\n"
HEAD = struct.Struct("<8sIQ")  # MAGIC, the CRC-32 of the body (zlib.crc32), and how many bytes the body has
MAX_BYTES = 1 << 20  # of a body

Send = Callable[[bytes], None]
Receive = Callable[[int], bytes]  # gives at least one byte, at most as many as asked for; b"": the peer has closed


class Peer(NamedTuple):
    """Who is at the other end: its name for requests, and descriptors of its memory by their names."""

    name: str
    descs: Mapping[str, bytes]


class Stranger(RankFailed):
    """What arrived was not sent by a peer of ours, or not all of it arrived."""

    def __init__(self, message: str) -> None:
        super().__init__(message, rank=-1)


# ---- bytes on a stream -----------------------------------------------------------------------------------------------
def frame(body: bytes) -> bytes:
    """The body as it goes onto the stream: behind a HEAD that says where it ends."""
    return HEAD.pack(MAGIC, zlib.crc32(body), len(body)) + body


def read_exactly(receive: Receive, size: int) -> bytes:
    """The next ``size`` bytes of the stream. Raises Stranger if it ends before."""
    data = bytearray()
    while len(data) < size:
        piece = receive(size - len(data))
        if not piece:
            raise Stranger(f"the stream ended after {len(data)} of {size} bytes: has the peer died?")
        data += piece
    return bytes(data)


def read_frame(receive: Receive) -> bytes:
    """The body of the next frame. Raises Stranger for what is no frame of ours, is too long, or was changed."""
    magic, checksum, length = HEAD.unpack(read_exactly(receive, HEAD.size))
    if magic != MAGIC:
        raise Stranger(f"what came begins with {magic!r}, not with {MAGIC!r}: is another program on this port?")
    if length > MAX_BYTES:
        raise Stranger(f"a body of {length} bytes is announced; at most {MAX_BYTES} are allowed")
    body = read_exactly(receive, length)
    if zlib.crc32(body) != checksum:
        raise Stranger(f"the {length} bytes were changed on the way: their checksum differs")
    return body


# ---- what is in a hello ----------------------------------------------------------------------------------------------
def encode(metadata: bytes, descs: Mapping[str, bytes]) -> bytes:
    """Metadata and descriptors as JSON."""
    texts = {name: base64.b64encode(data).decode() for name, data in descs.items()}
    return json.dumps({"metadata": base64.b64encode(metadata).decode(), "descs": texts}).encode()


def decode(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """What encode() was given on the other side. Raises Stranger for anything else."""
    try:
        found = json.loads(body)
        descs = {name: base64.b64decode(text, validate=True) for name, text in found["descs"].items()}
        return base64.b64decode(found["metadata"], validate=True), descs
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Stranger(f"a body of {len(body)} bytes is no hello ({type(error).__name__}: {error})") from error


def hello(host: Any, arrays: Mapping[str, Any]) -> bytes:
    """Makes the NumPy ``arrays`` reachable for peers of ``host`` (a DeviceHost), and says so in bytes, by encode().

    Metadata hold what is registered at that moment: what is registered later, peers do not know. ``arrays`` stay as
    they are.
    """
    descs = {}
    for name, array in arrays.items():
        host.register(array)
        descs[name] = host.serialize_xfer_descs(array.ctypes.data, array.nbytes)
    return encode(host.get_metadata(), descs)


def meet(host: Any, mine: bytes, send: Send, receive: Receive) -> Peer:
    """Swaps hellos with the process at the other end of the stream, which calls this, too."""
    send(frame(mine))
    metadata, descs = decode(read_frame(receive))
    return Peer(host.add_remote_agent(metadata), descs)
