"""How many of the outcomes of small programs random schedules meet: of all that one memory for all allows.

    python benchmarks/outcomes_met.py [--seeds 1000] [--only counter]

The programs are those of tests/support/small_programs.py, some of them with more threads too. All outcomes are those
of an exhaustive check.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ep_lib

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.small_programs import PROGRAMS, program

# More of these give more outcomes: five that count have 120.
MORE_THREADS = {"counter": 5, "cas_race": 5, "lost_update": 5, "cas_loop": 4, "spin_lock": 4}


def outcomes(name: str, threads: int, **how: Any) -> set[str]:
    """What main returns in the runs of a check."""
    seen: set[str] = set()

    def main(rank: ep_lib.Rank) -> None:
        seen.add(repr(program(rank, name, threads)))

    report = ep_lib.check(main, 1, compare_values=False, memory="sc", heap_bytes=1 << 16, **how)
    assert report.ok, report
    assert report.coverage is None or not report.coverage.stopped, report
    return seen


def main() -> int:
    """Prints the figures. The exit code is 1 if fewer than 99 % were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="random schedules of each (default: %(default)s)")
    parser.add_argument("--only", choices=PROGRAMS, help="one of the programs")
    args = parser.parse_args()
    all_of_them = met = 0
    cases = [*PROGRAMS.items(), *MORE_THREADS.items()]
    for name, threads in [case for case in cases if args.only in (None, case[0])]:
        every = outcomes(name, threads, exhaustive=True, progress=False)
        some = outcomes(name, threads, seeds=args.seeds, reduce=False)
        assert some <= every, (name, some - every)
        all_of_them += len(every)
        met += len(some)
        print(f"{name}, {threads} threads: {len(some)} of {len(every)}", flush=True)
        for missed in sorted(every - some):
            print(f"    not met: {missed}")
    share = met / all_of_them
    print(f"{met} of {all_of_them} outcomes met ({share:.1%}) in {args.seeds} schedules of each program")
    return 0 if share >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
