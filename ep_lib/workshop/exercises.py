"""Exercises: folders under ``solutions/`` with an ``exercise.toml``, which this module reads and checks.

The folder is the source of truth. Its pieces are the files that ``ep_lib`` itself runs (``runs_as`` says where the copy
is), the learner's version under ``exercises/`` is generated from it (:mod:`ep_lib.workshop.course.generate`), and the
hidden tests are one module in :mod:`ep_lib.workshop.hidden`.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ep_lib
from ep_lib.callers import workshops_above
from ep_lib.errors import EpError, GradingError
from ep_lib.require import a_path, show

METADATA = "exercise.toml"
CARRIED = Path(ep_lib.__file__).resolve().parent / "_workshop"  # the workshop in an installed wheel (setup.py)
ROUTER = "09_router"
# Counters on the path of a token, in one of the modes of `ep-lib demo --mine`
_OF_A_MODEL = {"kCountSignals", "kCountRingRows", "kCountDispatchRows", "kCountCombineRows", "kCountPackets"}
ON_GPUS = "ep-lib demo --mine --backend cuda --ranks 2"
_OPTIONAL = ("otherwise", "given")  # optional fields of a hole


@dataclass(frozen=True)
class Task:
    """One graded task: its number, a short description, and its points.

    ``stands_on``: numbers of the tasks whose code this one calls, so that their mistakes also show here.
    """

    number: int
    title: str
    points: int
    stands_on: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hole:
    """A marked region of the solution that the learner fills in.

    ``at`` is the name in the markers: the task's number, and a letter if a task has several holes (``5a``).
    ``otherwise`` is code that keeps the unfinished function well-formed (``return false;``). ``given`` is wrong code
    that the learner repairs: it fills the hole in place of the failing line.
    """

    at: str
    hint: str
    otherwise: str
    given: str = ""

    @property
    def task(self) -> int:
        return int(re.match(r"\d+", self.at).group())  # type: ignore[union-attr]  # checked when it was read


@dataclass(frozen=True)
class InTheLibrary:
    """The use of a finished piece in the library: the table ``[mine]`` of exercise.toml.

    ``piece``: its name for the learner ("your ring"). ``carries``: the count in words ("rows went through your ring").
    ``count``: the counter of <ep/pieces.cuh>; "" if only the tutorial's kernels call it, whose launches are counted.
    """

    piece: str
    carries: str = ""
    count: str = ""


@dataclass(frozen=True)
class Exercise:
    """An exercise, read from ``solutions/<name>/exercise.toml``."""

    name: str  # "01_write_signal"
    title: str
    root: Path  # the folder that holds solutions/, exercises/ and ep_lib/
    runs_as: str  # folder, relative to root, where the library keeps its copy of the pieces
    pieces: tuple[str, ...]  # paths relative to the solution's folder; for headers also the include path
    tasks: tuple[Task, ...]
    holes: tuple[Hole, ...]
    intro: str = ""  # its topic, for its README
    also: tuple[str, ...] = ()  # files of runs_as that the pieces include, copied as they are
    version: int = 1  # increased if earlier solutions no longer fit
    changed: str = ""  # the changes since the last version, in a sentence
    mine: InTheLibrary | None = None
    first: bool = False  # whether it has its number by default, among several exercises

    @property
    def solution_dir(self) -> Path:
        return self.root / "solutions" / self.name

    @property
    def exercise_dir(self) -> Path:
        return self.root / "exercises" / self.name

    @property
    def given(self) -> tuple[Path, ...]:
        """The folder with the headers that are given to learners."""
        return (self.root / self.runs_as,) if self.also else ()

    @property
    def is_of_a_model(self) -> bool:
        """Whether a model uses the piece (``ep-lib demo --mine``): its router, and pieces on the path of tokens."""
        return self.name == ROUTER or (self.mine is not None and self.mine.count in _OF_A_MODEL)

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def short_name(self) -> str:
        """Its name in commands: its number, or its whole name if several exercises have that number."""
        number = self.name.split("_", 1)[0]
        return number if _matches(number, names(self.root), self.root) == [self.name] else self.name

    def task(self, number: int) -> Task:
        for task in self.tasks:
            if task.number == number:
                return task
        raise GradingError(f"exercise {self.name} has no task {number}; it has {[t.number for t in self.tasks]}")


def workshop_root(holding: str = "solutions", error: type[EpError] = GradingError) -> Path:
    """The folder of the workshop that has a folder ``holding``; raises ``error`` if there is none.

    It is $EP_LIB_WORKSHOP; by default the clone of this ep_lib, else the current folder or the nearest one above it
    with notebooks and solutions.
    """
    given = os.environ.get("EP_LIB_WORKSHOP")
    candidates = [Path(given).expanduser()] if given else [Path(ep_lib.__file__).resolve().parents[1], Path.cwd()]
    above = [] if given else workshops_above(Path.cwd())
    for root in [*candidates, *above]:
        if (root / holding).is_dir():
            return root
    looked = " or ".join(map(str, candidates))
    make_one = "run `ep-lib lab` in an empty folder, which makes a workshop there" if CARRIED.is_dir() else ""
    raise error(
        f"no folder {holding}/ in {looked}: "
        + (make_one or "run inside a clone of the workshop (pip install -e .)")
        + ", or set EP_LIB_WORKSHOP to one"
    )


def file_of_the_course(file: str | Path, root: Path) -> Path:
    """The path of a course file: in the workshop ``root``, or beside the installed ep_lib, since a wheel's workshop has
    no ep_lib/ of its own."""
    place = root / file
    return place if place.exists() else Path(ep_lib.__file__).resolve().parents[1] / file


def make_workshop(folder: Path) -> Path:
    """Copies the workshop of an installed ep_lib to ``folder``, or to a new folder in it if it is not empty.

    Returns the new folder of notebooks/, exercises/ and so on. Raises GradingError if they cannot be written.
    """
    root = folder if not any(folder.iterdir()) else folder / "ep_lib_workshop"
    try:
        shutil.copytree(CARRIED, root, dirs_exist_ok=root == folder)
    except (OSError, shutil.Error) as error:
        raise GradingError(f"the workshop cannot be copied to {root}: {error}; choose another folder") from error
    return root


def names(root: Path | None = None) -> list[str]:
    """Names of all exercises, sorted: the folders of ``solutions/`` that have an exercise.toml."""
    folder = (root or workshop_root()) / "solutions"
    return sorted(entry.parent.name for entry in folder.glob(f"*/{METADATA}"))


def find(name: str | int, root: Path | None = None) -> Exercise:
    """The exercise called ``name``: "01_write_signal", its topic "write_signal", its number "01", or 1.

    Raises GradingError for an unknown name (and lists the known ones), for a number that several exercises have, and
    for a broken exercise.toml.
    """
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise GradingError(
            f"the exercise is {show(name)}; name it by its number or its folder: 1, '01', '01_write_signal'"
        )
    root = workshop_root() if root is None else a_path("root", root)
    known = names(root)
    wanted = f"{name:02d}" if isinstance(name, int) else name.strip().rstrip("/")
    if wanted.isdigit():
        wanted = f"{int(wanted):02d}"
    matches = _matches(wanted, known, root)
    if len(matches) > 1:
        raise GradingError(f"{name!r} may mean several exercises: choose one of {', '.join(matches)}")
    if not matches:
        raise GradingError(f"no exercise {name!r}; there are: {', '.join(known) or 'none'}")
    return load(root / "solutions" / matches[0] / METADATA, root)


def _matches(wanted: str, known: list[str], root: Path) -> list[str]:
    """The ``known`` names that ``wanted`` may mean: a whole name, its number, or what follows the number. Among several
    exercises with one number, the one with ``first = true`` in exercise.toml counts."""
    found = [each for each in known if wanted in (each, *each.split("_", 1))]
    first = [name for name in found if len(found) > 1 and load(root / "solutions" / name / METADATA, root).first]
    return first or found


def load(path: Path, root: Path) -> Exercise:
    """Reads and checks one exercise.toml. Raises GradingError, which names the mistake in it."""
    try:
        return _checked(path.read_text(encoding="utf-8"), path, root)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GradingError(f"cannot read {path}: {error}") from error


@functools.lru_cache(64)  # a notebook reads it a hundred times, and equal text gives an equal exercise
def _checked(text: str, path: Path, root: Path) -> Exercise:
    raw = tomllib.loads(text)
    tasks = tuple(
        Task(
            _get(t, "number", int, path),
            _get(t, "title", str, path),
            _get(t, "points", int, path),
            tuple(t.get("stands_on", ())),
        )
        for t in _tables(raw, "task", path)
    )
    holes = tuple(
        Hole(_get(h, "at", str, path), _get(h, "hint", str, path).strip(), *(str(h.get(k, "")) for k in _OPTIONAL))
        for h in _tables(raw, "hole", path)
    )
    pieces = tuple(str(piece) for piece in _get(raw, "pieces", list, path))
    also = tuple(str(file) for file in raw.get("also", []))
    if [t.number for t in tasks] != list(range(1, len(tasks) + 1)) or any(t.points < 1 for t in tasks):
        raise GradingError(f"{path}: tasks must be numbered 1, 2, 3 ... and give at least one point each")
    for task in tasks:
        if any(below not in range(1, task.number) for below in task.stands_on):
            raise GradingError(f"{path}: task {task.number}: stands_on is {task.stands_on}; it must name earlier tasks")
    for hole in holes:
        matched = re.fullmatch(r"(\d+)[a-z]?", hole.at)
        if not matched or int(matched.group(1)) > len(tasks) or int(matched.group(1)) < 1:
            raise GradingError(
                f"{path}: hole at={hole.at!r}: it must be a task's number, with a letter if the task has several holes"
            )
    for piece in (*pieces, *also):
        if Path(piece).is_absolute() or ".." in Path(piece).parts:
            raise GradingError(f"{path}: piece {piece!r} must lie inside the exercise's folder")
    title, runs_as = _get(raw, "title", str, path), _get(raw, "runs_as", str, path)
    intro = _get(raw, "intro", str, path).strip() if "intro" in raw else ""
    version, changed = raw.get("version", 1), raw.get("changed", "")
    if not isinstance(version, int) or version < 1 or (version > 1 and not changed):
        raise GradingError(f"{path}: version is {version!r}: a whole number; from 2 on, `changed` says what is new")
    name, mine, first = path.parent.name, _mine(raw, path), raw.get("first", False) is True
    return Exercise(name, title, root, runs_as, pieces, tasks, holes, intro, also, version, changed, mine, first)


def _mine(raw: Mapping[str, Any], path: Path) -> InTheLibrary | None:
    if "mine" not in raw:
        return None
    table = _get(raw, "mine", dict, path)
    if not set(table) <= {"piece", "carries", "count"}:
        raise GradingError(f"{path}: [mine] has piece, carries and count, and not {', '.join(sorted(table))}")
    if bool(table.get("count")) != bool(table.get("carries")):
        raise GradingError(f"{path}: [mine] has count and carries, or neither of them")
    return InTheLibrary(_get(table, "piece", str, path), table.get("carries", ""), table.get("count", ""))


def _tables(raw: Mapping[str, Any], key: str, path: Path) -> list[Mapping[str, Any]]:
    tables = raw.get(key, [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise GradingError(f"{path}: needs at least one [[{key}]] table")
    return tables


def _get(table: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    value = table.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise GradingError(f"{path}: {key!r} must be a {kind.__name__}, got {value!r}")
    return value
