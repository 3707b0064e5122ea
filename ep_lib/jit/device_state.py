"""The shared state of a rank's kernels and host: the structs of ``ep/device_state.cuh``, read from that header.

A wait that reaches its limit, or a refused transfer, leaves a :class:`FaultRecord` in the first bytes of the rank's
symmetric heap and lets the kernel return. After the next synchronisation the host decodes the record and raises the
exception of :func:`to_error`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ep_lib.errors import ArgumentError, EpError, KernelFault, PeerTimeout, RankMismatchError
from ep_lib.jit.structs import enumerators, header_constant, header_struct

MAX_RANKS = header_constant("ep/device_state.cuh", "kMaxRanks")
DEFAULT_TIMEOUT_NS = header_constant("ep/device_state.cuh", "kDefaultTimeoutNs")

HEADER = header_struct("ep/device_state.cuh", "HeapHeader")  # reserved at offset 0 of every symmetric heap
DEVICE_STATE = header_struct("ep/device_state.cuh", "DeviceState")
FAULT_DTYPE = header_struct("ep/device_state.cuh", "FaultRecord").dtype
FAULT_BYTES = FAULT_DTYPE.itemsize  # at offset 0 of the header
HEADER_BYTES = HEADER.size
IBGDA_STATE_OFFSET = HEADER.offsets["ibgda"]  # all zero until ep_lib.ibgda.init_efa_device_state

PIECE_COUNTS_OFFSET = HEADER.offsets["piece_counts"]  # the counts of <ep/pieces.cuh>
MAX_PIECE_COUNTS = header_constant("ep/device_state.cuh", "kMaxPieceCounts")

PHASE_NAMES = tuple(
    name.removeprefix("kPhase").lower()
    for name in enumerators("ep/device_state.cuh", "Phase")
    if name.startswith("kPhase")
)

_CODES = enumerators("ep/device_state.cuh", "FaultCode")
FAULT_NONE, FAULT_TIMEOUT = _CODES["kFaultNone"], _CODES["kFaultTimeout"]
FAULT_RANGE, FAULT_HANDLE = _CODES["kFaultRange"], _CODES["kFaultHandle"]
FAULT_IBGDA_STATE, FAULT_TRANSPORT = _CODES["kFaultIbgdaState"], _CODES["kFaultTransport"]
FAULT_INPUT, FAULT_OPTIONS, FAULT_ROOM = _CODES["kFaultInput"], _CODES["kFaultOptions"], _CODES["kFaultRoom"]
FAULT_PROXY = _CODES["kFaultProxy"]
INPUT_FAULTS = enumerators("ep/device_state.cuh", "InputFault")


@dataclass(frozen=True)
class FaultRecord:
    """A kernel's record of its failure.

    ``code`` is one of ``FAULT_TIMEOUT`` (``seen`` and ``expected``: values of the awaited flag), ``FAULT_RANGE`` (a
    transfer of bytes ``slot`` to ``seen`` where ``expected`` are registered), ``FAULT_HANDLE`` (entry ``slot`` of a
    handle at address ``seen`` that has ``expected`` entries; 0: not a handle of that kind), ``FAULT_IBGDA_STATE`` (the
    IBGDA/EFA shim was used without its host side) and ``FAULT_TRANSPORT`` (``peer`` is out of reach of loads and
    stores, and there is no network transport), and of a Buffer's calls ``FAULT_INPUT`` (element ``slot`` of topk_idx or
    topk_weights is wrong; ``expected`` is one of ``INPUT_FAULTS``), ``FAULT_OPTIONS`` (``peer`` passed other options:
    ``seen``, not ``expected``) and ``FAULT_ROOM`` (``seen`` rows arrived, ``expected`` were requested).
    ``FAULT_PROXY``: the native proxy has failed (not a kernel's record, no other field is set). ``peer`` and ``slot``
    are -1 if none applies.
    """

    code: int
    rank: int
    peer: int
    phase: str
    slot: int
    seen: int
    expected: int


def decode_fault(data: bytes) -> FaultRecord | None:
    """The record in the first ``FAULT_BYTES`` of ``data`` (the head of a heap), or None if there is no fault."""
    record = np.frombuffer(data, FAULT_DTYPE, count=1)[0]
    if record["code"] == FAULT_NONE:
        return None
    code, rank, peer, phase, slot, seen, expected = (int(record[field.name]) for field in fields(FaultRecord))
    name = PHASE_NAMES[phase] if 0 <= phase < len(PHASE_NAMES) else f"phase {phase}"
    return FaultRecord(code, rank, peer, name, slot, seen, expected)


def to_error(record: FaultRecord, transport: str = "") -> EpError:
    """The exception for a record: :class:`PeerTimeout` for a wait, :class:`KernelFault` for a refused transfer,
    ArgumentError or RankMismatchError for a dispatch's arguments. ``transport``: the transport's failure, if any."""
    if record.code == FAULT_PROXY:
        why = transport or f"rank {record.rank}: the thread that carries out this rank's commands has given up"
        return KernelFault(f"{why}; nothing behind that was carried out: correct it, and start the ranks again")
    error = _error_of_kernel(record)
    if transport:
        error.add_note(transport)
    return error


def _error_of_kernel(record: FaultRecord) -> EpError:
    if record.code == FAULT_TIMEOUT:
        return _timeout(record)
    target = f" to rank {record.peer}" if record.peer >= 0 else ""
    if record.code == FAULT_RANGE:
        memory = f" of rank {record.peer}'s memory" if record.peer >= 0 else ""
        inside = 0 <= record.slot <= record.seen <= record.expected
        why = (
            "a signal's offset must be a multiple of 8"
            if inside
            else f"only {record.expected} bytes are registered there"
        )
        return KernelFault(
            f"rank {record.rank}: a transfer of bytes {record.slot} to {record.seen}{memory} was refused: {why}; "
            "nothing was moved; correct the offset or the size"
        )
    if record.code == FAULT_HANDLE:
        why = (
            f"it has {record.expected} entries, entry {record.slot} does not exist"
            if record.expected
            else "it is not a handle of that kind on this rank (did two views, or requests, change places?)"
        )
        return KernelFault(
            f"rank {record.rank}: a transfer through the handle 0x{record.seen:x} was refused: {why}; nothing was "
            "moved, pass what create_gpu_req or prep_..._view of this rank's DeviceHost returned"
        )
    if record.code == FAULT_IBGDA_STATE:
        return KernelFault(
            f"rank {record.rank}: a kernel used <ep/ibgda_shim.cuh> before its state was initialised; call "
            "ep_lib.ibgda.init_efa_device_state(rank, num_channels, num_devices) on every rank before the launch; "
            "nothing was moved"
        )
    if record.code == FAULT_TRANSPORT:
        return KernelFault(
            f"rank {record.rank}: a network operation{target} was refused: the GPUs do not reach each other by loads "
            "and stores (P2P), and transport='p2p' has nothing else; take transport='nvshmem', or run it on GPUs "
            "of one node with P2P, or on the emulator with a fabric"
        )
    if record.code in (FAULT_INPUT, FAULT_OPTIONS, FAULT_ROOM):
        return _dispatch_error(record)
    return KernelFault(f"rank {record.rank}: a kernel left an unknown fault (code {record.code}): {record}")


def _dispatch_error(record: FaultRecord) -> EpError:
    """The error for a dispatch's arguments that only the device has checked: ``num_worst_tokens``, low latency."""
    if record.code == FAULT_OPTIONS:
        return RankMismatchError(
            f"rank {record.rank} and rank {record.peer} called dispatch differently: topk_weights and FP8 must be "
            "passed on all ranks or on none; ignore what this dispatch returned"
        )
    if record.code == FAULT_ROOM:
        return ArgumentError(
            f"rank {record.rank}: a dispatch brought {record.seen} rows, and num_worst_tokens was {record.expected}; "
            "pass at least the number of tokens that all ranks together send"
        )
    if record.expected == INPUT_FAULTS["kNotFinite"]:
        value = np.uint32(record.seen).view(np.float32)
        what = f"topk_weights has the value {value} (element {record.slot}); weights must be finite"
    else:
        value = np.uint64(record.seen).view(np.int64)
        what = f"topk_idx has the value {value} (element {record.slot}), which is not an expert"
        if record.expected == INPUT_FAULTS["kNotDispatched"]:
            what += " that the handle's dispatch sent this token to: pass its choices, in any order"
    sent = "nothing was sent" if record.phase == "layout" else "the results of this call are NaN"
    return ArgumentError(f"rank {record.rank}: {what}; {sent}, and the other ranks time out")


def _timeout(record: FaultRecord) -> PeerTimeout:
    whom = f"rank {record.peer}" if record.peer >= 0 else "its peers"
    text = f"{said_of(record)}; check whether {whom} launched the kernel, and which wait failed there"
    if record.expected >= 1 << 63:
        text = said_of(record, whom="its proxy" if record.phase == "proxy" else "")
    elif record.phase == "proxy":
        text = (
            f"rank {record.rank} waited too long for its proxy, which has dealt with {record.seen} commands of a ring, "
            f"and {record.expected} were expected: has its thread ended, or is the link to a peer broken? On a GPU: do "
            "kernels that wait fill all SMs, so that the proxy's additions to signals cannot run, or did this process "
            "free memory or load a module (CuPy, torch) before rank.synchronize()?"
        )
    return PeerTimeout(
        text,
        rank=record.rank,
        peer=record.peer,
        phase=record.phase,
        slot=record.slot,
        seen=record.seen,
        expected=record.expected,
    )


BELOW_ZERO = " (a number below 0 that wrapped around? Counts are unsigned)"


def said_of(wait: FaultRecord | PeerTimeout, waited: str = "waited too long", whom: str = "") -> str:
    """A sentence with the waiting rank, the awaited rank, the seen and the expected value, without advice."""
    whom = whom or (f"rank {wait.peer}" if wait.peer >= 0 else "its peers")
    where = f", slot {wait.slot}" if wait.slot >= 0 else ""
    return (
        f"rank {wait.rank} {waited} for {whom} ({wait.phase}{where}): the signal is {wait.seen}, and "
        f"{wait.expected} was expected{BELOW_ZERO if wait.expected >= 1 << 63 else ''}"
    )
