"""What the grader asks of the child process, what comes back, and how both cross a pipe.

A :class:`Scenario` says which kernels to launch on which rank with which data; it holds inputs only. The outputs come
back as plain arrays, and only the parent judges them. For a piece in Python, a :class:`Call` names a function of the
grader's that plays the part around it, and what that function saw comes back. Requests are pickles, because the parent
is trusted. Replies never are: a reply is a JSON header and raw bytes whose number the parent knows in advance.
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
ANSWERS = "answers.py"  # the piece with what was answered to the puzzles of a notebook
RETURNED_NOTHING = "returned nothing: is a `return` missing?"  # of a function in Python, after its name
CHECKER_IS_OFF = "the checker was switched off while it watched: nothing of this run counts"

Array = NDArray[Any]


class BadReply(EpError):
    """The child's reply does not come from the runner: something else wrote into the pipe."""

    def __init__(self) -> None:
        super().__init__("something other than the runner wrote into the grader's own pipe")


class InputWasChanged(EpError):
    """Something was written into a test's input, which its kernels read through pointers to const."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. What it passes: the task, all arrays of the scenario in their order, and ``args``."""

    grid: int
    block: int | tuple[int, int]  # threads; of a scenario that is ``called_by`` threads: how many of them call
    args: tuple[int, ...] = ()
    task: int | None = None  # instead of the scenario's
    kernel: str = "examine"


@dataclass(frozen=True)
class Room:
    """An array that kernels fill: what was there before is the runner's choice, and no byte of it is 0, which one that
    writes nothing would leave."""

    shape: int | tuple[int, ...]
    dtype: Any

    def before(self, rng: np.random.Generator) -> Array:
        like = np.empty(self.shape, self.dtype)
        return rng.integers(1, 256, like.nbytes, np.uint8).view(like.dtype).reshape(like.shape)


Content = Array | Room
ByRank = Content | Sequence[Content]  # of every rank, or one by one


@dataclass(frozen=True)
class Scenario:
    """One run of the emulator: inputs, launches, and the names of the arrays to send back.

    ``symmetric`` and ``local`` give each array's first content, of every rank or one by one (symmetric: of one shape),
    and ``launches`` what every rank launches, or what each does. ``task``, ``seed`` and the path of the .cu file are
    set by hidden.varied.
    """

    ranks: int
    launches: Launch | Sequence[Launch] | Sequence[Sequence[Launch]]
    outputs: tuple[str, ...]
    afterwards: tuple[Launch, ...] = ()  # by every rank, when all ranks are done
    symmetric: Mapping[str, ByRank] = field(default_factory=dict)
    local: Mapping[str, ByRank] = field(default_factory=dict)
    source: str = ""
    task: int = 0
    seed: int = 0
    heap_bytes: int = 16 << 20
    timeout_s: float = 3.0  # of the emulator, CPU time; the parent's own limit is larger
    fabric: Fabric | None = None  # what connects the ranks; None: loads and stores reach all of them
    shim: bool = False  # whether the host side of <ep/ibgda_shim.cuh> is set up
    check_seeds: tuple[int, ...] = ()  # schedules to try under the checker, in place of one run with ``seed``
    exhaustive: bool = False  # every schedule, with weak memory: of each output, the largest values of any of the runs
    alarm: str = ""  # of an exhaustive one: the output of which every value but 0 is a mistake of its run
    watched: tuple[str, ...] = ()  # with check_seeds: arrays of which the judge sees how they were accessed
    hardware: str = ""  # on whose virtual clock the run is timed, in place of a run with ``seed``
    called_by: str = ""  # who calls the piece: a "block", a "warp" (or one thread of it), or each "thread"

    @property
    def world(self) -> dict[str, Any]:
        """What runs its ranks, spawn() and check() for instance, takes by these names."""
        return {"ranks": self.ranks, "fabric": self.fabric, "heap_bytes": self.heap_bytes, "timeout": self.timeout_s}

    def launched_by(self, rank: int) -> tuple[Launch, ...]:
        if isinstance(self.launches, Launch):
            return (self.launches,)
        own = self.launches if all(isinstance(each, Launch) for each in self.launches) else self.launches[rank]
        return tuple(own)  # type: ignore[arg-type]  # the sequence has been looked at

    def arrays(self, name: str) -> list[Content]:
        """By rank."""
        given = self.symmetric[name] if name in self.symmetric else self.local[name]
        return [given] * self.ranks if isinstance(given, (np.ndarray, Room)) else list(given)

    def likes(self, name: str) -> list[Array]:
        """Arrays of the same shapes, by rank."""
        return [np.empty(each.shape, each.dtype) for each in self.arrays(name)]

    def reply_bytes(self) -> int:
        """How long the body of the reply must be."""
        counted = sum(kinds.nbytes for _ in self.watched for kinds in self.no_accesses()) if self.check_seeds else 0
        return sum(array.nbytes for name in self.outputs for array in self.likes(name)) + counted

    def no_accesses(self) -> list[NDArray[np.int64]]:
        """By the rank whose array it is: zeros of the shape of :meth:`ep_lib.emulator.accesses.Accesses.kinds`."""
        return [np.zeros((self.ranks, *KINDS), np.int64) for _ in range(self.ranks)]


