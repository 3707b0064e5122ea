"""``python extras/contest TASK --mine DIR``: points for speed on the virtual clock, and none for a race.

The tasks are alltoall, dispatch and combine. DIR holds alltoall.cuh (or the other); `--start DIR` puts one there that
is right and slow, and says in its comments what is asked. Results must equal NumPy's bit for bit at two sizes, and the
checker must find nothing on eight schedules; then the points are 1000 over the geometric mean of the times in
microseconds. Every result is added to a leaderboard, a file of JSON lines (the clone's mine/contest/leaderboard.jsonl,
or --leaderboard FILE), with a digest of the file that was entered; where that cannot be written, a warning says so
after the points. Without --mine the standings are printed.

Exit codes: 0 for points, 1 for none (a wrong result, a race, a file that does not compile), 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from pathlib import Path
from typing import Any

import contest

from ep_lib.errors import EpError, GradingError
from ep_lib.workshop.grader.grading import printable

_MOST_LETTERS = 40  # of a name
_ALSO_ALLTOALL = ("all_to_all", "all-to-all")  # an exercise has the one name, people write the other: both are taken


def main(words: list[str] | None = None) -> int:
    """Runs the program, with the arguments of the command line unless others are given; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="contest",
        description="The fastest all-to-all, dispatch or combine without a race.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task",
        nargs="?",
        type=lambda word: "alltoall" if word in _ALSO_ALLTOALL else word,
        choices=tuple(contest.CONTESTS),
        help="without it: the standings of all",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--mine", metavar="DIR", type=Path, help="the folder with your file")
    what.add_argument("--start", metavar="DIR", type=Path, help="put a file to begin with into this folder")
    parser.add_argument("--name", help="on the leaderboard (default: your user name)")
    parser.add_argument(
        "--leaderboard", metavar="FILE", type=Path, help="default: the clone's mine/contest/leaderboard.jsonl"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    try:
        return _run(parser.parse_args(words))
    except EpError as error:
        print(f"contest: {printable(str(error))}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.task is None and (options.mine or options.start):
        raise GradingError(f"which task? One of {', '.join(contest.CONTESTS)}, before the options")
    if options.start:
        path = contest.start(options.task, options.start)
        print(f"{path} is yours to make faster; then: python extras/contest {options.task} --mine {options.start}")
        return 0
    leaderboard = options.leaderboard or contest.default_leaderboard()
    if options.mine is None:
        return _show_standings(leaderboard, options)
    name = _name(options.name)
    quiet = options.json or not sys.stderr.isatty()
    result = contest.score(
        options.task, options.mine, name, lambda text: None if quiet else print(text, file=sys.stderr, flush=True)
    )
    print(json.dumps(result.as_json(), indent=2) if options.json else printable(_text(result)), flush=True)
    try:
        contest.enter(result, leaderboard)
    except GradingError as error:  # the points count without the leaderboard
        print(f"contest: warning: {printable(str(error))}", file=sys.stderr)
    else:
        if not options.json:
            print(printable(f"Added to {leaderboard}"))
    return 0 if result.points else 1


def _name(given: str | None) -> str:
    try:
        name = " ".join((given if given is not None else getpass.getuser()).split())
    except (OSError, KeyError) as error:
        raise GradingError(f"this user has no name ({error}): pass --name") from error
    if not name or len(name) > _MOST_LETTERS or not name.isprintable():
        raise GradingError(f"--name has 1 to {_MOST_LETTERS} printable letters, and is {name[:60]!r}")
    return name


def _text(result: contest.Score) -> str:
    lines = [f"{result.contest.name} by {result.name}: {result.points:g} points"]
    for size, us in zip(result.contest.sizes, result.microseconds, strict=False):
        what = ", ".join(f"{number} {unit}" for unit, number in size.items())
        lines.append(f"  {us:9.2f} us   {what} (virtual {contest.HARDWARE}, {contest.RANKS} ranks)")
    if result.problem:
        lines.append(f"No points: {result.problem}")
    return "\n".join(lines)


def _show_standings(leaderboard: Path, options: argparse.Namespace) -> int:
    entries, unreadable = contest.standings(leaderboard)
    shown = [entry for entry in entries if options.task in (None, entry["task"])]
    if options.json:
        print(json.dumps(shown, indent=2))
        return 0
    if not shown:
        print(f"No entries yet in {leaderboard}. Begin with: python extras/contest alltoall --start mine/contest")
    for entry in shown:
        print(printable(_line(entry)))
    if unreadable:
        print(f"(lines of {leaderboard} that are no entries: {unreadable})")
    return 0


def _line(entry: dict[str, Any]) -> str:
    times = entry.get("us")
    us = ", ".join(f"{time:g}" for time in times if isinstance(time, (int, float))) if isinstance(times, list) else ""
    when = str(entry.get("time", ""))[:16]
    return f"{entry['task']!s:<10} {entry['points']:>9.2f}  {entry['name']!s:<{_MOST_LETTERS}} {us} us  {when}"


if __name__ == "__main__":
    sys.exit(main())
