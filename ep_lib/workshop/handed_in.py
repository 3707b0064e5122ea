"""What a class has handed in: each learner's files, out of folders, archives, and the exports of learning platforms.

Nothing is unpacked to the disk. Of a folder or an archive only files with the name of a piece of an exercise, and
notebooks, are read, each up to a limit; links and names that lead out of an archive are not followed, but said.

What is understood in the folder (or the archive) of all submissions:

- a folder or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz) per learner, named after the learner;
- Moodle's export: "Jane Doe_12345_assignsubmission_file_" folders, or the zip of them;
- Canvas's export: "doejane_123_45678_mine.zip" or "doejane_LATE_123_45678_ring.cuh" files, or the zip of them;
- clones of a git classroom: folders with a common beginning ("workshop-ada", "workshop-bob"), which is left out;
- single files named after the learner: "ada_ring.cuh", "ada_01_write_and_signal.ipynb".
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import re
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ep_lib.errors import GradingError
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.submission import MAX_PIECE_BYTES, read_regular

MAX_NOTEBOOK_BYTES = 16 << 20
_MAX_ARCHIVE_BYTES = 64 << 20  # of an archive inside of another one, or of one learner
_MAX_UNPACKED_BYTES = 256 << 20  # of a compressed tar, which must be read to be searched
_MAX_ENTRIES = 20_000  # of a folder or an archive
_MAX_DIRECTORY_BYTES = 4 << 20  # of a zip's list of its files
_MOST_LEARNERS = 100  # an archive of all submissions may be this many times as large
_MAX_DEPTH = 3  # archives inside of archives
_ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|tar\.(?:gz|bz2|xz))$", re.IGNORECASE)
_NOT_THEIRS = ("__MACOSX", "__pycache__", "node_modules")
# The course's own folders, if somebody sends all.
_COURSES = ("solutions", "ep_lib", "tutorial_kernels", "tests", "build")
_OF_THE_COURSE = 4  # the last rank of a candidate
_AGAIN = re.compile(r"(?: ?\(\d+\)|-\d+)(?=\.\w+$)")  # "ring (1).cuh" of a browser, "ring-1.cuh" of Canvas
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)_?$")
_CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<number>\d+)_\d+_(?P<file>.+)$")
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
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
    files: dict[PurePosixPath, Content] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_late: bool = False  # the platform says so


class Refused(GradingError):
    """An archive or a folder that is not read any further."""


# ---- reading folders and archives ------------------------------------------------------------------------------------
class _Reader:
    """Collects the files below a place that have the name of a piece, and notebooks.

    ``times`` is how many submissions it holds, ``dated`` whether the dates of files say when they were handed in.
    """

    def __init__(self, pieces: Sequence[str], *, times: int = 1, dated: bool = True) -> None:
        self._pieces = pieces
        self._times = times
        self._dated = dated
        self.files: dict[PurePosixPath, Content] = {}
        self.problems: list[str] = []
        self.tops: set[tuple[str, ...]] = set()  # the first two parts of all names, also of what is not wanted
        self._entries = 0

    def folder(self, folder: Path, at: PurePosixPath) -> None:
        """All of a folder, without following links."""
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except OSError as error:
            self.problems.append(f"{at}: {error.strerror}")
            return
        for name in names:
            self.entry(folder / name, at / readable(name))

    def entry(self, path: Path, at: PurePosixPath) -> None:
        """A file or a folder on the disk, which the submission calls ``at``."""
        if not self._counts(at):
            return
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            self.folder(path, at)
        elif _ARCHIVE.search(at.name) and stat.S_ISREG(mode):
            self._archive_file(path, at)
        elif limit := self._limit(at):
            modified = _stamp(path.lstat().st_mtime) if self._dated else ""
            try:
                self._keep(at, Content(self._piece(at), read_regular(path, limit), modified))
            except (GradingError, OSError) as error:
                self._keep(at, Content(self._piece(at), problem=str(error)))

    def _archive_file(self, path: Path, at: PurePosixPath) -> None:
        try:
            with path.open("rb") as file:
                self.archive(file, at, at.name, 1)
        except OSError as error:
            self.problems.append(f"{at}: {error.strerror}")

    def archive(self, file: IO[bytes], at: PurePosixPath, name: str, depth: int) -> None:
        """All of an archive. What is wrong with it is a problem; what was read before stays."""
        try:
            if depth > _MAX_DEPTH:
                raise Refused("archives inside of archives inside of archives are not opened")
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size > _MAX_ARCHIVE_BYTES * self._times:
                raise Refused(f"it has {size >> 20} MiB; at most {_MAX_ARCHIVE_BYTES * self._times >> 20} are read")
            if name.lower().endswith(".zip"):
                self._zip(file, at, depth)
            else:
                self._tar(file, at, name.lower(), depth)
        except Refused as error:
            self.problems.append(f"{at}: {error}")
        except _BROKEN as error:
            self.problems.append(f"{at}: it cannot be unpacked ({str(error) or type(error).__name__})")

    def _zip(self, file: IO[bytes], at: PurePosixPath, depth: int) -> None:
        _require_short_list(file, self._times)
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                mode = member.external_attr >> 16
                self._member(
                    at,
                    member.filename,
                    is_folder=member.is_dir(),
                    is_regular=stat.S_IFMT(mode) in (0, stat.S_IFREG),
                    modified=_stamp(time.mktime((*member.date_time, 0, 0, -1))),
                    opened=lambda member=member: archive.open(member),  # type: ignore[misc]
                    depth=depth,
                )

    def _tar(self, file: IO[bytes], at: PurePosixPath, name: str, depth: int) -> None:
        plain: Any = file
        if name.endswith(("gz", "tgz")):
            plain = gzip.GzipFile(fileobj=file)
        elif name.endswith("bz2"):
            plain = bz2.BZ2File(file)
        elif name.endswith("xz"):
            plain = lzma.LZMAFile(file)  # noqa: SIM115 - it closes nothing that is not closed by others
        with tarfile.open(fileobj=_Counted(plain, _MAX_UNPACKED_BYTES * self._times), mode="r|") as archive:
            for member in archive:
                self._member(
                    at,
                    member.name,
                    is_folder=member.isdir(),
                    is_regular=member.isreg(),
                    modified=_stamp(member.mtime),
                    opened=lambda member=member: archive.extractfile(member),  # type: ignore[misc, arg-type]  # a regular file
                    depth=depth,
                )

    def _member(
        self,
        archive: PurePosixPath,
        name: str,
        *,
        is_folder: bool,
        is_regular: bool,
        modified: str,
        opened: Callable[[], IO[bytes]],
        depth: int,
    ) -> None:
        inside = PurePosixPath(readable(name).replace("\\", "/"))
        if inside.is_absolute() or ".." in inside.parts:
            self.problems.append(f"{archive}: the name {str(inside)!r} leads out of the archive; it is left out")
            return
        at = archive / inside
        if not inside.parts or not self._counts(at) or is_folder:
            return
        is_archive = _ARCHIVE.search(at.name) is not None
        limit = _MAX_ARCHIVE_BYTES if is_archive else self._limit(at)
        if not limit:
            return
        if not is_regular:
            said = f"{at} is no regular file but a link or a device; it is not followed"
            self._keep(at, Content(self._piece(at), problem=said))
            return
        with opened() as member:
            data = member.read(limit + 1)
        if len(data) > limit:
            self._keep(at, Content(self._piece(at), problem=f"{at} has more than {limit} bytes"))
        elif is_archive:
            self.archive(io.BytesIO(data), at, at.name, depth + 1)
        else:
            self._keep(at, Content(self._piece(at), data, modified if self._dated else ""))

    def _keep(self, at: PurePosixPath, content: Content) -> None:
        if at in self.files and self.files[at].data != content.data:
            content = Content(content.piece, problem=f"{at} is there twice, with different content")
        self.files[at] = content

    def _counts(self, at: PurePosixPath) -> bool:
        """Whether a name is to be looked at. Raises Refused if there are too many."""
        self._entries += 1
        if self._entries > _MAX_ENTRIES * self._times:
            raise Refused(f"there are more than {_MAX_ENTRIES} files; hand in those of the exercise only")
        if any(part.startswith(".") or part in _NOT_THEIRS for part in at.parts):
            return False
        self.tops.add(at.parts[:2])
        return True

    def _limit(self, at: PurePosixPath) -> int:
        """How many bytes a wanted file may have; 0 if it is not wanted."""
        if at.suffix == ".ipynb":
            return MAX_NOTEBOOK_BYTES
        return MAX_PIECE_BYTES if self._piece(at) else 0

    def _piece(self, at: PurePosixPath) -> str:
        return piece_of(at.name, self._pieces)


class _Counted(io.RawIOBase):
    """What a compressed tar unpacks to, up to a limit."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = limit
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise Refused(f"it unpacks to more than {self._limit >> 20} MiB")
        data = self._file.read(size)
        self._left -= len(data)
        return data


