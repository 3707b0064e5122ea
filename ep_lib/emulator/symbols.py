"""Maps a place in a compiled kernel to the user's line of source."""

from __future__ import annotations

import dataclasses
import functools
import linecache
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ep_lib.callers import short_path
from ep_lib.jit import sealed, toolkit
from ep_lib.jit.source import filename_of

_PACKAGE = Path(__file__).resolve().parent.parent
_BUILTINS = _PACKAGE / "emulator"
_HEADER = re.compile(r"(?:^|/)((?:ep|moe)/.*\.cuh)$")
_STRUCT = re.compile(r"(?:template\b.*>\s*|typedef\s+)?(?:struct|class|union)\b")  # the line in which one begins


@dataclass(frozen=True)
class Place:
    """``location`` is ``file:line`` (empty if unknown), ``source`` the text of that line without indentation.

    ``name``: the user's name for the file. ``file``: the path of its text. ``caller``: ``file:line: text`` of the call,
    if the compiler has inlined the line's function into another one of the user's.
    """

    location: str = ""
    source: str = ""
    file: Path = Path()
    name: str = ""
    line: int = 0
    caller: str = ""

    def __bool__(self) -> bool:
        return bool(self.line)

    def __str__(self) -> str:
        return f"line {self.line} of {self.name}"


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
    frames = [f for f in _frames(image, offset) if not _inside(f[0], _BUILTINS)]
    while len(frames) > 1 and _STRUCT.match(_text_of(str(frames[0][0]), frames[0][1])):
        del frames[0]  # a copy by an implicit constructor
    if not frames:
        return Place()
    users = [f for f in frames if not _header_of_ours(f[0]) and not _is_installed(f[0])]
    file, line = users[0] if users else frames[0]
    location = f"{_short(file)}:{line}"
    if users and frames[0] != users[0] and not _is_installed(frames[0][0]):
        inner, inner_line = frames[0]
        location += f" (in <{_header_of_ours(inner)}>:{inner_line})"
    caller = ""
    if len(users) > 1:
        caller = f"{_short(users[1][0])}:{users[1][1]}: {_text_of(str(users[1][0]), users[1][1])}"
    return Place(location, _text_of(str(file), line), file, _short(file), line, caller)


@functools.lru_cache(maxsize=4096)
def is_of_a_library(image: str, offset: int) -> bool:
    """Whether the place is in a header of CUDA, of the C++ library or of the emulator, perhaps inlined."""
    frames = _frames(image, offset)
    return bool(frames) and (_is_installed(frames[0][0]) or _inside(frames[0][0], _BUILTINS))


def at_line(place: Place, line: int) -> Place:
    """Another line of the same file."""
    return dataclasses.replace(place, line=line, source=_text_of(str(place.file), line), location="", caller="")


def _text_of(file: str, line: int) -> str:
    if lines := sealed.whole_lines(file):
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""
    linecache.checkcache(file)
    return linecache.getline(file, line).strip()
