"""Makes learners' files, and the library's copies, from ``solutions/``: ``python -m ep_lib.workshop.course.generate``.

In a piece, the lines between ``// EXERCISE-BEGIN 1`` and ``// EXERCISE-END 1`` are for the learner to write (``#``
instead of ``//`` in Python). In ``exercises/`` such a region becomes its hint and one line that fails loudly, at run
time, and names the task: so a half-finished file compiles, and finished tasks already give points. If the task is a
repair, the hole holds the code to be repaired (``given`` in exercise.toml).

    solutions/01_write_signal/ep/x.cuh   the source of truth, with markers
    exercises/01_write_signal/ep/x.cuh   generated: holes
    ep_lib/device/ep/x.cuh               generated: the solution without its markers; this is the file that runs

``--check`` writes nothing; it names the files that drifted, and then returns 1. The tests call the same function.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from ep_lib.errors import GradingError
from ep_lib.workshop.course.puzzles.page import NAME, as_notebook
from ep_lib.workshop.exercises import ON_GPUS, Exercise, Hole, find, names, workshop_root

_MARKER = re.compile(r"^(?P<indent>\s*)(?://|#)\s*EXERCISE-(?P<what>BEGIN|END)\s+(?P<at>\w+)\s*$")
_VERSION = re.compile(r"^(?://|#) Exercise (\w+), version (\d{1,9})\b", re.MULTILINE)
_WIDTH = 110  # of hint lines


def with_holes(exercise: Exercise, piece: str, text: str) -> tuple[str, list[str]]:
    """The learner's version of one piece, and the names of the holes found in it, in order.

    Raises GradingError if markers do not pair up, nest, or name a hole that exercise.toml does not describe.
    """
    holes = {hole.at: hole for hole in exercise.holes}
    lines: list[str] = []
    found: list[str] = []
    open_at: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        marker = _MARKER.match(line)
        where = f"solutions/{exercise.name}/{piece}:{number}"
        if marker is None:
            if "EXERCISE-BEGIN" in line or "EXERCISE-END" in line:
                raise GradingError(f"{where}: a marker must be a comment line of its own: // EXERCISE-BEGIN 1")
            if open_at is None:
                lines.append(line)
        elif marker["what"] == "BEGIN":
            if open_at is not None:
                raise GradingError(f"{where}: hole {marker['at']} begins inside hole {open_at}")
            if marker["at"] not in holes or marker["at"] in found:
                raise GradingError(f"{where}: hole {marker['at']!r} is not described in exercise.toml, or used twice")
            open_at = marker["at"]
            found.append(open_at)
            lines += _hole_text(exercise, holes[open_at], marker["indent"], python=piece.endswith(".py"))
        elif marker["at"] != open_at:
            raise GradingError(f"{where}: hole {marker['at']} ends here, but the open one is {open_at}")
        else:
            open_at = None
    if open_at is not None:
        raise GradingError(f"solutions/{exercise.name}/{piece}: hole {open_at} never ends")
    return "\n".join(lines) + "\n", found


def _hole_text(exercise: Exercise, hole: Hole, indent: str, *, python: bool) -> list[str]:
    task = exercise.task(hole.task)
    comment = "#" if python else "//"
    message = f"Task {hole.at} is still to do: {task.title}"
    together = [each.at for each in exercise.holes if each.task == hole.task]
    points = f"{task.points} points" + (f" for {' and '.join(together)} together" if len(together) > 1 else "")
    body = [f"TASK {hole.at} ({points}): {task.title}"]
    for paragraph in hole.hint.split("\n\n"):
        body += textwrap.wrap(" ".join(paragraph.split()), _WIDTH - len(indent))
    lines = [f"{comment} {text}".rstrip() for text in body]
    if hole.given:
        lines += hole.given.strip("\n").splitlines()
    else:
        lines.append(f'raise NotImplementedError("{message}")' if python else f'assert(!"{message}");')
        lines += hole.otherwise.splitlines()
    lines.append(f"{comment} end of TASK {hole.at}")
    return [indent + line if line else "" for line in lines]


def version_line(exercise: Exercise, piece: str) -> str:
    """The first line of a learner's file, which tells a later course the version it was written for."""
    comment = "#" if piece.endswith(".py") else "//"
    return f"{comment} Exercise {exercise.name}, version {exercise.version}. Leave this line: ep_lib reads it."