def _require_short_list(file: IO[bytes], times: int) -> None:
    """A zip's list of files is read as a whole: its length, which stands at the end, must be small."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 22))
    end = file.read()
    file.seek(0)
    found = end.rfind(b"PK\5\6")
    if found < 0 or len(end) < found + 22:
        raise zipfile.BadZipFile("it is no zip archive, or not all of one")
    entries, length = struct.unpack_from("<HI", end, found + 10)
    if length > _MAX_DIRECTORY_BYTES * times or entries == 0xFFFF:
        raise Refused(f"there are more than {_MAX_ENTRIES} files; hand in those of the exercise only")


def readable(name: str) -> str:
    """A file's name as text that can be written and shown: control characters and broken bytes become marks."""
    text = name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _stamp(seconds: float) -> str:
    """A time of the clock as ISO 8601 in UTC; "" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def piece_of(name: str, pieces: Sequence[str]) -> str:
    """Which of ``pieces`` (names, the longest first) a file is called after: "ada_ring (1).cuh" is ring.cuh; or ""."""
    plain = _AGAIN.sub("", name)
    return next((piece for piece in pieces if plain == piece or plain.endswith(f"_{piece}")), "")


# ---- who handed in what ----------------------------------------------------------------------------------------------
def submissions(place: Path, exercises: Iterable[Exercise]) -> Iterator[Submission]:
    """Each learner's files in a folder or an archive, by name. Raises GradingError if there is no such place."""
    pieces = _names_of(exercises)
    if place.is_dir():
        found = _in_folder(place, pieces)
    elif place.is_file() and _ARCHIVE.search(place.name):
        found = _in_archive(place, pieces)
    else:
        raise GradingError(f"no folder {place}, and no archive (.zip, .tar.gz): --all names what the class handed in")
    yield from _named(found)


