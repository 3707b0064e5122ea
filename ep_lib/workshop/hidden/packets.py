"""Whether words and their tags went as packets of 16 bytes: the emulator's stores arrive in program order, so only
accesses tell one store from two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.accesses import ATOMIC, COUNT, NIC, OF_PAIR, STORES, UPDATES, WIDTHS
from ep_lib.workshop.scenario import Array

Kinds = NDArray[np.int64]  # of accesses to one rank's array: [ranks, *KINDS] of ep_lib/emulator/accesses.py


def narrow(kinds: Kinds) -> Array:
    """How many loads, stores and updates of kernels were not 16 bytes as one access."""
    counts: Array = kinds.sum(axis=0)[..., COUNT]
    others: Array = counts.sum(axis=(1, 2)) - _wide(counts) - counts[:, NIC].sum(axis=-1)
    return others


def not_sent_as_packets(kinds: Kinds, words: int) -> str | None:
    """Where more than one store of 16 bytes was made for each of so many words."""
    stores, updates = (int(narrow(kinds)[what]) for what in (STORES, UPDATES))
    if stores + updates:
        how = f"({stores} stores and {updates} atomics of 8 bytes or less)"
        return f"the packets' words were stored one by one {how}: a packet is one store"
    wide = _wide(kinds.sum(axis=0)[..., COUNT])
    sent = int(wide[STORES]) // 2 + int(wide[UPDATES])  # of a store each of the two words counts
    return f"for {words} words, {sent} packets were sent; each word once is right" if sent > words else None


def _wide(counts: Array) -> Array:
    wide: Array = counts[:, OF_PAIR].sum(axis=-1) + counts[:, ATOMIC, WIDTHS.index(16)]
    return wide
