"""Grades a class's submissions into a gradebook; submissions already in it are not graded again.

:func:`collect` reads all submissions once, before any of their code runs. :func:`grade_class` runs the remaining ones
on an executor (:mod:`ep_lib.workshop.classroom.marking`) and appends each result as it arrives, so an interrupt loses
nothing.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.errors import GradingError
from ep_lib.workshop.classroom import handed_in, marking, similar
from ep_lib.workshop.classroom.gradebook import BY_THE_PLATFORM, NOTHING, Book, HandedIn, a_time
from ep_lib.workshop.classroom.handed_in import Submission, notebooks_in, pieces_in, submissions
from ep_lib.workshop.classroom.marking import Job, Result, Work
from ep_lib.workshop.course.puzzles import graded, page
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.grader.reading import Unreadable, read

EVERYBODY = "all"  # as the learners to grade again
_MOST_NAMED = 3  # notebooks
_MOST_OF_AN_ANSWER = 16 << 10  # bytes; puzzles take one to five lines


@dataclass(frozen=True)
class Entry:
    """A job, or the reason for none; and notes about these files for the instructor."""

    job: Job
    problem: str = ""
    flags: tuple[str, ...] = ()
    place: str = ""  # of the submission
    is_told: bool = False  # the time of the submission is from `--times`
    id: str = ""  # the platform's id of the learner
    email: str = ""

    @property
    def handed_in(self) -> HandedIn:
        job, person = self.job, (self.id, self.email)
        return HandedIn(job.learner, job.exercise, job.digest, job.submitted, self.place, self.is_told, *person)


def collect(
    place: Path, exercises: Sequence[Exercise], *, puzzles: bool, known: Mapping[str, str] | None = None
) -> list[Entry]:
    """The entries to grade from all submissions in ``place``, a folder or an archive.

    ``puzzles``: include those in notebooks. With one exercise, every learner has an entry for it. ``known``:
    :meth:`Book.places`, so that learners in the book keep their name. Raises GradingError if there is no such place.
    """
    return _collected(submissions(place, exercises, known), exercises, puzzles=puzzles)


def collect_folders(folders: Iterable[Path], exercises: Sequence[Exercise], *, puzzles: bool) -> list[Entry]:
    """The same for single folders, named after the learners. Raises GradingError if one is missing."""
    found = [handed_in.folder(place, exercises) for place in folders]
    return _collected(found, exercises, puzzles=puzzles)


def with_times(entries: Iterable[Entry], times: Mapping[str, str]) -> list[Entry]:
    """The same entries, with the submission times from ``times``, by learner, in place of the files' dates."""
    return [
        dataclasses.replace(each, job=dataclasses.replace(each.job, submitted=time), is_told=True) if time else each
        for each in entries
        for time in [times.get(each.job.learner, "")]
    ]


def _collected(found: Iterable[Submission], exercises: Sequence[Exercise], *, puzzles: bool) -> list[Entry]:
    entries: list[Entry] = []
    for each in found:
        of_this = list(_entries(each, exercises, puzzles=puzzles))
        if not of_this:
            name = exercises[0].name if len(exercises) == 1 else NOTHING
            wanted = " or ".join(exercises[0].pieces) if len(exercises) == 1 else "of any exercise"
            seen = [str(path) for path, content in notebooks_in(each) if not content.problem]
            seen = [path for path in seen if not any(said.startswith(f"{path}: ") for said in each.problems)]
            untouched = f": nothing is answered in {', '.join(seen[:_MOST_NAMED])}" if seen and puzzles else ""
            why = "; ".join([f"no file {wanted} in {each.source}{untouched}", *each.problems])
            of_this = [Entry(Job(each.learner, name, {}, source=each.source), why)]
        entries += [dataclasses.replace(entry, place=each.place, id=each.id, email=each.email) for entry in of_this]
    return entries