def folder(place: Path, exercises: Iterable[Exercise]) -> Submission:
    """One learner's folder, by its path. Raises GradingError if it is none."""
    if not place.is_dir():
        raise GradingError(f"no folder {place}")
    reader = _Reader(_names_of(exercises))
    try:
        reader.folder(place, PurePosixPath())
    except Refused as error:
        reader.problems.append(str(error))
    return Submission(readable(str(place)), readable(str(place)), reader.files, reader.problems)


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


def _in_folder(place: Path, pieces: Sequence[str]) -> list[_Part]:
    def reader_of(path: Path, name: str, *, dated: bool) -> Callable[[], _Reader]:
        def read() -> _Reader:
            reader = _Reader(pieces, dated=dated)
            try:
                if path.is_symlink():
                    raise Refused(f"it is a link to {path.readlink()}; a submission holds its files themselves")
                if path.is_dir():
                    reader.folder(path, PurePosixPath())
                else:
                    reader.entry(path, PurePosixPath(name))
            except Refused as error:
                reader.problems.append(str(error))
            return reader

        return read

    entries = [
        path for path in sorted(place.iterdir()) if not path.name.startswith(".") and path.name not in _NOT_THEIRS
    ]
    clones = [path.name for path in entries if (path / ".git").exists() and not path.is_symlink()]
    begin = _common_beginning(clones)
    parts = []
    for path in entries:
        name = readable(path.name)
        learner, number, late = _who(name.removeprefix(begin) if path.name in clones else name, pieces)
        parts.append(
            _Part(name, learner, number, late, str(path), reader_of(path, name, dated=path.name not in clones))
        )
    return parts


