"""Views of a gradebook: CSV and JSON for programs, an overview page for the instructor, feedback for each learner.

Pages are HTML without scripts; whatever came out of a submission is escaped. A file is replaced as a whole or not at
all, so that a full disk leaves the one that was there.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import hashlib
import html
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ep_lib.errors import GradingError
from ep_lib.processes import temporary_folder
from ep_lib.workshop import similar
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.gradebook import NOT_GRADED, Book, Standing, TaskStanding
from ep_lib.workshop.grader import SCHEMA, printable
from ep_lib.workshop.puzzles import graded

_FILES = ("overview.html", "grades.csv", "totals.csv", "grades.json")  # beside the learners' folders
_FORMULA = ("=", "+", "-", "@")  # with which a spreadsheet takes a text for a formula
_MOST_FAILED = 12  # tasks in the overview's list of what failed most
_MOST_NAMED = 6  # exercises of a line in the overview
_LONGEST_NAME = 60  # characters of a learner's name in the overview
_LONGEST_FOLDER = 180  # bytes of a learner's folder's name: file systems take 255
_NEEDS_HELP = 0.5  # of the points, below which a learner is in the list of those who need help
_STYLE = """
:root { --ink: #222; --paper: #fff; --soft: #f3f3f3; --line: #ccc; --full: #d8efe6; --some: #fdf1d0; --none: #fbe0d2;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --soft: #24272d; --line: #4a4f57;
  --full: #144536; --some: #4d4413; --none: #5c2f14; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.2em auto;
  max-width: 75em; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 1.6em 0 0.4em; }
table { border-collapse: collapse; } th, td { border: 1px solid var(--line); padding: 0.2em 0.55em; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
td.n, thead th { overflow-wrap: normal; } .name, td.n { white-space: nowrap; } td.n { text-align: right; }
thead th { background: var(--soft); position: sticky; top: 0; }
tbody th.name { background: var(--paper); position: sticky; left: 0; font-weight: normal; }
summary { cursor: pointer; } details { margin: 0.3em 0; overflow-wrap: anywhere; } details ul { margin: 0.2em 0 0.8em; }
th.turned { writing-mode: vertical-rl; padding: 0.5em 0.2em; }
.full { background: var(--full); } .some { background: var(--some); } .none { background: var(--none); }
.quiet { opacity: 0.75; } .wide { overflow-x: auto; } .wide td { min-width: 1.6em; }
pre { background: var(--soft); padding: 0.5em 0.7em; overflow-x: auto; white-space: pre-wrap; margin: 0.3em 0; }
@media print { * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def standings_of(book: Book, count: str = "latest") -> list[Standing]:
    """What counts, with ``same_as`` filled in, and what there is to have where all of it was given by hand."""
    standings = [
        dataclasses.replace(each, of=_possible(each.exercise)) if each.points is not None and each.of is None else each
        for each in book.standings(count)
    ]
    twins = similar.twins(standings, book.marks())
    return [dataclasses.replace(each, same_as=twins.get(each.attempt, ())) for each in standings]


def _possible(exercise: str) -> float | None:
    """The points that there are; None for an exercise that this version does not have."""
    if exercise not in (*names(), *graded.names()):
        return None
    return (graded.as_exercise(exercise) if graded.is_of_puzzles(exercise) else find(exercise)).points


def number(value: float | None) -> str:
    """Points as people write them: 7, 7.5; "" for none."""
    return "" if value is None else f"{round(value, 2):g}"


# ---- for programs ----------------------------------------------------------------------------------------------------
def as_json(each: Standing) -> dict[str, Any]:
    """What ``ep-lib grade --json`` prints of a standing (documented in :mod:`ep_lib.commands.grade`)."""
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
        record |= {"points": each.points, "of": each.of, "full": each.full, "seconds": each.seconds, "seed": each.seed}
        record |= {"problem": each.problem or None, "tasks": tasks}
    record |= {"flags": list(each.flags), "not_enforced": list(each.not_enforced)}
    told = {"same_as": list(each.same_as), "note": each.note or None}
    dates = {"late": each.late or None, "taken_off": each.taken_off, "submitted": each.submitted or None}
    about = {"graded_at": each.graded_at, "attempts": each.attempts, "digest": each.digest, "library": each.library}
    return {**record, **told, **dates, **about}


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


def totals_csv(standings: Sequence[Standing]) -> str:
    """A line per learner, a column per exercise, and the sum: what a learning platform's gradebook imports."""
    exercises = _exercises(standings)
    rows = [["learner", *exercises, "total"]]
    for learner, own in _by_learner(standings):
        rows.append([learner, *(number(own[e].points) if e in own else "" for e in exercises), number(_total(own))])
    return _csv(rows)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[_cell(cell) for cell in row] for row in rows])
    return text.getvalue()


