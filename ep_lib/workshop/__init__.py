"""The workshop around the library: exercises, the grader, and support for the notebooks.

>>> from ep_lib import workshop
>>> workshop.start("01")     # doctest: +SKIP  copies the exercise to mine/01_write_signal, for you to edit
>>> workshop.check("01")     # doctest: +SKIP  runs the public checks on it, and says what is not right yet

Begin with exercises.py: the definition of an exercise. What notebooks import is here: notebook.py, lessons/ and
pcie_model.py. Four rooms have the rest:

- course/, what a learner works with: mine.py lets the library run on a learner's pieces, generate.py makes the
  learner's files from the solutions, prediction.py with answers/, puzzles/ (lines to write in a cell), ladders/ (the
  rungs of a tutorial file, checked and timed), replaying.py (a failed test step by step), progress.py.
- grader/: grading.py grades a submission by the requests of scenario.py, and feedback.py describes failures; process/
  has the processes in which the learner's code runs, and their walls.
- hidden/, the tests.
- classroom/: handed_in.py, marking.py, class_grading.py, the gradebook and its views, executors.py for other machines,
  and release.py, which makes the tree for learners of a graded course.

Importing this package imports none of its modules, but inside IPython it registers the cell magics (``%%kernel``,
``%%puzzle``, ``%%with_nixl``) and shows an interrupt in one line.
"""

from __future__ import annotations

import functools
import os
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from ep_lib.viz.page import Page
    from ep_lib.workshop.course.course_map import CourseMap
    from ep_lib.workshop.course.ladders import Table
    from ep_lib.workshop.course.mine import Mine
    from ep_lib.workshop.course.program import Program
    from ep_lib.workshop.course.progress_page import MyProgress
    from ep_lib.workshop.course.puzzles.cell import Shown
    from ep_lib.workshop.grader.grading import Grade

_PACKAGE = Path(__file__).resolve().parents[1]
_watch: Callable[[], Page] | None = None  # watch()'s page for an exercise; None: for a puzzle


def start(exercise: str | int) -> Path:
    """Copies an exercise ("01" or "01_write_signal") to ``mine/``, unless it is already there; returns the folder.

    In a notebook it also shows which files to fill in, with links that open them.
    """
    from ep_lib.workshop import exercises
    from ep_lib.workshop.course.notes import show_note
    from ep_lib.workshop.grader import grading
    from ep_lib.workshop.notebook import Files

    folder = grading.start(exercise)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        show_note(Files(exercises.find(exercise), folder))
    return folder


def python_piece(exercise: str | int, mine: Path | str | None = None) -> ModuleType:
    """An exercise's Python file as a module, freshly imported: yours from ``mine/``, or the course's own while yours
    has unfinished tasks (a printed line says which).

    ``mine`` is the folder with your file. Raises GradingError for an exercise that has none, and for a file that cannot
    be imported, with its line.
    """
    from ep_lib.errors import GradingError
    from ep_lib.require import a_path
    from ep_lib.workshop import exercises
    from ep_lib.workshop.grader import grading, pieces

    found = exercises.find(exercise)
    files = [piece for piece in found.pieces if piece.endswith(".py")]
    if not files:
        raise GradingError(f"the pieces of {found.name} are {', '.join(found.pieces)}: kernels include them")
    own = (grading.default_mine(found) if mine is None else a_path("mine", mine)) / files[0]
    is_begun, left = not own.is_relative_to(found.exercise_dir), pieces.unfinished(own)
    if left or not is_begun:
        why = f"yours has {left} still to do" if is_begun else "you have not begun yours"
        print(f"{found.name}: the course's own, since {why}")
        own = exercises.file_of_the_course(Path(found.runs_as) / files[0], found.root)
    else:
        print(f"{found.name}: yours, {os.path.relpath(own, found.root)}")
    try:
        return pieces.load(own)
    except Exception as error:
        place = pieces.place_in(own.parent, error)
        raise GradingError(f"{os.path.relpath(own, found.root)} cannot be imported: {error!r}{place}") from error


def check(exercise: str | int, mine: Path | str | None = None) -> Grade:
    """Runs an exercise's public checks on your files and prints which tasks work and which do not yet.

    ``mine`` is the folder with your files; by default ``mine/<exercise>``, or ``exercises/<exercise>`` if that does not
    exist. Your code runs in a process of its own, so an endless loop or a crash cannot hurt the notebook. The public
    checks begin small and continue with the beginning of each hidden test, with their own inputs; ``ep-lib grade`` runs
    the complete tests. A temporary line shows the current task. Raises GradingError for an unknown exercise or folder.
    """
    from ep_lib.workshop import notebook
    from ep_lib.workshop.grader import grading

    with notebook.said_meanwhile() as say:
        say("compiling: your files, and the first time what all need")
        result = grading.grade(exercise, mine, public=True, progress=say)
    print(_wrapped(grading.as_text(result)))
    _keep(result)
    return result


def grade(exercise: str | int, mine: Path | str | None = None) -> Grade:
    """Runs all the tests of an exercise on your files and gives points, as ``ep-lib grade`` does; it takes a while.

    Arguments as for :func:`check`. Shows each task as it is graded.
    """
    from ep_lib.workshop.grader import grading

    result = grading.grade(exercise, mine, progress=lambda text: print(text, flush=True))
    print(_wrapped(grading.as_text(result)))
    _keep(result)
    return result


