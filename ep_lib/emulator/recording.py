"""A recorded run: the events of the runtime's recorder (runtime/recorder.hpp), with names for memory and lines.

``Machine.begin_recording`` switches it on and ``Machine.recording`` returns the recording; ``ep_lib.runtime.replay``
does both for the run of a seed, and ``ep_lib.viz.time_travel`` draws it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ep_lib.emulator import symbols
from ep_lib.emulator.findings import Finding
from ep_lib.emulator.symbols import Place
from ep_lib.jit.lexer import without_comments
from ep_lib.memory.arrays import ArrayInfo

EVENT = np.dtype(
    [(name, "<u8") for name in ("address", "value")]
    + [(name, "<u4") for name in ("block", "thread", "lanes", "bytes", "pc", "turn")]
    + [(name, "u1") for name in ("kind", "flags", "order", "detail")]
    + [("rank", "<i2"), ("scope", "<u2")]
)
"""``epemu::Event`` in runtime/recorder.hpp."""

# EventKind there, and its numbers
# fmt: off
KINDS = (
    "launch", "admit", "access", "fence", "barrier", "named_barrier", "syncwarp", "wait", "resume", "end", "finish",
    "post", "nic_read", "nic_write", "nic_signal", "complete", "quiet", "host_waited", "host_met", "ordered", "finding",
)
# fmt: on
LAUNCH, ADMIT, ACCESS, FENCE, BARRIER, NAMED_BARRIER, SYNCWARP, WAIT, RESUME, END, FINISH = range(11)
POST, NIC_READ, NIC_WRITE, NIC_SIGNAL, COMPLETE, QUIET, HOST_WAITED, HOST_MET, ORDERED, FINDING = range(11, 21)

WRITES, ATOMIC, VOLATILE = 1, 2, 64  # of an access's flags
HAS_VALUE, UPDATES = 1, 2  # of an event's detail
REPORTED = 1  # of a finding's flags: the occurrence that its text describes
NOBODY = 2**64 - 1
NO_BLOCK = 2**32 - 1

LIMIT = 400_000  # events of 48 bytes


class NamedArray(NamedTuple):
    """An array that a kernel was launched with. ``name``: the kernel's name for it, empty if unknown."""

    begin: int
    end: int
    item_bytes: int
    dtype: str
    name: str


@dataclass(frozen=True)
class Launched:
    """A launch and its arrays."""

    rank: int
    ticket: int
    kernel: str
    arrays: tuple[NamedArray, ...]


@dataclass(frozen=True)
class RecordedBlock:
    """``shared``: the address of its shared memory."""

    rank: int
    index: tuple[int, int, int]
    dim: tuple[int, int, int]
    kernel: str
    shared: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """The number of its threads."""
        return self.dim[0] * self.dim[1] * self.dim[2]


@dataclass(frozen=True)
class RecordedMessage:
    """An operation of a NIC, or a bulk copy. ``signal``: the address of its signal, 0 for none."""

    kind: str
    source: int
    target: int
    queue_pair: int
    number: int
    bytes: int
    signal: int


class Found(NamedTuple):
    """A finding, the event at which it was seen, and the event of the first of its two accesses, if known."""

    finding: Finding
    event: int
    first: int | None


@dataclass(frozen=True)
class Recording:
    """One run. ``events`` has the fields of :data:`EVENT`; a block's number is its place in ``blocks``, a pc's line is
    in ``places``. Offsets of ``symmetric`` arrays are equal on all ranks. ``dropped``: the number of events beyond the
    limit.
    """

    program: str
    seed: int
    schedule: str | None  # instead of the seed
    ranks: int
    fabric: str
    events: npt.NDArray[Any]
    blocks: tuple[RecordedBlock | None, ...]
    messages: tuple[RecordedMessage, ...]
    texts: tuple[str, ...]
    places: dict[int, Place]
    launches: tuple[Launched, ...]
    symmetric: tuple[tuple[int, int], ...]
    heaps: int
    heap_stride: int
    found: tuple[Found, ...]
    dropped: int

    @property
    def steps(self) -> int:
        """The number of events, without those that belong to another one."""
        return int(np.count_nonzero(self.events["kind"] < ORDERED))


class Notes:
    """Python's part of a recording: the launches with their arrays, and the places of symmetric arrays."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        self.symmetric: set[tuple[int, int]] = set()

    def launched(self, rank: int, ticket: int, kernel: str, source: str, given: Sequence[Sequence[ArrayInfo]]) -> None:
        """``given``: the arrays behind each of the kernel's parameters, the first of a pointer being its own."""
        names = parameter_names(source, kernel)
        arrays = []
        for position, infos in enumerate(given):
            name = names[position] if position < len(names) else ""
            for part, info in enumerate(infos):
                label = name if len(infos) == 1 else f"{name}[{part}]" if name else ""
                end = info.address + info.nbytes
                arrays.append(NamedArray(info.address, end, info.dtype.itemsize, str(info.dtype), label))
        self.launches.append(Launched(rank, ticket, kernel, tuple(arrays)))


