"""A learner's own pieces in the library: after ``mine = workshop.use_mine()`` every kernel runs on them.

An exercise whose exercise.toml has a table ``[mine]`` is a piece of the library. A complete learner's version replaces
the library's, in ``Buffer``, in the tutorial's kernels and on every backend. If it is missing, unfinished, written for
an older version of the exercise, or does not compile, the library's is used and named. This module never writes to
``mine/``.

For the insertion of a piece into a kernel and its counters see :mod:`ep_lib.jit.pieces` and <ep/pieces.cuh>.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ep_lib.callers import short_path
from ep_lib.errors import EpError, GradingError, KernelCompileError
from ep_lib.jit import pieces
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.lexer import without_comments
from ep_lib.jit.structs import enumerators
from ep_lib.require import a_path
from ep_lib.workshop import exercises
from ep_lib.workshop.course.generate import another_version
from ep_lib.workshop.course.mistakes import mistake_in
from ep_lib.workshop.course.notes import BLUE, GREEN, Note
from ep_lib.workshop.exercises import Exercise, InTheLibrary
from ep_lib.workshop.grader.feedback import STILL_TO_DO
from ep_lib.workshop.grader.pieces import load, place_in

_NOT_BEGUN = "not begun"
_MOST_NAMED = 4  # of the pieces that are not begun: a longer list hides what was asked for
_PROBE = "a kernel that includes the piece"
_TODO = re.compile(rf"Task (\w+) {STILL_TO_DO}")


@dataclass(frozen=True)
class Piece:
    """A piece of the library that a learner may write. ``stands_in``: why the library's is used; "" if the learner's
    is."""

    exercise: Exercise
    folder: Path  # of the learner's version, existing or not
    stands_in: str = ""

    @property
    def is_mine(self) -> bool:
        return not self.stands_in

    @property
    def words(self) -> InTheLibrary:
        assert self.exercise.mine is not None  # pieces are made of such exercises
        return self.exercise.mine

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "exercise": self.exercise.name,
            "piece": self.words.piece,
            "mine": self.is_mine,
            "why_not": self.stands_in or None,
            "files": [str(file) for file in self.files],
        }

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.folder / piece for piece in self.exercise.pieces)


@dataclass(frozen=True)
class Carried:
    """The use of one of the learner's pieces: its counter's ``amount`` (None: no counter), and the number of
    ``launches`` of kernels that contain it."""

    piece: Piece
    amount: int | None
    launches: int

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        words = self.piece.words
        return {
            "exercise": self.piece.exercise.name,
            "piece": words.piece,
            "carried": self.amount,
            "what": words.carries or None,
            "launches": self.launches,
        }

    @property
    def ran(self) -> bool:
        """Whether it was used."""
        return bool(self.launches if self.amount is None else self.amount)

    def __str__(self) -> str:
        words = self.piece.words
        if not self.ran:
            return f"your {words.piece}: nothing went through it here"
        within = f"{self.launches:,} {'launches' if self.launches != 1 else 'launch'}"
        if self.amount is None:
            return f"your {words.piece} ran in {within}"
        return f"{self.amount:,} {words.carries}" + (f" ({within})" if self.launches else "")


def find_pieces(mine: Path | str | None = None, root: Path | None = None) -> tuple[Piece, ...]:
    """All pieces, in the order of the exercises, with the state of the learner's version of each.

    ``mine``: the folder that has 01_write_signal and the others; None: ``mine/`` of the workshop. A relative path is
    searched in the current folder, then in the workshop. Raises GradingError if there is no such folder.
    """
    root = exercises.workshop_root() if root is None else root
    if mine is None:
        folder = root / "mine"
    else:
        folder = a_path("mine", mine)
        folder = folder if folder.is_dir() else root / mine
        if not folder.is_dir():
            raise GradingError(
                f"there is no folder {str(mine)!r}: name the one that has your exercises (01_write_signal, ...), or "
                'begin one with workshop.start("01") in Python'
            )
        if not any((folder / name).is_dir() for name in exercises.names(root)) and (folder / "ep").is_dir():
            raise GradingError(f"{folder} is one exercise; name the folder above it, which may have others beside it")
    found = (exercises.find(name, root) for name in exercises.names(root))
    return tuple(_examined(Piece(each, folder / each.name)) for each in found if each.mine is not None)


def names_aside(pieces: Iterable[Piece], on_path: Iterable[Piece]) -> tuple[str, ...]:
    """The learner's pieces that are not among those ``on_path``."""
    known = {piece.exercise.name for piece in on_path}
    return tuple(piece.words.piece for piece in pieces if piece.is_mine and piece.exercise.name not in known)


