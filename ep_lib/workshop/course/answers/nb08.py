"""Explanations of the predictions of notebook 08. See __init__.py."""

from __future__ import annotations

ANSWERS: dict[str, str | tuple[str, str]] = {
    "small": "One look at a GPU from the CPU costs more, and three messages there and back as much.",
    "scale": (
        "E4M3 is a floating-point format: the others only lose bits when they sink among the subnormal numbers. But"
        " then they sink quickly: ten times more, and most of them become zero."
    ),
    "packets": (
        "The emulator lets threads take turns, but a thread's own stores arrive in the order of the program. On "
        "NVLink they need not. A test that passes shows that it can go right; the checker asks what makes it go "
        "right."
    ),
    "once": (
        "A token cannot go to more ranks than there are. With 64 ranks, two of its experts seldom share one, and "
        "both ways become the same: this idea is for a few ranks that share an NVLink switch."
    ),
    "combine": (
        "Each part is added up in the order of k, and the parts in the order of ranks, whatever arrives first. Rounded "
        "elsewhere than one sum would be, but always at the same places."
    ),
    "rounds": (
        "The flag says that data has come. It does not say that it has been read: I am through with round 0 when "
        "yours has come, and you may not have looked at mine. A credit would say it; a second buffer needs none."
    ),
}
