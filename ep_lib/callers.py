"""The user's place in the program: the innermost frame outside of ep_lib, for messages that name the user's line."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_WORKSHOP = ("notebooks", "solutions")  # folders of a workshop
_CELL = re.compile(r"ipykernel_\d+|<ipython-input|<cell ")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_PACKAGE = str(Path(__file__).parent) + os.sep  # as in code objects


def is_ours(frame: FrameType) -> bool:
    """Whether this is code of ep_lib."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def outer_frame() -> FrameType:
    """The innermost frame outside of ep_lib. Do not keep it: it holds its caller's variables."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def frame_of(thread: int) -> FrameType | None:
    """The innermost frame of the thread ``ident`` that is neither ep_lib's nor the standard library's."""
    frame = sys._current_frames().get(thread)
    while frame is not None and (is_ours(frame) or frame.f_code.co_filename.startswith((_STANDARD, "<frozen"))):
        frame = frame.f_back
    return frame


def is_cell(filename: str) -> bool:
    """Whether this is the name that IPython gives to the code of a notebook's cell."""
    return _CELL.search(filename) is not None


def workshops_above(folder: Path) -> Iterator[Path]:
    """The workshop folders that contain this one, the innermost first."""
    return (root for root in folder.parents if all((root / name).is_dir() for name in _WORKSHOP))


def short_path(file: str | os.PathLike[str]) -> str:
    """A file's name in messages: relative to the workshop's folder for programs that run inside of it, such as
    notebooks; else relative to the current folder, if that is shorter."""
    full, here = Path(file).resolve(), Path.cwd()
    for root in workshops_above(here):
        if full.is_relative_to(root):
            return str(full.relative_to(root))
    return min(os.path.relpath(full), str(full), key=len)


def place(filename: str, line: int) -> str:
    """``file:line`` for messages. A notebook's cell gets the number beside it, ``In[7], line 3``, since its own file
    has a temporary name."""
    if not is_cell(filename):
        return f"{Path(filename).name}:{line}"
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    label = None if shell is None else shell.compile.format_code_name(filename)
    return f"{label[1] if label else 'a cell'}, line {line}"
