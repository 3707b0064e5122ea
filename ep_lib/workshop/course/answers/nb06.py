"""Explanations of the predictions of notebook 06. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "rows": "A token whose two experts live on the same rank travels there once, and both experts read it.",
    "orders": (
        "The rank that asks first gets the first row, and which one that is depends on the schedule. The result is "
        "right each time, and never twice the same."
    ),
    "quickest": (
        "64 threads did the work of rungs 0 to 2, all in one block, on one SM. A warp per token spreads it over all "
        "eight blocks.\n"
        "For 64 tokens counts do not pay: two launches more (0.9 us each) and an exchange. With 4096 tokens per rank "
        "the same is lost in 250 us.\n"
        "After the warps little is left to gain: of rung 4's 6.56 us the counts take 2.6 and the kernel 3.9, and the "
        "busiest link needs 3.0. (On this clock a plain load has no latency, so one under way is as good as seven.)"
    ),
    "early": (
        "The barrier is one of block 0's threads only. The other blocks' rows are not before its signal, and a "
        "rank that reads after the signal may read too early.\n"
        "The checker names the reader, who waits for nothing of these blocks. The cure is the writer's: in "
        "finish_dispatch the last block of all signals, for all."
    ),
}
