"""``ep-lib ladder 06``: every rung of a tutorial file, compiled, checked against the reference and timed.

Prints a table: the rung, its kernel, whether its result is right, its time, the ratio to the first rung with the same
work, and its new idea. It uses the current kernels of tutorial_kernels/: change one and run this again. On the emulator
the time is virtual, for the modelled hardware; with --backend cuda it is measured.

Exit codes: 0 if every rung is right, 1 if one is wrong, 2 for wrong usage. ``--json`` prints one object:

    {"schema": 1, "file": "06_dispatch.cu", "place": "the emulator, ...", "right": true,
     "rungs": [{"rung": 0, "kernel": "dispatch_atomics", "right": true, "us": 12.3, "times_faster": 1.0,
                "new": "...", "problem": null}, ...]}
"""

from __future__ import annotations

import argparse
import json
import sys

from ep_lib.commands.bench import stdout_kept_for_json
from ep_lib.config import BACKENDS, Config
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.workshop.course import ladders

SCHEMA = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = __doc__
    parser.add_argument("number", nargs="?", help=f"one of {', '.join(ladders.NUMBERS)}; without it, lists the ladders")
    parser.add_argument("--rung", type=int, action="append", metavar="N", help="only this rung; repeat it for several")
    parser.add_argument("--backend", choices=BACKENDS, help="default: EP_LIB_BACKEND, else the emulator")
    parser.add_argument("--fabric", choices=ladders.USUAL_HARDWARE, help="of the emulator (default: the ladder's own)")
    parser.add_argument("--hardware", choices=tuple(HARDWARE), help="what the emulator models")
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")


def run(options: argparse.Namespace) -> int:
    if options.number is None:
        for number in ladders.NUMBERS:
            ladder = ladders.load(number)
            sys.stdout.write(f"{number}: {ladder.file}, {len(ladder.rungs)} rungs\n")
        return 0
    quiet = options.json or not sys.stderr.isatty()
    with stdout_kept_for_json(options.json):
        table = ladders.run(
            options.number,
            backend=options.backend or Config.from_environment().backend,
            fabric=options.fabric,
            hardware=options.hardware,
            rungs=options.rung,
            progress=lambda text: None if quiet else print(text, file=sys.stderr),
        )
    sys.stdout.write((json.dumps(_as_json(table), indent=2) if options.json else repr(table)) + "\n")
    return 0 if table else 1


def _as_json(table: ladders.Table) -> dict[str, object]:
    rungs = [
        {
            "rung": row.number,
            "kernel": row.kernel,
            "right": row.right,
            "us": None if row.microseconds is None else round(row.microseconds, 3),
            "times_faster": None if row.times_faster is None else round(row.times_faster, 3),
            "new": row.idea,
            "problem": row.problem or None,
        }
        for row in table.rows
    ]
    return {"schema": SCHEMA, "file": table.file, "place": table.place, "right": bool(table), "rungs": rungs}
