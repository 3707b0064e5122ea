"""The grader's requests to the child process, the replies, and their format in a pipe.

A :class:`Scenario` lists the kernels to launch on each rank with their data; it contains only inputs. Outputs return as
plain arrays, and only the parent judges them. For a Python piece, a :class:`Call` names a function of the grader's that
plays the part around it, and returns its observations. Requests are pickles, because the parent is trusted. Replies are
not: a reply is a JSON header and raw bytes, whose number the parent knows in advance.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.accesses import KINDS
from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import EpError
from ep_lib.processes import write_all

MAGIC = b"EPG1"
REQUEST_BYTES = struct.Struct("<Q")  # before each request: the bytes of its pickle
FRAME = struct.Struct("<4sIQ")  # of a reply: magic, bytes of the header, bytes of the body
MAX_HEADER_BYTES = 64 * 1024
ANSWERS = "answers.py"  # the piece with the answers to a notebook's puzzles
RETURNED_NOTHING = "returned nothing: is a `return` missing?"  # of a function in Python, after its name
CHECKER_IS_OFF = "the checker was switched off while it watched: nothing of this run counts"

Array = NDArray[Any]


class BadReply(EpError):
    """The child's reply does not come from the runner: something else wrote into the pipe."""

    def __init__(self) -> None:
        super().__init__("something other than the runner wrote into the grader's own pipe")


class InputWasChanged(EpError):
    """A test's input has changed, although its kernels read it through pointers to const."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Its arguments: the task, all arrays of the scenario in order, and ``args``."""

    grid: int
    block: int | tuple[int, int]  # threads; in a scenario ``called_by`` threads: the number of callers
    args: tuple[int, ...] = ()
    task: int | None = None  # instead of the scenario's
    kernel: str = "examine"


@dataclass(frozen=True)
class Room:
    """An array that kernels fill. The runner chooses its initial content, without zero bytes, so that missing writes
    show."""

    shape: int | tuple[int, ...]
    dtype: Any

    def before(self, rng: np.random.Generator) -> Array:
        like = np.empty(self.shape, self.dtype)
        return rng.integers(1, 256, like.nbytes, np.uint8).view(like.dtype).reshape(like.shape)


Content = Array | Room
ByRank = Content | Sequence[Content]  # equal for all ranks, or one for each


@dataclass(frozen=True)
class Scenario:
    """One run of the emulator: inputs, launches, and the names of the arrays to send back.

    ``symmetric`` and ``local``: each array's initial content, for all ranks or one for each (symmetric: of one shape).
    ``launches``: the launches of all ranks, or of each. ``task``, ``seed`` and the path of the .cu file are set by
    hidden.varied.
    """

    ranks: int
    launches: Launch | Sequence[Launch] | Sequence[Sequence[Launch]]
    outputs: tuple[str, ...]
    afterwards: tuple[Launch, ...] = ()  # launches of every rank, after all ranks have finished
    symmetric: Mapping[str, ByRank] = field(default_factory=dict)
    local: Mapping[str, ByRank] = field(default_factory=dict)
    source: str = ""
    task: int = 0
    seed: int = 0
    heap_bytes: int = 16 << 20
    timeout_s: float = 3.0  # of the emulator, CPU time; the parent's own limit is larger
    fabric: Fabric | None = None  # the ranks' network; None: loads and stores reach all of them
    shim: bool = False  # whether to set up the host side of <ep/ibgda_shim.cuh>
    check_seeds: tuple[int, ...] = ()  # schedules to try under the checker, instead of one run with ``seed``
    exhaustive: bool = False  # every schedule, with weak memory: each output is the maximum over the runs
    alarm: str = ""  # of an exhaustive one: the output in which any value but 0 is a mistake
    watched: tuple[str, ...] = ()  # with check_seeds: arrays whose accesses the judge sees
    hardware: str = ""  # for a run on the virtual clock, instead of one with ``seed``
    called_by: str = ""  # the caller of the piece: a "block", a "warp" (or one thread of it), or each "thread"

    @property
    def world(self) -> dict[str, Any]:
        """The keyword arguments for spawn(), check() and similar functions."""
        return {"ranks": self.ranks, "fabric": self.fabric, "heap_bytes": self.heap_bytes, "timeout": self.timeout_s}

    def launched_by(self, rank: int) -> tuple[Launch, ...]:
        if isinstance(self.launches, Launch):
            return (self.launches,)
        own = self.launches if all(isinstance(each, Launch) for each in self.launches) else self.launches[rank]
        return tuple(own)  # type: ignore[arg-type]  # the sequence has been checked

    def arrays(self, name: str) -> list[Content]:
        """The initial content of the array ``name``, by rank."""
        given = self.symmetric[name] if name in self.symmetric else self.local[name]
        return [given] * self.ranks if isinstance(given, (np.ndarray, Room)) else list(given)

    def likes(self, name: str) -> list[Array]:
        """Arrays of the same shapes, by rank."""
        return [np.empty(each.shape, each.dtype) for each in self.arrays(name)]

    def reply_bytes(self) -> int:
        """The required length of the reply's body in bytes."""
        counted = sum(kinds.nbytes for _ in self.watched for kinds in self.no_accesses()) if self.check_seeds else 0
        return sum(array.nbytes for name in self.outputs for array in self.likes(name)) + counted

    def no_accesses(self) -> list[NDArray[np.int64]]:
        """By the rank whose array it is: zeros of the shape of :meth:`ep_lib.emulator.accesses.Accesses.kinds`."""
        return [np.zeros((self.ranks, *KINDS), np.int64) for _ in range(self.ranks)]


