"""Views of a gradebook: CSV and JSON for programs, an overview page for the instructor, feedback for each learner.

Pages are made by :mod:`ep_lib.workshop.pages`. Files are replaced atomically, so that a full disk leaves the old one.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import hashlib
import io
import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.errors import GradingError
from ep_lib.processes import temporary_folder
from ep_lib.workshop.classroom import similar
from ep_lib.workshop.classroom.gradebook import NOT_GRADED, Book, Standing, TaskStanding
from ep_lib.workshop.course.puzzles import graded
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader.grading import SCHEMA, printable
from ep_lib.workshop.pages import number, render, shortened

_FILES = ("overview.html", "grades.csv", "totals.csv", "grades.json")  # beside the learners' folders
_FORMULA = ("=", "+", "-", "@")  # with these, a spreadsheet treats a text as a formula
_MOST_FAILED = 12  # tasks in the overview's list of most failures
_LONGEST_NAME = 60  # characters of a learner's name in the overview
_LONGEST_FOLDER = 180  # bytes of the name of a learner's folder: file systems allow 255


def standings_of(book: Book, count: str = "latest") -> list[Standing]:
    """The standings with ``same_as`` and ``counts`` filled in, and with the possible points of exercises given by
    hand."""
    standings = [
        dataclasses.replace(each, of=_possible(each.exercise)) if each.points is not None and each.of is None else each
        for each in book.standings(count)
    ]
    twins = similar.twins(standings, book.marks())
    counting: set[int] = set()
    for _, own in _by_learner(standings):
        best = sorted(own.values(), key=lambda each: -(each.share or 0))
        counting |= {each.attempt for each in best[: book.best or None]}
    return [
        dataclasses.replace(each, same_as=twins.get(each.attempt, ()), counts=each.attempt in counting)
        for each in standings
    ]


def _possible(exercise: str) -> float | None:
    """The possible points; None for an exercise that this version does not have."""
    if exercise not in (*names(), *graded.names()):
        return None
    return (graded.as_exercise(exercise) if graded.is_of_puzzles(exercise) else find(exercise)).points


# ---- for programs ----------------------------------------------------------------------------------------------------
def as_json(each: Standing) -> dict[str, Any]:
    """A standing in the output of ``ep-lib grade --json`` (documented in :mod:`ep_lib.commands.grade`)."""
    tasks = [
        {
            **{"task": task.task, "title": task.title, "points": task.points, "of": task.of, "passed": task.full},
            **{"failed_behaviour": task.behaviour or None, "message": task.message or None, "note": task.note or None},
        }
        for task in each.tasks
    ]
    record = {"schema": SCHEMA, "learner": each.learner, "exercise": each.exercise, "mine": each.source}
    if each.points is None:
        record["error"] = each.problem
    else:
        record |= {**_named(each, "points of full seconds seed"), "problem": each.problem or None, "tasks": tasks}
    record |= {key: list(value) for key, value in _named(each, "flags not_enforced same_as").items()}
    record |= {key: value or None for key, value in _named(each, "note late submitted").items()}
    return record | _named(each, "taken_off id email share most counts graded_at attempts digest library")


def _named(each: Standing, fields: str) -> dict[str, Any]:
    return {name: getattr(each, name) for name in fields.split()}


def grades_csv(standings: Sequence[Standing]) -> str:
    """A line per learner and exercise."""
    most = max((len(each.tasks) for each in standings), default=0)
    head = ["learner", "exercise", "points", "of", *(f"task {task}" for task in range(1, most + 1))]
    head += ["problem", "flags", "same_as", "late", "taken_off", "note", "submitted", "graded_at", "attempts"]
    head += ["digest", "library", "seed", "submission"]
    return _csv([head, *(_csv_row(each, most) for each in standings)])


def _csv_row(each: Standing, most: int) -> list[str]:
    tasks = [number(task.points) for task in each.tasks] + [""] * (most - len(each.tasks))
    notes = [each.note, *(f"task {task.task}: {task.note}" for task in each.tasks if task.note)]
    return [
        *(each.learner, each.exercise, number(each.points), number(each.of), *tasks, each.problem),
        *("; ".join((*each.flags, *each.not_enforced)), ", ".join(each.same_as), each.late, number(each.taken_off)),
        *("; ".join(filter(None, notes)), each.submitted, each.graded_at, str(each.attempts), each.digest[:12]),
        *(each.library, "" if each.seed is None else str(each.seed), each.source),
    ]


def totals_csv(standings: Sequence[Standing], best: int = 0) -> str:
    """A line per learner: the learner, points in each exercise, their total, and the possible total. ``best``: the
    number of a learner's exercises that count, 0 for all."""
    exercises, most = _exercises(standings), number(possible(standings, best))
    rows = [["learner", "id", "email", *exercises, "total", "of"]]
    for learner, own in _by_learner(standings):
        points = (number(own[each].points) if each in own else "" for each in exercises)
        rows.append([*_person(learner, own), *points, number(total_of(own.values())), most])
    return _csv(rows)


