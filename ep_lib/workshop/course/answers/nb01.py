"""Explanations of the predictions of notebooks 01 and 01b. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "reversed": (
        "Most orders of events hide the mistake: the data happens to be there before the receiver looks. That is "
        "why such code passes its tests, and fails in production."
    ),
    "warp": (
        "Since the Volta generation every lane has its own program counter, and lockstep is no promise. "
        "__syncwarp() puts the stores of all lanes before lane 0's release: lane 7's store comes before the "
        "barrier, the barrier before the release, and 'before' is passed on."
    ),
    "many": (
        "One signal for each message, however many pieces it has: a signal is a message of its own, so send as few as "
        "you can. And the empty message is announced like any other, since the receiver waits for it and cannot know "
        "that nothing is to come."
    ),
    "nixl": (
        "it is refused before a byte has moved",
        "ep_lib's nixlPut compares the range with the view's entry before it copies. On a network the card compares, "
        "by the registered region's key. NVLink compares nothing: a plain store would land in what lies behind.",
    ),
    "words": (
        "A race is two accesses of which one is not atomic, and here all are. And these runs have one memory for all: "
        "a load returns what was stored last, so the edition is never seen before its words. Both are true, and "
        "neither says that a GPU does the same."
    ),
    "traced": "As many as there are slots: to write one more, it needs a credit.",
}
