"""How many switches are left in the reduced schedules of the mistakes that the tests know (tests/wrong_variants).

    python benchmarks/few_switches.py [--seeds 8]

Prints a line for each of them, and the median. Mistakes that show in no seed are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import ep_lib

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from wrong_variants import variants


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="of each (default: %(default)s)")
    seeds = parser.parse_args().seeds
    right = len(variants.functions())
    switches, by_seed_alone = [], 0
    longer = []
    for number, variant in enumerate(variants.VARIANTS):
        args = (right + number, variant.blocks)
        found = {
            reduce: ep_lib.check(
                variants.run, 2, variant.fabric, seeds, args, compare_values=False, timeout=20, reduce=reduce
            )
            for reduce in (False, True)
        }
        longer.append(found[True].seconds / found[False].seconds)
        told = found[True].findings
        known = [len(finding.schedule.split()) for finding in told if finding.schedule is not None]
        switches += known
        by_seed_alone += len(told) - len(known)
        said = "  ".join("by seed alone" if f.schedule is None else f'{f.kind}: "{f.schedule}"' for f in told)
        print(f"{variant.name} ({variant.fabric}): {said or 'not found'}", flush=True)
    print(
        f"{len(switches) + by_seed_alone} findings: {len(switches)} with a reduced schedule, of {max(switches)} "
        f"switches at most, {statistics.median(switches):g} in the median; {by_seed_alone} by a seed alone. The check "
        f"took {statistics.median(longer):.2f} times as long in the median."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
