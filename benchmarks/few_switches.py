"""How many switches are left in the reduced schedules of the mistakes that the tests know (tests/wrong_variants).

    python benchmarks/few_switches.py [--seeds 8] [--only low_latency]

Prints a line for each of them, and the median of each group and of all. Mistakes that show in no seed are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import ep_lib

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from wrong_variants import variants
from wrong_variants.programs import OF_MODES, Wrong

SMALL = [
    Wrong(each.name, variants.run, 2, each.fabric, (number, each.blocks))
    for number, each in enumerate(variants.VARIANTS, len(variants.functions()))
]
GROUPS = {"small": SMALL, **OF_MODES}


class Counts(NamedTuple):
    """Switches of each finding that has a schedule, how many have none, and how much longer each check took."""

    switches: list[int]
    by_seed_alone: list[str]
    longer: list[float]

    def __str__(self) -> str:
        number, alone = len(self.switches) + len(self.by_seed_alone), len(self.by_seed_alone)
        few = (
            f"of {max(self.switches)} switches at most, {statistics.median(self.switches):g} in the median"
            if self.switches
            else "which is none"
        )
        longer = f"{statistics.median(self.longer):.2f} times as long in the median" if self.longer else "no time"
        return (
            f"{number} findings: {len(self.switches)} with a reduced schedule, {few}; {alone} by a seed alone. The "
            f"checks took {longer}."
        )


def count(program: Wrong, seeds: int, counts: Counts) -> str:
    """Checks it with and without a search for few switches. Returns what was found."""
    with pytest.MonkeyPatch.context() as patch:
        program.use(patch)
        found = {
            reduce: ep_lib.check(
                program.main,
                program.ranks,
                program.fabric,
                seeds,
                program.args,
                compare_values=False,
                timeout=20,
                reduce=reduce,
            )
            for reduce in (False, True)
        }
    told = found[True].findings
    counts.longer.append(found[True].seconds / found[False].seconds)
    counts.switches.extend(len(finding.schedule.split()) for finding in told if finding.schedule is not None)
    counts.by_seed_alone.extend(program.name for finding in told if finding.schedule is None)
    return "  ".join(f"{f.kind}: by seed alone" if f.schedule is None else f'{f.kind}: "{f.schedule}"' for f in told)


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="of each (default: %(default)s)")
    parser.add_argument("--only", choices=GROUPS, help="one of the groups")
    args = parser.parse_args()
    all_of_them = Counts([], [], [])
    for group in [args.only] if args.only else GROUPS:
        counts = Counts([], [], [])
        for program in GROUPS[group]:
            said = count(program, args.seeds, counts)
            print(f"{group}: {program.name} ({program.fabric or 'p2p'}): {said or 'not found'}", flush=True)
        print(f"{group}: {counts}\n", flush=True)
        for mine, of_group in zip(all_of_them, counts, strict=True):
            mine.extend(of_group)
    print(f"all: {all_of_them}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
