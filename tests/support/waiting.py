"""Waiting for what another process does, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

ENOUGH = 120.0  # seconds after which a test gives up waiting


def wait_until(holds: Callable[[], bool], seconds: float = ENOUGH) -> bool:
    """Whether it holds, at the latest when a test has waited so long."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held
