"""Explanations of the predictions of notebook 04. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "ring": (
        "The mailbox waits for the NIC each time, and the network carries one message at a time. With the ring, the "
        "NIC's own pace is what is left. (This clock counts the network's latency, not PCIe's, which would make the "
        "mailbox slower still.)"
    ),
    "break": (
        "The emulator carries out one access after another, as a strict machine would. A load without acquire is "
        "wrong on a GPU, where the stores into the slot may come before the load that allows them. No test of values "
        "finds that here."
    ),
    "one-count": (
        "The count says how many are ready, not which. Thread 5 is quick, the count is 1, and the proxy takes slot 0, "
        "which thread 0 has not filled."
    ),
    "reuse": "The NIC reads late. What it reads is then the next message.",
}
