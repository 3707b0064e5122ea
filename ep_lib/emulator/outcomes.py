"""Reports of a failed run: an exception with the threads and lines, and under the checker a finding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ep_lib.emulator import symbols
from ep_lib.emulator.findings import Access, Finding
from ep_lib.emulator.quiescence import COME, explain
from ep_lib.emulator.symbols import thread_of
from ep_lib.errors import (
    DeadlockError,
    EpError,
    KernelFault,
    KernelTimeout,
    LivelockError,
    PeerTimeout,
    Waiter,
)
from ep_lib.jit.device_state import said_of
from ep_lib.jit.source import filename_of

_MAX_LISTED = 24  # groups of waiting threads in a message; the exception's `waiters` has them all
_MAX_LINES = 8  # that wait at one place, with a line for each

_OUTSIDE = re.compile(r"(reads|writes) \d+ bytes|uses index|past the end of a local array")
_ASSERTED_AT = re.compile(r"\((/.+):(\d+)\)$")
_POLLED = re.compile(r" on (.+? \(sees \d+\))")  # the first word of a polling loop: that of its condition
_NO_SUCH_RANK = re.compile(r"of rank (-?\d+), and there is no such rank: ranks are 0 to \d+")
_OUT_OF_REACH = "which loads and stores do not reach on this fabric"
_ADVICE = {
    "address": "check the index, the size and, for another rank's memory, ep::peer_ptr",
    "reach": "post it by ep::net_* of <ep/net.cuh>; ep::reachable(rank) tells where loads and stores will do",
    "peer": "check the peer; put_* and signal_* call ep::peer_ptr themselves: its own result is translated twice",
    "stack": "a thread's stack has EP_LIB_STACK_BYTES, 16K by default and at most 8M: raise it, or use smaller arrays",
    "signal": "check the pointer or the divisor",
}


def _waiter(entry: dict[str, Any]) -> Waiter:
    place = symbols.find_called(entry, entry.get("called"))
    what, address = entry["what"], entry["address"]
    return Waiter(thread_of(entry), entry["count"], what, place.location, place.source, address, place.caller)


def _list(waiters: tuple[Waiter, ...], host_waits: list[str]) -> str:
    # Threads that wait at a line for one of their block that polls there: in ep::wait_until_ge_warp, say.
    behind: dict[tuple[Any, ...], int] = {_line_of(w): 0 for w in waiters if w.address is not None}
    shown = []
    for waiter in waiters:
        if waiter.address is None and _line_of(waiter) in behind:
            behind[_line_of(waiter)] += waiter.count
        else:
            shown.append(waiter)
    lines = [f"  {w}{_and_behind(behind.pop(_line_of(w), 0))}" for w in shown[:_MAX_LISTED]]
    if len(shown) > _MAX_LISTED:
        lines.append(f"  ... and {len(shown) - _MAX_LISTED} more groups of threads (see .waiters)")
    return "\n".join(lines + [f"  {text}" for text in host_waits])


def _line_of(waiter: Waiter) -> tuple[Any, ...]:
    return waiter.thread.rank, waiter.thread.block, waiter.location.partition(" (in ")[0]


def _and_behind(threads: int) -> str:
    return f" ({threads} more of its block wait there for it)" if threads else ""


def _not_started(grid: dict[str, Any]) -> str:
    """The blocks of a grid that cannot start until resident ones end."""
    first, last = grid["first"], grid["blocks"] - 1
    which = f"block {first} has" if first == last else f"blocks {first} to {last} have"
    return (
        f"{which} not started, of {grid['blocks']} of kernel '{grid['kernel']}' on rank {grid['rank']}: the "
        f"{grid['resident']} that are resident keep their places until they end, so no barrier of the whole grid ends"
    )


def _as_named(match: re.Match[str]) -> str:
    """The place of a failed assertion, with the user's name for the file: a source string has a copy in the cache."""
    return f"({filename_of(match[1]) or match[1]}:{match[2]})"


def _fault(fault: dict[str, Any]) -> KernelFault:
    thread = thread_of(fault)
    place = symbols.find(fault["image"], fault["offset"])
    text = _ASSERTED_AT.sub(_as_named, fault["text"]) or "overflows its stack"
    if fault["kind"] == "signal" and fault["address"]:
        text += f" (0x{fault['address']:x})"
    message = f"kernel '{fault['kernel']}', {thread}: {text}"
    if place.location:
        message += f"\n  at {place.location}: {place.source}"
    kind = "peer" if _NO_SUCH_RANK.search(text) else "reach" if _OUT_OF_REACH in text else fault["kind"]
    if advice := _ADVICE.get(kind):
        message += f"\n  ({advice})"
    return KernelFault(message, thread=thread, kernel=fault["kernel"], location=place.location, source=place.source)