def _cell(text: str) -> str:
    """Text that is no formula to a spreadsheet, and that steers no terminal."""
    return printable("'" + text if text.startswith(_FORMULA) else text)


def _exercises(standings: Iterable[Standing]) -> list[str]:
    return sorted({each.exercise for each in standings if each.exercise})


def _by_learner(standings: Iterable[Standing]) -> Iterator[tuple[str, dict[str, Standing]]]:
    ordered = sorted(standings, key=lambda each: (each.learner.casefold(), each.learner))
    for learner, own in itertools.groupby(ordered, key=lambda each: each.learner):
        yield learner, {each.exercise: each for each in own}


def _total(own: dict[str, Standing]) -> float | None:
    """None if nothing of theirs was graded, which is not the same as no points."""
    points = [each.points for each in own.values() if each.points is not None]
    return sum(points) if points else None


# ---- the overview ----------------------------------------------------------------------------------------------------
def overview(standings: Sequence[Standing], title: str = "Overview", there: Collection[str] = ()) -> str:
    """Learners x exercises, what failed most, who needs help, and what to look at, as a page of HTML. ``there``: as for
    :func:`folder_name`."""
    learners = list(_by_learner(standings))
    exercises = _exercises(standings)
    of = {each.exercise: each.of for each in standings if each.of is not None}
    possible = sum(of.values())
    count = sum(each.points is not None for each in standings)
    left = len(standings) - count
    said = f"{len(learners)} learners, {len(exercises)} exercises, {count} graded submissions"
    parts = [
        f"<p>{said}{f', {left} not graded' if left else ''}.</p>",
        _section("All points", _points_table(learners, exercises, of, possible, there)),
        _section("Who needs help", _help_list(learners, exercises, possible)),
        _section("What failed most", _failed_table(standings, count)),
        _section("To look at", _look_list(learners)),
    ]
    return page(title, "\n".join(parts))


def _points_table(
    learners: Sequence[tuple[str, dict[str, Standing]]],
    exercises: Sequence[str],
    of: dict[str, float],
    possible: float,
    there: Collection[str],
) -> str:
    head = "".join(f'<th scope="col" class="turned">{_text(e)} ({number(of.get(e))})</th>' for e in exercises)
    rows = []
    for number_of_row, (learner, own) in enumerate(learners, 1):
        cells = "".join(_points_cell(own.get(exercise), f"#look{number_of_row}") for exercise in exercises)
        place = folder_name(learner, [name for name, _ in learners], there)
        who = f'<a href="{html.escape(place)}/feedback.html">{_name(learner)}</a>'
        total = f'<td class="n"><b>{number(_total(own))}</b></td>'
        rows.append(f'<tr><th scope="row" class="name">{who}</th>{total}{cells}</tr>')
    means = "".join(f'<td class="n">{_mean([o[e] for _, o in learners if e in o])}</td>' for e in exercises)
    totals = [each for each in (_total(own) for _, own in learners) if each is not None]
    mean = number(round(sum(totals) / len(totals), 1)) if totals else ""
    rows.append(f'<tr><th scope="row" class="name">mean</th><td class="n">{mean}</td>{means}</tr>')
    return (
        f'<div class="wide"><table><thead><tr><th scope="col">learner</th><th scope="col">total of {number(possible)}'
        f"</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="quiet">?: not graded (why: click on it). !: to look at, below. *: given by hand. L: late.</p>'
    )


def _points_cell(each: Standing | None, reasons: str) -> str:
    if each is None:
        return "<td></td>"
    by_hand = each.note or any(task.note for task in each.tasks)
    signs = "!" * bool(_to_look_at(each)) + "*" * bool(by_hand) + "L" * bool(each.late)
    if each.points is None:
        return f'<td class="n none" title="{_text(each.problem)}"><a href="{reasons}">?</a>{signs}</td>'
    is_full = each.of is not None and each.points + each.taken_off >= each.of  # L says that it is late
    look = "full" if is_full else "some" if each.points > 0 else "none"
    return f'<td class="n {look}" title="{_text(_in_short(each))}">{number(each.points)}{signs}</td>'


def _in_short(each: Standing) -> str:
    wrong = ", ".join(str(task.task) for task in each.tasks if not task.full)
    return "; ".join(filter(None, [f"not passed: task {wrong}" if wrong else "", each.late, each.note, *each.flags]))


def _mean(found: Sequence[Standing]) -> str:
    points = [each.points for each in found if each.points is not None]
    return number(round(sum(points) / len(points), 1)) if points else ""


