"""``ep-lib release``: the learner's tree of a graded course, without solutions, hidden tests and answers.

It writes a new folder, or an archive (.zip, .tar.gz). docs/instructor.md describes the whole process from handing out
to feedback, and docs/release.md says what a release cannot hide.
"""

from __future__ import annotations

import argparse

from ep_lib.workshop.classroom import release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="a new folder, or an archive: .zip or .tar.gz")
    parser.add_argument(
        "--pieces",
        choices=("sealed", "holed"),
        default="sealed",
        help="the library's own copies of what learners write: sealed, so that later notebooks run all the same, or "
        "holes, so that the answers are not there at all (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    files = release.release(args.to, pieces=args.pieces)
    if left_out := release.unknown_to_git():
        print(f"Left out, since git does not know them (`git add` does): {', '.join(left_out)}")
    print(f"{len(files)} files are in {args.to}: no solutions, the checks sealed, the library's pieces {args.pieces}.")
    print("Learners run `make lab` there. You grade from this checkout: `ep-lib grade --help`.")
    return 0