@dataclass(frozen=True)
class Call:
    """A call of ``function(piece, **arguments)``: a function of ``program``, a file of the grader's, which runs beside
    the emulator, and the learner's file ``piece``, a :class:`ep_lib.workshop.far.Guest`. It returns plain data (what
    JSON has), at most as much as fits into a header: what it saw.

    With ``of_ranks``, the function gets a list of so many, a process for each rank.
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
        """No kernel, no checker."""
        return ()

    def reply_bytes(self) -> int:
        return 0


@dataclass(frozen=True)
class Failure:
    """An exception in the child: its kind, its message, and where in a source file. Untrusted: only for display."""

    kind: str
    message: str
    location: str = ""


@dataclass(frozen=True)
class Side:
    """One access of a :class:`Complaint`: ``file:line``, the text there, and the operation if a NIC made the access."""

    location: str
    source: str
    operation: str = ""


@dataclass(frozen=True)
class Complaint:
    """What the checker says about two accesses (:class:`ep_lib.emulator.findings.Finding`). Untrusted, like Failure."""

    kind: str
    message: str
    remedy: str
    detail: str
    seed: str
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Outputs:
    """What one scenario gave: arrays by name and rank, or a failure; and what the checker found, if it ran.

    Of a :class:`Call` it is ``seen``. Untrusted: the judge looks at its shape, too. ``nanoseconds``: of virtual time,
    from the beginning of the first kernel to the end of the last, where the scenario asks for it. ``unseen``: bytes
    that changed although the checker saw no write to them. ``accesses``: of the scenario's ``watched``, by name and by
    the rank whose array it is, what :meth:`ep_lib.emulator.accesses.Accesses.kinds` counted. ``looks``: of what was
    compiled, what an instructor should look at.
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
    """Writes the frame that ``answer`` gives for each request, in a child, until the grader closes the pipe."""
    while len(prefix := requests.read(REQUEST_BYTES.size)) == REQUEST_BYTES.size:
        write_all(reply, answer(pickle.loads(requests.read(REQUEST_BYTES.unpack(prefix)[0]))))


def frame_sizes(prefix: bytes, max_body: int) -> tuple[int, int]:
    """Bytes of header and body that a frame's first 16 bytes announce. Raises BadReply if they are not a frame's."""
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
    arrays: dict[str, list[Array]] = {}
    at = 0
    for name in scenario.outputs:
        arrays[name] = []
        for like in scenario.likes(name):
            raw = np.frombuffer(body, dtype=like.dtype, count=like.size, offset=at)
            arrays[name].append(raw.reshape(like.shape))
            at += like.nbytes
    accesses: dict[str, list[NDArray[np.int64]]] = {}
    for name in scenario.watched if scenario.check_seeds else ():
        accesses[name] = []
        for like in scenario.no_accesses():
            accesses[name].append(np.frombuffer(body, like.dtype, like.size, at).reshape(like.shape))
            at += like.nbytes
    return Outputs(arrays, complaints=complaints, nanoseconds=nanoseconds, unseen=unseen, accesses=accesses)


def _complaint(raw: Mapping[str, Any]) -> Complaint:
    words = {key: str(raw[key]) for key in ("kind", "message", "remedy", "detail", "seed")}
    sides = tuple(Side(*(str(each[key]) for key in ("location", "source", "operation"))) for each in raw["sides"])
    return Complaint(**words, sides=sides)
