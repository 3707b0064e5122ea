"""Checks that the judges of several hidden tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.accesses import ATOMIC, COUNT, NIC, OF_PAIR, STORES, UPDATES, WIDTHS
from ep_lib.jit.device_state import PHASE_NAMES
from ep_lib.workshop.grader.scenario import Array, Outputs

Kinds = NDArray[np.int64]  # of accesses to one rank's array: [ranks, *KINDS] of ep_lib/emulator/accesses.py


def each_rank(ranks: int, judge: Callable[[Outputs, int], str | None]) -> Callable[[Outputs], str | None]:
    """The first problem of any rank."""
    return lambda out: next(filter(None, (judge(out, rank) for rank in range(ranks))), None)


class Fault(NamedTuple):
    """The numbers that ``note_fault()`` of grader.cuh has written."""

    code: int
    phase: int
    peer: int
    slot: int
    seen: int
    expected: int

    def is_about(self, phase: str, *peer_and_slot: int) -> bool:
        return (PHASE_NAMES[self.phase], self.peer, self.slot)[: 1 + len(peer_and_slot)] == (phase, *peer_and_slot)


def fault_of(noted: Array) -> Fault:
    return Fault(*(int(value) for value in noted.astype(np.int64)))


def memory_wrong(got: Array, want: Array, in_message: NDArray[np.bool_], when: str) -> str | None:
    wrong = got != want
    if np.any(wrong & ~in_message):
        return f"{int(np.sum(wrong & ~in_message))} bytes outside the message were overwritten"
    if np.any(wrong):
        return f"{int(wrong.sum())} of {int(in_message.sum())} bytes of the message are wrong {when}"
    return None


def credits_wrong(slots: int, what: str, number: int, needed: int) -> str | None:
    """A problem if the sender of message or chunk ``number`` waits for other than the ``needed`` credits."""
    want = max(0, number + 1 - slots)
    if needed == want:
        return None
    said = str(needed) if needed < 1 << 32 else f"{needed} (that is {needed - (1 << 64)} in 64 bits)"
    which = "many: the sender would wait forever, or longer than necessary" if needed > want else "few"
    return f"with {slots} slot{'s' * (slots > 1)}, {what} {number} needs {said} credits: too {which}"


# ---- packets of 16 bytes: the emulator's stores arrive in program order, so only accesses tell one store from two ----
def narrow(kinds: Kinds) -> Array:
    """The numbers of kernels' loads, stores and updates that were not one access of 16 bytes."""
    counts: Array = kinds.sum(axis=0)[..., COUNT]
    others: Array = counts.sum(axis=(1, 2)) - _wide(counts) - counts[:, NIC].sum(axis=-1)
    return others


def not_sent_as_packets(kinds: Kinds, words: int) -> str | None:
    """A problem if there was more than one store of 16 bytes for each of ``words`` words, or another store."""
    stores, updates = (int(narrow(kinds)[what]) for what in (STORES, UPDATES))
    if stores + updates:
        how = f"({stores} stores and {updates} atomics of 8 bytes or less)"
        return f"the packets' words were stored one by one {how}: a packet is one store"
    wide = _wide(kinds.sum(axis=0)[..., COUNT])
    sent = int(wide[STORES]) // 2 + int(wide[UPDATES])  # a store of 16 bytes counts as two
    return f"for {words} words, {sent} packets were sent; each word once is right" if sent > words else None


def _wide(counts: Array) -> Array:
    wide: Array = counts[:, OF_PAIR].sum(axis=-1) + counts[:, ATOMIC, WIDTHS.index(16)]
    return wide
