"""The timeline of a simulated run: work and waits of blocks and warps, messages of NICs, samples of kernels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import Hardware
from ep_lib.errors import ArgumentError
from ep_lib.require import a_path


@dataclass(frozen=True)
class Span:
    """An activity of a block or warp from ``begin_ns`` to ``end_ns``.

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
    Times: posted by a thread (``posted_ns``), first byte on the wire (``departed_ns``), data and signal written
    (``delivered_ns``), visible to the poster's quiet (``completed_ns``); infinite if the link was broken.
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
    """The result of :func:`ep_lib.simulate`. ``results``: main's, in rank order. Spans, messages and samples are in the
    order of their beginnings. ``end_ns``: the end of the last one; times count from the start of the run."""

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

    @property
    def kernel_us(self) -> float:
        """From the beginning of the first kernel to the end of the last, in microseconds."""
        kernels = [span for span in self.spans if span.kind == "kernel"]
        return (max(span.end_ns for span in kernels) - min(span.begin_ns for span in kernels)) / 1e3

    def chrome_trace(self) -> dict[str, Any]:
        """In Chrome's trace event format: processes are ranks, threads their blocks, warps and NICs."""
        return _trace_events(self)

    def save(self, path: str | Path) -> None:
        """Writes :meth:`chrome_trace` as JSON, which https://ui.perfetto.dev opens. Raises ArgumentError where no file
        can be written."""
        file = a_path("path", path)
        try:
            file.write_text(json.dumps(self.chrome_trace(), separators=(",", ":"), allow_nan=False))
        except OSError as error:
            raise ArgumentError(f"cannot write the timeline to {str(path)!r}: {error}; name another file") from error


# ---- Chrome's trace event format, which https://ui.perfetto.dev opens. Processes are ranks; their threads are blocks
# (kernels), warps of blocks, and the two directions of the NIC. Arrows lead from the thread that posted a message to
# its departure and delivery; counters show samples. Times are in microseconds.

_WARPS = 64  # lanes kept for a block: itself and up to 32 warps
_NIC = 1 << 24  # the first lane of the NIC


def _lane(block: int, warp: int | None) -> int:
    return block * _WARPS + (0 if warp is None else warp + 1)


def _trace_events(timeline: Timeline) -> dict[str, Any]:
    """The trace as a dict for ``json.dump``."""
    events: list[dict[str, Any]] = []
    lanes: dict[tuple[int, int], str] = {}
    for span in timeline.spans:
        lane = _lane(span.block, span.warp)
        lanes[span.rank, lane] = f"block {span.block}" + ("" if span.warp is None else f" warp {span.warp}")
        events.append(_complete(span.rank, lane, span.kind, span.name, span.begin_ns, span.end_ns, where=span.where))
    warps = {(s.rank, s.begin_ns, s.where): _lane(s.block, s.warp) for s in timeline.spans if s.kind == "post"}
    for message in timeline.messages:
        if message.completed_ns == math.inf:
            continue
        _add_message(events, lanes, message, warps.get((message.source, message.posted_ns, message.where)))
    for sample in timeline.samples:
        events.append(
            {
                "ph": "C",
                "pid": sample.rank,
                "tid": _lane(sample.block, None),
                "ts": sample.at_ns / 1e3,
                "name": f"{sample.name} (block {sample.block})",
                "args": {"value": sample.value},
            }
        )
    names = [_name("process_name", rank, 0, f"rank {rank}") for rank in range(timeline.ranks)]
    for (rank, lane), text in sorted(lanes.items()):
        names.append(_name("thread_name", rank, lane, text))
        names.append({**_name("thread_sort_index", rank, lane, ""), "args": {"sort_index": lane}})
    about = {"hardware": timeline.hardware.name, "fabric": timeline.fabric.kind, "ranks": timeline.ranks}
    return {"traceEvents": names + events, "displayTimeUnit": "ns", "otherData": about}


def _complete(pid: int, tid: int, kind: str, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    what = {"pid": pid, "tid": tid, "cat": kind, "name": name}
    return {"ph": "X", **what, "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": args}


def _name(what: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": text}}


def _add_message(
    events: list[dict[str, Any]], lanes: dict[tuple[int, int], str], message: Message, poster: int | None
) -> None:
    """A bar on the sending NIC while the message flies, a mark on the receiving one when it arrives, and arrows."""
    name = f"{message.kind} {message.bytes} B"
    out, into = _NIC + 2 * message.target, _NIC + 2 * message.source + 1
    lanes[message.source, out] = f"NIC to rank {message.target}"
    lanes[message.target, into] = f"NIC from rank {message.source}"
    about = {
        "number": message.number,
        "queue pair": message.queue_pair,
        "wire bytes": message.wire_bytes,
        "where": message.where,
    }
    shared = {"cat": "message", "name": name, "id": message.number}
    flight = {**shared, "pid": message.source, "tid": out}
    # Messages of a link overlap, as threads' spans may not: asynchronous events.
    events.append({**flight, "ph": "b", "ts": message.departed_ns / 1e3, "args": about})
    events.append({**flight, "ph": "e", "ts": message.delivered_ns / 1e3})
    landed = message.delivered_ns
    events.append(_complete(message.target, into, "delivered", name, landed, landed, **about))
    if poster is not None:
        posted = message.posted_ns / 1e3
        events.append({**shared, "cat": "flow", "ph": "s", "pid": message.source, "tid": poster, "ts": posted})
        arrow = {**shared, "cat": "flow", "ph": "f", "bp": "e", "pid": message.target, "tid": into}
        events.append({**arrow, "ts": landed / 1e3})
