"""Explanations of the predictions of notebook 10. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "crossings": (
        "A token that needs the other node at all needs 3.3 of its 8 ranks on average, and the partner stores all of "
        "them from one row. With 4 nodes of 8 the factor is smaller: the same 8 experts are spread over more nodes."
    ),
    "waits-first": (
        "rows that its own node does not forward",
        "The messages have arrived. A rank's rows come from its mates, who forward what their partners sent. If all of "
        "them wait for their own rows first, none forwards. It is 05's deadlock once more: a rank that waits must go "
        "on serving the others.",
    ),
    "operations": (
        "On RC a queue pair keeps the order. On SRD the label may come first, and the partner forwards what lay in the "
        "slot before."
    ),
    "clock": (
        "The NICs carry a third of the bytes, but with so few tokens an operation is mostly latency, and two levels "
        "have more of that. With 4096 tokens (docs/multinode.md) it is 5.5 times for a dispatch by a known routing."
    ),
}