def _failed_table(standings: Sequence[Standing], count: int) -> str:
    tried: Counter[tuple[str, int]] = Counter()
    failed: Counter[tuple[str, int]] = Counter()
    behaviours: dict[tuple[str, int], Counter[str]] = {}
    titles: dict[tuple[str, int], str] = {}
    did_not_run: list[str] = []
    for each in standings:
        if each.problem and each.tasks and not any(task.full for task in each.tasks):
            did_not_run.append(each.exercise)  # one failure, not one of each task
            continue
        for task in each.tasks:
            key = (each.exercise, task.task)
            tried[key] += 1
            titles[key] = task.title
            if not task.full:
                failed[key] += 1
                behaviours.setdefault(key, Counter())[task.behaviour] += 1
    many, where = len(did_not_run), _text(_shortened(sorted(set(did_not_run))))
    above = f"<p>{many} of {count} could not run at all (they do not compile, or were refused), in {where}.</p>"
    if not failed:
        return above if many else "<p>Nothing failed.</p>"
    rows = []
    for key, times in failed.most_common(_MOST_FAILED):
        behaviour, often = behaviours[key].most_common(1)[0]
        most = f"{_text(behaviour)} ({often} of {times})" if behaviour else ""
        what = f'<span class="name">{_text(key[0])}, task {key[1]}</span>: {_text(titles[key])}'
        rows.append(f'<tr><td>{what}</td><td class="n">{times} of {tried[key]}</td><td>{most}</td></tr>')
    return (above if many else "") + _table(("task", "failed", "most often because this does not hold"), rows)


def _help_list(learners: Sequence[tuple[str, dict[str, Standing]]], exercises: Sequence[str], possible: float) -> str:
    rows = []
    for learner, own in sorted(learners, key=lambda each: _total(each[1]) or 0):
        total = _total(own)
        if possible and (total or 0) < _NEEDS_HELP * possible:
            nothing = [e for e in exercises if e not in own or own[e].points == 0]
            where = _shortened(nothing)
            points = NOT_GRADED if total is None else f"{number(total)} of {number(possible)}"
            cells = f'<td class="n">{points}</td><td>{_text("" if total is None else where)}</td>'
            rows.append(f'<tr><td class="name">{_name(learner)}</td>{cells}</tr>')
    if not rows:
        return f"<p>Everybody has at least {_NEEDS_HELP:.0%} of the points.</p>"
    return _table(("learner", "points", "no points in"), rows)


def _to_look_at(each: Standing) -> list[str]:
    like = [f"like the submission of {', '.join(each.same_as)}"] if each.same_as else []
    return [*each.flags, *each.not_enforced, *like]


def _look_list(learners: Sequence[tuple[str, dict[str, Standing]]]) -> str:
    """A line per learner that unfolds: each reason once, with the exercises that it is about."""
    lines = []
    for number_of_row, (learner, own) in enumerate(learners, 1):
        about: dict[str, list[str]] = {}
        for exercise, each in own.items():
            not_graded = [f"not graded: {each.problem}"] if each.points is None else []
            for reason in not_graded + _to_look_at(each):
                about.setdefault(reason, []).append(exercise)
        if about:
            exercises = {exercise for each in about.values() for exercise in each}
            many = f"{len(about)} reason{'s' * (len(about) > 1)}, {len(exercises)} exercise{'s' * (len(exercises) > 1)}"
            items = "".join(
                f"<li>{_text(reason)}{_text(f' ({_shortened(where)})' if any(where) else '')}</li>"
                for reason, where in about.items()
            )
            head = f"<summary>{_name(learner)}: {many}</summary>"
            lines.append(f'<details>{head}<ul id="look{number_of_row}">{items}</ul></details>')
    return "".join(lines) or "<p>Nothing.</p>"


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _text(text: str) -> str:
    return html.escape(printable(text))


def _name(learner: str) -> str:
    """A learner's name; of one that is longer than any table, the beginning, and the whole as its title."""
    if len(learner) <= _LONGEST_NAME:
        return _text(learner)
    return f'<span title="{_text(learner)}">{_text(learner[: _LONGEST_NAME - 1])}&hellip;</span>'