def _in_archive(place: Path, pieces: Sequence[str]) -> list[_Part]:
    """As a folder with the archive's entries; a single folder that holds all of them is gone through."""
    whole = _Reader(pieces, times=_MOST_LEARNERS)
    with place.open("rb") as file:
        whole.archive(file, PurePosixPath(), place.name, 1)
    if whole.problems and not whole.tops:
        raise GradingError(f"{place}: {whole.problems[0]}")
    files, tops = whole.files, {parts[0] for parts in whole.tops if parts}
    if len(tops) == 1 and not _MOODLE.match(top := next(iter(tops))) and not _ARCHIVE.search(top):
        files = {path.relative_to(top): content for path, content in files.items() if len(path.parts) > 1}
        tops = {parts[1] for parts in whole.tops if len(parts) > 1}

    def reader_of(top: str) -> Callable[[], _Reader]:
        def read() -> _Reader:
            reader = _Reader(pieces)
            for path, content in files.items():
                if path.parts[0] == top:
                    reader.files[path.relative_to(top) if len(path.parts) > 1 else path] = content
            reader.problems = [each for each in whole.problems if each.startswith(top)]
            return reader

        return read

    return [_Part(top, *_who(top, pieces), f"{place}:{top}", reader_of(top)) for top in sorted(tops)]


def _common_beginning(names: Sequence[str]) -> str:
    """ "workshop-" of "workshop-ada" and "workshop-bob": up to a dash."""
    if len(names) < 2:
        return ""
    pairs = zip(min(names), max(names), strict=False)
    same = "".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same[: same.rfind("-") + 1]


def _who(name: str, pieces: Sequence[str]) -> tuple[str, str, bool]:
    """Learner, number and whether late, from the name of a folder, an archive or a file."""
    if match := _MOODLE.match(name):
        return match["name"], match["number"], False
    if match := _CANVAS.match(name):
        return match["name"], match["number"], match["late"] is not None
    stem = _ARCHIVE.sub("", name)
    if stem != name:
        return stem, "", False
    if piece := piece_of(name, pieces):
        return _AGAIN.sub("", name).removesuffix(piece).rstrip("_") or name, "", False
    if name.endswith(".ipynb"):
        return re.sub(r"_\d\d_[a-z_]+$", "", name.removesuffix(".ipynb")), "", False
    return name, "", False


def _named(parts: Iterable[_Part]) -> Iterator[Submission]:
    """Parts of one learner together. Two learners of one name are told apart by the platform's numbers."""
    numbers: dict[str, set[str]] = {}
    groups: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        numbers.setdefault(part.learner, set()).add(part.number)
        groups.setdefault((part.learner, part.number), []).append(part)
    for (learner, number), group in sorted(groups.items()):
        name = f"{learner} ({number})" if len(numbers[learner]) > 1 and number else learner
        found = Submission(name, group[0].source, is_late=any(part.late for part in group))
        for part in group:
            reader = part.read()
            for path, content in reader.files.items():
                found.files[PurePosixPath(part.name) / path if len(group) > 1 and path.name != part.name else path] = (
                    content
                )
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


def pieces_in(submission: Submission, exercise: Exercise) -> Found:
    """The learner's pieces of an exercise.

    ``mine/NAME/`` counts before ``NAME/``, that before other folders, and the course's own ``exercises/`` and
    ``solutions/`` only if there is nothing else. Where two files of different content are left, both are named.
    """
    files, paths, newest = {}, [], ""
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
        meant = [each for each in meant if not _is_as_given(each[1].data, given)] or meant
        if len({(content.data, content.problem) for _, content in meant}) > 1:
            both = ", ".join(str(path) for path, _ in meant)
            return Found(problem=f"several files may be {piece}: {both}; hand in one of them")
        path, content = meant[0]
        if content.problem:
            return Found(problem=content.problem)
        files[piece] = content.data
        paths.append(str(path))
        newest = max(newest, content.modified)
    if not files or (is_clone and all(_is_as_given(files[piece], exercise.exercise_dir / piece) for piece in files)):
        return Found()
    missing = [piece for piece in exercise.pieces if piece not in files]
    if missing:
        return Found(problem=f"no file {', '.join(missing)} beside {', '.join(paths)}")
    return Found(files, tuple(paths), newest)


def _is_as_given(data: bytes, given: Path) -> bool:
    """Whether a piece is the course's own, which somebody sends who sends the whole course."""
    return given.is_file() and data.split() == given.read_bytes().split()


def _rank(path: PurePosixPath, piece: str, exercise: str) -> tuple[int, int]:
    """Which candidates come first: by their folder, then by their whole name."""
    folders = path.parts[:-1]
    if any(folder in _COURSES for folder in folders):
        where = _OF_THE_COURSE
    elif "exercises" in folders:
        where = 3
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