def parameter_names(source: str, kernel: str) -> list[str]:
    """The names of a kernel's parameters in its source; [] if unknown."""
    return [re.findall(r"[A-Za-z_]\w*", text)[-1] for text in _parameters(source, kernel)]


def parameter_types(source: str, kernel: str) -> list[str]:
    """The word before each name: a struct's type without its namespaces."""
    return [re.findall(r"[A-Za-z_]\w*", f"void {text}")[-2] for text in _parameters(source, kernel)]


def read_only_parameters(source: str, kernel: str) -> list[bool]:
    """The parameters of a kernel that are ``const T* __restrict__``: memory that must not change while it runs."""
    return [_READ_ONLY.search(text) is not None for text in _parameters(source, kernel)]


_READ_ONLY = re.compile(r"\bconst\b[^*]*\*[^*]*\b__restrict(?:__)?\b")


@functools.lru_cache(256)
def _parameters(source: str, kernel: str) -> tuple[str, ...]:
    """The parameters of a kernel as its source declares them."""
    source = without_comments(source)
    name = re.escape(kernel.partition("<")[0].rpartition("::")[2])
    match = re.search(rf"\bvoid\s+(?:__launch_bounds__\([^)]*\)\s*)?{name}\s*\(", source)
    if match is None:
        return ()
    depth, parameter, parameters = 0, "", []
    for letter in source[match.end() :]:
        if letter in "([<{":
            depth += 1
        elif letter in ")]>}":
            if depth == 0:
                break
            depth -= 1
        if letter == "," and depth == 0:
            parameters.append(parameter)
            parameter = ""
        else:
            parameter += letter
    declared = [text.partition("=")[0] for text in [*parameters, parameter]]
    return tuple(text for text in declared if re.search(r"[A-Za-z_]", text))


_MESSAGE_KINDS = ("put", "get", "atomic", "bulk load", "bulk store", "async copy")


def read(
    events: npt.NDArray[Any],
    info: dict[str, Any],
    notes: Notes,
    *,
    program: str,
    seed: int,
    schedule: str | None,
    ranks: int,
    fabric: str,
    numbered: Sequence[tuple[int, Finding]],
    ends: Sequence[Finding],
) -> Recording:
    """Combines the records of the runtime and of Python. ``numbered``: findings by the checker's numbers, the most
    important first; the first of equal ones counts. ``ends``: findings at the end of the run, without a number."""
    steps = np.flatnonzero(events["kind"] < ORDERED)
    last = int(steps[-1]) if steps.size else 0
    seen: dict[int, tuple[int, int | None]] = {}  # the reported occurrence of each finding
    for number in np.flatnonzero(events["kind"] == FINDING):
        event = events[number]
        step = int(steps[max(0, int(np.searchsorted(steps, number)) - 1)])
        first = None if event["address"] == NOBODY else int(event["address"])
        if event["flags"] & REPORTED or int(event["value"]) not in seen:
            seen[int(event["value"])] = (step, first)
    found: dict[tuple[str, ...], Found] = {}
    for which, finding in numbered:
        found.setdefault(finding.key, Found(finding, *seen.get(which, (last, None))))
    return Recording(
        program=program,
        seed=seed,
        schedule=schedule,
        ranks=ranks,
        fabric=fabric,
        events=events,
        blocks=tuple(
            block
            and RecordedBlock(
                block["rank"],
                tuple(block["index"]),
                tuple(block["dim"]),
                block["kernel"],
                block["shared"],
                block["shared_bytes"],
            )
            for block in info["blocks"]
        ),
        messages=tuple(
            RecordedMessage(_kind(m), m["source"], m["target"], m["queue_pair"], m["number"], m["bytes"], m["signal"])
            for m in info["messages"]
        ),
        texts=tuple(info["texts"]),
        places={int(pc): symbols.find(spot["image"], spot["offset"]) for pc, spot in info["places"].items() if spot},
        launches=tuple(notes.launches),
        symmetric=tuple(sorted(notes.symmetric)),
        heaps=info["heaps"],
        heap_stride=info["stride"],
        found=(*found.values(), *(Found(end, last, None) for end in ends)),
        dropped=info["dropped"],
    )


def _kind(message: dict[str, Any]) -> str:
    if message["signal"] and not message["kind"]:
        return "put_signal" if message["bytes"] else "signal"
    return _MESSAGE_KINDS[message["kind"]]
