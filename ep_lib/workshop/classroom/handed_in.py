"""A class's submissions: each learner's files, from folders, archives, and the exports of learning platforms.

A child process behind walls (:class:`ep_lib.workshop.grader.reading.Reader`) copies the files that matter, which are
those with the name of a piece of an exercise, notebooks, and archives of them, into a temporary folder. Its limits on
CPU time, memory, files and bytes are the only defence against malicious archives: a learner whose files exceed one gets
a row that says so. This process reads only regular files of that folder.

Formats of the folder of all submissions (or of the archive, or of a folder in it: "class.zip/folder"):

- a folder or an archive per learner, named after the learner;
- Moodle's export: "Jane Doe_12345_assignsubmission_file_" folders, or files that begin so;
- Canvas's export: "doejane_123_45678_mine.zip" or "doejane_LATE_123_45678_ring.cuh". Canvas writes names in lower case;
- Gradescope's export: "submission_123" folders beside "submission_metadata.yml", which names their authors;
- clones of a git classroom: in "workshop-submissions", as `gh classroom` calls it, "workshop-ada" is ada;
- single files named after the learner: "ada_ring.cuh", "ada_01_write_and_signal.ipynb".

A learner's name follows from their own entry alone; other files belong to no learner. A platform's number distinguishes
two learners of one name, and a learner in the gradebook keeps the name there.
"""

from __future__ import annotations

import contextlib
import io
import lzma
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ep_lib.errors import GradingError
from ep_lib.processes import temporary_folder
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.exercises import names as exercise_names
from ep_lib.workshop.grader.process.sandbox import ChildFailed, Limits
from ep_lib.workshop.grader.reading import Reader
from ep_lib.workshop.grader.scenario import BadReply
from ep_lib.workshop.grader.submission import MAX_PIECE_BYTES, read_regular

MAX_NOTEBOOK_BYTES = 16 << 20
_MAX_ARCHIVE_BYTES = 64 << 20  # of an archive in another one
_MAX_DEPTH = 3  # archives in archives
_DEEPEST = 25  # nested folders: fewer than the sandbox's limit, which would end everything
_SHOWN = 3  # folders of a class's archive that may contain learners
_MAX_PROBLEMS = 20  # of one learner; there may be one for each entry
_MAX_SAID = 400  # characters of a problem, which may contain long names
# Each request sets its CPU time. Only pieces, notebooks and archives are written.
_OF_A_LEARNER = 4.0, Limits(cpu_s=1 << 20, resident_bytes=1 << 30, written_bytes=128 << 20)
_OF_A_CLASS = 600.0, Limits(cpu_s=1 << 20, resident_bytes=1 << 30, written_bytes=8 << 30, files=1_000_000)
_ARCHIVE = re.compile(r"\.(?:zip|rar|7z|tar|tgz|tar\.\w+)$", re.IGNORECASE)
_ZIP = (b"PK\3\4", b"PK\5\6")  # its first bytes
_NOT_THEIRS = ("__MACOSX", "__pycache__", "node_modules")
# The course's own folders, if a learner sends the whole course.
_COURSES = ("solutions", "ep_lib", "tutorial_kernels", "tests", "build")
_LEARNERS_OWN = ("mine", "exercises", "notebooks")  # folders that learners have
_WHOLE = "(the archive itself)"  # a row for names that point outside of it
_AS_GIVEN, _OF_THE_COURSE = 3, 4  # the last ranks of a candidate
_AGAIN = re.compile(r"(?: ?\(\d+\)|-\d+)(?=\.\w+$)")  # "ring (1).cuh" of a browser, "ring-1.cuh" of Canvas
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<late>)(?P<file>.*)$")
# https://github.com/instructure/canvas-lms/blob/master/lib/content_zipper.rb: a user's number and an upload's.
_CANVAS = re.compile(
    r"(?P<name>[^\WA-Z_]+)(?P<late>_LATE)?_(?P<id>\d{3,})_(?:\d{5,}_(?P<file>.+)|text\.html|link\.html)$"
)
_GRADESCOPE = "submission_metadata.yml"
_SUBMITTERS = re.compile(r"(?P<folder>\w+):\s*$|\s+(?:- )?:(?P<what>name|sid|email):\s*(?P<value>.*)$")
_NOTEBOOK = re.compile(r"(?:(?P<name>.+)_)?(?:\d\d[a-z]?_[a-z][a-z0-9_]*|puzzles)\.ipynb")  # of the course
_CLASSROOM = "submissions"  # "workshop-submissions" contains "workshop-ada" and so on
_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, OverflowError, RuntimeError, ValueError),
)


