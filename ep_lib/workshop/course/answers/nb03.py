"""Explanations of the predictions of notebook 03. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "p2p": "Each rank reaches the other one in its machine: 4 ways. The other 8 need the NIC (RDMA).",
    "staged": (
        "A queue pair keeps the order of messages. But filling the buffer is no message: it is a store of your "
        "thread, and nothing tells the NIC to hurry or the thread to wait."
    ),
    "batch": (
        "A quiet waits for the network's latency, there and back. With one a message nothing else is on its way "
        "meanwhile."
    ),
    "signal": (
        "put_signal orders a signal behind its own data, and behind nothing else. So every message needs a signal "
        "of its own, and the receiver waits for each."
    ),
    "atomics": (
        "The NIC reads the counter, adds, and writes it back. What the GPU adds in between is overwritten. "
        "InfiniBand's atomics are atomic among themselves; nothing is promised against a GPU, a CPU or another NIC."
    ),
    "channel": (
        "On RC the queue pair itself keeps the add behind the puts. That order was never in the kernel: it came "
        "with the network."
    ),
}
