"""Explanations of the predictions of notebook 06. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "rows": "A token whose two experts live on the same rank travels there once, and both experts read it.",
    "orders": (
        "Whoever asks first gets the first row, and who that is depends on the schedule. The result is right each "
        "time, and never twice the same."
    ),
    "quickest": (
        "64 threads did the work of rungs 0 to 2, and they were all in one block, on one SM. A warp per token spreads "
        "it over all of them.\n"
        "Counting costs: rungs 1 and 2 have two launches more (0.9 us each here) and an exchange, so rung 0 is the "
        "quickest of the three. What counts buy is no time here but an order, and exact places; with 4096 tokens per "
        "rank the same two launches are lost in 250 us.\n"
        "After the warps little is left to gain. Of rung 4's 6.56 us the counts take 2.6, and the kernel itself 3.9; "
        "for that the busiest link needs 3.0: no kernel can send faster than that.\n"
        "These three are real. But on this clock a plain load costs bandwidth, and no latency: it sees no difference "
        "between one load under way and seven, or between lanes and TMA."
    ),
    "early": (
        "The barrier is one of block 0's threads only. The other blocks' rows are not before its signal, and whoever "
        "reads after the signal may read too early."
    ),
}