@dataclass(frozen=True)
class Content:
    """A submitted file; ``problem`` instead of ``data`` if it was not accepted."""

    piece: str = ""  # the piece with this name; "" for a notebook
    data: bytes = b""
    modified: str = ""  # ISO 8601, UTC
    problem: str = ""


@dataclass
class Submission:
    """One learner's submission: wanted files by their path, and refused ones."""

    learner: str
    source: str
    place: str = ""  # its name among all submissions, with the platform's number if any
    files: dict[PurePosixPath, Content] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_late: bool = False  # the platform says so
    id: str = ""  # the platform's id of the learner; "" if unknown, as for `email`
    email: str = ""


# ---- in the child: wanted files from folders and archives ------------------------------------------------------------
_Member = tuple[str, float, Callable[[int], bytes] | None]  # name, date, reads at most so many bytes; None: a folder


class _Copy:
    """Copies wanted files of a learner, or of a class, to ``target``; archives are opened ``depth`` deep."""

    def __init__(self, target: Path, pieces: Sequence[str], depth: int) -> None:
        self.target, self.pieces, self.depth = target, pieces, depth
        self.said: list[tuple[str, str]] = []  # by path, as below
        self.times: dict[str, float] = {}

    def take(self, members: Iterator[_Member], inside: PurePosixPath, depth: int, came: float | None) -> None:
        """``came``: the arrival time of the archive. The dates in it are its maker's claim."""
        with self._broken(inside):
            for name, date, read in members:
                # As tarfile.data_filter does, which Python 3.11.3 does not have; this code never makes links.
                at = inside / name.replace("\\", "/").lstrip("/")
                if ".." in at.parts:
                    self.say(at, f"the name '{name}' leads out of the archive; it is left out")
                elif _is_theirs(at):
                    with self._broken(at):
                        self._member(at, date if came is None else came, read, depth)

    def _member(self, at: PurePosixPath, came: float, read: Callable[[int], bytes] | None, depth: int) -> None:
        is_archive = _ARCHIVE.search(at.name) is not None
        limit = _limit(at.name, self.pieces)
        if self.depth == 0:  # of a class: each entry of its folder is a learner, with any content
            shown = PurePosixPath(*at.parts[:_SHOWN])
            is_file = read is not None and shown == at
            (self.target / (shown.parent if is_file else shown)).mkdir(parents=True, exist_ok=True)
            if is_file:
                (self.target / at).touch()  # also if it is unwanted or unreadable
        if read is None or not limit:
            return
        if len(at.parts) > _DEEPEST:
            raise GradingError(f"{at} lies in more than {_DEEPEST} folders in each other")
        goes = self.target / at
        goes.parent.mkdir(parents=True, exist_ok=True)
        data = read(limit)
        if is_archive and self.depth:
            if depth == 0:
                raise GradingError(f"{at}: archives inside of archives inside of archives are not opened")
            return self.take(_members(io.BytesIO(data)), at, depth - 1, came)
        if goes.is_file() and goes.read_bytes() not in (b"", data):
            raise GradingError(f"{at} is there twice, with different content")
        goes.write_bytes(data)
        self.times[str(at)] = came if 0 <= came < 1 << 33 else 0  # not NaN, which a tar may contain

    @contextlib.contextmanager
    def _broken(self, at: PurePosixPath) -> Iterator[None]:
        try:
            yield
        except GradingError as error:
            self.say(at, str(error))
        except _BROKEN as error:
            what = at if at.parts else "it"
            why = str(error) or type(error).__name__
            self.say(at, f"{what} cannot be unpacked ({why}): pack it as zip and hand it in again")

    def say(self, at: PurePosixPath, text: str) -> None:
        text = readable(text)
        self.said.append((str(at), text if len(text) <= _MAX_SAID else f"{text[:_MAX_SAID]} ..."))