def canvas_csv(standings: Sequence[Standing]) -> str:
    """CSV for Canvas's gradebook: a column per exercise with its contribution to the total."""
    exercises = _exercises(standings)
    most = {each.exercise: each.most for each in standings if each.most is not None}
    rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *exercises]]
    rows.append(["Points Possible", "", "", "", "", *(number(most.get(each)) for each in exercises)])
    for learner, own in _by_learner(standings):
        name, id_, email = _person(learner, own)
        points = (number(own[each].share) if each in own else "" for each in exercises)
        rows.append([name, id_, "", email, "", *points])
    return _csv(rows)


def moodle_csv(standings: Sequence[Standing], best: int = 0) -> str:
    """CSV for a Moodle assignment's grading worksheet: the totals of learners with a Moodle number."""
    most = number(possible(standings, best))
    head = ["Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade", "Grade can be changed"]
    rows = [[*head, "Last modified (grade)"]]
    for learner, own in _by_learner(standings):
        name, id_, email = _person(learner, own)
        if id_:
            rows.append([f"Participant {id_}", name, email, "", number(total_of(own.values())), most, "Yes", ""])
    return _csv(rows)


def _person(learner: str, own: Mapping[str, Standing]) -> tuple[str, str, str]:
    last = max(own.values(), key=lambda each: each.attempt)
    return learner, last.id, last.email


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[_cell(cell) for cell in row] for row in rows])
    return text.getvalue()


def _cell(text: str) -> str:
    """Text that a spreadsheet does not treat as a formula, without a terminal's control characters."""
    return printable("'" + text if text.startswith(_FORMULA) else text)


def _exercises(standings: Iterable[Standing]) -> list[str]:
    return sorted({each.exercise for each in standings if each.exercise})


def _by_learner(standings: Iterable[Standing]) -> Iterator[tuple[str, dict[str, Standing]]]:
    ordered = sorted(standings, key=lambda each: (each.learner.casefold(), each.learner))
    for learner, own in itertools.groupby(ordered, key=lambda each: each.learner):
        yield learner, {each.exercise: each for each in own}


def total_of(own: Iterable[Standing]) -> float | None:
    """The total; None if nothing was graded, which differs from no points."""
    points = [each.share for each in own if each.share is not None and each.counts]
    return sum(points) if points else None


def possible(standings: Iterable[Standing], best: int = 0) -> float:
    """The possible total: of all exercises, or of the ``best`` largest."""
    most = {each.exercise: each.most for each in standings if each.most is not None}
    return sum(sorted(most.values(), reverse=True)[: best or None])


# ---- pages -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Row:
    """A learner in the overview; ``number`` from 1 on."""

    number: int
    learner: str
    own: dict[str, Standing]
    total: float | None
    folder: str

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Reasons for a closer look: each once, with its exercises."""
        about: dict[str, list[str]] = {}
        for exercise, each in self.own.items():
            not_graded = [f"not graded: {each.problem}"] if each.points is None else []
            for reason in not_graded + _to_look_at(each):
                about.setdefault(reason, []).append(exercise)
        return about


def overview(standings: Sequence[Standing], there: Collection[str] = (), best: int = 0) -> str:
    """An HTML page: learners x exercises, the most frequent failures, learners who need help, and results to look at.
    ``there``: as for :func:`folder_name`; ``best``: the number of a learner's exercises that count, 0 for all."""
    learners = list(_by_learner(standings))
    exercises = _exercises(standings)
    graded_ones = [each for each in standings if each.points is not None]
    most = possible(standings, best)
    names = [learner for learner, _ in learners]
    rows = [
        _Row(place, learner, own, total_of(own.values()), folder_name(learner, names, there))
        for place, (learner, own) in enumerate(learners, 1)
    ]
    totals = [row.total for row in rows if row.total is not None]
    points = [[each.points or 0 for each in graded_ones if each.exercise == exercise] for exercise in exercises]
    spread = Counter(min(9, int(10 * total / most)) for total in totals if most)
    return render(
        "overview.html",
        title="Overview",
        rows=rows,
        exercises=exercises,
        of={each.exercise: each.of for each in standings if each.of is not None},
        possible=most,
        best=best,
        graded=len(graded_ones),
        left=len(standings) - len(graded_ones),
        medians=[statistics.median(each) if each else None for each in (totals, *points)],
        means=[round(statistics.mean(each), 1) if each else None for each in (totals, *points)],
        spread=[spread[tenth] for tenth in range(10)],
        help=list(_who_needs_help(rows, _exercises(each for each in standings if each.most != 0), most)),
        did_not_run=[each.exercise for each in standings if _did_not_run(each)],
        failed=_failed(standings),
        look=_look,
        signs=_signs,
        in_short=_in_short,
        longest=_LONGEST_NAME,
    )


