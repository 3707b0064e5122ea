"""Maps a place in a compiled kernel to the user's line of source."""

from __future__ import annotations

import functools
import linecache
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ep_lib.callers import short_path
from ep_lib.errors import ThreadId
from ep_lib.jit import sealed, toolkit
from ep_lib.jit.source import ENTRY_FILE, filename_of

_PACKAGE = Path(__file__).resolve().parent.parent
_BUILTINS = _PACKAGE / "emulator"
_HEADER = re.compile(r"(?:^|/)((?:ep|moe)/.*\.cuh)$")
_STRUCT = re.compile(r"(?:template\b.*>\s*|typedef\s+)?(?:struct|class|union)\b")  # the line in which one begins


@dataclass(frozen=True)
class Place:
    """``location`` is ``file:line`` (empty if unknown), ``source`` the text of that line without indentation.

    ``name``: the user's name for the file. ``file``: the path of its text. ``called_at``: the call, if the compiler has
    inlined the line's function into another one of the user's.
    """

    location: str = ""
    source: str = ""
    file: Path = Path()
    name: str = ""
    line: int = 0
    called_at: Place | None = None

    def __bool__(self) -> bool:
        return bool(self.line)

    def __str__(self) -> str:
        return f"line {self.line} of {self.name}"

    @property
    def caller(self) -> str:
        """``file:line: text`` of the call, or empty."""
        return f"{self.called_at.location}: {self.called_at.source}" if self.called_at else ""

    @property
    def outer(self) -> Place:
        """The line that leads there in the kernel itself."""
        return self.called_at.outer if self.called_at else self

    def by_way(self, text: str = "") -> str:
        """``text``, or the place itself, and the outermost call that leads there, if there is one."""
        outer = self.outer
        of = "" if outer.name == self.name else f" of {outer.name}"
        return (text or str(self)) + (f", called in line {outer.line}{of}" if outer is not self else "")


def thread_of(entry: Mapping[str, Any]) -> ThreadId:
    """The thread of an entry of the runtime's reports."""
    return ThreadId(entry["rank"], tuple(entry["block"]), tuple(entry["thread"]))


def _frames(image: str, offset: int) -> list[tuple[Path, int]]:
    """Source positions at an offset, innermost first, with the functions that were inlined there."""
    command = ["addr2line", "-i", "-e", image, hex(offset)]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    frames = []
    for line in text.splitlines():
        file, _, number = line.partition(" (discriminator")[0].rpartition(":")
        if file not in ("", "??") and number.isdigit() and number != "0":
            frames.append((Path(file), int(number)))
    return frames


def _inside(file: Path, directory: Path) -> bool:
    return file.resolve().is_relative_to(directory)


def _header_of_ours(file: Path) -> str:
    """The name by which kernels include ep_lib's header: "ep/wait.cuh"; empty for other files."""
    path = file.resolve()
    inside = path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else ""
    match = _HEADER.search(inside)
    return match[1] if match else ""


def _is_installed(file: Path) -> bool:
    """Whether it is a header of CUDA (<cuda/atomic>, cuda_fp16.h, ...) or of the C++ library."""
    return "/include/c++/" in file.resolve().as_posix() or any(_inside(file, folder) for folder in _cuda_headers())


@functools.cache
def _cuda_headers() -> tuple[Path, ...]:
    return tuple(folder.resolve() for folder in toolkit.cuda_include_dirs())


def _short(file: Path) -> str:
    """The name in messages; for a source string the user's name."""
    return filename_of(file) or short_path(file)


@functools.lru_cache(maxsize=4096)
def find(image: str, offset: int) -> Place:
    """The kernel's line that led to this place, through ep_lib's own headers if there are any."""
    if not offset:
        return Place()
    frames = [f for f in _frames(image, offset) if not _inside(f[0], _BUILTINS) and f[0].name != ENTRY_FILE]
    while len(frames) > 1 and _STRUCT.match(_text_of(str(frames[0][0]), frames[0][1])):
        del frames[0]  # a copy by an implicit constructor
    if not frames:
        return Place()
    users = [f for f in frames if not _header_of_ours(f[0]) and not _is_installed(f[0])]
    file, line = users[0] if users else frames[0]
    called_at = None
    for frame in reversed(users[1:]):
        called_at = _place(*frame, called_at)
    place = _place(file, line, called_at)
    if users and frames[0] != users[0] and not _is_installed(frames[0][0]):
        inner, inner_line = frames[0]
        return replace(place, location=f"{place.location} (in <{_header_of_ours(inner)}>:{inner_line})")
    return place


def _place(file: Path, line: int, called_at: Place | None) -> Place:
    name = _short(file)
    return Place(f"{name}:{line}", _text_of(str(file), line), file, name, line, called_at)


def find_called(spot: Mapping[str, Any], called: Mapping[str, Any] | None) -> Place:
    """The place of a spot (``image``, ``offset``), called at another one, if its function is not inlined."""
    place = find(spot["image"], spot["offset"])
    call = find(called["image"], called["offset"]) if called and not place.called_at else None
    return replace(place, called_at=call) if call and not _header_of_ours(call.file) else place


@functools.lru_cache(maxsize=4096)
def is_of_a_library(image: str, offset: int) -> bool:
    """Whether the place is in a header of CUDA, of the C++ library or of the emulator, perhaps inlined."""
    frames = _frames(image, offset)
    return bool(frames) and (_is_installed(frames[0][0]) or _inside(frames[0][0], _BUILTINS))


def at_line(place: Place, line: int) -> Place:
    """Another line of the same file."""
    return replace(place, line=line, source=_text_of(str(place.file), line), location="", called_at=None)


def _text_of(file: str, line: int) -> str:
    if lines := sealed.whole_lines(file):
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""
    linecache.checkcache(file)
    return linecache.getline(file, line).strip()
