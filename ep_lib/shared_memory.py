"""The folder of a host's shared memory, and its free space."""

from __future__ import annotations

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
MAKE_ROOM = (
    f"remove what you do not need there (`df {SHARED_MEMORY}`), or make it larger (docker run --shm-size=1g, mount -o "
    f"remount,size=1g {SHARED_MEMORY})"
)


def free_bytes() -> int:
    """The free bytes there. Raises OSError if there is no such folder."""
    status = os.statvfs(SHARED_MEMORY)
    return status.f_bavail * status.f_frsize