def _signs(each: Standing) -> str:
    by_hand = each.note or any(task.note for task in each.tasks)
    return "!" * bool(_to_look_at(each)) + "*" * bool(by_hand) + "L" * bool(each.late)


def _look(each: Standing) -> str:
    points = each.points or 0
    is_full = each.of is not None and points + each.taken_off >= each.of  # L says that it is late
    return "full" if is_full else "some" if points > 0 else "none"


def _in_short(each: Standing) -> str:
    wrong = ", ".join(str(task.task) for task in each.tasks if not task.full)
    return "; ".join(filter(None, [f"not passed: task {wrong}" if wrong else "", each.late, each.note, *each.flags]))


def _did_not_run(each: Standing) -> bool:
    return bool(each.problem and each.tasks) and not any(task.full for task in each.tasks)


def _failed(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """The tasks with the most failures; a submission that did not run is one failure, not one of each task."""
    tried: dict[tuple[str, int], list[TaskStanding]] = {}
    for each in standings:
        for task in () if _did_not_run(each) else each.tasks:
            tried.setdefault((each.exercise, task.task), []).append(task)
    failed = {key: [task.behaviour for task in tasks if not task.full] for key, tasks in tried.items()}
    found = []
    for key in sorted(filter(failed.get, failed), key=lambda key: -len(failed[key]))[:_MOST_FAILED]:
        behaviour, often = Counter(failed[key]).most_common(1)[0]
        about = {"exercise": key[0], "task": key[1], "title": tried[key][-1].title, "tried": len(tried[key])}
        found.append({**about, "times": len(failed[key]), "behaviour": behaviour, "often": often})
    return found


def _who_needs_help(rows: Iterable[_Row], exercises: Sequence[str], most: float) -> Iterator[tuple[str, str, str]]:
    """Learners with less than half of the points: their points, and their exercises without points."""
    for row in sorted(rows, key=lambda row: row.total or 0):
        if row.total is None:
            yield row.learner, NOT_GRADED, ""
        elif row.total < most / 2:
            nothing = [each for each in exercises if each not in row.own or row.own[each].points == 0]
            yield row.learner, f"{number(row.total)} of {number(most)}", shortened(nothing)


def _to_look_at(each: Standing) -> list[str]:
    like = [f"like the submission of {', '.join(each.same_as)}"] if each.same_as else []
    return [*each.flags, *each.not_enforced, *like]


# ---- feedback for a learner ------------------------------------------------------------------------------------------
def feedback_text(learner: str, own: Sequence[Standing], most: float | None = None) -> str:
    """Points and failures, for a mail or a terminal. ``most``: the possible total; None: of ``own``."""
    lines = [f"Feedback for {learner}", ""]
    lines += [said, ""] if (said := _sum_of(own, most)) else []
    for each in own:
        lines.append(_head(each))
        lines += [f"  {line}" for line in _remarks(each)]
        for task in each.tasks:
            note = f" ({task.note})" if task.note else ""
            points = f"{number(task.points)} of {number(task.of)}"
            lines.append(f"  {'ok' if task.full else '--'}  task {task.task}  {points}  {task.title}{note}")
            lines += [f"      {line}" for line in _why(task, each).splitlines()]
        lines.append("")
    return printable("\n".join(lines))


def feedback_html(learner: str, own: Sequence[Standing], most: float | None = None) -> str:
    """The same as a page."""
    sections = [
        {"head": _head(each), "remarks": _remarks(each), "tasks": [(task, _why(task, each)) for task in each.tasks]}
        for each in own
    ]
    return render("feedback.html", title=f"Feedback for {learner}", sum=_sum_of(own, most), sections=sections)


def _sum_of(own: Sequence[Standing], most: float | None) -> str:
    """All points together, if there are several exercises, or others than the learner's."""
    known = [each for each in own if each.points is not None]
    left = f"; {len(own) - len(known)} {NOT_GRADED}" if len(known) < len(own) else ""
    counting = [each for each in known if each.counts]
    best = f" (the best {len(counting)} of {len(known)} count)" if len(counting) < len(known) else ""
    of_own = sum(each.most or 0 for each in counting)
    most = of_own if most is None else most
    if not known or (len(own) < 2 and most == of_own):
        return ""
    return f"All together: {number(total_of(known))} of {number(most)} points{best}{left}"


def _head(each: Standing) -> str:
    if each.points is None:
        return f"{each.exercise or 'Your submission'}: {NOT_GRADED}"
    in_total = f" ({number(each.share)} of {number(each.most)} in the total)" if each.most != each.of else ""
    return f"{each.exercise}: {number(each.points)} of {number(each.of)} points{in_total}"


def _remarks(each: Standing) -> list[str]:
    lines = []
    if each.late:
        less = f"{number(each.taken_off)} point{'s' * (each.taken_off != 1)} less"
        lines.append(f"It was {each.late}: {less}." if each.taken_off else each.late)
    if each.note:
        lines.append(f"Your instructor: {each.note}")
    return lines + ([each.problem] if each.problem and not each.is_given else [])


def _why(task: TaskStanding, each: Standing) -> str:
    if task.full or each.problem:
        return ""
    should = f"should hold: {task.behaviour}\n" if task.behaviour and task.message else ""
    return f"{should}{task.message}".strip()


# ---- files -----------------------------------------------------------------------------------------------------------
def write_all(standings: Sequence[Standing], folder: Path, best: int = 0) -> None:
    """overview.html, grades.csv, totals.csv and grades.json, and a folder per learner with feedback.html, feedback.txt
    and grades.json. Raises GradingError if they cannot be written."""
    learners = list(_by_learner(standings))
    names = [learner for learner, _ in learners]
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    views = (overview(standings, there, best), grades_csv(standings), totals_csv(standings, best), _json(standings))
    files = dict(zip(_FILES, views, strict=True))
    most = possible(standings, best)
    for learner, by_exercise in learners:
        own = [by_exercise[exercise] for exercise in sorted(by_exercise)]
        place = folder_name(learner, names, there)
        files[f"{place}/feedback.html"] = feedback_html(learner, own, most)
        files[f"{place}/feedback.txt"] = feedback_text(learner, own, most)
        files[f"{place}/grades.json"] = _json(dataclasses.replace(each, same_as=(), flags=()) for each in own)
    write(folder, files)


def _json(standings: Iterable[Standing]) -> str:
    return json.dumps([as_json(each) for each in standings], indent=1, ensure_ascii=False) + "\n"


def folder_name(learner: str, learners: Sequence[str], there: Collection[str] = ()) -> str:
    """A folder name for a learner: the learner's name if the file system allows it, else a similar unique one.

    ``there``: folders that were made before. A learner keeps an existing folder, also when another one with the same
    name in other case joins."""
    plain = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", learner).strip(" .")
    plain = plain.encode("utf-8", "replace")[:_LONGEST_FOLDER].decode("utf-8", "ignore")
    same = [name for name in [*learners, *_FILES] if name.casefold() == learner.casefold()]
    is_first = len(same) == 1 or ([name for name in same if name in there] == [learner])
    if learner and plain == learner and is_first:
        return learner
    return f"{plain or 'learner'}_{hashlib.sha256(learner.encode('utf-8', 'replace')).hexdigest()[:8]}"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files into a folder, each atomically; a killed process leaves no partial file.

    A failing file does not stop the others. Raises a GradingError that names it.
    """
    failed: list[OSError] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".ep_lib_", folder) as work:
            for name, text in files.items():
                try:
                    (work / "file").write_text(text, encoding="utf-8", errors="replace")
                    (folder / name).parent.mkdir(exist_ok=True)
                    (work / "file").replace(folder / name)
                except OSError as error:
                    failed.append(error)
    except OSError as error:
        failed.append(error)
    if failed:
        which = f" (and {len(failed) - 1} others)" if len(failed) > 1 else ""
        raise GradingError(
            f"{failed[0].filename2 or failed[0].filename or folder} cannot be written ({failed[0].strerror}){which}: "
            f"{_remedy(failed[0])}. Nothing that was kept so far is lost; the same command writes it again"
        ) from failed[0]


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room"
    if error.errno == errno.ENAMETOOLONG:
        return "name a place with a shorter path"
    return "look at what is there, or name another place"
