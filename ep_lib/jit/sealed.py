"""Sealed files of a release: the library runs their content, and readers do not see it by accident.

`ep-lib release` (ep_lib/workshop/classroom/release.py) makes a learner's tree in which the library's own copy of a
piece shows the holes. Below them, one line is the seal: the whole text, compressed. Compilers get the opened text from
a temporary folder, and Python executes it. A seal is no secret: any user of the library can open it. A checkout has no
sealed files, and this module then costs no time.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from ep_lib import processes
from ep_lib.jit import digest, toolkit

MARK = toolkit.PACKAGE / "release.json"  # a release has it
_SEAL = re.compile(r"^(?://|#) sealed( whole)?: ([A-Za-z0-9+/=]+)$", re.MULTILINE)
_SOURCES = frozenset((".cu", ".cuh"))


@functools.cache
def in_use() -> bool:
    """Whether this ep_lib is a release."""
    return MARK.is_file()


HOW_TO_HAND_IN = (
    "Hand in your folder mine/, all of it: `python -m zipfile -c mine.zip mine` makes an archive to upload; where your "
    "course is a git repository, `git add mine`, commit and push"
)


def tested_by(exercise: str) -> str:
    """The command for the most thorough available tests of an exercise."""
    return f'workshop.check("{exercise}")' if in_use() else f"ep-lib grade {exercise}"


def seal(text: str, shown: str, *, python: bool, whole: bool = False) -> str:
    """A file that shows ``shown`` and contains ``text``. ``whole``: line numbers are those of ``text``, not of
    ``shown``."""
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    opens = ""
    if python:
        opens = "\nfrom ep_lib.jit import sealed as _sealed\n\nexec(_sealed.code(__file__), globals())\n"
    return f"{shown}{opens}{'#' if python else '//'} sealed{' whole' if whole else ''}: {packed}\n"


def opened(text: str) -> str:
    """The text for a compiler or Python: the opened seal, if the file has one."""
    found = _SEAL.search(text) if in_use() else None
    return zlib.decompress(base64.b64decode(found[2])).decode() if found else text


def shown(text: str) -> str:
    """The text that a learner sees: without the seal."""
    return _SEAL.sub("", text).rstrip("\n") + "\n" if in_use() else text


def is_sealed(text: str) -> bool:
    return in_use() and _SEAL.search(text) is not None


def code(file: str) -> CodeType:
    """A sealed Python file, compiled."""
    path = Path(file)
    return compile(opened(path.read_text(encoding="utf-8")), f"<sealed {path.name}>", "exec")


@functools.lru_cache(maxsize=64)
def whole_lines(file: str) -> tuple[str, ...] | None:
    """The opened lines of a file that is sealed as a whole; None for others."""
    if not in_use() or Path(file).suffix not in _SOURCES:
        return None
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    found = _SEAL.search(text)
    return tuple(opened(text).splitlines()) if found and found[1] else None


class Opened(NamedTuple):
    """A folder with other texts of some files, each below its whole path; None if there are none."""

    folder: Path | None

    def place(self, file: Path) -> Path:
        """Where a file's other text is, or would be."""
        return file if self.folder is None else self.folder / file.relative_to(file.anchor)

    def roots(self, roots: Sequence[Path]) -> list[Path]:
        """The folders to search before ``roots``."""
        return [] if self.folder is None else [self.place(root) for root in roots]


@contextlib.contextmanager
def open_includes(unit: str, roots: Sequence[Path], texts: Mapping[str, str]) -> Iterator[Opened]:
    """What compilers get in place of files, until the context ends: what ``unit`` includes and is sealed, and
    ``texts``, by the files' paths."""
    headers = among(digest.scan(unit, roots).files) if in_use() else ()
    texts = {**{str(file): opened(file.read_text(encoding="utf-8", errors="replace")) for file in headers}, **texts}
    with processes.temporary_folder("ep_opened_") if texts else contextlib.nullcontext() as folder:
        found = Opened(folder)
        for file, text in texts.items():
            target = found.place(Path(file))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f'#line 1 "{file}"\n{text}', encoding="utf-8")
        yield found


def among(files: Iterable[str]) -> Iterator[Path]:
    """The sealed C++ files among these."""
    for file in map(Path, files) if in_use() else ():
        if file.suffix in _SOURCES and is_sealed(file.read_text(encoding="utf-8", errors="replace")):
            yield file