def copy(place: str, target: str, pieces: Sequence[str], depth: int) -> dict[str, Any]:
    """Copies the wanted files of a folder, an archive or a file; returns refused ones, and dates, by path."""
    copied, path = _Copy(Path(target), pieces, depth), Path(place)
    if path.is_dir():
        copied.take(_in_folder(path, copied.say), PurePosixPath(), depth, None)
    elif _ARCHIVE.search(path.name):
        with copied._broken(PurePosixPath()), path.open("rb") as file:
            copied.take(_members(file), PurePosixPath(), depth - 1, path.stat().st_mtime if depth else None)
    else:
        copied.take(iter([_on_disk(path, path.name)]), PurePosixPath(), depth, None)
    return {"said": copied.said, "times": copied.times}


def _in_folder(folder: Path, say: Callable[[PurePosixPath, str], None]) -> Iterator[_Member]:
    def closed(error: OSError) -> None:
        at = PurePosixPath(Path(error.filename).relative_to(folder))
        say(at, f"{at} cannot be opened: {error.strerror}")

    for root, folders, files in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if _is_theirs(PurePosixPath(name)))
        for name in sorted(files):
            yield _on_disk(Path(root, name), str(Path(root, name).relative_to(folder)))


def _on_disk(path: Path, name: str) -> _Member:
    return name, path.lstat().st_mtime, partial(read_regular, path)


def _members(file: IO[bytes]) -> Iterator[_Member]:
    """The members of an archive. Raises the errors of _BROKEN."""
    begin = file.read(len(_ZIP[0]))
    file.seek(0)
    if begin in _ZIP:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                read = partial(_bounded, info.filename, partial(archive.open, info) if is_plain else None)
                yield info.filename, time.mktime((*info.date_time, 0, 0, -1)), None if info.is_dir() else read
    else:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for entry in tar:
                read = partial(_bounded, entry.name, partial(tar.extractfile, entry) if entry.isreg() else None)
                yield entry.name, entry.mtime, None if entry.isdir() else read


def _bounded(name: str, opened: Callable[[], Any] | None, limit: int) -> bytes:
    if opened is None:
        raise GradingError(f"{name} is no regular file but a link or a device; it is not followed")
    with opened() as file:
        data: bytes = file.read(limit + 1)
    if len(data) > limit:
        raise GradingError(f"{name} has more than {limit} bytes")
    return data


# ---- names -----------------------------------------------------------------------------------------------------------
def _limit(name: str, pieces: Sequence[str]) -> int:
    """The most bytes of a wanted file; 0 if it is unwanted."""
    if _ARCHIVE.search(name):
        return _MAX_ARCHIVE_BYTES
    if name.endswith(".ipynb") or name == _GRADESCOPE:
        return MAX_NOTEBOOK_BYTES
    return MAX_PIECE_BYTES if piece_of(name, pieces) else 0


def _is_theirs(at: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in _NOT_THEIRS for part in at.parts)


def readable(name: str) -> str:
    """A file's name as printable text, still unique: invalid UTF-8 bytes and control characters are escaped, as in
    "J\\xf6rg". A letter with its accent becomes one character; a Mac writes two."""
    text = unicodedata.normalize("NFC", name)
    return "".join(char if char.isprintable() else _written_out(ord(char)) for char in text)


