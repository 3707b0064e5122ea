"""Explanations of the predictions of notebook 02. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "count": "A part of what is registered, and the same again, need nothing new: there are data's and other's.",
    "order": "Neither side ever sends. The size does not matter: neither gets as far as its own send.",
    "expensive": (
        "An agent starts UCX, with its sockets and threads. That is done once; posts are what there are millions of."
    ),
}