@dataclass(frozen=True)
class Call:
    """A call of ``function(piece, **arguments)``: a function of ``program``, a file of the grader's, which runs beside
    the emulator, with the learner's file ``piece``, a :class:`ep_lib.workshop.grader.process.far.Guest`. It returns its
    observations as JSON data that fits into a header.

    With ``of_ranks``, the function gets a list of that many pieces, each in a process for its rank.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    of_ranks: int = 0
    program: str = ""  # as `piece`, set by hidden.varied
    piece: str = ""

    @property
    def ranks(self) -> int:
        return self.of_ranks or 1

    @property
    def check_seeds(self) -> tuple[int, ...]:
        """Empty: without kernels there is no checker."""
        return ()

    def reply_bytes(self) -> int:
        return 0


@dataclass(frozen=True)
class Failure:
    """An exception in the child: its kind, its message, and its place in a source file. Untrusted: only for display."""

    kind: str
    message: str
    location: str = ""


@dataclass(frozen=True)
class Side:
    """One access of a :class:`Complaint`: ``file:line``, the text there, and the NIC's operation, if any."""

    location: str
    source: str
    operation: str = ""


@dataclass(frozen=True)
class Complaint:
    """The checker's finding about two accesses (:class:`ep_lib.emulator.findings.Finding`). Untrusted, like Failure."""

    kind: str
    message: str
    remedy: str
    detail: str
    seed: str
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Outputs:
    """The results of one scenario: arrays by name and rank, or a failure; and the checker's findings, if it ran.

    For a :class:`Call` it is ``seen``, which is untrusted: the judge checks its shape, too. ``nanoseconds``: of virtual
    time, from the beginning of the first kernel to the end of the last, if the scenario wants it. ``unseen``: bytes
    that changed without a write visible to the checker. ``accesses``: the counts of
    :meth:`ep_lib.emulator.accesses.Accesses.kinds` for the scenario's ``watched`` arrays, by name and owning rank.
    ``looks``: places in the compiled code for an instructor to look at.
    """

    arrays: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    failure: Failure | None = None
    complaints: tuple[Complaint, ...] = ()
    seen: Any = None
    nanoseconds: float = 0.0
    unseen: int = 0
    accesses: Mapping[str, Sequence[NDArray[np.int64]]] = field(default_factory=dict)
    looks: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Sequence[Array]:
        return self.arrays[name]


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame of the wire format."""
    text = json.dumps(header).encode()
    return FRAME.pack(MAGIC, len(text), len(body)) + text + body


def answer_each(requests: BinaryIO, reply: int, answer: Callable[[Any], bytes]) -> None:
    """Answers each request with the frame of ``answer``, in a child, until the grader closes the pipe."""
    while len(prefix := requests.read(REQUEST_BYTES.size)) == REQUEST_BYTES.size:
        write_all(reply, answer(pickle.loads(requests.read(REQUEST_BYTES.unpack(prefix)[0]))))


def frame_sizes(prefix: bytes, max_body: int) -> tuple[int, int]:
    """Bytes of header and body from a frame's first 16 bytes. Raises BadReply if they are invalid."""
    magic, header, body = FRAME.unpack(prefix)
    if magic != MAGIC or header > MAX_HEADER_BYTES or body > max_body:
        raise BadReply
    return header, body


_LONGEST_LOOK = 200  # characters


def unpack_outputs(scenario: Scenario | Call | None, nonce: str, header: bytes, body: bytes) -> Outputs:
    """The reply of the child as :class:`Outputs`. Raises BadReply if it is not an answer to this request."""
    try:
        reply = json.loads(header)
        if reply["nonce"] != nonce:
            raise ValueError("another nonce")
        complaints = tuple(_complaint(each) for each in reply.get("complaints", []))
        looks = tuple(str(each)[:_LONGEST_LOOK] for each in reply.get("looks", []))
        failure = reply["failure"]
        if failure is not None:
            fields = {key: str(failure[key]) for key in ("kind", "message", "location")}
            return Outputs(failure=Failure(**fields), complaints=complaints, looks=looks)
        if isinstance(scenario, Call):
            return Outputs(seen=reply["seen"])
        nanoseconds, unseen = float(reply.get("nanoseconds", 0.0)), int(reply.get("unseen", 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadReply from error
    if scenario is None:
        return Outputs(looks=looks)
    if len(body) != scenario.reply_bytes():
        raise BadReply
    at = 0

    def read(likes: Sequence[Array]) -> list[Array]:
        nonlocal at
        found = []
        for like in likes:
            found.append(np.frombuffer(body, like.dtype, like.size, at).reshape(like.shape))
            at += like.nbytes
        return found

    arrays = {name: read(scenario.likes(name)) for name in scenario.outputs}
    accesses = {name: read(scenario.no_accesses()) for name in (scenario.watched if scenario.check_seeds else ())}
    return Outputs(arrays, complaints=complaints, nanoseconds=nanoseconds, unseen=unseen, accesses=accesses)


def _complaint(raw: Mapping[str, Any]) -> Complaint:
    words = {key: str(raw[key]) for key in ("kind", "message", "remedy", "detail", "seed")}
    sides = tuple(Side(*(str(each[key]) for key in ("location", "source", "operation"))) for each in raw["sides"])
    return Complaint(**words, sides=sides)
