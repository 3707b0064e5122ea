"""Where the user's program is: the innermost frame outside of ep_lib, for messages that name a line of theirs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parent) + os.sep  # as code objects name their files


def is_ours(frame: FrameType) -> bool:
    """Whether this is code of ep_lib."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def outer_frame() -> FrameType:
    """The innermost frame outside of ep_lib. Do not keep it: it holds its caller's variables."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return frame
