"""The grader's copy of a learner's files: read once from their folder, before any of their code runs."""

from __future__ import annotations

import codecs
import errno
import os
import re
import shutil
import stat
from pathlib import Path

from ep_lib.errors import GradingError
from ep_lib.jit.lexer import logical, without_attempts
from ep_lib.workshop.exercises import Exercise

MAX_PIECE_BYTES = 1 << 18  # ten times the longest of the course's
_CTRL_Z = b"\x1a"

# Code that reads files outside of the exercise. Walls block such reads under any name; this gives the learner and the
# instructor a sentence with the line instead of the compiler's.
_REACHES_OUT = re.compile(
    r"""(?P<what> (?:\#|%:)\s*include_next\b | (?:\#|%:)\s*embed\b | \.\s*incbin\b
        | ^[^\S\n]*(?:\#|%:)\s*(?:include|import|line)\b[^\n]*?(?:["<]\s*/|\.\./)[^\n]*
        | __has_include_next\b | __has_embed\b | __has_include\b[ \t]*\([ \t]*["<][ \t]*(?:/|[^">\n]*\.\./)[^\n]*
        | (?<!ifdef\ )(?<!defined\ )(?<!defined\()__has_include\b(?![ \t]*\([ \t]*["<])[^\n]*
        | (?:\#|%:)[ \t]*(?:include|import)\b(?![ \t]*["<])[^\n]* )""",  # the last: of a macro, which may be any file
    re.VERBOSE | re.MULTILINE,
)


def copy_pieces(exercise: Exercise, folder: Path, target: Path) -> None:
    """Copies only the pieces, so that a submission cannot replace other headers of the library.

    Raises GradingError for a piece that is missing, no regular file, a link or behind one, or too large.
    """
    for piece in exercise.pieces:
        (target / piece).parent.mkdir(parents=True, exist_ok=True)
        (target / piece).write_bytes(without_marks(_read(folder, piece, exercise)))
    for name in exercise.also:
        shutil.copyfile(exercise.exercise_dir / name, target / name)


def reaches_out(exercise: Exercise, mine: Path) -> str:
    """ "x.cuh:3: `#include_next` ...": where a piece reads files outside of the exercise; "" if nowhere."""
    for piece in exercise.pieces:
        if piece.endswith(".py"):
            continue
        text = without_attempts(logical(source_text(mine / piece)))
        if found := _REACHES_OUT.search(text):
            line = text.count("\n", 0, found.start()) + 1
            return (
                f"{piece}:{line}: `{found['what'].strip()}` asks for a file that is not part of the exercise. A piece "
                "includes the library's headers (`#include <ep/...>`) and the standard ones."
            )
    return ""


def source_text(file: Path) -> str:
    """A piece as a compiler reads it: lines end with a newline, without a carriage return."""
    return file.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n")


def without_marks(data: bytes) -> bytes:
    """A file without the marks of Windows and DOS editors: a byte order mark, which NVRTC does not accept in headers,
    and a final Ctrl-Z."""
    data = data.removeprefix(codecs.BOM_UTF8)
    text = data.rstrip()
    return text.rstrip(_CTRL_Z) if text.endswith(_CTRL_Z) else data


def not_text(exercise: Exercise, mine: Path) -> str:
    """The problem of a piece that is empty or that compilers do not read as text; "" if there is none."""
    for piece in exercise.pieces:
        data = (mine / piece).read_bytes()
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return f"{piece} is stored as UTF-16: save it as UTF-8 in your editor"
        if not data.strip():
            return f"{piece} is empty: hand in what you wrote, or begin again with exercises/{exercise.name}/{piece}"
        if b"\0" in data:
            return f"{piece} is no text: its byte {data.index(0)} is zero. Hand in the source"
    return ""


def _read(folder: Path, piece: str, exercise: Exercise) -> bytes:
    path = folder
    for part in Path(piece).parts:
        path = path / part
        if path.is_symlink():
            raise GradingError(f"{path} is a link to {path.readlink()}; a submission holds its files themselves")
    try:
        return read_regular(path, MAX_PIECE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise GradingError(
            f"no file {piece} in {folder}, as exercises/{exercise.name} has it: "
            f'workshop.start("{exercise.short_name}") in Python brings a new one into mine/, and --mine of a command '
            "names another folder"
        ) from None


def read_regular(path: Path, limit: int) -> bytes:
    """A regular file's content. Raises GradingError if it is something else, a link or too large, and OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise GradingError(f"{path} is a link; a submission holds its files themselves") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise GradingError(f"{path} is no file but {_kind(status.st_mode)}; a submission holds regular files")
        if status.st_size > limit:
            raise GradingError(f"{path} has {status.st_size} bytes; a piece has at most {limit}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(fd)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")