def _examined(piece: Piece) -> Piece:
    exercise, number = piece.exercise, piece.exercise.short_name
    if not any(file.exists() for file in piece.files):
        return replace(piece, stands_in=f'{_NOT_BEGUN}: workshop.start("{number}")')
    for file, name in zip(piece.files, exercise.pieces, strict=True):
        here = short_path(file)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return replace(piece, stands_in=f'{here} is not there: workshop.start("{number}") brings a new one')
        except (OSError, UnicodeDecodeError) as error:
            return replace(piece, stands_in=f"{here} cannot be read ({error}): save it as UTF-8 text")
        if wrong := another_version(exercise, text, here):
            return replace(piece, stands_in=wrong)
        code = text if name.endswith(".py") else without_comments(text, keep_strings=True)
        if todo := _TODO.search(code):
            return replace(piece, stands_in=f"unfinished: task {todo[1]} is still to do in {here}")
        if problem := _compile_error(file, name, text):
            return replace(piece, stands_in=f"it does not compile: {problem}")
    return piece


def _compile_error(file: Path, name: str, text: str) -> str:
    """The first error of a piece compiled alone, with file and line; "" if there is none."""
    if name.endswith(".py"):
        try:
            ast.parse(text, str(file))
        except (SyntaxError, ValueError) as error:
            return f"{short_path(file)}:{getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', error)}"
        return ""
    probe = f'#include <{name}>\nextern "C" __global__ void probe() {{}}\n'
    folder = file.parents[len(Path(name).parts) - 1]
    try:
        with pieces.unused():
            Kernel.from_source(probe, "probe", filename=_PROBE, include=[folder]).compile()
    except KernelCompileError as error:
        text = str(error)
        if error.file == _PROBE:  # past the piece's end
            lines = file.read_text(encoding="utf-8").splitlines()
            text = f"{file}:{len(lines)}: error: after this line, the last one: {text.partition('error: ')[2]}"
        return text.split("\n  (", 1)[0].replace(f"{folder}{os.sep}", f"{short_path(folder)}{os.sep}")
    return ""


@dataclass(frozen=True)
class Held:
    """The result of :meth:`Mine.holds`; true if the claim is."""

    right: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return f"{self.right}\n{self.why}" if self.why else str(self.right)


def _wrong(claim: Callable[[], object]) -> str | None:
    """Why a claim fails: the run's error, or "" if it returns false; None if it holds."""
    try:
        return None if claim() else ""
    except (EpError, AssertionError) as error:
        return f"{type(error).__name__}: {error}".removesuffix(": ")


def whose_mistake(found: Sequence[Piece], is_right: Callable[[Sequence[Piece]], bool]) -> str:
    """Sentences about the mistake: tries the library's pieces alone, then each of the learner's among them; the quick
    tests of a faulty one name its wrong task."""
    if not is_right(()):
        return "With the library's pieces alone it is wrong as well: this is not your mistake."
    guilty = [piece for piece in found if piece.is_mine and not is_right((piece,))]
    if not guilty:
        return "Each of your pieces works beside the library's; it is wrong only with all of them."
    told = (mistake_in(piece.exercise, piece.folder) for piece in guilty)
    return "\n".join(["With the library's pieces it is right. The mistake is in:", *told])


