"""Why the predictions of notebook 06 come out as they do. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "rows": "A token whose two experts live on the same rank travels there once, and both experts read it.",
    "room": "ranks x max_tokens: a token arrives once, even if it wants both experts. top_k does not matter here.",
    "combine": (
        "One row from each rank that it visited, added up. The weights make an average of it: apply them in the "
        "expert, or pass topk_weights to combine."
    ),
}
