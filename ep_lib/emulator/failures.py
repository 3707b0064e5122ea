"""What ended a run under the checker, as a finding: deadlocks, faults of kernels, time limits, failed assertions."""

from __future__ import annotations

import re

from ep_lib.emulator.advice import advice
from ep_lib.emulator.findings import Access, Finding
from ep_lib.errors import DeadlockError, KernelFault, KernelTimeout, PeerTimeout, Waiter

_COME = "whoever is waited for must come: signal, credit or barrier"
_TOGETHER = "every thread that a barrier or a mask names must reach it: no return and no branch around it"


def from_error(error: BaseException, seed: int) -> Finding:
    """The finding that an exception of a run is. Deadlocks carry the lines where threads wait, faults their access."""
    text = str(error)
    if isinstance(error, (DeadlockError, KernelTimeout)):
        kind = "deadlock" if isinstance(error, DeadlockError) else "timeout"
        lines = tuple(sorted({w.location for w in error.waiters if w.location}))
        ranks = tuple(sorted({w.thread.rank for w in error.waiters}))
        text = text.removeprefix("deadlock: ")
        return Finding(kind, text, seed, _missing(error.waiters), seeds=(seed,), lines=lines, ranks=ranks)
    if isinstance(error, PeerTimeout):
        lines = (error.phase,)
        return Finding("timeout", text, seed, _COME, seeds=(seed,), lines=lines, ranks=(error.rank,))
    if isinstance(error, AssertionError):
        return Finding("assertion", text or "an assertion in main failed", seed, seeds=(seed,))
    if not isinstance(error, KernelFault):
        return Finding("exception", f"main raised {type(error).__name__}: {text}", seed, seeds=(seed,))
    return _from_fault(error, seed)


def _missing(waiters: tuple[Waiter, ...]) -> str:
    only_barriers = all(w.what.startswith("__") for w in waiters)
    return _TOGETHER if waiters and only_barriers else _COME


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
    elif re.search(r"(reads|writes) \d+ bytes|posts with a \w+ that is not", text):
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
        place=advice("at", what, "", fault.location) if what else "",
        ranks=(fault.thread.rank,),
    )
