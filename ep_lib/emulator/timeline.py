"""What happened when in a simulated run: who worked and waited, what flew, and what kernels said about themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.emulator import chrome_trace
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import Hardware


@dataclass(frozen=True)
class Span:
    """A block or warp was at something from ``begin_ns`` to ``end_ns``.

    ``kind``: "kernel" (a block, from its first to its last thread; ``warp`` is None and ``name`` the kernel's), "wait"
    (a poll, a quiet or a full queue pair), "copy" (loads and stores of global memory without a pause between them) or
    "post" (a thread hands an operation to the NIC). ``where``: ``file:line`` for waits and posts.
    """

    rank: int
    block: int
    warp: int | None
    kind: str
    name: str
    begin_ns: float
    end_ns: float
    where: str = ""


@dataclass(frozen=True)
class Message:
    """An operation of a NIC: ``number`` counts all of them in the order of posting.

    ``kind``: "put", "get", "put_signal" or "add". ``bytes``: payload; ``wire_bytes``: with headers, signal and request.
    Posted by a thread, its first byte on the wire (``departed_ns``), all of it and its signal written
    (``delivered_ns``), known to the poster's NIC and visible to a quiet (``completed_ns``); infinite if the link was
    broken.
    """

    number: int
    source: int
    target: int
    queue_pair: int
    kind: str
    bytes: int
    wire_bytes: float
    posted_ns: float
    departed_ns: float
    delivered_ns: float
    completed_ns: float
    where: str = ""


@dataclass(frozen=True)
class Sample:
    """``ep::trace_value(name, value)`` of a kernel (<ep/trace.cuh>)."""

    rank: int
    block: int
    name: str
    at_ns: float
    value: float


@dataclass(frozen=True)
class Timeline:
    """What :func:`ep_lib.simulate` returns. ``results``: main's, in rank order. Spans, messages and samples are in the
    order of their beginnings. ``end_ns``: when the last of them ended; all times count from the start of the run."""

    results: list[Any]
    hardware: Hardware
    fabric: Fabric
    ranks: int
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]
    samples: tuple[Sample, ...]
    end_ns: float

    @property
    def microseconds(self) -> float:
        """``end_ns`` in microseconds."""
        return self.end_ns / 1e3

    def chrome_trace(self) -> dict[str, Any]:
        """In Chrome's trace event format: processes are ranks, threads their blocks, warps and NICs."""
        return chrome_trace.from_timeline(self)

    def save(self, path: str | Path) -> None:
        """Writes :meth:`chrome_trace` as JSON, which https://ui.perfetto.dev opens."""
        Path(path).write_text(json.dumps(self.chrome_trace(), separators=(",", ":"), allow_nan=False))
