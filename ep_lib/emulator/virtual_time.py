"""Virtual time of a machine: switching it on, and reading its records (runtime/virtual_time.hpp)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import Structure, c_double, c_int32, c_uint64
from typing import Any

import numpy as np

from ep_lib.emulator import library, symbols
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import Hardware, Link
from ep_lib.emulator.machine import Machine
from ep_lib.emulator.timeline import Message, Sample, Span, Timeline

_SPAN_KINDS = ("kernel", "wait", "copy", "post")  # SpanRecord::Kind
_MESSAGE_KINDS = ("put", "get", "put_signal", "add")  # MessageRecord::Kind

_SPAN = np.dtype(
    [(name, "i4") for name in ("rank", "block", "warp", "kind", "name", "image")]
    + [("offset", "u8"), ("begin_ns", "f8"), ("end_ns", "f8")]
)
_MESSAGE = np.dtype(
    [(name, "i4") for name in ("source", "target", "queue_pair", "kind", "block", "warp", "image", "unused")]
    + [("offset", "u8"), ("bytes", "u8")]
    + [(name, "f8") for name in ("wire_bytes", "posted_ns", "departed_ns", "delivered_ns", "completed_ns")]
)
_SAMPLE = np.dtype([(name, "i4") for name in ("rank", "block", "name", "unused")] + [("at_ns", "f8"), ("value", "f8")])

_SHORTEST_COPY_NS = 1.0  # shorter ones are flags and indices: not worth a span


class _LinkModel(Structure):
    _fields_ = [
        (name, c_double)
        for name in ("latency_ns", "bytes_per_ns", "overhead_ns", "gap_ns", "mtu_bytes", "header_bytes")
    ]


class _HardwareModel(Structure):
    _fields_ = [
        *((name, c_double) for name in ("sm_bytes_per_ns", "memory_bytes_per_ns", "launch_ns", "launch_gap_ns")),
        *((name, c_double) for name in ("poll_ns", "clock_ghz")),
        ("num_sms", c_int32),
        *((name, _LinkModel) for name in ("nvlink", "pcie", "nic")),
    ]


def _link(link: Link) -> _LinkModel:
    return _LinkModel(
        link.latency_ns, link.gbytes_per_s, link.overhead_ns, link.gap_ns, link.mtu_bytes, link.header_bytes
    )


def begin(machine: Machine, hardware: Hardware) -> None:
    """Switches virtual time on; call before the machine's first launch."""
    gpu = hardware.gpu
    model = _HardwareModel(
        gpu.sm_gbytes_per_s,
        gpu.memory_gbytes_per_s,
        gpu.launch_ns,
        gpu.launch_gap_ns,
        gpu.poll_ns,
        gpu.clock_ghz,
        gpu.sms,
        _link(hardware.nvlink),
        _link(hardware.pcie),
        _link(hardware.nic),
    )
    library.load().epemu_time_begin(machine.handle, ctypes.byref(model))
    machine.runs_in_virtual_time = True


def _records(machine: Machine, function: str, dtype: np.dtype[Any]) -> list[tuple[Any, ...]]:
    count = c_uint64()
    address = getattr(library.load(), function)(machine.handle, ctypes.byref(count))
    if not count.value:
        return []
    raw = (ctypes.c_char * (count.value * dtype.itemsize)).from_address(address)
    array: np.ndarray[Any, Any] = np.frombuffer(raw, dtype)  # type: ignore[call-overload]
    rows: list[tuple[Any, ...]] = array.tolist()
    return rows


def _strings(machine: Machine, function: str) -> list[str]:
    texts: list[str] = []
    while (text := getattr(library.load(), function)(machine.handle, len(texts))) is not None:
        texts.append(text.decode())
    return texts


def _places(machine: Machine) -> Callable[[int, int], str]:
    images = _strings(machine, "epemu_image_path")
    known: dict[tuple[int, int], str] = {}

    def where(image: int, offset: int) -> str:
        if image < 0:
            return ""
        if (image, offset) not in known:
            known[image, offset] = symbols.find(images[image], offset).location
        return known[image, offset]

    return where


def _message(number: int, record: tuple[Any, ...], where: Callable[[int, int], str]) -> Message:
    source, target, queue_pair, kind, _, _, image, _, offset, nbytes, wire_bytes, posted, *later = record
    departed, delivered, completed = (math.inf if time < 0 else time for time in later)
    return Message(
        number=number,
        source=source,
        target=target,
        queue_pair=queue_pair,
        kind=_MESSAGE_KINDS[kind],
        bytes=nbytes,
        wire_bytes=wire_bytes,
        posted_ns=posted,
        departed_ns=departed,
        delivered_ns=delivered,
        completed_ns=completed,
        where=where(image, offset),
    )


def collect(machine: Machine, results: list[Any], hardware: Hardware, fabric: Fabric) -> Timeline:
    """The timeline of a run that is over."""
    names, where = _strings(machine, "epemu_time_name"), _places(machine)
    spans = [
        Span(rank, block, None if warp < 0 else warp, _SPAN_KINDS[kind], names[name], begin, end, where(image, offset))
        for rank, block, warp, kind, name, image, offset, begin, end in _records(machine, "epemu_time_spans", _SPAN)
        if kind != _SPAN_KINDS.index("copy") or end - begin >= _SHORTEST_COPY_NS
    ]
    spans.sort(key=lambda span: span.begin_ns)  # stable: equal times stay in the order in which they were written down
    messages = [
        _message(number, record, where)
        for number, record in enumerate(_records(machine, "epemu_time_messages", _MESSAGE))
    ]
    samples = [
        Sample(rank, block, names[name], at, value)
        for rank, block, name, _, at, value in _records(machine, "epemu_time_samples", _SAMPLE)
    ]
    samples.sort(key=lambda sample: sample.at_ns)
    ends = [span.end_ns for span in spans] + [m.completed_ns for m in messages if m.completed_ns < math.inf]
    return Timeline(
        results,
        hardware,
        fabric,
        machine.ranks,
        tuple(spans),
        tuple(messages),
        tuple(samples),
        max(ends, default=0.0),
    )