def page(title: str, body: str) -> str:
    """A page of HTML in the look of all of them; ``body`` is HTML already."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style><h1>{_text(title)}</h1>\n{body}</html>\n"
    )


# ---- what a learner gets back ----------------------------------------------------------------------------------------
def feedback_text(learner: str, own: Sequence[Standing]) -> str:
    """Points and what failed, for a mail or a terminal."""
    lines = [f"Feedback for {learner}", "", *_sum_of(own)]
    for each in own:
        lines.append(f"{each.exercise or 'Your submission'}: {_points_line(each)}")
        lines += [f"  {line}" for line in _remarks(each)]
        for task in each.tasks:
            lines.append(f"  {'ok' if task.full else '--'}  task {task.task}  {_task_line(task)}")
            lines += [f"      {line}" for line in _why(task, each).splitlines()]
        lines.append("")
    return printable("\n".join(lines))


def feedback_html(learner: str, own: Sequence[Standing]) -> str:
    """The same as a page."""
    parts = [f"<p><b>{_text(line)}</b></p>" for line in _sum_of(own) if line]
    for each in own:
        remarks = "".join(
            f"<pre>{_text(line)}</pre>" if "\n" in line else f"<p>{_text(line)}</p>" for line in _remarks(each)
        )
        rows = []
        for task in each.tasks:
            why = f"<pre>{_text(_why(task, each))}</pre>" if _why(task, each) else ""
            look, mark = ("full", "passed") if task.full else ("none", "not yet")
            points = f"{number(task.points)} of {number(task.of)}"
            title = f"{_text(task.title)}{f' ({_text(task.note)})' if task.note else ''}"
            rows.append(
                f'<tr><td class="n">{task.task}</td><td class="{look}">{mark}</td><td class="n">{points}</td>'
                f"<td>{title}{why}</td></tr>"
            )
        table = _table(("task", "", "points", "what"), rows) if rows else ""
        head = f"{each.exercise or 'Your submission'}: {_points_line(each)}"
        parts.append(_section(head, remarks + table))
    return page(f"Feedback for {learner}", "\n".join(parts))


def _sum_of(own: Sequence[Standing]) -> list[str]:
    """All points together, if there are several exercises, with a line between."""
    known = [each for each in own if each.points is not None]
    if len(own) < 2 or not known:
        return []
    left = f"; {len(own) - len(known)} {NOT_GRADED}" if len(known) < len(own) else ""
    possible = number(sum(each.of or 0 for each in known))
    return [f"All together: {number(sum(each.points or 0 for each in known))} of {possible} points{left}", ""]


def _points_line(each: Standing) -> str:
    return NOT_GRADED if each.points is None else f"{number(each.points)} of {number(each.of)} points"


def _remarks(each: Standing) -> list[str]:
    lines = []
    if each.late:
        lines.append(f"It was {each.late}: {number(each.taken_off)} points less." if each.taken_off else each.late)
    if each.note:
        lines.append(f"Your instructor: {each.note}")
    return lines + ([each.problem] if each.problem and not each.is_given else [])


def _task_line(task: TaskStanding) -> str:
    note = f" ({task.note})" if task.note else ""
    return f"{number(task.points)} of {number(task.of)}  {task.title}{note}"


def _why(task: TaskStanding, each: Standing) -> str:
    if task.full or each.problem:
        return ""
    should = f"should hold: {task.behaviour}\n" if task.behaviour and task.message else ""
    return f"{should}{task.message}".strip()


# ---- files -----------------------------------------------------------------------------------------------------------
def write_all(standings: Sequence[Standing], folder: Path) -> None:
    """overview.html, grades.csv, totals.csv and grades.json, and a folder per learner with feedback.html, feedback.txt
    and grades.json. Raises GradingError if they cannot be written."""
    learners = list(_by_learner(standings))
    names = [learner for learner, _ in learners]
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    views = (overview(standings, there=there), grades_csv(standings), totals_csv(standings), _json(standings))
    files = dict(zip(_FILES, views, strict=True))
    for learner, by_exercise in learners:
        own = [by_exercise[exercise] for exercise in sorted(by_exercise)]
        place = folder_name(learner, names, there)
        files[f"{place}/feedback.html"] = feedback_html(learner, own)
        files[f"{place}/feedback.txt"] = feedback_text(learner, own)
        files[f"{place}/grades.json"] = _json(dataclasses.replace(each, same_as=(), flags=()) for each in own)
    write(folder, files)


def _json(standings: Iterable[Standing]) -> str:
    return json.dumps([as_json(each) for each in standings], indent=1, ensure_ascii=False) + "\n"


def folder_name(learner: str, learners: Sequence[str], there: Collection[str] = ()) -> str:
    """A folder's name for a learner: theirs if a file system takes it, else something like it that is as unique.

    ``there``: folders that were made before. Who has one keeps it, when somebody joins whose name is the same but for
    capital letters."""
    plain = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", learner).strip(" .")
    plain = plain.encode("utf-8", "replace")[:_LONGEST_FOLDER].decode("utf-8", "ignore")
    same = [name for name in [*learners, *_FILES] if name.casefold() == learner.casefold()]
    is_first = len(same) == 1 or ([name for name in same if name in there] == [learner])
    if learner and plain == learner and is_first:
        return learner
    return f"{plain or 'learner'}_{hashlib.sha256(learner.encode('utf-8', 'replace')).hexdigest()[:8]}"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files into a folder, each as a whole or not at all; a killed process leaves no half of one.

    What cannot be written keeps nothing else from it. Raises GradingError that says what it was.
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
