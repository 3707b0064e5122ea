"""Explanations of the predictions of notebook 07. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "nothing": (
        "One row from each rank that it visited, added up. Weights that sum to 1 make an average of it: apply them "
        "in the expert, or pass topk_weights to combine."
    ),
    "chance": (
        "Two rows have the same sum in either order. With three or four the last bit depends on who came first, and "
        "there are thousands of sums in which that can show."
    ),
    "fused": (
        "Where the product is rounded before it is added, now and then the last bit is another. More exact, and "
        "useless if you want to compare it with anything."
    ),
    "overlap": (
        "Rows cross the links while later groups are still with their experts, and no launch and no stage stand "
        "between. What remains is little more than the experts themselves."
    ),
    "hurry": (
        "Nothing orders the other lanes' rows before the signal, so every schedule has the race, even those in which "
        "the data happens to be there in time. That is why the checker needs few of them."
    ),
}