class Mine:
    """The learner's pieces, in use from the construction until :meth:`stop` (or the end of a ``with``), and counts of
    their use. Displays itself in a notebook."""

    def __init__(self, found: tuple[Piece, ...]) -> None:
        self.pieces = found
        self._before = (pieces.active(), pieces.counts_file())
        number, name = tempfile.mkstemp(prefix="ep_lib-mine-", suffix=".jsonl")
        os.close(number)
        self._file = Path(name)
        pieces.use([piece.folder for piece in found if piece.is_mine], self._file)

    @property
    def yours(self) -> tuple[Piece, ...]:
        """The learner's pieces in use."""
        return tuple(piece for piece in self.pieces if piece.is_mine)

    def carried(self) -> tuple[Carried, ...]:
        """The use of each of the learner's pieces, in runs whose ranks have ended."""
        counts, launches = pieces.told(self._file) if self._file.exists() else ([], {})
        counters = enumerators("ep/pieces.cuh", "PieceCount")
        found = []
        for piece in self.yours:
            amount = None
            if piece.words.count:
                if piece.words.count not in counters:
                    raise GradingError(f"exercise {piece.exercise.name}: <ep/pieces.cuh> has no {piece.words.count}")
                amount = counts[counters[piece.words.count]] if counts else 0
            found.append(Carried(piece, amount, launches.get(str(piece.folder), 0)))
        return tuple(found)

    def module(self, exercise: str, otherwise: ModuleType) -> ModuleType:
        """A Python piece: the learner's module, imported now, or ``otherwise``, the library's. Raises GradingError with
        the learner's line if theirs cannot be imported."""
        for piece in self.yours:
            if piece.exercise.name == exercise:
                try:
                    return load(piece.files[0])
                except Exception as error:
                    place = place_in(piece.folder, error)
                    raise GradingError(f"your {piece.words.piece} cannot be imported: {error!r}{place}") from error
        return otherwise

    def holds(self, claim: Callable[[], object]) -> Held:
        """Whether ``claim()``, which runs a program, is true on these pieces. If it is not, or the run fails: whose
        mistake it is, and in which of the learner's lines. For that, ``claim`` is called again with fewer of the
        pieces."""
        wrong = _wrong(claim)
        if wrong is None:
            return Held(True)

        def is_right(pieces: Sequence[Piece]) -> bool:
            with Mine(tuple(pieces)), contextlib.redirect_stdout(io.StringIO()):
                return _wrong(claim) is None

        return Held(False, "\n".join(filter(None, [wrong, whose_mistake(self.yours, is_right)])))

    def stop(self) -> None:
        """Restores the earlier pieces: the library's, unless others were in use."""
        if pieces.counts_file() == self._file:
            pieces.use(*self._before)
        self._file.unlink(missing_ok=True)

    def __enter__(self) -> Mine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def lines(self) -> list[str]:
        """The use of the learner's pieces, then the pieces for which the library's are used, a line each."""
        carried = self.carried()
        if any(each.ran for each in carried):
            lines = [str(each) for each in carried if each.ran]
            kernels = [each for each in carried if each.piece.files[0].suffix != ".py"]  # Python is not counted
            if idle := [each.piece.words.piece for each in kernels if not each.ran]:
                lines.append(f"nothing went through your {', '.join(idle)} here")
        else:
            lines = [f"yours: {each.piece.words.piece} ({short_path(each.piece.files[0])})" for each in carried]
        missing = [piece for piece in self.pieces if not piece.is_mine]
        begun = [piece for piece in missing if not piece.stands_in.startswith(_NOT_BEGUN)]
        lines += [f"the library's: {piece.words.piece} ({piece.stands_in})" for piece in begun]
        if others := [piece.words.piece for piece in missing if piece not in begun]:
            named = ", ".join(others) if len(others) <= _MOST_NAMED else f"{len(others)} more"
            lines.append(f"the library's, since you have {_NOT_BEGUN} yours: {named}")
        return lines

    def note(self) -> Note:
        """The same, for a notebook."""
        yours = len(self.yours)
        head = f"Yours: {yours} of {len(self.pieces)} pieces" + ("" if yours else ", so the library's run")
        return Note(head, "\n".join(self.lines()), GREEN if yours else BLUE)

    def __repr__(self) -> str:
        return repr(self.note())

    def _repr_html_(self) -> str:
        return self.note()._repr_html_()