def to_error(report: str, *, timeout: float, host_waits: list[str]) -> EpError:
    """The exception for a run that ended in a deadlock, a fault or at the time limit."""
    data = json.loads(report)
    if data["outcome"] == "fault":
        return _fault(data["fault"])
    if data["outcome"] == "livelock":
        return _livelock(data["livelock"])
    waiters = tuple(_waiter(entry) for entry in data["waiters"])
    host_waits = [*map(_not_started, data["not_started"]), *host_waits]
    if data["outcome"] == "deadlock":
        message = (
            "deadlock: no thread of any rank can go on, and nothing is under way that could wake one. "
            "Who waits where:\n" + _list(waiters, host_waits)
        )
        why = explain(data["waiters"])
        message = "\n".join([message, *(f"  {line}" for line in why.lines)])
        return DeadlockError(message, waiters=waiters, remedy=why.remedy, place=why.place)
    message = f"kernels still ran after {timeout:g} s of CPU time, the time limit (spawn's timeout=). Unfinished:\n"
    if "fault" in data:  # the loop that was interrupted
        fault = data["fault"]
        place = symbols.find(fault["image"], fault["offset"])
        message += f"  {thread_of(fault)} loops without any access to memory at {place.location}: {place.source}\n"
        waiters = tuple(waiter for waiter in waiters if waiter.count > 1 or waiter.thread != thread_of(fault))
        return KernelTimeout(
            message + _list(waiters, host_waits).replace(f"{thread_of(fault)} and ", ""), waiters=waiters
        )
    return KernelTimeout(message + _list(waiters, host_waits), waiters=waiters)


def _livelock(lap: dict[str, Any]) -> LivelockError:
    """Threads that have returned to an earlier state, with the lines of their steps since then, each once."""
    waiters, who = [], []
    for entry in lap["threads"]:
        spots = [symbols.find(step["image"], step["offset"]) for step in entry["steps"]]
        places = [place for place in dict.fromkeys(spots) if place.location]
        first = places[0] if places else symbols.Place()
        waiters.append(Waiter(thread_of(entry), 1, "a loop", first.location, first.source, None))
        who.append(
            f"  {thread_of(entry)}, {len(spots)} of them:"
            + "".join(f"\n    at {p.location}: {p.source}" for p in places)
        )
    repeat = "repeats" if len(waiters) == 1 else "repeat"
    message = (
        f"livelock: {' and '.join(str(waiter.thread) for waiter in waiters)} {repeat} {lap['steps']} steps without "
        f"progress: after {lap['after'] + lap['steps']} steps all stacks and all memory are what they were after "
        f"{lap['after']}, so this can go on for ever, although each thread that can run does.\n" + "\n".join(who)
    )
    remedy = _STEP_ASIDE if len(waiters) > 1 else COME
    if lap["outside"]:
        message += f"\n  blocks that are not resident, and run only when one of these ends: {lap['outside']}"
        remedy = _RESIDENT
    return LivelockError(message, waiters=tuple(waiters), remedy=remedy)


# ---- the same as a finding of the checker

_NOT_YET = "wait only where the number waited for is above 0: the first rounds need no wait"
_STILL_RUNS = (
    "a loop that ends, or less work, or a higher timeout=: all threads still compute, or poll memory by plain loads; "
    "who waits for another thread's store does it by ep::wait_until_ge, behind the stores that the other one waits for"
    ". Threads that step aside for each other again and again are a livelock: let one of them insist"
)
_STEP_ASIDE = (
    "let one of them insist: the one with the lower rank or number keeps its claim and waits, and only the other steps "
    "aside, until it sees that the first is done"
)
_RESIDENT = "launch no more blocks than are resident at a time, or let no block wait for a later one"
_TOGETHER = "every thread that a barrier or a mask names must reach it or return: no branch around it"


def from_error(error: BaseException, seed: int, quiescence: str = "", idle: Iterable[int] = ()) -> Finding:
    """The finding for an exception of a run. A deadlock has the lines where threads wait, a fault its access.

    ``quiescence``: the machine's (:attr:`ep_lib.emulator.machine.Machine.quiescence`). ``idle``: ranks that have
    launched no kernel.
    """
    finding = _from_error(error, seed, quiescence)
    absent = ", ".join(map(str, sorted(idle)))
    if not absent or not finding.remedy.startswith(COME):
        return finding
    return replace(
        finding,
        message=f"{finding.message}\n  no kernel was launched by rank {absent}",
        remedy="each rank launches the kernel that others wait for, also with nothing of its own to send",
    )


def _from_error(error: BaseException, seed: int, quiescence: str) -> Finding:
    text = str(error)
    if isinstance(error, (DeadlockError, KernelTimeout)):
        kind = "timeout"
        if isinstance(error, DeadlockError):
            kind = "livelock" if isinstance(error, LivelockError) else "deadlock"
        lines = tuple(sorted({w.location for w in error.waiters if w.location}))
        ranks = tuple(sorted({w.thread.rank for w in error.waiters}))
        text = text.removeprefix(f"{kind}: ")
        remedy, place = (error.remedy, error.place) if isinstance(error, DeadlockError) else ("", "")
        if not remedy and kind == "timeout" and all(w.what.startswith("(") for w in error.waiters):
            remedy = _STILL_RUNS
        remedy = remedy or _missing(error.waiters)
        return Finding(kind, text, seed, remedy, seeds=(seed,), place=place, lines=lines, ranks=ranks)
    if isinstance(error, PeerTimeout):
        return _from_timeout(error, text, seed, json.loads(quiescence or "[]"))
    if isinstance(error, AssertionError):
        return Finding("assertion", text or "an assertion in main failed", seed, seeds=(seed,))
    if not isinstance(error, KernelFault):
        return Finding("exception", f"main raised {type(error).__name__}: {text}", seed, seeds=(seed,))
    return _from_fault(error, seed)