def _entries(submission: Submission, exercises: Sequence[Exercise], *, puzzles: bool) -> Iterator[Entry]:
    of_puzzles = list(_puzzles(submission)) if puzzles else []  # first: a notebook's problem appears in all rows
    for exercise in exercises:
        found = pieces_in(submission, exercise)
        if not found.files and not found.problem:
            continue
        if found.as_given and len(exercises) > 1:
            continue  # begun, and handed in with the whole of mine/: else everybody's maximum would rise
        source = ", ".join(f"{submission.source}: {path}" for path in found.paths) or submission.source
        own: tuple[str, ...] = ()
        if found.files and _read(similar.is_the_solution, exercise.name, found.files, otherwise=False):
            own = (f"it is {similar.THE_SOLUTION}",)
        job = Job(submission.learner, exercise.name, found.files, source=source, submitted=found.modified)
        yield Entry(job, found.problem, _flags(submission) + found.flags + own)
    yield from (dataclasses.replace(each, flags=_flags(submission)) for each in of_puzzles)


def _read(function: Callable[..., Any], exercise: str, files: Mapping[str, bytes], otherwise: Any) -> Any:
    """The result of a function of :mod:`ep_lib.workshop.classroom.similar` for files; ``otherwise`` for unreadable
    ones, which get no points."""
    try:
        return read(function, exercise, dict(files))
    except Unreadable:
        return otherwise


def _flags(submission: Submission) -> tuple[str, ...]:
    late = (BY_THE_PLATFORM,) if submission.is_late else ()
    return (*submission.problems, *late)


def _puzzles(submission: Submission) -> Iterator[Entry]:
    """The notebooks' answers, if any cell differs from its initial text."""
    answers: dict[str, dict[str, bytes]] = {}
    places: dict[str, list[str]] = {}
    problems: dict[str, str] = {}
    unread: dict[str, str] = {}
    newest: dict[str, str] = {}
    for path, content in sorted(notebooks_in(submission), key=lambda each: each[0].name == page.NAME):
        try:
            if content.problem:
                raise GradingError(content.problem)
            found = graded.answers_in(content.data)
        except (GradingError, MemoryError) as error:
            said = f"{path}: {str(error) or 'refused: it takes more memory than this machine has'}"
            submission.problems.append(said)
            name = graded.name_of(f"{path.name[:2]}.1")  # by the notebook's own name, as 01_write_and_signal.ipynb
            if name is not None:
                answers.setdefault(name, {})
                unread[name], newest[name] = said, max(newest.get(name, ""), content.modified)
                places.setdefault(name, []).append(str(path))
            continue
        for number, lines in found.items():
            name = graded.name_of(number)
            if name is None or not re.sub(r"(?://|#).*", "", lines).strip():
                continue
            data = lines.encode("utf-8", "replace")
            if len(data) > _MOST_OF_AN_ANSWER:  # a compiler may need minutes for it
                problems[name] = f"puzzle {number} has {len(data)} bytes; an answer has at most {_MOST_OF_AN_ANSWER}"
            if path.name == page.NAME and number in answers.get(name, {}):
                continue  # the puzzle's own notebook counts before the page of all puzzles, which is read last
            if answers.setdefault(name, {}).setdefault(number, data) != data:
                problems[name] = f"puzzle {number} is answered in {places[name][0]} and in {path}; hand in one of them"
            if str(path) not in places.setdefault(name, []):
                places[name].append(str(path))
            newest[name] = max(newest.get(name, ""), content.modified)
    for name, files in sorted(answers.items()):
        source = f"{submission.source}: {', '.join(places[name])}"
        job = Job(submission.learner, name, files, source=source, submitted=newest[name])
        yield Entry(job, problems.get(name, "") if files else unread[name])