def version_of(text: str) -> int:
    """The version of the exercise that a learner's file was written for; those without the line are the first."""
    found = _VERSION.search(text)
    return int(found[2]) if found else 1


def another_version(exercise: Exercise, text: str, here: str) -> str:
    """A message about a learner's file, called ``here``, if it was written for another version; else ""."""
    version = version_of(text)
    if version == exercise.version:
        return ""
    said = f"{here} is for version {version} of the exercise, and the course has {exercise.version}"
    if 0 < version < exercise.version:
        changed = exercise.changed.strip() or "it is older"
    else:
        changed = "there was never a version 0" if not version else "your file is of a newer course"
    return (
        f'{said} ({changed}): workshop.start("{exercise.short_name}") puts the file of this course beside yours; bring '
        "your code over, and keep yours"
    )


def without_version(exercise: Exercise, piece: str, text: str, here: str) -> str:
    """A message about a learner's file, called ``here``, if it has lost its version line; else ""."""
    if _VERSION.search(text):
        return ""
    return (
        f"{here} has no line that says its version, and counts as version 1. If you began it with this course, its "
        f"first line was `{version_line(exercise, piece)}`: put it back, to be warned when the exercise changes"
    )


def without_markers(text: str) -> str:
    """The library's copy: the solution without the marker lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not _MARKER.match(line.rstrip("\n")))


def sealed_text(exercise: Exercise, text: str) -> str:
    """The solution for a compiler, with lines numbered as in :func:`with_holes`: all lines in a hole count as its first
    line. A finding in the library's piece then names the hole, not a line of the answer."""
    holes = {hole.at: hole for hole in exercise.holes}
    lines: list[str] = []
    line, size, depth = 1, 0, 0  # of the learner's version; of the hole, 0 outside; of parentheses
    for each in text.splitlines():
        marker = _MARKER.match(each)
        if marker is None:
            if size and depth == 0 and not (lines and lines[-1].endswith("\\")):
                lines.append(f"#line {line}")
            depth += each.count("(") - each.count(")")
            lines.append(each)
            line += 0 if size else 1
        elif marker["what"] == "BEGIN":
            size = len(_hole_text(exercise, holes[marker["at"]], marker["indent"], python=False))
        else:
            line, size, depth = line + size, 0, 0
            lines.append(f"#line {line}")
    return "\n".join(lines) + "\n"


def _readme(exercise: Exercise) -> str:
    number = exercise.short_name
    intro = f"{exercise.intro}\n\n" if exercise.intro else ""
    pieces = ", ".join(f"`{piece}`" for piece in exercise.pieces)
    python = exercise.pieces[0].endswith(".py")
    stopped = "its function" if python else "its kernel"
    mine = f"mine/{exercise.name}"
    if python:
        use = f'In a notebook, `workshop.python_piece("{number}")` imports yours.'
    elif exercise.runs_as == "ep_lib/device":
        use = (
            "Your file replaces the library's of the same name, so every kernel can use it:\n"
            f'`ep_lib.Kernel.from_file(path, name, include=["{mine}"])`.'
        )
    elif exercise.pieces[0].endswith(".cuh"):
        use = (
            "The kernels that call them are in another file, which finds yours:\n"
            f'`ep_lib.Kernel.from_file("{_kernels_with(exercise)}", name, include=["{mine}"])`.'
        )
    else:
        use = f'Run your kernels with\n`ep_lib.Kernel.from_file("{mine}/{exercise.pieces[0]}", name)`.'
    if not python:
        use += "\nIt is compiled as C++17, which is what nvcc takes by default: there are no concepts and no "
        use += "`{.peer = 1}` yet."
    rows = "".join(f"| {task.number} | {task.title} | {task.points} |\n" for task in exercise.tasks)
    return f"""# Exercise {number}: {exercise.title}

{intro}Do not edit this folder, but a copy of your own. In Python or a notebook:

    from ep_lib import workshop
    workshop.start("{number}")    # copies this folder to mine/{exercise.name}, once
    workshop.check("{number}")    # a few quick checks of your copy

`ep-lib grade {number}` runs all the tests and gives points.

Fill the holes in {pieces}; each says what is asked. An unfinished task stops {stopped} and says so; the
others count all the same. {use}

| task | what | points |
| --- | --- | --- |
{rows}{_on_gpus(exercise)}"""


