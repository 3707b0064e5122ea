"""Where processes of a host share memory, and whether there is room."""

from __future__ import annotations

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
MAKE_ROOM = (
    f"remove what you do not need there (`df {SHARED_MEMORY}`), or make it larger (docker run --shm-size=1g, mount -o "
    f"remount,size=1g {SHARED_MEMORY})"
)


def free_bytes() -> int:
    """What is left there. Raises OSError where there is none."""
    status = os.statvfs(SHARED_MEMORY)
    return status.f_bavail * status.f_frsize