def times_from(file: Path) -> dict[str, str]:
    """The submission times of learners, from a CSV file with columns "learner" and "time". Raises GradingError, also
    for a learner with two times."""
    try:
        rows = list(csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GradingError(f"{file} cannot be read: {error}") from error
    if not rows or not {"learner", "time"} <= set(rows[0]):
        raise GradingError(f"{file} has no columns learner and time: its first line names them")
    times: dict[str, str] = {}
    for row in rows:
        if not row["learner"] or not row["time"]:
            continue
        learner, time = handed_in.readable(row["learner"]), a_time(row["time"]).isoformat(timespec="seconds")
        if times.setdefault(learner, time) != time:
            raise GradingError(f"{file} has two times for {learner}: {times[learner]} and {time}; leave one of them")
    return times


def left_to_do(book: Book, entries: Iterable[Entry], regrade: Collection[str] = ()) -> list[Entry]:
    """The entries whose files this version of the library has not graded yet, or that must be graded again.

    Raises GradingError for a learner to be graded again who has no files.
    """
    entries = list(entries)
    if unknown := set(regrade) - {EVERYBODY} - {each.job.learner for each in entries}:
        known = ", ".join(sorted({each.job.learner for each in entries})[:40])
        raise GradingError(f"nothing was handed in by {', '.join(sorted(unknown))!r}; by these it was: {known}")
    return [each for each in entries if _is_wanted(each, regrade) or not _is_done(book, each)]


def _is_wanted(entry: Entry, regrade: Collection[str]) -> bool:
    return EVERYBODY in regrade or entry.job.learner in regrade


def _is_done(book: Book, entry: Entry) -> bool:
    if entry.problem:
        return False
    return book.is_graded(
        entry.job.learner, entry.job.exercise, entry.job.digest, marking.version_of(entry.job.exercise)
    )


def grade_class(
    book: Book,
    entries: Sequence[Entry],
    executor: Executor,
    workers: int,
    *,
    regrade: Collection[str] = (),
    ready: Callable[[str], None] = lambda exercise: None,
    work: Work = marking.work,
) -> Iterator[Result]:
    """Grades ``entries`` and appends each result to the book, then yields it.

    ``executor`` runs ``work`` at ``workers`` places. ``ready`` is called with an exercise's name before its first job
    is handed out. Another grader may use the same book: its results are not computed again.
    """
    flags = {id(each.job): each.flags for each in entries}
    rounds = {
        id(each.job): book.rounds(each.job.learner, each.job.exercise) if _is_wanted(each, regrade) else 0
        for each in entries
    }

    slow: set[str] = set()  # learners with a run that never ended

    def keep(result: Result, job: Job) -> Result:
        told = [*result.record.get("flags", []), *flags[id(job)]]
        result = dataclasses.replace(result, record={**result.record, "flags": told})
        library = marking.version_of(job.exercise) if job.exercise else ""
        marks = _read(similar.marks_of, job.exercise, job.files, otherwise=()) if job.files else ()
        book.append(
            *(job.learner, job.exercise, job.digest, library, result.record),
            round=rounds[id(job)],
            submitted=job.submitted,
            marks=marks,
        )
        return result

    for each in entries:
        if each.problem:
            yield keep(marking.not_graded(each.job, each.problem), each.job)
    jobs = {(each.job.learner, each.job.exercise): each.job for each in entries if not each.problem}
    with closing(marking.run(_supply(book, entries, regrade, ready, slow), executor, workers, work)) as results:
        for result in results:
            if result.timed_out:
                slow.add(result.job.learner)
            yield keep(result, jobs[result.job.learner, result.job.exercise])


def _supply(
    book: Book,
    entries: Iterable[Entry],
    regrade: Collection[str],
    ready: Callable[[str], None],
    slow: Collection[str],
) -> Iterator[Job]:
    """Yields jobs exercise by exercise, each in random order, so that two concurrent graders share the work.

    The remaining jobs of learners in ``slow``, which may grow meanwhile, come last.
    """
    waiting = [each for each in entries if not each.problem]
    random.shuffle(waiting)
    last = None
    ordered = sorted(waiting, key=lambda entry: entry.job.exercise)
    later: list[Entry] = []

    def those_who_end() -> Iterator[Entry]:
        for each in ordered:
            if each.job.learner in slow:
                later.append(each)
            else:
                yield each

    for each in itertools.chain(those_who_end(), later):
        if each.job.exercise != last:
            ready(each.job.exercise)
            last = each.job.exercise
        if _is_wanted(each, regrade) or not _is_done(book, each):
            yield each.job
