"""What a class has handed in: each learner's files, out of folders, archives, and the exports of learning platforms.

Nothing is unpacked to the disk. Of a folder or an archive only files with the name of a piece of an exercise, and
notebooks, are read, each up to a limit; links and names that lead out of an archive are not followed, but said.

What is understood in the folder (or the archive) of all submissions:

- a folder or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) per learner, named after the learner;
- Moodle's export: "Jane Doe_12345_assignsubmission_file_" folders, or files that begin so, or the zip of them;
- Canvas's export: "doejane_123_45678_mine.zip" or "doejane_LATE_123_45678_ring.cuh" files, or the zip of them, where
  all that is there looks so: "EP_2026_11_ada.zip" is nobody of Canvas's;
- clones of a git classroom, by the names of their folders; in "workshop-submissions", which is how `gh classroom` calls
  it, "workshop-ada" is ada;
- single files named after the learner: "ada_ring.cuh", "ada_01_write_and_signal.ipynb".

What a learner is called does not depend on who else is there. Of two learners of one name a platform's number tells
them apart; who is in the gradebook already keeps the name that it has there.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import math
import os
import re
import stat
import struct
import tarfile
import time
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from ep_lib.errors import GradingError
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.exercises import names as exercise_names
from ep_lib.workshop.submission import MAX_PIECE_BYTES, read_regular

MAX_NOTEBOOK_BYTES = 16 << 20
_MAX_ARCHIVE_BYTES = 64 << 20  # of an archive inside of another one, or of one learner
# Of one learner's archives together, with what they hold, and what is skipped in a tar: in a zip that is not unpacked.
_MAX_UNPACKED_BYTES = 128 << 20
_MAX_CPU_S = 4.0  # for reading one learner's files
_BLOCK_BYTES = 10240  # what a read behind the end of an archive counts as: some headers ask for 2**62 bytes there
_CHUNK_BYTES = 1 << 20  # read at a time
_MAX_HEADER_BYTES = 1 << 14  # of an entry of a tar, beside its block: a long name, a date
_MAX_KEPT_BYTES = 32 << 20  # of one learner's pieces and notebooks together
_MAX_ENTRIES = 20_000  # of one learner
_MAX_DIRECTORY_BYTES = 4 << 20  # of a zip's list of its files
_MOST_LEARNERS = 100  # an archive of all submissions may be this many times as large
_NOBODYS = "(names that lead out)"  # of an archive of all submissions, where they are said
_MAX_DEPTH = 3  # archives inside of archives
_MAX_PROBLEMS = 20  # of one learner; there may be one for each entry
_MAX_SAID = 400  # characters of a problem, in which names may be long
_ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|tar\.(?:gz|bz2|xz))$", re.IGNORECASE)
_NO_FILE = "is no regular file but a link or a device; it is not followed"
_TAR_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_NOT_THEIRS = ("__MACOSX", "__pycache__", "node_modules")
# The course's own folders, if somebody sends all.
_COURSES = ("solutions", "ep_lib", "tutorial_kernels", "tests", "build")
_OF_A_LEARNER = ("mine", "exercises", "notebooks")  # folders that learners have
_AS_GIVEN, _OF_THE_COURSE = 3, 4  # the last ranks of a candidate
_AGAIN = re.compile(r"(?: ?\(\d+\)|-\d+)(?=\.\w+$)")  # "ring (1).cuh" of a browser, "ring-1.cuh" of Canvas
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)$")
# The numbers are those of a user and of an upload, of which Canvas has one for all its courses.
_CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<number>\d{3,})_(?P<upload>\d{5,})_(?P<file>.+)$")
_NOTEBOOK = re.compile(r"(?:(?P<name>.+)_)?\d\d_[a-z][a-z0-9_]*\.ipynb")  # of the course
_CLASSROOM = "submissions"  # "workshop-submissions" holds "workshop-ada", and so on
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True)
class Content:
    """A file as it was handed in; ``problem`` instead of ``data`` if it was not taken."""

    piece: str = ""  # which piece's name it has; "" for a notebook
    data: bytes = b""
    modified: str = ""  # ISO 8601, UTC
    problem: str = ""


@dataclass
class Submission:
    """What one learner has handed in: wanted files by their path, and what was refused."""

    learner: str
    source: str
    place: str = ""  # what it is called among all submissions; with the platform's number, if it gives one
    files: dict[PurePosixPath, Content] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_late: bool = False  # the platform says so


class Refused(GradingError):
    """An archive or a folder that is not read any further."""


class TooMuch(Refused):
    """More than one learner may hand in: nothing further of this learner is read."""


# ---- reading folders and archives ------------------------------------------------------------------------------------
class _Work:
    """What reading costs, up to limits: bytes that come out of archives, of tars also those that nobody looks at, and
    CPU time while it is ``counted``."""

    def __init__(self, bytes_: int, cpu_s: float) -> None:
        self._bytes = self.left = bytes_
        self._cpu_s = cpu_s
        self._used = 0.0  # s
        self._began: float | None = None

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self._began = time.thread_time()
        try:
            yield
        finally:
            self._used += time.thread_time() - self._began
            self._began = None

    def take(self, size: int) -> None:
        """``size`` bytes have come out of an archive, or will. Raises TooMuch."""
        self.left -= size
        if self.left < 0:
            raise TooMuch(f"refused: it unpacks to more than {self._bytes >> 20} MiB, with what is in its archives")
        self.look()

    def look(self) -> None:
        """Raises TooMuch if it takes too long."""
        if self._began is not None and self._used + time.thread_time() - self._began > self._cpu_s:
            raise TooMuch(f"refused: reading it takes more than {self._cpu_s:g} s of CPU time")


class _Packed(io.RawIOBase):
    """An archive as it is read by what unpacks it, which may ask for it in millions of empty parts, byte by byte, or
    for a list of files of any length."""

    def __init__(self, file: IO[bytes], work: _Work, most: int) -> None:
        self._file, self._work, self._most = file, work, most

    def read(self, size: int = -1) -> bytes:
        self._work.look()
        data = self._file.read(min(size, self._most + 1) if size >= 0 else self._most + 1)
        if len(data) > self._most:
            raise Refused(f"there are more than {_MAX_ENTRIES} files; hand in those of the exercise only")
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


class _Unpacked(io.RawIOBase):
    """What comes out of an archive, which is counted."""

    def __init__(self, file: IO[bytes], work: _Work) -> None:
        self._file, self._work = file, work

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _CHUNK_BYTES) if size >= 0 else _CHUNK_BYTES)
        self._work.take(len(data) or _BLOCK_BYTES)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


class _TarHeader(tarfile.TarInfo):
    """An entry of a tar whose header can be believed: what it says is checked before anything is read or skipped."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        """Reads on behind a header: tarfile's source says that this may be overridden; new ones do not call frombuf."""
        self.require_sound()
        is_of_another = self.type in (*_TAR_HEADERS, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if is_of_another and self.size > _MAX_HEADER_BYTES:
            raise Refused(f"a header of it has {self.size} bytes; it is packed in a way that is not read")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]

    def require_sound(self) -> None:
        """Raises Refused for sizes that no file has, and for files that are mostly holes."""
        if self.type == tarfile.GNUTYPE_SPARSE or self.issparse():
            raise Refused(f"{readable(self.name)} is a sparse file, which is not read; pack it without --sparse")
        if not 0 <= self.size < 1 << 48:
            raise Refused(f"{readable(self.name)} is said to have {self.size} bytes")


