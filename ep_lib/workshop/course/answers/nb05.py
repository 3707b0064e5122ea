"""Explanations of the predictions of notebook 05. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "memory": (
        "ranks x tokens x bytes per token, for the inbox alone; the source must be registered as well. Nearly all "
        "of it stays empty: a token goes to at most 8 of the 32 ranks."
    ),
    "in-turn": (
        "everybody waits for ever",
        "Both ranks have filled the other's slots. Both wait for a credit, and the one who should give it is "
        "waiting too.",
    ),
    "mistakes": (
        "The next chunk must arrive just while this one is copied out. Here a seed may stop a thread between any two "
        "instructions, so some runs meet it, and read mixed rows. On a GPU the window is microseconds, and a customer "
        "finds it."
    ),
    "pipelined": "Copying in, the wire, copying out and the credit's way back overlap, instead of taking turns.",
    "one-counter": (
        "A signal speaks for its own put. When chunk 1 overtakes chunk 0, the counter says 1, and slot 0 is read."
    ),
    "table": (
        "rows that stay on their own rank are counted",
        "Of 8 ranks, 1/8 of the rows are for the own rank and never reach the card. They count as received (logical"
        " GB/s), but not on the wire. (An inference: the page does not say what it counts.)",
    ),
}
