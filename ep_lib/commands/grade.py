"""``ep-lib grade``: points for an exercise, and what behaviour failed.

Exit codes: 0 for full marks, 1 for fewer, 2 if the grader itself could not work; with several submissions, the highest.
``--json`` prints one object for one submission, a list for several:

    {"schema": 1, "exercise": "01_write_signal", "mine": "...", "points": 7, "of": 10, "full": false, "seconds": 8.1,
     "seed": 81985529216,                   what the tests drew their inputs from
     "problem": null,                       why nothing could run at all (a compile error), else null
     "flags": [],                           what an instructor should look at: files that a piece has reached for
     "not_enforced": [],                    which walls this machine does not have, a sentence each
     "tasks": [{"task": 1, "title": "...", "points": 2, "of": 2, "passed": true,
                "failed_behaviour": null, "message": null, "timed_out": false}, ...]}

The files run in a process with limits on time, memory, processes and output, and behind walls that Linux enforces: it
reads the system, the library without answers and hidden tests, and its own files; it writes into its own folder; it
makes no connection and signals nobody. What this machine cannot enforce is said before the first submission.

A submission that cannot be read gives {"schema", "exercise", "mine", "error": "..."} in a list. Every submission gives
one row, whatever it holds, and the others are graded; the lines of ``--csv`` appear as soon as they are known.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ep_lib.errors import EpError, GradingError
from ep_lib.workshop.exercises import Exercise, find, names
from ep_lib.workshop.grader import SCHEMA, as_text, grade, prepare, printable
from ep_lib.workshop.walls import missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ep-lib grade``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = __doc__
    parser.add_argument("exercise", nargs="?", help="01 or 01_write_signal; without it, lists the exercises")
    parser.add_argument(
        "--mine", action="append", metavar="DIR", help="folder with your files; repeat it to grade several submissions"
    )
    parser.add_argument(
        "--all",
        metavar="DIR",
        help="for instructors: grade every folder in DIR as one submission (searched for the files)",
    )
    parser.add_argument("--tests", metavar="DIR", help="folder with the hidden tests, for a release, which has none")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="submissions graded at a time")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for programs")
    form.add_argument(
        "--csv", action="store_true", help="print a CSV line per submission: name, points, one column per task"
    )


def run(options: argparse.Namespace) -> int:
    """Runs ``ep-lib grade`` with parsed options; returns the exit code."""
    try:
        if options.exercise is None:
            sys.stdout.write("".join(f"{name}: {find(name).title}\n" for name in names()))
            return 0
        exercise = find(options.exercise)
        if options.mine is None and options.all is None:
            return _one(exercise, None, options)
        folders = [Path(folder) for folder in options.mine or []]
        if options.all is not None:
            folders += list(_submissions(exercise, Path(options.all)))
        if len(folders) == 1 and not options.csv and options.all is None:
            return _one(exercise, folders[0], options)
        return _several(exercise, folders, options)
    except EpError as error:  # no compiler, for instance; not the learner's fault
        sys.stderr.write(f"ep-lib grade: {error}\n")
        return 2


def _one(exercise: Exercise, folder: Path | None, options: argparse.Namespace) -> int:
    quiet = options.json or options.csv or not sys.stderr.isatty()
    say = (lambda text: None) if quiet else _say
    result = grade(exercise.name, folder, progress=say, root=exercise.root, tests=options.tests)
    if options.csv:
        _write_csv(exercise, [result.as_json()])
    else:
        sys.stdout.write(json.dumps(result.as_json(), indent=2) + "\n" if options.json else as_text(result))
    return 0 if result.full else 1


def _several(exercise: Exercise, folders: list[Path], options: argparse.Namespace) -> int:
    """Grades in parallel, reports in order. If the grader itself cannot work (no compiler), raises before the first."""
    prepare(exercise)
    for line in missing():
        _say(f"ep-lib grade: {line}")
    records: list[dict[str, Any]] = []
    if options.csv:
        _write_csv(exercise, [])
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        results = [pool.submit(_record, exercise, folder) for folder in folders]
        for folder, result in zip(folders, results, strict=True):
            try:
                record = result.result()
            except BaseException:  # KeyboardInterrupt: start no more of them
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            records.append(record)
            if options.csv:
                _write_csv(exercise, [record], header=False)
            failed = ", ".join(str(each["task"]) for each in record.get("tasks", []) if not each["passed"])
            text = record.get("error") or f"{record['points']} of {exercise.points}"
            text = f"{folder}: {text}" + (f" (not passed: task {failed})" if failed else "") + "\n"
            (sys.stderr if options.json or options.csv else sys.stdout).write(printable(text))
    if options.json:
        sys.stdout.write(json.dumps(records, indent=2) + "\n")
    return max((0 if record.get("full") else 2 if "error" in record else 1 for record in records), default=0)


def _record(exercise: Exercise, folder: Path) -> dict[str, Any]:
    try:
        return grade(exercise.name, folder, root=exercise.root).as_json()
    except (EpError, OSError) as error:  # OSError: an unreadable file, a link that loops, a full disk
        return {"schema": SCHEMA, "exercise": exercise.name, "mine": str(folder), "error": str(error)}


def _submissions(exercise: Exercise, folder: Path) -> Iterator[Path]:
    """The folders in ``folder``; for each, the subfolder with the first piece (people zip one level too many)."""
    if not folder.is_dir():
        raise GradingError(f"no folder {folder}")
    piece = exercise.pieces[0]
    for entry in sorted(path for path in folder.iterdir() if path.is_dir()):
        hits = sorted(entry.glob(f"**/{piece}"), key=lambda path: len(path.parts))
        yield hits[0].parents[len(Path(piece).parts) - 1] if hits else entry


def _write_csv(exercise: Exercise, records: list[dict[str, Any]], *, header: bool = True) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(
            ["submission", "points", "of", *(f"task {task.number}" for task in exercise.tasks), "problem", "flags"]
        )
    for record in records:
        tasks = [each["points"] for each in record.get("tasks", [])] or [""] * len(exercise.tasks)
        flags = " ".join([*record.get("flags", []), *record.get("not_enforced", [])])
        problem = record.get("error") or record.get("problem") or ""
        writer.writerow([printable(record["mine"]), record.get("points", ""), exercise.points, *tasks, problem, flags])
    sys.stdout.write(printable(text.getvalue()))
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
