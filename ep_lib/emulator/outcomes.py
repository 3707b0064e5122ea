"""Turns the runtime's report of a run that did not end well into an exception that a person understands."""

from __future__ import annotations

import json
from typing import Any

from ep_lib.emulator import symbols
from ep_lib.errors import DeadlockError, EpError, KernelFault, KernelTimeout, ThreadId, Waiter

_MAX_LISTED = 24  # groups of waiting threads in a message; the exception's `waiters` has them all

_ADVICE = {
    "address": "check the index, the size and, for another rank's memory, ep::peer_ptr",
    "stack": "the kernel needs more stack than a thread has; raise EP_LIB_STACK_BYTES or use smaller local arrays",
    "signal": "check the pointer or the divisor",
}


def _thread(entry: dict[str, Any]) -> ThreadId:
    return ThreadId(entry["rank"], tuple(entry["block"]), tuple(entry["thread"]))


def _waiter(entry: dict[str, Any]) -> Waiter:
    place = symbols.find(entry["image"], entry["offset"])
    return Waiter(_thread(entry), entry["count"], entry["what"], place.location, place.source, entry["address"])


def _list(waiters: tuple[Waiter, ...], host_waits: list[str]) -> str:
    lines = [f"  {w}" for w in waiters[:_MAX_LISTED]]
    if len(waiters) > _MAX_LISTED:
        lines.append(f"  ... and {len(waiters) - _MAX_LISTED} more groups of threads (see .waiters)")
    return "\n".join(lines + [f"  {text}" for text in host_waits])


def _fault(fault: dict[str, Any]) -> KernelFault:
    thread = _thread(fault)
    place = symbols.find(fault["image"], fault["offset"])
    text = fault["text"] or "overflows its stack"
    if fault["kind"] == "signal" and fault["address"]:
        text += f" (0x{fault['address']:x})"
    message = f"kernel '{fault['kernel']}', {thread}: {text}"
    if place.location:
        message += f"\n  at {place.location}: {place.source}"
    if advice := _ADVICE.get(fault["kind"]):
        message += f"\n  ({advice})"
    return KernelFault(message, thread=thread, kernel=fault["kernel"], location=place.location, source=place.source)


def to_error(report: str, *, timeout: float, host_waits: list[str]) -> EpError:
    """The exception for a run that ended in a deadlock, a fault or at the time limit."""
    data = json.loads(report)
    if data["outcome"] == "fault":
        return _fault(data["fault"])
    waiters = tuple(_waiter(entry) for entry in data["waiters"])
    if data["outcome"] == "deadlock":
        message = (
            "deadlock: no thread of any rank can go on, and nothing is under way that could wake one. "
            "Who waits where:\n" + _list(waiters, host_waits)
        )
        return DeadlockError(message, waiters=waiters)
    message = f"kernels still ran after {timeout:g} s, the time limit (spawn's timeout=). Unfinished:\n"
    if "fault" in data:  # the loop that had to be broken
        fault = data["fault"]
        place = symbols.find(fault["image"], fault["offset"])
        message += f"  {_thread(fault)} loops without any access to memory at {place.location}: {place.source}\n"
    return KernelTimeout(message + _list(waiters, host_waits), waiters=waiters)