def _from_timeout(error: PeerTimeout, text: str, seed: int, waiting: list[dict[str, Any]]) -> Finding:
    """The finding for a timeout. A wait's limit has ended a deadlock, so the report is a deadlock's."""
    waiters = tuple(_waiter(entry) for entry in waiting)
    lines = tuple(sorted({w.location for w in waiters if w.location})) or (error.phase,)
    why = explain(waiting)
    if waiters:
        text += "\nWho waited where:\n" + _list(waiters, [])
        text = "\n".join([text, *(f"  {line}" for line in why.lines)])
    ranks = tuple(sorted({error.rank, *(w.thread.rank for w in waiters)}))
    remedy = _NOT_YET if error.expected >= 1 << 63 else why.remedy or COME
    return Finding("timeout", text, seed, remedy, seeds=(seed,), place=why.place, lines=lines, ranks=ranks)


def say_who_waited(error: PeerTimeout, quiescence: str) -> None:
    """Adds the polling threads, their places and the words that they poll to a timeout, if it names only one of
    several, in place of the advice to look for them. ``quiescence``: as for :func:`from_error`."""
    polling = [_waiter(entry) for entry in json.loads(quiescence or "[]") if entry["address"] is not None]
    if len(polling) < 2:
        return
    said = said_of(error)
    if str(error).startswith(said):
        error.args = (said,)
    by_place: dict[str, list[str]] = {}
    for waiter in polling:
        where = f"{waiter.location.partition(' (in ')[0]}: {waiter.source}"
        by_place.setdefault(where, []).append(" on ".join([str(waiter.thread), *_POLLED.findall(waiter.what)]))
    lines = [f"  at {place}\n    {_few(threads)}" for place, threads in by_place.items()]
    error.add_note("\n".join(["Who waited where:", *lines]))


def _few(threads: list[str]) -> str:
    more = [f"{len(threads) - _MAX_LISTED} more"] if len(threads) > _MAX_LISTED else []
    between = ", " if len(threads) > _MAX_LINES else "\n    "
    return between.join(threads[:_MAX_LISTED] + more)


def _missing(waiters: tuple[Waiter, ...]) -> str:
    only_barriers = all(w.what.startswith("__") for w in waiters)
    return _TOGETHER if waiters and only_barriers else COME


def _at(location: str) -> str:
    name, _, line = location.partition(" (in ")[0].rpartition(":")
    return f"line {line} of {name}"


def _from_fault(fault: KernelFault, seed: int) -> Finding:
    text = str(fault)
    kind, remedy, what = "fault", "", ""
    if found := re.search(r"address that is not a multiple of (\d+)", text):
        kind = "misaligned"
        remedy = f"alignment: an address that is a multiple of {found[1]}, or narrower accesses"
        what = f"align the address to {found[1]} bytes"
    elif found := re.search(r"posts (?:to|on) (rank|queue pair) -?\d+; (?:there|ranks) are [^\n]*", text):
        kind = "out of bounds"
        remedy = f"bounds: a {found[1]} that there is"
        what = f"check the {found[1]}"
    elif found := _NO_SUCH_RANK.search(text):
        kind = "out of bounds"
        remedy = f"bounds: a peer that there is; ep::peer_ptr was given rank {found[1]}, or a pointer that it had made"
        what = "check the peer"
    elif "only arrays in the symmetric heap have one" in text:
        kind = "out of bounds"
        remedy = "memory of rank.symmetric(): ep::peer_ptr finds the peer's copy of symmetric arrays only"
        what = "use a symmetric array"
    elif "posts with a" in text:
        kind = "out of bounds"
        remedy = "bounds: check the index and the size; or memory of rank.symmetric(): NICs use no other"
        what = "use a symmetric array, and keep within it,"
    elif _OUTSIDE.search(text):
        kind = "out of bounds"
        remedy = "bounds: check the index and the size; for another rank's memory, ep::peer_ptr"
        what = "keep the index below the array's length"
    if kind == "fault" or fault.thread is None:
        lines = (fault.location,) if fault.location else ()
        ranks = () if fault.thread is None else (fault.thread.rank,)
        return Finding(kind, text, seed, remedy, seeds=(seed,), lines=lines, ranks=ranks)
    sentence = text.partition("\n")[0].partition(f"{fault.thread}: ")[2] or text
    does = sentence.partition(" ")[0]
    access = Access(does, fault.thread, fault.kernel, fault.location, fault.source)
    return Finding(
        kind,
        f"the kernel {sentence}",
        seed,
        remedy,
        first=access,
        seeds=(seed,),
        place=f"{what} in {_at(fault.location)}" if what and fault.location else "",
        ranks=(fault.thread.rank,),
    )