def _written_out(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        code -= 0xDC00
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def _stamp(seconds: float) -> str:
    """A timestamp as ISO 8601 in UTC; "" for one outside of the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def piece_of(name: str, pieces: Sequence[str]) -> str:
    """The name in ``pieces`` (the longest first) that a file is named after, or "": "ada_ring (1).cuh" and "RING.CUH"
    (from a disk with upper-case names) are ring.cuh."""
    plain = _AGAIN.sub("", name).lower()
    return next((piece for piece in pieces if plain == piece.lower() or plain.endswith(f"_{piece.lower()}")), "")


# ---- learners and their entries --------------------------------------------------------------------------------------
@dataclass
class _Part:
    """An entry of the class's folder, and its learner."""

    path: Path
    learner: str
    id: str = ""
    email: str = ""
    late: bool = False
    said: list[tuple[PurePosixPath, str]] = field(default_factory=list)  # messages from unpacking the class's archive

    @property
    def name(self) -> str:
        return readable(self.path.name)

    @property
    def is_whole(self) -> bool:
        """Whether it is a learner's complete submission, not one file of several."""
        return self.path.is_dir() or _ARCHIVE.search(self.name) is not None

    def read(self, pieces: Sequence[str]) -> tuple[dict[PurePosixPath, Content], list[str]]:
        """The files, and the problems of others."""
        if self.path.is_symlink():
            to = readable(str(self.path.readlink()))
            return {}, [f"it is a link to {to}; a submission holds its files themselves"]
        files: dict[PurePosixPath, Content] = {}
        problems: list[str] = []
        said = list(self.said)
        try:
            with _copied(self.path, pieces, _MAX_DEPTH, _OF_A_LEARNER) as (folder, refused, times):
                said += refused
                times = {} if (self.path / ".git").exists() else times  # a clone's dates are meaningless
                for at, path in _files(folder):
                    name, came = PurePosixPath(readable(str(at))), times.get(str(at), 0)
                    data = read_regular(path, MAX_NOTEBOOK_BYTES)
                    content = Content(piece_of(name.name, pieces), data, _stamp(came) if came else "")
                    if name in files and files[name].data != content.data:
                        content = Content(content.piece, problem=f"{name} is there twice, with different content")
                    files[name] = content
        except GradingError as error:
            problems.append(str(error))
        for at, text in said:
            piece = piece_of(at.name, pieces)
            if ".." not in at.parts and (piece or at.suffix == ".ipynb"):
                files[PurePosixPath(readable(str(at)))] = Content(piece, problem=text)
            else:
                problems.append(text)
        return files, _few(problems)


@contextlib.contextmanager
def _copied(
    place: Path, pieces: Sequence[str], depth: int, limits: tuple[float, Limits]
) -> Iterator[tuple[Path, list[tuple[PurePosixPath, str]], dict[str, float]]]:
    """A folder with the files that :func:`copy` has copied, and its results. Raises GradingError if it was ended."""
    seconds, most = limits
    with temporary_folder("ep_handed_in_") as folder, Reader(most, folder) as child:
        try:
            found = child.call(copy, str(place.absolute()), str(folder), pieces, depth, seconds=seconds)
        except (ChildFailed, BadReply) as error:
            why = f"{error}".partition(":")[0]
            raise GradingError(f"refused: reading it was stopped, since {why}; hand in the exercise's files") from error
        yield folder, [(PurePosixPath(at), text) for at, text in found["said"]], found["times"]


def _files(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield from ((PurePosixPath(Path(root, name).relative_to(folder)), Path(root, name)) for name in sorted(files))


def submissions(
    place: Path, exercises: Iterable[Exercise], known: Mapping[str, str] | None = None
) -> Iterator[Submission]:
    """Each learner's files in a folder or an archive, by name. Raises GradingError if there is no such place, or if it
    cannot be unpacked.

    ``known``: names of learners in a gradebook, by :attr:`Submission.place`.
    """
    exercises = list(exercises)
    pieces = _names_of(exercises)
    archive = next((each for each in (place, *place.parents) if each.is_file()), place)
    if place.is_dir():
        yield from _named(_parts(place, place.resolve().name, pieces), readable(str(place)), pieces, known or {})
    elif archive.is_file() and _ARCHIVE.search(archive.name):
        with _copied(archive, pieces, 0, _OF_A_CLASS) as (folder, said, times):
            if broken := [text for at, text in said if not at.parts]:
                raise GradingError(f"{archive}: {broken[0]}")
            for at, path in _files(folder):
                os.utime(path, (times.get(str(at), 0),) * 2, follow_symlinks=False)
            theirs = {Path(piece).parts[0] for each in exercises for piece in each.pieces} | {
                *_LEARNERS_OWN,
                *exercise_names(),
            }
            base = folder / place.relative_to(archive) if place != archive else _beneath(folder, place, theirs, pieces)
            if not base.is_dir():
                raise GradingError(f"no folder {place.relative_to(archive)} in {archive}")
            parts = _parts(base, _ARCHIVE.sub("", archive.name) if base == folder else base.name, pieces)
            by_path = {PurePosixPath(part.path.relative_to(folder)): part for part in parts}
            others = []
            for at, text in said:
                top = next((top for top in (at, *at.parents) if top in by_path), None)
                if top is None or ".." in at.parts:
                    others.append(text)
                else:
                    by_path[top].said.append((at.relative_to(top) if at != top else PurePosixPath(at.name), text))
            if others:
                yield Submission(_WHOLE, readable(str(place)), _WHOLE, problems=_few(others))
            yield from _named(parts, readable(str(place)), pieces, known or {})
    else:
        raise GradingError(f"no folder {place}, and no archive (.zip, .tar.gz): --all names what the class handed in")


def folder(place: Path, exercises: Iterable[Exercise]) -> Submission:
    """One learner's folder, by its path. Raises GradingError if it is no folder."""
    if not place.is_dir():
        raise GradingError(f"no folder {place}")
    name = readable(str(place))
    return Submission(name, name, name, *_Part(place.resolve(), name).read(_names_of(exercises)))


def _names_of(exercises: Iterable[Exercise]) -> list[str]:
    """The file names of the pieces, the longest first."""
    return sorted({Path(piece).name for each in exercises for piece in each.pieces}, key=len, reverse=True)


def _few(problems: list[str]) -> list[str]:
    return problems if len(problems) <= _MAX_PROBLEMS else [*problems[:_MAX_PROBLEMS], "and more of that kind"]


def _beneath(folder: Path, archive: Path, theirs: Collection[str], pieces: Sequence[str]) -> Path:
    """The folder of an unpacked archive that contains the learners' folders: the archive may have an outer folder.
    Raises GradingError if a single folder may also be a learner's. ``theirs``: possible names of learners' folders.
    """
    tops = [path for path in folder.iterdir() if _is_entry(path, pieces)]
    if len(tops) != 1 or not (top := tops[0]).is_dir() or _MOODLE.match(top.name):
        return folder
    below = [path.name for path in top.iterdir() if _is_entry(path, pieces)]
    if not below or any(name in theirs or _is_notebook(name) for name in below):
        return folder
    is_named_so = (
        readable(_AGAIN.sub("", archive.name)).casefold() == f"{readable(top.name)}{archive.suffix}".casefold()
    )
    if len(below) > 1 or is_named_so or _MOODLE.match(below[0]) or _CANVAS.match(below[0]):
        return top
    raise GradingError(
        f"{archive} holds nothing but the folder {readable(top.name)!r}: if that holds the learners' folders, give "
        f"--all {archive / readable(top.name)}; if it is a learner's, unpack it and give --mine {readable(top.name)}"
    )


def _is_entry(path: Path, pieces: Sequence[str]) -> bool:
    """Whether it belongs to a learner, and is not an unrelated file."""
    of_platform = _MOODLE.match(path.name) or _CANVAS.match(path.name)
    return path.is_dir() or path.is_symlink() or bool(_limit(path.name, pieces) or of_platform)


def _is_notebook(name: str) -> bool:
    match = _NOTEBOOK.fullmatch(name)
    return match is not None and match["name"] is None


def _parts(place: Path, called: str, pieces: Sequence[str]) -> list[_Part]:
    """The entries of the folder of submissions ``called``, each by its own name."""
    begin = called.removesuffix(_CLASSROOM) if called.endswith(f"-{_CLASSROOM}") else ""
    authors, parts = _authors(place / _GRADESCOPE), []
    for path in sorted(place.iterdir()):
        name, is_folder = readable(path.name), path.is_dir() or path.is_symlink()
        if not _is_theirs(PurePosixPath(name)) or name == _GRADESCOPE:
            continue
        if name in authors:
            parts += [_Part(path, *author) for author in authors[name]]
        elif match := _MOODLE.match(name) or (None if is_folder else _CANVAS.match(name)):
            parts.append(_Part(path, match["name"], match["id"], late=bool(match["late"])))
        elif _is_entry(path, pieces):
            parts.append(_Part(path, name.removeprefix(begin) if is_folder else _learner(name, pieces)))
    return parts


def _authors(metadata: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Name, id and e-mail of a submission's authors, by its folder, from Gradescope's export."""
    found: dict[str, list[dict[str, str]]] = {}
    authors: list[dict[str, str]] = []
    with contextlib.suppress(FileNotFoundError):
        for line in read_regular(metadata, MAX_NOTEBOOK_BYTES).decode("utf-8", "replace").splitlines():
            if match := _SUBMITTERS.match(line):
                if match["folder"]:
                    authors = found.setdefault(match["folder"], [])
                elif match["what"] == "name":
                    authors.append({})
                if match["what"] and authors:
                    authors[-1][match["what"]] = readable(match["value"].strip().strip("'\""))
    return {
        name: [(each["name"], each.get("sid", ""), each.get("email", "")) for each in authors]
        for name, authors in found.items()
    }


def _learner(name: str, pieces: Sequence[str]) -> str:
    """The learner, from the name of an archive or a file without a platform's naming."""
    stem = _ARCHIVE.sub("", name)
    if stem != name:
        return stem
    plain = _AGAIN.sub("", name)
    if piece := piece_of(name, pieces):
        return plain[: -len(piece)].rstrip("_") or name
    match = _NOTEBOOK.fullmatch(plain)
    return (match and match["name"]) or plain.removesuffix(".ipynb")


def _named(parts: Iterable[_Part], place: str, pieces: Sequence[str], known: Mapping[str, str]) -> Iterator[Submission]:
    """Groups the parts of each learner. The platform's numbers distinguish two learners of one name."""
    ids: dict[str, set[str]] = {}
    groups: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        ids.setdefault(part.learner, set()).add(part.id)
        groups.setdefault((part.learner, part.id), []).append(part)
    for (learner, number), group in sorted(groups.items()):
        name = group[0].name
        found = Submission(learner, f"{place}/{name}", name, is_late=any(part.late for part in group), id=number)
        found.email = group[0].email
        if number:
            found.place = f"{learner}_{number}"
            is_one_of_two = len(ids[learner]) > 1 or any(name.startswith(f"{learner} (") for name in known.values())
            found.learner = known.get(found.place, f"{learner} ({number})" if is_one_of_two else learner)
        elif learner in _LEARNERS_OWN or learner in exercise_names():
            found.learner = f"({learner})"
            found.problems.append(f"{learner} is a folder of the course, and no name: name it after its learner")
            yield found
            continue
        giving = [(part, *part.read(pieces)) for part in group]
        giving = [each for each in giving if each[1] or each[2]]
        if len(giving) > 1 and any(part.is_whole for part, _, _ in giving):
            names = ", ".join(part.name for part, _, _ in giving)
            found.problems.append(f"{len(giving)} places are taken for one learner's: {names}")
        for part, files, problems in giving:
            for path, content in files.items():
                at = PurePosixPath(part.name) / path if len(group) > 1 and path.name != part.name else path
                if at in found.files and found.files[at].data != content.data:
                    content = Content(content.piece, problem=f"{at} is there twice, with different content")
                found.files[at] = content
            found.problems += problems
        yield found


# ---- choice among files ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """The pieces of an exercise in a submission, or a problem; ``files`` is empty if it has none."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    modified: str = ""  # of the newest of them
    problem: str = ""
    flags: tuple[str, ...] = ()  # other candidate files
    as_given: bool = False  # nothing has been changed yet


def pieces_in(submission: Submission, exercise: Exercise) -> Found:
    """The learner's pieces of an exercise.

    ``mine/NAME/`` counts before ``NAME/``, that before other folders, and the course's own ``exercises/`` and
    ``solutions/`` only if there is nothing else. If two files of different content remain, both are named; an unedited
    copy of the exercise does not count beside another file. ``flags``: the files that did not count.
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
        if sound := [each for each in meant if not each[1].problem]:
            flags += [content.problem for _, content in meant if content.problem]
            meant = sound
        if len({content.data for _, content in meant}) > 1:
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
    as_given = all(_is_as_given(files[piece], exercise.exercise_dir / piece) for piece in files)
    if not files or (is_clone and as_given):
        return Found()
    missing = [piece for piece in exercise.pieces if piece not in files]
    if missing:
        return Found(problem=f"no file {', '.join(missing)} beside {', '.join(paths)}")
    return Found(files, tuple(paths), newest, flags=tuple(flags), as_given=as_given)


def _is_as_given(data: bytes, given: Path) -> bool:
    """Whether a piece is the course's own, sent with the whole course."""
    return given.is_file() and data.split() == given.read_bytes().split()


def _rank(path: PurePosixPath, piece: str, exercise: str) -> tuple[int, int]:
    """The sort key for candidates: by folder, then by whole name."""
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
