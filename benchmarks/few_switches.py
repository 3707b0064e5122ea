"""How many switches are left in the reduced schedules of the mistakes that the tests know (tests/wrong_variants).

    python benchmarks/few_switches.py [--seeds 8] [--only low_latency]

Prints a line for each of them, and the median of each group and of all. Mistakes that show in no seed are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ep_lib

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from wrong_variants import direct_variants, hierarchical_variants, low_latency_variants, pcie_variants, variants

GROUPS = ("small", "direct", "low_latency", "pcie", "hierarchical")


class Wrong(NamedTuple):
    """A program with a mistake. ``use``: makes the library's kernels those with the mistake."""

    name: str
    main: Callable[..., Any]
    ranks: int
    fabric: Any
    args: tuple[Any, ...]
    use: Callable[[pytest.MonkeyPatch], None] = lambda _: None


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


def wrong(group: str) -> Iterator[Wrong]:
    """The programs of a group."""

    def used(module: Any, number: int) -> Callable[[pytest.MonkeyPatch], None]:
        return lambda patch: module.use_variant(patch, number)

    if group == "small":
        right = len(variants.functions())
        for number, small in enumerate(variants.VARIANTS):
            yield Wrong(small.name, variants.run, 2, small.fabric, (right + number, small.blocks))
    elif group == "direct":
        for number, one in enumerate(direct_variants.VARIANTS):
            yield Wrong(one.name, direct_variants.main, 3, None, (one.kernel,), used(direct_variants, number))
    elif group == "low_latency":
        for number, one in enumerate(low_latency_variants.VARIANTS):
            many = (3, 1) if one.kernel == "dispatch" else (1, 3)
            use = used(low_latency_variants, number)
            yield Wrong(one.name, low_latency_variants.main, 3, None, (*many, one.alone), use)
    elif group == "pcie":
        for number, far in enumerate(pcie_variants.VARIANTS):
            yield Wrong(far.name, pcie_variants.main, 3, far.fabric, (far.tokens,), used(pcie_variants, number))
    else:
        for number, nodes in enumerate(hierarchical_variants.VARIANTS):
            fabric, use = hierarchical_variants.fabric(nodes.fabric), used(hierarchical_variants, number)
            yield Wrong(nodes.name, hierarchical_variants.main, 4, fabric, (nodes.tokens,), use)


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
        for program in wrong(group):
            said = count(program, args.seeds, counts)
            print(f"{group}: {program.name} ({program.fabric or 'p2p'}): {said or 'not found'}", flush=True)
        print(f"{group}: {counts}\n", flush=True)
        for mine, of_group in zip(all_of_them, counts, strict=True):
            mine.extend(of_group)
    print(f"all: {all_of_them}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