@dataclass(frozen=True)
class _Member:
    """An entry of an archive."""

    inside: PurePosixPath  # its name
    parts: tuple[str, ...]  # of the name as the archive has it
    is_folder: bool
    unread: str  # why it is not read; "" for a file that is
    modified: str  # as the archive says; whoever made the archive can say anything
    opened: Callable[[], Any]  # a binary file


class _Reader:
    """Collects one learner's files that have the name of a piece, and notebooks. TooMuch is for whoever made it.

    ``dated``: whether the dates of files on the disk say when they were handed in.
    """

    def __init__(self, pieces: Sequence[str], *, dated: bool = True) -> None:
        self._pieces = pieces
        self._dated = dated
        self.files: dict[PurePosixPath, Content] = {}
        self.problems: list[str] = []
        self.is_full = False
        self.work = _Work(_MAX_UNPACKED_BYTES, _MAX_CPU_S)
        self._entries = 0
        self._kept = 0  # bytes

    def within_limits(self, read: Callable[[], None]) -> None:
        """Calls ``read``; if that is too much, says so, and reads nothing more."""
        if self.is_full:
            return
        try:
            with self.work.counted():
                read()
        except Refused as error:
            self.is_full = isinstance(error, TooMuch)
            self.problems.append(_short(str(error)))
        except MemoryError:
            self.is_full = True
            self.problems.append("refused: it takes more memory than this machine has")
        except _BROKEN as error:
            self.problems.append(_short(f"it cannot be read ({str(error) or type(error).__name__})"))

    def _say(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(_short(problem))
        elif len(self.problems) == _MAX_PROBLEMS:
            self.problems.append("and more of that kind")

    def folder(self, folder: Path, at: PurePosixPath) -> None:
        """All of a folder, without following links."""
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except OSError as error:
            self._say(f"{at}: {error.strerror}")
            return
        for name in names:
            self.entry(folder / name, at / readable(name))

    def entry(self, path: Path, at: PurePosixPath) -> None:
        """A file or a folder on the disk, which the submission calls ``at``."""
        self._count()
        if not _is_theirs(at):
            return
        status = path.lstat()
        modified = _stamp(status.st_mtime) if self._dated else ""
        if stat.S_ISDIR(status.st_mode):
            self.folder(path, at)
        elif _ARCHIVE.search(at.name) and stat.S_ISREG(status.st_mode):
            self._archive_file(path, at, modified)
        elif limit := self._limit(at):
            try:
                self._keep(at, Content(self._piece(at), read_regular(path, limit), modified))
            except (GradingError, OSError) as error:
                if isinstance(error, TooMuch):
                    raise
                self._keep(at, Content(self._piece(at), problem=str(error)))

    def _archive_file(self, path: Path, at: PurePosixPath, modified: str) -> None:
        try:
            with path.open("rb") as file:
                self._archive(file, at, 1, modified)
        except OSError as error:
            self._say(f"{at}: {error.strerror}")

    def _archive(self, file: IO[bytes], at: PurePosixPath, depth: int, modified: str) -> None:
        """All of an archive. What is wrong with it is a problem; what was read before stays.

        ``modified``: when the archive came. What it says of the files in it, its maker wrote."""
        try:
            if depth > _MAX_DEPTH:
                raise Refused("archives inside of archives inside of archives are not opened")
            for member in _members(file, at.name, self.work):
                self.member(at, member, depth, modified)
        except TooMuch:
            raise
        except Refused as error:
            self._say(f"{at}: {error}")
        except _BROKEN as error:
            self._say(f"{at}: it cannot be unpacked ({str(error) or type(error).__name__})")

    def member(self, archive: PurePosixPath, member: _Member, depth: int, modified: str) -> None:
        """An entry of an archive that the submission calls ``archive`` and that came at ``modified``."""
        inside = member.inside
        self._count()
        if _leads_out(inside):
            self._say(f"{archive}: the name {str(inside)!r} leads out of the archive; it is left out")
            return
        at = archive / inside
        if not inside.parts or not _is_theirs(at) or member.is_folder:
            return
        is_archive = _ARCHIVE.search(at.name) is not None
        limit = _MAX_ARCHIVE_BYTES if is_archive else self._limit(at)
        if not limit:
            return
        if member.unread:
            self._keep(at, Content(self._piece(at), problem=f"{at} {member.unread}"))
            return
        with member.opened() as file:
            data = _read(file, limit + 1)
        if len(data) > limit:
            self._keep(at, Content(self._piece(at), problem=f"{at} has more than {limit} bytes"))
        elif is_archive:
            self._archive(io.BytesIO(data), at, depth + 1, modified)
        else:
            self._keep(at, Content(self._piece(at), data, modified))

    def _keep(self, at: PurePosixPath, content: Content) -> None:
        self._kept += len(content.data)
        if self._kept > _MAX_KEPT_BYTES:
            raise TooMuch(f"refused: its notebooks and pieces have more than {_MAX_KEPT_BYTES >> 20} MiB together")
        if at in self.files and self.files[at].data != content.data:
            content = Content(content.piece, problem=f"{at} is there twice, with different content")
        self.files[at] = content

    def _count(self) -> None:
        """One entry more. Raises TooMuch if there are too many, or if they take too long."""
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise TooMuch(f"there are more than {_MAX_ENTRIES} files; hand in those of the exercise only")
        self.work.look()

    def _limit(self, at: PurePosixPath) -> int:
        """How many bytes a wanted file may have; 0 if it is not wanted."""
        if at.suffix == ".ipynb":
            return MAX_NOTEBOOK_BYTES
        return MAX_PIECE_BYTES if self._piece(at) else 0

    def _piece(self, at: PurePosixPath) -> str:
        return piece_of(at.name, self._pieces)


def _is_theirs(at: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in _NOT_THEIRS for part in at.parts)


def _inside(name: str) -> tuple[PurePosixPath, tuple[str, ...]]:
    """The name of an archive's entry, readable, and its parts as they are."""
    path = PurePosixPath(name.replace("\\", "/"))
    return PurePosixPath(*map(readable, path.parts)), path.parts


def _leads_out(inside: PurePosixPath) -> bool:
    return inside.is_absolute() or ".." in inside.parts


def _members(file: IO[bytes], name: str, work: _Work, times: int = 1) -> Iterator[_Member]:
    """What is in an archive; ``times``: how many submissions it may hold. Raises Refused, and those of _BROKEN."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size > _MAX_ARCHIVE_BYTES * times:
        raise Refused(f"it has {size >> 20} MiB; at most {_MAX_ARCHIVE_BYTES * times >> 20} are read")
    name = name.lower()
    is_zip = name.endswith(".zip")  # whose list of files is read at once
    packed: Any = _Packed(file, work, (_MAX_DIRECTORY_BYTES if is_zip else _MAX_ARCHIVE_BYTES) * times)
    if is_zip:
        with zipfile.ZipFile(packed) as archive:
            for member in archive.infolist():
                is_plain = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
                yield _Member(
                    *_inside(member.filename),
                    is_folder=member.is_dir(),
                    unread=_packed_by(member) if is_plain else _NO_FILE,
                    modified=_stamp(time.mktime((*member.date_time, 0, 0, -1))),
                    opened=lambda member=member: _Unpacked(archive.open(member), work),  # type: ignore[misc]
                )
        return
    plain = packed
    if name.endswith(("gz", "tgz")):
        plain = gzip.GzipFile(fileobj=packed)
    elif name.endswith("bz2"):
        plain = bz2.BZ2File(packed)
    elif name.endswith("xz"):
        plain = lzma.LZMAFile(packed)  # noqa: SIM115 - it closes nothing that is not closed by others
    stream: Any = _Unpacked(plain, work)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK_BYTES, tarinfo=_TarHeader) as tar:
        for entry in tar:
            assert isinstance(entry, _TarHeader)
            entry.require_sound()  # again: a header before it may have changed what it says
            yield _Member(
                *_inside(entry.name),
                is_folder=entry.isdir(),
                unread="" if entry.isreg() else _NO_FILE,
                modified=_stamp(entry.mtime),
                opened=lambda entry=entry: tar.extractfile(entry),  # type: ignore[misc]
            )


def _packed_by(member: zipfile.ZipInfo) -> str:
    """Why a file of a zip is not read: Python unpacks other methods at once, to any length."""
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return ""
    return f"is packed by method {member.compress_type} of zip; pack it anew, in the usual way (deflate)"


def _read(file: IO[bytes], most: int) -> bytes:
    """All of a file, or its first ``most`` bytes, in parts."""
    parts = []
    while most > 0 and (part := file.read(min(most, _CHUNK_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SAID else f"{text[:_MAX_SAID]} ..."


def readable(name: str) -> str:
    """A file's name as text that can be written and shown, and that stays another one than any other: bytes that are
    no UTF-8 and control characters are written out, as in "J\\xf6rg". A letter with its accent is one character, which
    a Mac writes as two."""
    text = unicodedata.normalize("NFC", name)
    return "".join(char if char.isprintable() else _written_out(ord(char)) for char in text)


def _written_out(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte, as Python keeps those that it cannot decode
        code -= 0xDC00
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def _stamp(seconds: float) -> str:
    """A time of the clock as ISO 8601 in UTC; "" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def piece_of(name: str, pieces: Sequence[str]) -> str:
    """Which of ``pieces`` (names, the longest first) a file is called after: "ada_ring (1).cuh" and "RING.CUH", of a
    disk whose names are all in capitals, are ring.cuh; or ""."""
    plain = _AGAIN.sub("", name).lower()
    return next((piece for piece in pieces if plain == piece.lower() or plain.endswith(f"_{piece.lower()}")), "")


# ---- who handed in what ----------------------------------------------------------------------------------------------
def submissions(
    place: Path, exercises: Iterable[Exercise], known: Mapping[str, str] | None = None
) -> Iterator[Submission]:
    """Each learner's files in a folder or an archive, by name. Raises GradingError if there is no such place.

    ``known``: what learners are called, by :attr:`Submission.place`, of whom a gradebook has something.
    """
    pieces = _names_of(exercises)
    if place.is_dir():
        found = _in_folder(place, pieces, known or {})
    elif place.is_file() and _ARCHIVE.search(place.name):
        found = _in_archive(place, pieces, known or {})
    else:
        raise GradingError(f"no folder {place}, and no archive (.zip, .tar.gz): --all names what the class handed in")
    yield from _named(found, known or {})


def folder(place: Path, exercises: Iterable[Exercise]) -> Submission:
    """One learner's folder, by its path. Raises GradingError if it is none."""
    if not place.is_dir():
        raise GradingError(f"no folder {place}")
    reader = _Reader(_names_of(exercises))
    reader.within_limits(lambda: reader.folder(place, PurePosixPath()))
    name = readable(str(place))
    return Submission(name, name, name, reader.files, reader.problems)


def _names_of(exercises: Iterable[Exercise]) -> list[str]:
    """What the pieces' files are called, the longest names first."""
    return sorted({Path(piece).name for each in exercises for piece in each.pieces}, key=len, reverse=True)


@dataclass
class _Part:
    """An entry of the class's folder: whose it is, and how to read it."""

    name: str
    learner: str
    number: str  # of the platform, to tell two of one name apart
    late: bool
    source: str
    read: Callable[[], _Reader]
    is_whole: bool  # a folder or an archive of all that a learner has, and not one file of several
    doubt: str = ""  # about whose it is


def _in_folder(place: Path, pieces: Sequence[str], known: Collection[str]) -> list[_Part]:
    def reader_of(path: Path, name: str, *, dated: bool) -> Callable[[], _Reader]:
        def read() -> _Reader:
            reader = _Reader(pieces, dated=dated)
            if path.is_symlink():
                to = readable(str(path.readlink()))
                reader.problems.append(f"it is a link to {to}; a submission holds its files themselves")
            elif path.is_dir():
                reader.within_limits(lambda: reader.folder(path, PurePosixPath()))
            else:
                reader.within_limits(lambda: reader.entry(path, PurePosixPath(name)))
            return reader

        return read

    entries = [
        path for path in sorted(place.iterdir()) if not path.name.startswith(".") and path.name not in _NOT_THEIRS
    ]
    clones = [path.name for path in entries if (path / ".git").exists() and not path.is_symlink()]
    begin = place.resolve().name.removesuffix(_CLASSROOM) if place.resolve().name.endswith(f"-{_CLASSROOM}") else ""
    whose = _Whose({readable(path.name): path.is_dir() for path in entries}, pieces, known)
    return [
        whose.part(
            readable(path.name),
            readable(str(path)),
            reader_of(path, readable(path.name), dated=path.name not in clones),
            begin if path.name in clones else "",
        )
        for path in entries
    ]


def _in_archive(place: Path, pieces: Sequence[str], known: Collection[str]) -> list[_Part]:
    """As a folder with the archive's entries.

    Each learner has limits of their own, so that what one of them hands in takes no other's place.
    """
    try:
        with place.open("rb") as file:
            members = [(member.inside, member.parts) for member in _members_of_all(file, place.name)]
        names = [inside for inside, _ in members]
        theirs = [name for name in names if name.parts and _is_theirs(name) and not _leads_out(name)]
        base = _beneath(place, theirs, pieces)
        readers = {name.parts[base]: _Reader(pieces) for name in theirs if len(name.parts) > base}
        spellings: dict[str, set[str]] = {}
        for inside, parts in members:
            if len(parts) > base:
                spellings.setdefault(inside.parts[base], set()).add(parts[base])
        for name, reader in readers.items():
            if len(spellings[name]) > 1:
                reader.problems.append(f"{len(spellings[name])} names that look alike are taken for one: {name}")
        if outside := [str(name) for name in names if _leads_out(name)]:
            readers.setdefault(_NOBODYS, _Reader(pieces)).problems += [f"the name {outside[0]!r} leads out of {place}"]
        with place.open("rb") as file:
            for member in _members_of_all(file, place.name):
                inside = member.inside
                if _leads_out(inside) or not _is_theirs(inside) or len(inside.parts) <= base:
                    continue
                reader = readers[inside.parts[base]]
                of_this = replace(
                    member,
                    inside=PurePosixPath(*inside.parts[base:]),
                    opened=lambda member=member, work=reader.work: _Unpacked(member.opened(), work),  # type: ignore[misc]
                )
                reader.within_limits(partial(reader.member, PurePosixPath(), of_this, 0, member.modified))
    except (Refused, *_BROKEN) as error:
        raise GradingError(f"{place}: it cannot be unpacked ({str(error) or type(error).__name__})") from error

    def reader_of(top: str) -> Callable[[], _Reader]:
        def read() -> _Reader:
            reader = readers[top]
            reader.files = {
                path.relative_to(top) if len(path.parts) > 1 else path: content
                for path, content in reader.files.items()
            }
            return reader

        return read

    is_folder = {name.parts[base]: len(name.parts) > base + 1 for name in theirs if len(name.parts) > base}
    whose = _Whose(is_folder, pieces, known)
    return [whose.part(top, f"{readable(str(place))}:{top}", reader_of(top)) for top in sorted(readers)]


def _members_of_all(file: IO[bytes], name: str) -> Iterator[_Member]:
    work = _Work(_MAX_UNPACKED_BYTES * _MOST_LEARNERS, math.inf)  # what is read of a learner's counts as theirs, too
    return _members(file, name, work, _MOST_LEARNERS)


def _beneath(place: Path, names: Iterable[PurePosixPath], pieces: Sequence[str]) -> int:
    """How many folders of an archive are above those of the learners: 1 if it was packed with the folder that holds
    them, which has the archive's name. Raises GradingError for a single folder of another name: it may be a learner's.
    """
    names = list(names)
    tops = {name.parts[0] for name in names}
    of_one = {*_OF_A_LEARNER, *_COURSES, *exercise_names(), *pieces}
    below = {name.parts[1] for name in names if len(name.parts) > 2}
    below |= {name.parts[1] for name in names if len(name.parts) == 2 and _may_hold_answers(name.parts[1], pieces)}
    is_one_learners = all(name in of_one or _is_notebook(name) for name in below)
    if len(tops) != 1 or is_one_learners or _is_of_a_platform(*tops):
        return 0
    (top,) = tops
    called = re.sub(r" ?\(\d+\)$", "", _ARCHIVE.sub("", place.name))
    if readable(called).casefold() == top.casefold() or all(map(_is_of_a_platform, below)):
        return 1
    raise GradingError(
        f"{place} holds nothing but the folder {top!r}: is that a learner, or does it hold those of learners? Unpack "
        "it, and give --all the folder in which each learner has a folder"
    )


def _may_hold_answers(name: str, pieces: Sequence[str]) -> bool:
    """Of a file: whether it is an archive, a piece or a notebook."""
    return bool(_ARCHIVE.search(name) or name.endswith(".ipynb") or piece_of(name, pieces))


def _is_of_a_platform(name: str) -> bool:
    return bool(_MOODLE.match(name) or _CANVAS.match(name))


def _is_notebook(name: str) -> bool:
    match = _NOTEBOOK.fullmatch(name)
    return match is not None and match["name"] is None


class _Whose:
    """Who has handed in what, by the names of all that is there and whether each is a folder. ``known``: places of
    learners that a gradebook has."""

    def __init__(self, is_folder: Mapping[str, bool], pieces: Sequence[str], known: Collection[str]) -> None:
        self._is_folder, self._pieces, self._known = is_folder, pieces, known
        self._is_canvas = self._is_an_export_of_canvas()

    def _is_an_export_of_canvas(self) -> bool:
        """Whether all has that form: files, uploads of different numbers, one name for each user's number, and not one
        user alone, who would be the course or the year."""
        users: dict[str, str] = {}
        uploads: set[str] = set()
        for name, is_folder in self._is_folder.items():
            match = _CANVAS.match(name)
            if match is None and not is_folder and not _may_hold_answers(name, self._pieces):
                continue
            if match is None or is_folder or match["upload"] in uploads:
                return False
            if users.setdefault(match["number"], match["name"]) != match["name"]:
                return False
            uploads.add(match["upload"])
        return len(users) > 1

    def part(self, name: str, source: str, read: Callable[[], _Reader], begin: str = "") -> _Part:
        """An entry; ``begin`` is what its name begins with that is no learner's."""
        is_folder = self._is_folder.get(name, True)
        is_whole = is_folder or _ARCHIVE.search(name) is not None
        doubt = ""
        if match := _MOODLE.match(name):
            return _Part(name, match["name"], match["number"], False, source, read, is_whole)
        if (match := _CANVAS.match(name)) and not is_folder:
            if self._is_canvas or f"{match['name']}_{match['number']}" in self._known:
                late = match["late"] is not None
                return _Part(name, match["name"], match["number"], late, source, read, is_whole)
            doubt = f"{name} is named as by Canvas, and not all that lies beside it: it counts as {self._plain(name)}'s"
        return _Part(name, self._plain(name.removeprefix(begin)), "", False, source, read, is_whole, doubt)

    def _plain(self, name: str) -> str:
        """The learner, from the name of a folder, an archive or a file that no platform has named."""
        stem = _ARCHIVE.sub("", name)
        if stem != name:
            return stem
        plain = _AGAIN.sub("", name)
        if piece := piece_of(name, self._pieces):
            return plain[: -len(piece)].rstrip("_") or name
        if name.endswith(".ipynb"):
            match = _NOTEBOOK.fullmatch(plain)
            return (match and match["name"]) or plain.removesuffix(".ipynb")
        return name


def _named(parts: Iterable[_Part], known: Mapping[str, str]) -> Iterator[Submission]:
    """Parts of one learner together. Two learners of one name are told apart by the platform's numbers."""
    numbers: dict[str, set[str]] = {}
    groups: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        numbers.setdefault(part.learner, set()).add(part.number)
        groups.setdefault((part.learner, part.number), []).append(part)
    for (learner, number), group in sorted(groups.items()):
        place = f"{learner}_{number}" if number else group[0].name
        numbered = f"{learner} ({number})"
        is_one_of_two = len(numbers[learner]) > 1 or any(name.startswith(f"{learner} (") for name in known.values())
        name = known.get(place, numbered if is_one_of_two else learner) if number else learner
        found = Submission(name, group[0].source, place, is_late=any(part.late for part in group))
        if not number and (learner in _OF_A_LEARNER or learner in exercise_names()):
            found.learner = f"({learner})"
            found.problems.append(f"{learner} is a folder of the course, and nobody's name: name it after its learner")
            yield found
            continue
        readers = [part.read() for part in group]
        giving = [part for part, reader in zip(group, readers, strict=True) if reader.files or reader.problems]
        if len(giving) > 1 and any(part.is_whole for part in giving):
            names = ", ".join(part.name for part in giving)
            found.problems.append(f"{len(giving)} places are taken for one learner's: {names}")
        found.problems += [part.doubt for part in group if part.doubt]
        for part, reader in zip(group, readers, strict=True):
            for path, content in reader.files.items():
                at = PurePosixPath(part.name) / path if len(group) > 1 and path.name != part.name else path
                if at in found.files and found.files[at].data != content.data:
                    content = Content(content.piece, problem=f"{at} is there twice, with different content")
                found.files[at] = content
            found.problems += reader.problems
        yield found


# ---- which of the files are meant ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """The pieces of an exercise in a submission, or why not; ``files`` is empty if there is nothing for it at all."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    modified: str = ""  # of the newest of them
    problem: str = ""
    flags: tuple[str, ...] = ()  # files that may be meant as well


def pieces_in(submission: Submission, exercise: Exercise) -> Found:
    """The learner's pieces of an exercise.

    ``mine/NAME/`` counts before ``NAME/``, that before other folders, and the course's own ``exercises/`` and
    ``solutions/`` only if there is nothing else. Where two files of different content are left, both are named; one
    that is as the exercise was given does not count beside another. ``flags`` name those that did not count.
    """
    files, paths, newest = {}, [], ""
    flags: list[str] = []
    is_clone = any("exercises" in path.parts or "notebooks" in path.parts for path in submission.files)
    for piece in exercise.pieces:
        ranked = [
            (_rank(path, piece, exercise.name), path, content)
            for path, content in submission.files.items()
            if content.piece == Path(piece).name
        ]
        ranked = [each for each in ranked if not is_clone or each[0][0] != _OF_THE_COURSE]
        if not ranked:
            continue
        best = min(rank for rank, _, _ in ranked)
        meant = [(path, content) for rank, path, content in ranked if rank == best]
        given = exercise.exercise_dir / piece
        untouched = [each for each in meant if _is_as_given(each[1].data, given)]
        meant = [each for each in meant if each not in untouched] or meant
        if len({(content.data, content.problem) for _, content in meant}) > 1:
            both = ", ".join(str(path) for path, _ in meant)
            return Found(problem=f"several files may be {piece}: {both}; hand in one of them")
        path, content = meant[0]
        if content.problem:
            return Found(problem=content.problem)
        files[piece] = content.data
        paths.append(str(path))
        newest = max(newest, content.modified)
        if untouched and meant[0] not in untouched:
            which = ", ".join(str(other) for other, _ in untouched)
            flags.append(f"graded is {path}; {which} is as the exercise was given")
        others = [
            str(other)
            for rank, other, each in ranked
            if best < rank and rank[0] < _AS_GIVEN and each.data != content.data and not _is_as_given(each.data, given)
        ]
        if others:
            flags.append(f"graded is {path}; {', '.join(others)} may be meant as well, and differs")
    if not files or (is_clone and all(_is_as_given(files[piece], exercise.exercise_dir / piece) for piece in files)):
        return Found()
    missing = [piece for piece in exercise.pieces if piece not in files]
    if missing:
        return Found(problem=f"no file {', '.join(missing)} beside {', '.join(paths)}")
    return Found(files, tuple(paths), newest, flags=tuple(flags))


def _is_as_given(data: bytes, given: Path) -> bool:
    """Whether a piece is the course's own, which somebody sends who sends the whole course."""
    return given.is_file() and data.split() == given.read_bytes().split()


def _rank(path: PurePosixPath, piece: str, exercise: str) -> tuple[int, int]:
    """Which candidates come first: by their folder, then by their whole name."""
    folders = path.parts[:-1]
    if any(folder in _COURSES for folder in folders):
        where = _OF_THE_COURSE
    elif "exercises" in folders:
        where = _AS_GIVEN
    elif "mine" in folders and exercise in folders:
        where = 0
    elif exercise in folders:
        where = 1
    else:
        where = 2
    return where, int(path.parts[-len(Path(piece).parts) :] != Path(piece).parts)


def notebooks_in(submission: Submission) -> Iterator[tuple[PurePosixPath, Content]]:
    """The notebooks, the learner's copies (``mine/notebooks``) before the course's."""
    found = [(path, content) for path, content in submission.files.items() if path.suffix == ".ipynb"]
    has_own = any("mine" in path.parts for path, _ in found)
    yield from (each for each in found if "mine" in each[0].parts or not has_own)
