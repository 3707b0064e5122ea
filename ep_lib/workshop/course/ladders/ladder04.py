"""04_ring_and_proxy.cu: every rank sends 128 messages of 256 bytes to the other one by its proxy, in each rung."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, equal_to
from ep_lib.workshop.lessons.ring_and_proxy import BLOCKS, messages_of, ring_bytes, ring_in, rows_of

RANKS, COUNT, WORDS, SLOTS, THREADS, OUTBOX_ROWS = 2, 128, 32, 32, 64, 16


def _program(memory: Memory, file: Path, name: str, outbox_rows: int = COUNT) -> Prepared:
    rank, kernel = memory.rank, Kernel.from_file(file, name)
    source = memory.own(rows_of(rank.rank, COUNT, WORDS))
    outbox, inbox = (memory.symmetric(np.zeros((rows, WORDS), np.uint64)) for rows in (outbox_rows, COUNT))
    ring = ring_in(memory.symmetric(np.zeros(ring_bytes(SLOTS), np.uint8)), SLOTS)
    messages = messages_of(source, outbox, inbox, 1 - rank.rank)
    return Prepared(
        lambda: kernel.launch(rank, BLOCKS, THREADS, ring, messages, uses=memory.arrays), lambda: rank.to_host(inbox)
    )


_wrong = equal_to(lambda rank: rows_of(1 - rank, COUNT, WORDS))
LADDER = Ladder(
    "04_ring_and_proxy.cu",
    f"{COUNT} messages of {WORDS * 8} bytes from rank to rank, by a proxy and a ring of {SLOTS} slots (rung 4: "
    f"through an outbox of {OUTBOX_ROWS} rows).",
    RANKS,
    (
        Rung(0, "mailbox", _program, _wrong),
        Rung(1, "ring_of_slots", _program, _wrong),
        Rung(2, "many_producers", _program, _wrong),
        Rung(3, "batches", _program, _wrong),
        Rung(4, "completions", partial(_program, outbox_rows=OUTBOX_ROWS), _wrong, "little memory"),
    ),
    fabric="rc",
)