def _on_gpus(exercise: Exercise) -> str:
    """How to run a finished piece on GPUs, if it is on the path of a model's tokens."""
    if exercise.mine is None or not exercise.is_of_a_model:
        return ""
    carried = (
        f"and says how many\n{exercise.mine.carries}"
        if exercise.mine.carries
        else f"all\nwith your {exercise.mine.piece}"
    )
    return f"""
Then run it on two GPUs and see:

    {ON_GPUS}    # without GPUs: ep-lib demo --mine

It trains a small language model, spreads its experts over both GPUs, {carried}.
"""


def _kernels_with(exercise: Exercise) -> str:
    """The file with the kernels that include this exercise's piece."""
    folder, include = exercise.root / exercise.runs_as, f"#include <{exercise.pieces[0]}>"
    files = [file for file in sorted(folder.glob("*.cu")) if include in file.read_text(encoding="utf-8")]
    if not files:
        raise GradingError(f"no .cu file of {exercise.runs_as} has the line {include}: which kernels call the piece?")
    return f"{exercise.runs_as}/{files[0].name}"


def generated(exercise: Exercise) -> dict[Path, str]:
    """Path -> content of every file generated from this exercise's solution."""
    files: dict[Path, str] = {}
    all_found: list[str] = []
    for piece in exercise.pieces:
        text = _read(exercise.solution_dir / piece)
        holes, found = with_holes(exercise, piece, text)
        files[exercise.exercise_dir / piece] = f"{version_line(exercise, piece)}\n{holes}"
        files[exercise.root / exercise.runs_as / piece] = without_markers(text)
        all_found += found
    for name in exercise.also:
        files[exercise.exercise_dir / name] = _read(exercise.root / exercise.runs_as / name)
    files[exercise.exercise_dir / "README.md"] = _readme(exercise)
    missing = [hole.at for hole in exercise.holes if all_found.count(hole.at) != 1]
    if missing:
        raise GradingError(
            f"exercise {exercise.name}: exercise.toml describes holes {missing}, but no piece marks them"
        )
    return files


def _read(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GradingError(f"cannot read the solution {source}: {error}") from error


def drifted(files: Mapping[Path, str]) -> list[Path]:
    """The generated ``files`` that have another content now, or are missing."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]


def write(files: Mapping[Path, str]) -> list[Path]:
    """Writes the drifted files; returns them."""
    changed = drifted(files)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    return changed


def main(argv: list[str] | None = None) -> int:
    """Command line of this module; returns 0 for success, 1 if --check found drift, 2 for an error."""
    parser = argparse.ArgumentParser(
        prog="python -m ep_lib.workshop.course.generate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("exercise", nargs="*", help="number or name; default: all of them")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a file drifted")
    options = parser.parse_args(argv)
    try:
        root = workshop_root()
        files = {} if options.exercise else {root / "notebooks" / NAME: as_notebook()}
        for name in options.exercise or names(root):
            files |= generated(find(name, root))
        changed = drifted(files) if options.check else write(files)
        for path in changed:
            sys.stdout.write(f"{'drifted' if options.check else 'wrote'}: {path.relative_to(root)}\n")
        return int(options.check and bool(changed))
    except GradingError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
