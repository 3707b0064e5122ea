"""Why the predictions of notebook 06 come out as they do. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "rows": "A token whose two experts live on the same rank travels there once, and both experts read it.",
    "orders": (
        "Whoever asks first gets the first row, and who that is depends on the schedule. The result is right each "
        "time, and never twice the same."
    ),
    "quickest": (
        "64 threads did the work of rungs 0 to 2, and they were all in one block, on one SM. A warp per token spreads "
        "it over all of them."
    ),
    "early": (
        "The barrier is one of block 0's threads only. The other blocks' rows are not before its signal, and whoever "
        "reads after the signal may read too early."
    ),
    "room": "ranks x max_tokens: a token arrives once, even if it wants both experts. top_k does not matter here.",
}
