"""Explanations of the predictions of notebook 09. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "collapse": (
        "Two experts are a little better at the start, are chosen for it, learn, and get better still. After 160 steps "
        "nearly all choices are theirs, and nothing in this loss asks for another one."
    ),
    "full": (
        "Two experts have nearly all choices between them, and room for 2 x 1.25 / 8 = 31 %, while others are idle. "
        "A balanced router loses some as well: no text is even."
    ),
    "same": (
        "Rows are copied, not changed, and combine adds in a fixed order, whatever the timing. Only the matrix "
        "products may round differently, when they are cut into other pieces."
    ),
    "warps": (
        "The link is not what takes the time: some 130 KB leave each rank, which are less than half a microsecond. One "
        "warp does every packet, row, signal and copy after the other, and 16 warps do them side by side. 64 hardly "
        "gain anything: what is left are the trips of a packet, a row and a signal."
    ),
}
