"""Exhausts every kernel of ep_lib and of the tutorials in its smallest shape (prove_cases.py), and the same kernels
with a mistake each, which must be found.

    python benchmarks/prove.py [--only NAME] [--seconds 20] [--jobs 2] [--json FILE]

`make prove` runs it. Each case is a process of its own; one that finds a mistake tells of it, and the exit code is 1.
What is not exhausted in time is tried with at most 0, 1 and 2 preemptions. --json writes what was covered:
benchmarks/results/prove.json, from which prove_docs.py makes the table in docs/checker.md. Counts are the same on every
machine; how far an unfinished row has come is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue
from typing import Any

from prove_cases import CASES, ROOT, Case, Mistake

import ep_lib

PREEMPTIONS = (0, 1, 2)
COPIED = ("ep_lib", "tutorial_kernels", "benchmarks", "tests/support", "tests/kernels", "tests/wrong_variants")
START_S = 300  # of a process, beside what its rows may take: the compiler


def covered(case: Case, fabric: str, memory: str, seconds: float) -> dict[str, Any]:
    """A row: what was covered in this time, and by which bound."""
    begin, row = time.perf_counter(), {"case": case.name, "fabric": fabric, "memory": memory}
    report = case.check(fabric, memory, seconds=seconds)
    bounded = None
    for preemptions in PREEMPTIONS:
        left = 2 * seconds - (time.perf_counter() - begin)
        if not report.ok or not report.coverage.stopped or left <= 0:
            break
        fewer = case.check(fabric, memory, seconds=left, preemptions=preemptions)
        if not fewer.ok or fewer.coverage.stopped:
            report = report if fewer.ok else fewer
            break
        bounded = fewer
    if not report.ok:
        return {**row, "found": str(report)}
    whole = not report.coverage.stopped
    told = report.coverage if whole or bounded is None else bounded.coverage
    return {
        **row,
        "schedules": told.schedules,
        "share": None if whole or bounded is not None else round(told.share, 6),
        "preemptions": None if whole or bounded is None else told.preemptions,
        "one_kernel": bool(told.calm),
        "turns": bool(told.counted),
        "cut": told.cut,
        "events": told.most_events,
    }


def found(case: Case, seconds: float) -> dict[str, Any]:
    """What was found of the case's mistake, in which schedule; this process runs in a copy that has it."""
    mistake = case.mistake
    report = case.check(mistake.fabric, mistake.memory, seconds=seconds, stop_at_first=True)
    kinds = sorted({finding.kind for finding in report.findings})
    return {"case": case.name, "mistake": kinds, "schedules": report.coverage.schedules}


@contextlib.contextmanager
def with_mistake(mistake: Mistake, place: Path) -> Iterator[None]:
    """``place``, a copy of what cases need, has the mistake in it."""
    file = place / mistake.file
    text = file.read_text()
    if mistake.old not in text:
        raise SystemExit(f"{mistake.file} has no {mistake.old!r}")
    file.write_text(text.replace(mistake.old, mistake.new))
    try:
        yield
    finally:
        file.write_text(text)


def in_a_process(place: Path, case: Case, seconds: float, *words: str) -> list[dict[str, Any]]:
    """What this program says of a case there, in lines of JSON; or what went wrong with it."""
    limit = START_S + 4 * seconds * len(case.fabrics) * len(case.memory)
    program = [sys.executable, str(place / "benchmarks" / "prove.py"), "--seconds", str(seconds), "--rows", case.name]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as told:
        try:
            run = subprocess.run(
                [*program, *words], env=environment, cwd=place, stdout=out, stderr=told, timeout=limit, check=False
            )
            wrong = f"ended with {run.returncode}" if run.returncode else ""
        except subprocess.TimeoutExpired:
            wrong = f"not done after {limit:g} s"
        out.seek(0)
        told.seek(0)
        rows = [json.loads(line) for line in out if line.startswith("{")]
        return [*rows, {"case": case.name, "error": f"{wrong}: {told.read()[-3000:]}"}] if wrong else rows


def rows_of(case: Case, seconds: float, places: Queue[Path]) -> list[dict[str, Any]]:
    """The rows of a case in a process of its own, and its mistake in another one."""
    rows = in_a_process(ROOT, case, seconds)
    place = places.get()
    try:
        with with_mistake(case.mistake, place):
            return rows + in_a_process(place, case, seconds, "--mistake")
    finally:
        places.put(place)


def main() -> int:
    """Prints a line for each row, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument(
        "--json", type=Path, help="where to write what was covered, beside what is there of other cases"
    )
    parser.add_argument("--rows", help=argparse.SUPPRESS)  # of one case, in this process, as JSON
    parser.add_argument("--mistake", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rows is not None:
        (case,) = (case for case in CASES if case.name == args.rows)
        if args.mistake:
            print(json.dumps(found(case, args.seconds)), flush=True)
            return 0
        launched = sorted({name for fabric in case.fabrics for name in case.launched(fabric)})
        print(json.dumps({"case": case.name, "kernels": launched}), flush=True)
        for memory in case.memory:
            for fabric in case.fabrics:
                print(json.dumps(covered(case, fabric, memory, args.seconds)), flush=True)
        return 0
    chosen = [case for case in CASES if case.name.startswith(args.only)]
    rows: list[dict[str, Any]] = []
    if args.json and args.json.exists():
        names = {case.name for case in CASES} - {case.name for case in chosen}
        rows = [row for row in json.loads(args.json.read_text())["rows"] if row["case"] in names]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        places: Queue[Path] = Queue()  # a copy for each that runs at a time: what was compiled there stays
        for number in range(args.jobs):
            places.put(Path(folder) / str(number))
            for part in COPIED:
                to = Path(folder) / str(number) / part
                shutil.copytree(ROOT / part, to, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for done in as_completed([pool.submit(rows_of, case, args.seconds, places) for case in chosen]):
            of_case = done.result()
            for row in of_case:
                is_wrong = "found" in row or "error" in row or row.get("mistake") == []
                wrong += is_wrong
                print("WRONG " * is_wrong + json.dumps(row), flush=True)
                rows.append(row)
            if args.json:
                order = [case.name for case in CASES]
                rows.sort(key=lambda row: order.index(row["case"]))
                lines = ",\n".join(json.dumps(row) for row in rows)
                args.json.write_text(f'{{"version": "{ep_lib.__version__}", "rows": [\n{lines}\n]}}\n')
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
