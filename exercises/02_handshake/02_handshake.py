# Exercise 02_handshake, version 1. Leave this line: ep_lib reads it.
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
    # TASK 1 (2 points): a frame: a head that says where the body ends
    # HEAD.pack takes three values, in the order of its comment: MAGIC, zlib.crc32 of the body, and its length.
    # The body follows.
    raise NotImplementedError("Task 1 is still to do: a frame: a head that says where the body ends")
    # end of TASK 1


def read_exactly(receive: Receive, size: int) -> bytes:
    """The next ``size`` bytes of the stream. Raises Stranger if it ends before."""
    # TASK 2 (3 points): read exactly so many bytes
    # receive(n) gives between 1 and n bytes: one call is not enough. Never ask for more than what is still
    # missing, since the next frame may be right behind. b"" means that nothing will come any more: raise
    # Stranger, and say how many of how many bytes came.
    raise NotImplementedError("Task 2 is still to do: read exactly so many bytes")
    # end of TASK 2


def read_frame(receive: Receive) -> bytes:
    """The body of the next frame. Raises Stranger for what is no frame of ours, is too long, or was changed."""
    # TASK 3 (3 points): read a frame, or refuse it
    # Read HEAD.size bytes and HEAD.unpack them. Refuse (raise Stranger) another MAGIC, and a length above
    # MAX_BYTES: do it before you read the body, or a stranger who announces 2**60 bytes makes you wait for
    # them. Then read the body and compare its checksum.
    raise NotImplementedError("Task 3 is still to do: read a frame, or refuse it")
    # end of TASK 3


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
    # TASK 4 (3 points): say hello: register, descriptors, metadata
    # For each array: host.register(array), then host.serialize_xfer_descs(address, bytes), where
    # array.ctypes.data is the address and array.nbytes the size. In the end encode(host.get_metadata(), the
    # descriptors by name). Why in the end?
    raise NotImplementedError("Task 4 is still to do: say hello: register, descriptors, metadata")
    # end of TASK 4


def meet(host: Any, mine: bytes, send: Send, receive: Receive) -> Peer:
    """Swaps hellos with the process at the other end of the stream, which calls this, too."""
    # TASK 5 (3 points): meet the peer
    # Send your frame and read the peer's. Both sides run this code: what happens if both begin with reading?
    # Then decode() the body; host.add_remote_agent(metadata) gives the peer's name. Return a Peer.
    raise NotImplementedError("Task 5 is still to do: meet the peer")
    # end of TASK 5
