"""``ep-lib replay script.py --seed N --html out.html``: the run of a finding, as a page to go through step by step.

The arguments are those of ``ep-lib check``, whose findings end with this command. As there, the script runs in a
process of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ep_lib.commands import check
from ep_lib.errors import ArgumentError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    check.add_run_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="which run: the finding says it (default: %(default)s)")
    parser.add_argument("--schedule", help='which run, if the finding says so: "12:1 30:2"')
    parser.add_argument(
        "--html", type=Path, default=Path("replay.html"), help="the page that is written (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=20_000, help="the most steps that it holds (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.seed < 0 or args.steps < 1:
        raise ArgumentError(f"--seed is {args.seed}, --steps {args.steps}; they must be at least 0 and 1")
    if not args.html.resolve().parent.is_dir():
        raise ArgumentError(f"--html is {args.html}, and there is no folder {args.html.parent}; make it first")
    which = {"seed": args.seed} if args.schedule is None else {"schedule": args.schedule}
    answer = check.in_a_process(args, {"replay": which, "html": str(args.html.resolve()), "steps": args.steps})
    for number, text in enumerate(answer["findings"], 1):
        print(f"{number}. {text}")
    if not answer["findings"]:
        print("no findings in this run")
    print(f"{args.html}: {answer['steps']:,} steps. Open it in a browser: arrow keys step, n goes to the next finding.")
    return 0
