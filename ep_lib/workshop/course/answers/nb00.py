"""Explanations of the predictions of notebook 00. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "greet": "Each rank reads its own box, and what is in there came from the other one.",
    "turns": (
        "On the emulator, the seed decides who runs when, and nothing else does. On a GPU nothing decides: there, no"
        " two runs need to be alike."
    ),
}
