"""03_ibgda_shim.cu: every rank sends 16 messages of 1 KiB to the next one through its NIC, in each rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.compat import ibgda
from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, equal_to, random_bytes

RANKS, MESSAGES, BYTES, CHANNELS, CHUNK, ADDITIONS = 2, 16, 1 << 10, 4, 2, 16
_SIZE = MESSAGES * BYTES
_ALL = "all messages"


def _outbox(memory: Memory) -> tuple[Any, Any, Any]:
    """inbox, outbox, and the receiver's output."""
    ibgda.init_efa_device_state(memory.rank, num_channels=CHANNELS)
    sent, nothing = random_bytes(memory.rank.rank, _SIZE), np.zeros(_SIZE, np.uint8)
    return memory.symmetric(nothing), memory.symmetric(sent), memory.own(nothing)


def _put(memory: Memory, file: Path, name: str) -> Prepared:
    """All data as one message; only the host's barrier tells the receiver."""
    rank, (inbox, outbox, _) = memory.rank, _outbox(memory)
    put = Kernel.from_file(file, name)
    return Prepared(lambda: put.launch(rank, 1, 32, inbox, outbox, _SIZE, 1 - rank.rank), lambda: rank.to_host(inbox))


def _messages(memory: Memory, file: Path, send: str) -> Prepared:
    rank, (inbox, outbox, out) = memory.rank, _outbox(memory)
    peer, is_each_told = 1 - rank.rank, send == "send_with_signals"
    flags = memory.symmetric(np.zeros(MESSAGES, np.uint64 if is_each_told else np.uint32))
    staging = [memory.symmetric(np.zeros(BYTES, np.uint8))] if send == "send_staged" else []
    receive = "receive_each" if is_each_told else "receive_messages"

    def launch() -> None:
        Kernel.from_file(file, send).launch(rank, 1, 32, inbox, *staging, outbox, BYTES, MESSAGES, flags, peer)
        Kernel.from_file(file, receive).launch(rank, 1, 32, flags, MESSAGES, inbox, BYTES, out, peer)

    return Prepared(launch, lambda: rank.to_host(out))


def _count(memory: Memory, file: Path, name: str) -> Prepared:
    """Every rank adds to rank 0's counters."""
    rank = memory.rank
    ibgda.init_efa_device_state(rank, num_channels=CHANNELS)
    counters = memory.symmetric(np.zeros(RANKS, np.uint32))
    count = Kernel.from_file(file, name)
    return Prepared(lambda: count.launch(rank, 1, 32, counters, ADDITIONS, 0), lambda: rank.to_host(counters))


def _channels(memory: Memory, file: Path, name: str) -> Prepared:
    rank, (inbox, outbox, out) = memory.rank, _outbox(memory)
    peer, each = 1 - rank.rank, MESSAGES // CHANNELS
    tails = memory.symmetric(np.zeros(CHANNELS, np.uint32))

    def launch() -> None:
        send, receive = (Kernel.from_file(file, each) for each in (name, "channel_receive"))
        send.launch(rank, CHANNELS, 32, inbox, outbox, BYTES, each, CHUNK, tails, peer)
        receive.launch(rank, CHANNELS, 64, tails, each, CHUNK, inbox, BYTES, out, peer)

    return Prepared(launch, lambda: rank.to_host(out))


def _miscounted(results: Sequence[Any]) -> str:
    counts = results[0].tolist()
    return "" if counts == [ADDITIONS] * RANKS else f"rank 0's counters are {counts}; each should be {ADDITIONS}"


_wrong = equal_to(lambda rank: random_bytes(1 - rank, _SIZE))
LADDER = Ladder(
    "03_ibgda_shim.cu",
    f"{MESSAGES} messages of {BYTES >> 10} KiB from rank to rank through the NICs (rung 0: all as one put).",
    RANKS,
    (
        Rung(0, "put_message", _put, _wrong, "one put"),
        Rung(1, "send_staged", _messages, _wrong, _ALL),
        Rung(2, "send_batched", _messages, _wrong, _ALL),
        Rung(3, "send_with_signals", _messages, _wrong, _ALL),
        Rung(4, "count_by_source", _count, _miscounted, "counters"),
        Rung(5, "channel_send", _channels, _wrong, _ALL),
    ),
    fabric="srd",
)