def _wrapped(text: str) -> str:
    """Long lines go on below their own beginning: a notebook would go on at its edge."""
    indents = [(line, " " * (len(line) - len(line.lstrip()))) for line in text.splitlines()]
    return "\n".join(
        textwrap.fill(line, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line, indent in indents
    )


def _keep(result: Grade) -> None:
    """Keeps a grade for :func:`watch` (also if it has nothing to show) and :func:`my_progress`."""
    global _watch
    from ep_lib.workshop.course import progress_page, replaying

    progress_page.keep(result)
    _watch = functools.partial(replaying.page_of_grade, result)
    if task := replaying.to_watch(result):
        again = f"{result.exercise.short_name!r}, {task.task.number}, {result.seed}{', public=True' * result.public}"
        print(f"To see task {task.task.number} fail, step by step: workshop.watch(), or later workshop.replay({again})")


def replay(exercise: str | int, task: int, seed: int, mine: Path | str | None = None, *, public: bool = False) -> Page:
    """Shows the run in which a task failed, step by step, with your lines but not the test's.

    ``seed``: the number that :func:`check` (with ``public=True``) or :func:`grade` has printed, for the same inputs. An
    instructor's release has only the public checks. Raises GradingError if the task now passes, or if there is no run
    to show: a piece in Python, or one that does not compile.
    """
    from ep_lib.workshop.course import replaying

    return replaying.replay(exercise, task, seed, mine, public=public)


def map(notebook: str) -> CourseMap:
    """The map at the head of a notebook ("01"): the finished parts of ep_lib, and the piece that you add."""
    from ep_lib.workshop.course.course_map import course_map

    return course_map(notebook)


def my_progress() -> MyProgress:
    """How far you are: stages, puzzles, exercises, points, and what to do next; ``.save("progress.html")`` writes it.

    It covers work on this machine. Raises GradingError if there is no workshop here.
    """
    from ep_lib.workshop.course import progress_page

    return progress_page.my_progress()


def puzzle(number: str) -> Shown:
    """The micro-puzzle ``number`` ("00.1"): its task, with folded hints and solution.

    The cell below it begins with ``%%puzzle 00.1`` and holds your lines; run it as often as you like. Raises
    ArgumentError for an unknown number.
    """
    from ep_lib.workshop.course.puzzles import cell

    return cell.show(number)


def watch() -> Page:
    """Shows the run of your last puzzle, or of your last exercise's failed task, step by step: each thread's turns and
    writes. Raises ArgumentError if there is none."""
    from ep_lib.workshop.course.puzzles import cell

    return _watch() if _watch is not None else cell.watch()


def _run_puzzle(line: str, cell: str) -> None:
    """``%%puzzle 00.1``: runs the lines below as your answer to a puzzle."""
    global _watch
    from ep_lib.workshop.course.puzzles import cell as puzzle_cell

    _watch = None
    puzzle_cell.run_cell(line, cell)


def ladder(number: str | int, **options: Any) -> Table:
    """Runs the rungs of a tutorial file, checks and times each, and returns the table for display.

    ``ladder("06")`` is `ep-lib ladder 06` for a notebook; ``options`` are those of
    :func:`ep_lib.workshop.course.ladders.run`: backend, fabric, hardware, rungs.
    """
    from ep_lib.workshop.course import ladders

    return ladders.run(number, **options)


def use_mine(mine: Path | str | None = None) -> Mine:
    """Makes kernels run on your own pieces where these are complete, and on the library's elsewhere.

    Returns a display for a notebook: your pieces, why the library's replace the others, and, after a run, counts of the
    use of yours. Call it again after you have finished another exercise; edits of a file in use apply from the next
    run. ``mine``: the folder with your exercises, by default ``mine/``. Raises GradingError if it is invalid.
    ``stop()``, or the end of a ``with``, restores the library's pieces.
    """
    from ep_lib.workshop.course import mine as own

    return own.Mine(own.find_pieces(mine))


def my_program(mine: Path | str | None = None) -> Program:
    """Your program so far: tokens go to their experts and back on your pieces. Shows your pieces on the main path with
    counts of their use, whether every bit is right, and your pieces beside this path. ``mine`` and errors as in
    :func:`use_mine`."""
    from ep_lib.workshop.course import program

    return program.my_program(mine)


def _run_with_nixl(line: str, cell: str) -> None:
    """``%%with_nixl``: runs the cell if NIXL is installed, otherwise prints what is missing."""
    from ep_lib.workshop.lessons import host_setup

    host_setup.run_cell(sys.modules["IPython"].get_ipython(), cell)


def _with_a_body(lines: list[str]) -> list[str]:
    """Gives an empty cell a body, which IPython requires for a cell magic; the puzzle then says what to do."""
    if lines and lines[0].startswith("%%puzzle") and not "".join(lines[1:]).strip():
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines


def _show_interrupt(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> None:
    """Shows an interrupt of the library as one line that names the interrupted call. ``%tb`` shows where."""
    from ep_lib.errors import last_own_line

    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace)]
    if any(file.is_relative_to(_PACKAGE) for file in files):
        line = f"Interrupted {last_own_line(error)}".rstrip()
        error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    vars(error).clear()


def load_ipython_extension(shell: Any) -> None:
    """Registers the cell magics in an IPython shell; ``%load_ext ep_lib.workshop`` calls it."""
    from ep_lib.workshop.course import kernel_cell

    kernel_cell.register(shell)
    shell.register_magic_function(_run_puzzle, magic_kind="cell", magic_name="puzzle")
    if _with_a_body not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_with_a_body)
    shell.register_magic_function(_run_with_nixl, magic_kind="cell", magic_name="with_nixl")
    shell.set_custom_exc((KeyboardInterrupt,), _show_interrupt)


if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
