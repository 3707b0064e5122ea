"""01_write_signal.cu: every rank sends 16 KiB to the next one, in each rung."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, differing, equal_to, random_bytes

RANKS, BYTES, PIECES = 2, 16 << 10, 16


def _prepare(memory: Memory, send: Callable[..., None]) -> Prepared:
    """``send(source, target, out, signal, peer)`` launches this rank's kernels."""
    rank = memory.rank
    peer = 1 - rank.rank
    target, signal = memory.symmetric(np.zeros(BYTES, np.uint8)), memory.symmetric(np.zeros(1, np.uint64))
    source, out = memory.own(random_bytes(rank.rank, BYTES)), memory.own(np.zeros(BYTES, np.uint8))
    return Prepared(lambda: send(source, target, out, signal, peer), lambda: rank.to_host(out))


def _write(memory: Memory, file: Path, name: str) -> Prepared:
    def send(source: Any, target: Any, out: Any, signal: Any, peer: int) -> None:
        Kernel.from_file(file, name).launch(memory.rank, 1, 32, target, source, BYTES, signal, peer)
        Kernel.from_file(file, "wait_and_read").launch(memory.rank, 1, 256, signal, 1, target, BYTES, out, peer)

    return _prepare(memory, send)


def _in_pieces(memory: Memory, file: Path, name: str) -> Prepared:
    offsets = memory.own(np.linspace(0, BYTES, PIECES + 1).astype(np.uint64))

    def send(source: Any, target: Any, out: Any, signal: Any, peer: int) -> None:
        Kernel.from_file(file, name).launch(memory.rank, 1, 32, target, source, offsets, PIECES, signal, peer)
        Kernel.from_file(file, "wait_and_read").launch(memory.rank, 1, 256, signal, 1, target, BYTES, out, peer)

    return _prepare(memory, send)


def _pipeline(memory: Memory, file: Path, _: str) -> Prepared:
    """Rank 0 streams to rank 1: two kernels of one stream would wait for each other, so it goes one way."""
    slots, slot_bytes = 4, BYTES // PIECES
    ring = memory.symmetric(np.zeros(slots * slot_bytes, np.uint8))
    credits = memory.symmetric(np.zeros(1, np.uint64))
    name = "pipelined_send" if memory.rank.rank == 0 else "pipelined_receive"

    def send(source: Any, target: Any, out: Any, signal: Any, peer: int) -> None:
        mine = source if memory.rank.rank == 0 else out
        Kernel.from_file(file, name).launch(
            memory.rank, 1, 32, ring, slot_bytes, slots, signal, credits, mine, PIECES, peer
        )

    return _prepare(memory, send)


def _words(memory: Memory, file: Path, name: str) -> Prepared:
    """The same bytes as words that are stored and loaded by atomics."""
    rank, words = memory.rank, BYTES // 8
    peer = 1 - rank.rank
    board, edition = memory.symmetric(np.zeros(words, np.uint64)), memory.symmetric(np.zeros(1, np.uint64))
    source = memory.own(random_bytes(rank.rank, BYTES).view(np.uint64))
    out = memory.own(np.zeros(words, np.uint64))

    def send() -> None:
        Kernel.from_file(file, name).launch(rank, 1, 32, board, source, words, edition, 1, peer)
        Kernel.from_file(file, "wait_and_look").launch(rank, 1, 32, edition, 1, board, words, out, peer)

    return Prepared(send, lambda: rank.to_host(out).view(np.uint8))


def _wrong_one_way(results: Sequence[Any]) -> str:
    return differing(results[1:], [random_bytes(0, BYTES)])


_wrong = equal_to(lambda rank: random_bytes(1 - rank, BYTES))
LADDER = Ladder(
    "01_write_signal.cu",
    f"{BYTES >> 10} KiB from rank to rank; rung 1 is the receiving half of the others.",
    RANKS,
    (
        Rung(0, "write_signal_bare", _write, _wrong, "both ways"),
        Rung(2, "write_signal_thread", _write, _wrong, "both ways"),
        Rung(3, "write_signal_warp", _write, _wrong, "both ways"),
        Rung(4, "multi_write_one_signal", _in_pieces, _wrong, "both ways"),
        Rung(5, "pipelined_send", _pipeline, _wrong_one_way, "one way"),
        Rung(6, "publish_words", _words, _wrong, "both ways"),
    ),
    clock="Why rungs 0 to 4 take the same time: the virtual clock charges plain stores for their bytes only, as if all "
    "of them were under way at once. On a GPU a thread has few under way, so a warp is quicker than a thread, and 16 "
    "bytes at a time than one: --backend cuda measures that. An atomic has its latency on this clock too, which rung 6 "
    "pays for each word, so that it may be read at any time; and rung 5 waits for credits.",
)
