"""``ep-lib grade``: points for an exercise, and the failed behaviour.

Exit codes: 0 for full marks, 1 for fewer, 2 if the grader itself could not work; with several submissions, the highest.
``--json`` prints one object for one submission, a list for several:

    {"schema": 1, "exercise": "01_write_signal", "mine": "...", "points": 7, "of": 10, "full": false, "seconds": 8.1,
     "seed": 81985529216,                   what the tests drew their inputs from
     "problem": null,                       why nothing could run at all (a compile error), else null
     "flags": [],                           what an instructor should look at, and costs no point by itself: a file
                                            of another version, words that no exercise needs (docs/walls.md)
     "not_enforced": [],                    what this machine cannot keep from submissions, a sentence each
     "tasks": [{"task": 1, "title": "...", "points": 2, "of": 2, "passed": true,
                "failed_behaviour": null, "message": null, "timed_out": false, "used_cpu": false}, ...]}

The files run in a process with limits on time, memory, processes and output, and behind walls that Linux enforces: it
reads the system, the library without answers and hidden tests, and its own files; it writes into its own folder; it
makes no connection and signals no other process. Walls that this machine cannot enforce are named before the first
submission.

**A class** (``--all SUBMISSIONS``, or several ``--mine``): SUBMISSIONS is a folder or an archive that holds a folder,
an archive or files for each learner; exports of Moodle and Canvas and the clones of a git classroom are understood
(:mod:`ep_lib.workshop.classroom.handed_in`). Without an exercise all of them are graded, and the puzzles in notebooks;
"puzzles" in its place grades only these. If two files are candidates, both are named, and that submission is not
graded.

``--book FILE`` is the gradebook, to which every attempt is appended (:mod:`ep_lib.workshop.classroom.gradebook`). The
same command continues after an interrupt: this version does not grade a submission again, unless ``--regrade`` names
the learner. Two graders may use one book at the same time. Without ``--all``, the other options work on the book alone.
``--executor`` grades on other machines, too (:mod:`ep_lib.workshop.classroom.executors`).

A submission that cannot be graded has "error" in the place of points. Of a class, each object of ``--json`` has more:
"learner", "id" and "email" (by the platform; "" if unknown), "same_as" (learners with a similar submission, to look
at), "note" (of points given by hand), "late", "taken_off", "share" (its contribution to the total), "most" (its largest
possible contribution), "counts" (whether it is among the best ones), "submitted", "graded_at", "attempts", "digest" and
"library" (the version that graded it); its tasks have "note" in the place of "timed_out" and "used_cpu".

The current files in SUBMISSIONS count (with ``--count best`` the attempt with the most points), even if they were
graded before others. ``--times FILE`` applies at once to graded submissions: with ``--all`` to those in SUBMISSIONS,
else to all of the book. ``--deadline`` without ``--late`` keeps the rule, and vice versa. The book keeps deadlines,
extensions, free days, weights and the number of exercises that count; ``ep-lib grade --book FILE`` prints them.

    ep-lib grade --all handed_in.zip --book class.db --out feedback --deadline 2026-11-30 --late 10/day
    ep-lib grade --book class.db --give ada 10_plan.2 2 --note "right, but for another signature" --out feedback
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from tqdm import tqdm

from ep_lib.errors import EpError, GradingError
from ep_lib.jit import sealed
from ep_lib.require import whole_number
from ep_lib.workshop.classroom import class_grading, gradebook_views
from ep_lib.workshop.classroom.class_grading import Entry
from ep_lib.workshop.classroom.executors import HELP, open_executor
from ep_lib.workshop.classroom.gradebook import (
    ANY_EXERCISE,
    BEST,
    EXTENSION,
    LATE_DAYS,
    WEIGHT,
    Book,
    LateRule,
    Standing,
    a_time,
)
from ep_lib.workshop.classroom.handed_in import readable
from ep_lib.workshop.classroom.marking import Result
from ep_lib.workshop.course import progress_page, replaying
from ep_lib.workshop.course.puzzles import graded
from ep_lib.workshop.exercises import Exercise, find, names
from ep_lib.workshop.grader.grading import Grade, as_text, grade, prepare, printable
from ep_lib.workshop.grader.process.walls import missing
from ep_lib.workshop.grader.watched import unwatched

_PUZZLES = "puzzles"  # in place of an exercise
_STDOUT = "-"
_MOST = 1000  # days, exercises
_SAID_EVERY_S = 30.0  # interval of progress lines, without a terminal for a bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = __doc__
    parser.add_argument("exercise", nargs="?", help="its name, as 10_plan; 01 is 01_write_signal; without it, a list")
    parser.add_argument(
        "--mine", action="append", metavar="DIR", help="folder with your files; repeat it to grade several submissions"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--tests", metavar="DIR", help="folder with the hidden tests, for a release, which has none")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the run in which a task failed, as a page to go through step by step",
    )
    group = parser.add_argument_group("for instructors")
    group.add_argument("--all", type=Path, metavar="SUBMISSIONS", help="grade a class: a folder or an archive")
    group.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="submissions graded at a time")
    group.add_argument("--executor", default="threads", metavar="WHERE", help=f"where they are graded: {HELP}")
    group.add_argument("--book", type=Path, metavar="FILE", help="the gradebook; without it nothing is kept")
    group.add_argument("--out", type=Path, metavar="DIR", help="write an overview, and feedback for each learner")
    group.add_argument(
        "--csv", nargs="?", const=_STDOUT, metavar="FILE", help="write a line per submission; without FILE, print them"
    )
    group.add_argument(
        "--regrade",
        action="append",
        type=readable,
        default=[],
        metavar="NAME",
        help="grade this learner again; `all` for everybody",
    )
    group.add_argument("--canvas", type=Path, metavar="FILE", help="write what the gradebook of Canvas imports")
    group.add_argument("--moodle", type=Path, metavar="FILE", help="write the grading worksheet of a Moodle assignment")
    group.add_argument("--count", choices=("latest", "best"), default="latest", help="which attempt counts")
    group.add_argument(
        "--best", type=int, metavar="N", help="of each learner the N best exercises count; 0 for all; kept"
    )
    group.add_argument(
        "--weight",
        nargs=2,
        action="append",
        default=[],
        metavar=("EXERCISE", "POINTS"),
        help="what full points of an exercise are in the total; `-` for as many as they are; kept",
    )
    group.add_argument(
        "--deadline",
        metavar="TIME",
        help="2026-11-30 (its end) or 2026-11-30T18:00, for the exercise named or for all; `-` takes it back; kept",
    )
    group.add_argument(
        "--late",
        metavar="RULE",
        help="percent taken off: 10/day, 5/hour, 100 for no points, 0 for none; kept until there is another",
    )
    group.add_argument(
        "--late-days", type=int, metavar="N", help="so many days of being late are free for each learner, in all; kept"
    )
    group.add_argument(
        "--extension",
        nargs=2,
        action="append",
        type=readable,
        default=[],
        metavar=("LEARNER", "TIME"),
        help="a later deadline for one learner, of the exercise named or of all; `-` takes it back; kept",
    )
    group.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="CSV with learner and time, if files' dates are wrong; counts for what is graded already, too",
    )
    group.add_argument(
        "--give",
        nargs=3,
        metavar=("LEARNER", "EXERCISE[.TASK]", "POINTS"),
        help="points by hand (ada 10_plan.2 3), which regrading leaves alone; `-` takes them back; needs --note",
    )
    group.add_argument("--note", default="", help="why, for --give; the learner reads it")
    group.add_argument("--bonus", action="store_true", help="--give may be more than a task or an exercise has")


def run(options: argparse.Namespace) -> int:
    try:
        of_a_class = (options.all, options.book, options.csv, options.canvas, options.moodle)
        is_class = any(of_a_class) or len(options.mine or []) > 1
        if options.html and (is_class or options.json):
            raise GradingError("--html shows the run of one submission: leave out --json and what is for a class")
        if options.exercise is None and not is_class:
            sys.stdout.write("".join(f"{name}: {find(name).title}\n" for name in names()))
            if sealed.in_use():
                sys.stdout.write(f"\n{sealed.HOW_TO_HAND_IN}.\n")
            return 0
        if is_class:
            return _class(options)
        return _one(find(options.exercise), Path(options.mine[0]) if options.mine else None, options)
    except EpError as error:  # for instance, no compiler; not the learner's fault
        _say(f"ep-lib grade: {error}")
        return 2


def _one(exercise: Exercise, folder: Path | None, options: argparse.Namespace) -> int:
    quiet = options.json or not sys.stderr.isatty()
    say = (lambda text: None) if quiet else _say
    result = grade(exercise.name, folder, progress=say, root=exercise.root, tests=options.tests)
    progress_page.keep(result)
    sys.stdout.write(json.dumps(result.as_json(), indent=2) + "\n" if options.json else as_text(result))
    if not options.json:
        _lead_to_the_run(result, options)
    return 0 if result.full else 1


def _lead_to_the_run(result: Grade, options: argparse.Namespace) -> None:
    """Writes the page of the failed run, or says how to get it."""
    failed = replaying.to_watch(result)
    if failed is None:
        return
    if options.html:
        page = replaying.page_of_grade(result).save(options.html)
        print(f"{page}: task {failed.task.number}. Open it in a browser: arrow keys step, n goes to the next finding.")
    else:
        mine = "".join(f" --mine {shlex.quote(folder)}" for folder in options.mine or [])
        again = f"ep-lib grade {result.exercise.short_name}{mine} --html replay.html"
        print(f"To see task {failed.task.number} fail, step by step: {again}")


# ---- a class ---------------------------------------------------------------------------------------------------------
def _class(options: argparse.Namespace) -> int:
    """Grades new submissions, and writes the requested views, also after an interrupt."""
    if options.tests:
        raise GradingError("--tests is for one submission; a class is graded in a checkout, which has the hidden tests")
    if not options.all and not options.mine:
        if options.book is None:
            raise GradingError("there is nothing to grade, and no book: name submissions by --all, or --book FILE")
        if not options.book.exists():
            raise GradingError(f"--book: there is no file {options.book}; --all SUBMISSIONS makes a new gradebook")
        with Book(options.book) as book:
            _change(book, options)
            book.set_times(_times(options, book.learners()), partial(_is_asked, options))
            _say("\n".join([f"rules of {options.book}:", *(list(_rules(book)) or ["  none"])]))
            _write(book, options)
        return 0
    with open_executor(options.executor, options.jobs) as place:
        return 0 if place is None else _grade(options, *place)  # None: it has served another process of mpiexec


def _grade(options: argparse.Namespace, executor: Executor, workers: int) -> int:
    if options.book and not options.book.exists():
        _say(f"ep-lib grade: {options.book} is a new gradebook")
    with Book(options.book) as book:
        _change(book, options)
        entries = _collect(book, options)
        try:
            _grade_what_is_new(book, entries, options, executor, workers)
        except KeyboardInterrupt:
            if options.book:
                _say(f"ep-lib grade: {options.book} has what was graded until now; the same command goes on from there")
            raise
        finally:
            standings = _write(book, options)
        asked = {(each.job.learner, each.job.exercise) for each in entries}
        return max((_code(each) for each in standings if (each.learner, each.exercise) in asked), default=0)


def _code(standing: Standing) -> int:
    return 2 if standing.points is None else 0 if standing.full else 1


def _change(book: Book, options: argparse.Namespace) -> None:
    """Applies deadlines, rules and points by hand."""
    if options.deadline or options.late:
        _set_deadline(book, options)
    for option, kind, count in (("--late-days", LATE_DAYS, options.late_days), ("--best", BEST, options.best)):
        if count is not None:
            book.set_rule(kind, str(whole_number(option, count, 0, _MOST)))
    for name, points in options.weight:
        weight = _points_given(f"--weight is {name} {points}", points)
        book.set_rule(WEIGHT, "" if weight is None else f"{weight:g}", exercise=_named(name))
    for learner, until in options.extension:
        if until != "-" and learner not in book.learners():
            _say(f"ep-lib grade: nothing of {learner!r} is in {options.book} so far; the extension waits for it")
        book.set_rule(EXTENSION, "" if until == "-" else a_time(until).isoformat(), learner, _one_or_any(options))
    if options.give:
        learner, of, points = options.give
        name, _, task = of.partition(".")
        exercise = _named(name)
        if task and not task.isdecimal():
            raise GradingError(f"--give is {of} {points}; write 10_plan, or 10_plan.2 for its task 2")
        number, given = int(task) if task else None, _points_given(f"--give is {of} {points}", points)
        if given is not None and not options.bonus:
            _require_no_more(exercise, number, given)
        _require_graded(book, readable(learner), exercise, number)
        book.give(readable(learner), exercise, number, given, options.note)


def _rules(book: Book) -> Iterator[str]:
    """The rules in the book, each as the options that set it."""
    rules = book.rules()
    for exercise, (deadline, late) in rules.deadlines.items():
        yield f"  {_asked(exercise)}--deadline {_here(deadline)} --late {late}"
    for (kind, learner, exercise), value in filter(lambda rule: rule[1], rules.others.items()):
        option = f"--{kind.replace(' ', '-')}"
        if kind == EXTENSION:
            yield f"  {_asked(exercise)}{option} {shlex.quote(learner)} {_here(datetime.fromisoformat(value))}"
        else:
            yield f"  {option} {_asked(exercise)}{value}"


def _asked(exercise: str) -> str:
    return "" if exercise == ANY_EXERCISE else f"{exercise} "


def _here(moment: datetime) -> str:
    return moment.astimezone().isoformat(timespec="seconds")


def _points_given(said: str, points: str) -> float | None:
    """A number of points; None for `-`."""
    try:
        value = None if points == "-" else float(points)
    except ValueError:
        value = math.nan
    if value is not None and not 0 <= value < math.inf:
        raise GradingError(f"{said}: points are a number from 0 on, or - to take back what was given")
    return value


def _named(name: str) -> str:
    """An exercise or the puzzles of a notebook, by its whole name."""
    return name if name in graded.names() else find(name).name


def _one_or_any(options: argparse.Namespace) -> str:
    return ANY_EXERCISE if options.exercise in (None, _PUZZLES) else find(options.exercise).name


def _set_deadline(book: Book, options: argparse.Namespace) -> None:
    """Sets the deadline, the rule or both; the other one stays as in the book."""
    exercise = _one_or_any(options)
    known = book.rules().deadline(exercise)
    if options.deadline == "-":
        if options.late:
            raise GradingError(f"--late {options.late} needs a deadline, and --deadline - takes it back")
        book.set_deadline(exercise, None, LateRule(0))
        return
    if options.deadline is None and known is None:
        raise GradingError(f"--late {options.late} needs a deadline, and the book has none: add --deadline TIME")
    if options.late is None and known is None:
        _say("ep-lib grade: no --late RULE: who is late is marked, and nothing is taken off")
    deadline = a_time(options.deadline) if options.deadline else known[0] if known else None
    assert deadline is not None
    rule = LateRule.parse(options.late) if options.late else known[1] if known else LateRule(0)
    book.set_deadline(exercise, deadline, rule)


def _times(options: argparse.Namespace, learners: Collection[str]) -> dict[str, str]:
    """The times of --times; prints names that no learner has."""
    times = class_grading.times_from(options.times) if options.times else {}
    if unknown := sorted(set(times) - set(learners)):
        _say(f"ep-lib grade: {options.times} has {', '.join(unknown)}, of whom nothing was handed in")
    return times


def _require_graded(book: Book, learner: str, exercise: str, task: int | None) -> None:
    """Raises GradingError for points for a task of an exercise that was not graded: there are no points of other tasks
    to add them to."""
    for each in book.standings():
        if task is not None and (each.learner, each.exercise) == (learner, exercise) and not each.tasks:
            raise GradingError(
                f"{exercise} of {learner} was not graded ({each.problem}), so its tasks have no points: give points "
                f"for the whole of it, --give {shlex.quote(learner)} {exercise} POINTS"
            )


def _require_no_more(name: str, task: int | None, points: float) -> None:
    """Raises GradingError for more points than possible, probably a typing error, unless --bonus is given."""
    if graded.is_of_puzzles(name):
        return  # the notebook determines their number
    exercise = find(name)
    tasks = [each.points for each in exercise.tasks if task in (None, each.number)]
    if not tasks:
        raise GradingError(f"exercise {exercise.name} has no task {task}; its tasks are 1 to {len(exercise.tasks)}")
    if points > sum(tasks):
        what = exercise.name if task is None else f"task {task} of {exercise.name}"
        raise GradingError(f"{what} has {sum(tasks)} points, and --give says {points:g}; with --bonus it may be more")


def _exercises(options: argparse.Namespace) -> list[Exercise]:
    if options.exercise == _PUZZLES:
        return []
    return [find(options.exercise)] if options.exercise else [find(name) for name in names()]


def _is_asked(options: argparse.Namespace, exercise: str) -> bool:
    if options.exercise == _PUZZLES:
        return graded.is_of_puzzles(exercise)
    return options.exercise is None or find(options.exercise).name == exercise


def _collect(book: Book, options: argparse.Namespace) -> list[Entry]:
    exercises = _exercises(options)
    puzzles = options.exercise in (None, _PUZZLES)
    found = class_grading.collect_folders([Path(each) for each in options.mine or []], exercises, puzzles=puzzles)
    if options.all:
        found += class_grading.collect(options.all, exercises, puzzles=puzzles, known=book.places())
    times = _times(options, {each.job.learner for each in found})
    return class_grading.with_times(found, times)


def _grade_what_is_new(
    book: Book, entries: Sequence[Entry], options: argparse.Namespace, executor: Executor, workers: int
) -> None:
    left = class_grading.left_to_do(book, entries, options.regrade)
    book.hand_in(each.handed_in for each in entries)
    if left:
        for line in (*missing(), *unwatched()):
            _say(f"ep-lib grade: {line}")
    if done := len(entries) - len(left):
        _say(f"{done} of {len(entries)} submissions are in {options.book} already")
    began = time.monotonic()
    said = began
    is_quiet = options.json or options.csv == _STDOUT
    has_bar = sys.stderr.isatty()
    with tqdm(total=len(left), bar_format="{desc} |{bar}| {postfix}", disable=not has_bar) as bar:
        for count, result in enumerate(
            class_grading.grade_class(book, left, executor, workers, regrade=options.regrade, ready=_ready), 1
        ):
            now = time.monotonic()
            so_far = _so_far(count, len(left), now - began)
            bar.set_description_str(so_far, refresh=False)
            bar.set_postfix_str(printable(result.job.learner), refresh=False)
            bar.update()
            if not has_bar:
                text = printable(_in_a_line(result)) + "\n"
                (sys.stderr if is_quiet else sys.stdout).write(text)
                if now - said >= _SAID_EVERY_S:
                    sys.stdout.flush()
                    _say(so_far)
                    said = now


def _so_far(done: int, of: int, seconds: float) -> str:
    """ "45 of 300, 12 min left", if the speed stays the same."""
    left = math.ceil((of - done) * seconds / done / 60)
    return f"{done} of {of}, " + ("less than a minute left" if left <= 1 else f"{left} min left")


def _ready(exercise: str) -> None:
    """Compiles the shared parts of all submissions here, where an interrupt can end it."""
    if not graded.is_of_puzzles(exercise):
        prepare(find(exercise))


def _in_a_line(result: Result) -> str:
    record = result.record
    failed = ", ".join(str(each["task"]) for each in record.get("tasks", []) if not each["passed"])
    text = record.get("error") or f"{record['points']} of {record['of']}"
    where = f"{result.job.learner}, {result.job.exercise}" if result.job.exercise else result.job.learner
    return f"{where}: {text}" + (f" (not passed: task {failed})" if failed else "")


def _write(book: Book, options: argparse.Namespace) -> list[Standing]:
    """Writes the requested views; returns the standings."""
    standings, best = gradebook_views.standings_of(book, options.count), book.best
    failed: GradingError | None = None
    if options.out:
        try:
            gradebook_views.write_all(standings, options.out, best)
            _say(f"overview and feedback: {options.out / 'overview.html'}")
        except GradingError as error:  # the table and the JSON are still written
            failed = error
    if options.exercise is not None:  # a single exercise counts, independent of the others
        asked, best = [replace(each, counts=True) for each in standings if _is_asked(options, each.exercise)], 0
    else:
        asked = standings
    if options.canvas:
        _write_one(options.canvas, gradebook_views.canvas_csv(asked))
    if options.moodle:
        _write_one(options.moodle, gradebook_views.moodle_csv(asked, best))
        if without := sorted({each.learner for each in asked if not each.id}):
            _say(f"ep-lib grade: {options.moodle} leaves out those without a number of Moodle's: {', '.join(without)}")
    if options.csv == _STDOUT:
        sys.stdout.write(gradebook_views.grades_csv(standings))
    elif options.csv:
        _write_one(Path(options.csv), gradebook_views.grades_csv(standings))
    if options.json:
        sys.stdout.write(json.dumps([gradebook_views.as_json(each) for each in standings], indent=2) + "\n")
    sys.stdout.flush()
    if failed:
        raise failed
    return standings


def _write_one(file: Path, text: str) -> None:
    gradebook_views.write(file.parent, {file.name: text})


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
