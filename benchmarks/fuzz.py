"""Random expressions of CUDA C++ on the emulator and on a GPU, compared bit for bit.

    python benchmarks/fuzz.py [--count 20000] [--seed 0] [--workers 16] [--seconds 140]
    python benchmarks/fuzz.py --only 1234567    one case again, by the seed that was printed

Any NaN equals any other: sign and payload are not compared. Without a GPU the emulator is compared with Python, where
that knows all operations of an expression, and NVRTC compiles every kernel. What differs is told with its seed, its
smallest part that differs, operands and both values. A shift by the width or more and a cast out of range may differ if
the emulator warned of the line and the GPU gives what docs/emulator.md says: "explained". Which product is joined with
a sum is in the end each compiler's choice: a difference that is gone where all products are rounded is told as one of
these. Exit status: 0 if all cases ran and nothing else differs, 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

import fuzz_cases
import numpy as np
from fuzz_cases import LANES, Case, Expr, Type

import ep_lib
from ep_lib.cuda import devices
from ep_lib.errors import BackendUnavailable, EpError

BATCH = 100  # cases of one kernel
SHOWN = 20  # differences that are told
_LANES_SHOWN = 3
Values = list[np.ndarray]  # of each result of a batch: a word for each lane


class Ran(NamedTuple):
    """A batch on the emulator, and on which of its cases' lines it warned. ``failure``: why there is nothing."""

    values: Values
    warned: frozenset[int]
    failure: str = ""


class Difference(NamedTuple):
    case: Case
    result: int
    lanes: np.ndarray  # which
    here: np.ndarray  # of all lanes: the emulator's
    there: np.ndarray
    explained: bool

    def __str__(self) -> str:
        type_ = self.case.results[self.result]
        told = [f"    {self.case.code}"]
        for lane in self.lanes[:_LANES_SHOWN]:
            given = fuzz_cases.inputs(self.case.seed // BATCH)[lane]
            names = sorted(set(re.findall(r"v\.(\w+)", self.case.code)))
            operands = ", ".join(f"{name} = {_shown(name[:-1], int(given[name]))}" for name in names)
            values = " and ".join(_shown(type_.name, int(side[lane])) for side in (self.here, self.there))
            told.append(f"    result {self.result}, lane {lane}: {values} for {operands}")
        return "\n".join(told)


def _shown(type_: str, bits: int) -> str:
    t = fuzz_cases.TYPES[type_]
    value = fuzz_cases.number(t, bits)
    return str(value) if t.is_integer else f"{value} ({bits:#x})"


# ---- how a batch runs ----
class Batch(NamedTuple):
    """What another process has to know of some cases. ``inputs``: the seed of what the lanes are given."""

    source: str
    results: tuple[Type, ...]
    inputs: int

    @property
    def kernel(self) -> ep_lib.Kernel:
        return ep_lib.Kernel.from_source(self.source, "fuzz", filename="fuzz.cu")


def batch_of(cases: Sequence[Case], *, rounded: bool = False) -> Batch:
    return Batch(
        fuzz_cases.source(cases, rounded=rounded), tuple(t for c in cases for t in c.results), cases[0].seed // BATCH
    )


def run(rank: ep_lib.Rank, batches: Sequence[Batch]) -> list[Values]:
    found = []
    for batch in batches:
        given = rank.to_device(fuzz_cases.inputs(batch.inputs).view(np.uint8))
        out = rank.to_device(np.zeros(len(batch.results) * LANES, np.uint64))
        cells = rank.to_device(np.zeros(LANES, np.uint64))
        batch.kernel.launch(rank, fuzz_cases.BLOCKS, fuzz_cases.THREADS, given, out, cells)
        words = rank.to_host(out).reshape(-1, LANES)
        found.append([fuzz_cases.canonical(t, row) for t, row in zip(batch.results, words, strict=True)])
    return found


def emulated(batch: Batch, arch: str) -> Ran:
    """On the emulator; ``arch``: what NVRTC compiles the kernel for, so that the GPU finds it in the cache."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            if arch:
                os.environ["EP_LIB_CUDA_RULES"] = "0"  # NVRTC is asked here
                batch.kernel.compile(arch)
            ((values,),) = ep_lib.spawn(partial(run, batches=[batch]), 1, backend="emulator")
        except EpError as error:
            return Ran([], frozenset(), str(error))
    lines = frozenset(w.lineno - fuzz_cases.FIRST_LINE for w in told if w.category is RuntimeWarning)
    return Ran(values, lines)


def expected(cases: Sequence[Case], values: Values) -> Values:
    """What Python says of each result, and ``values`` where it says nothing."""
    lanes, found = fuzz_cases.inputs(cases[0].seed // BATCH), []
    for c, rows in zip(cases, _of_cases(cases, values), strict=True):
        words = fuzz_cases.oracle(c.roots[0], lanes) if c.is_expression else None
        first = rows[0] if words is None else fuzz_cases.canonical(c.results[0], words)
        said = [_said(c, lane, rows) for lane in range(LANES)]
        first = np.array([w if says is None else says for w, says in zip(first, said, strict=True)], np.uint64)
        found += [first, *rows[1:]]
    return found


class Comparison:
    """The emulator and ``arch``'s GPU, or Python if that is ""."""

    def __init__(self, pool: Executor, arch: str) -> None:
        self._pool = pool
        self.arch = arch

    def emulated(self, batches: Sequence[Sequence[Case]], *, rounded: bool = False) -> Iterator[Ran]:
        given = (batch_of(cases, rounded=rounded) for cases in batches)
        return self._pool.map(partial(emulated, arch=self.arch), given)

    def there(self, batches: Sequence[Sequence[Case]], emulated: Sequence[Ran], *, rounded: bool) -> list[Values]:
        if self.arch:
            given = [batch_of(cases, rounded=rounded) for cases in batches]
            (found,) = ep_lib.spawn(partial(run, batches=given), 1, backend="cuda")
            return found
        return [expected(cases, ran.values) for cases, ran in zip(batches, emulated, strict=True)]

    def differences(
        self, batches: Sequence[Sequence[Case]], emulated: Sequence[Ran], *, rounded: bool = False
    ) -> list[Difference]:
        there = self.there(batches, emulated, rounded=rounded)
        return [d for batch in zip(batches, emulated, there, strict=True) for d in differences(*batch)]

    def joined_otherwise(self, found: Sequence[Difference]) -> set[int]:
        """The seeds of the differences that are gone where all products are rounded."""
        alone = [[case] for case in {d.case.seed: d.case for d in found}.values()]
        left = self.differences(alone, list(self.emulated(alone, rounded=True)), rounded=True) if alone else []
        return {case.seed for (case,) in alone} - {d.case.seed for d in left if not d.explained}

    def smallest(self, found: Sequence[Difference]) -> list[Difference]:
        """For each difference the smallest part of its expressions that differs by itself; else it as it is."""
        parts = [[fuzz_cases.expression(d.case.seed, e) for e in _by_size(d.case.roots)] for d in found]
        tried = [cases for cases in parts if cases]
        ran = list(self.emulated(tried))
        by_seed: dict[int, Difference] = {}
        for d in self.differences(tried, ran):
            if not d.explained:
                by_seed.setdefault(d.case.seed, d)
        return [by_seed.get(d.case.seed, d) for d in found]


def _of_cases(cases: Sequence[Case], values: Values) -> Iterator[Values]:
    rows = iter(values)
    for c in cases:
        yield list(islice(rows, len(c.results)))


def _by_size(roots: Sequence[Expr]) -> list[Expr]:
    every = {e for root in roots for e in root.parts() if e.op is not None}
    return sorted(every, key=lambda e: sum(1 for _ in e.parts()))


def differences(cases: Sequence[Case], ran: Ran, there: Values) -> list[Difference]:
    """At most one of each result. Where a case is open, the emulator warned of its line, and the other side has what a
    GPU is said to give, it is explained."""
    found = []
    for i, (c, ours, others) in enumerate(
        zip(cases, _of_cases(cases, ran.values), _of_cases(cases, there), strict=True)
    ):
        for result, (here, other) in enumerate(zip(ours, others, strict=True)):
            lanes = np.flatnonzero(here != other)
            if not lanes.size:
                continue
            unexplained = lanes
            if result == 0 and i in ran.warned:
                unexplained = lanes[[_said(c, lane, ours) != other[lane] for lane in lanes]]
            shown = unexplained if unexplained.size else lanes
            found.append(Difference(c, result, shown, here, other, not unexplained.size))
    return found


def _said(c: Case, lane: int, rows: Values) -> int | None:
    """The bits that a GPU is said to give in a lane where C++ says nothing of this case's operands, else None."""
    if c.open is None:
        return None
    left, right = (fuzz_cases.number(t, int(row[lane])) for t, row in zip(c.results[1:], rows[1:], strict=True))
    says = c.open(left, right)
    return None if says is None else says & ((1 << c.results[0].bits) - 1)


# ---- the command ----
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which million of cases (default: %(default)s)")
    parser.add_argument("--only", type=int, help="the seed of one case")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes that compile")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further kernel on the emulator then")
    args = parser.parse_args(argv)
    first = args.seed * 1_000_000
    seeds = [args.only] if args.only is not None else range(first, first + args.count)
    cases = [fuzz_cases.case(seed) for seed in seeds]
    batches = [list(batch) for _, batch in groupby(cases, key=lambda c: c.seed // BATCH)]
    try:
        arch = devices.architecture(0)
    except BackendUnavailable:
        arch = ""
    began = time.monotonic()
    with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        both = Comparison(pool, arch)
        return _report(both, batches, began, args.seconds)


def _report(both: Comparison, batches: Sequence[Sequence[Case]], began: float, seconds: float) -> int:
    ran: list[Ran] = []
    step = 4 * (os.cpu_count() or 1)
    for at in range(0, len(batches), step):
        if time.monotonic() - began > seconds:
            break
        ran += both.emulated(batches[at : at + step])
    done = batches[: len(ran)]
    failed = [(cases, each.failure) for cases, each in zip(done, ran, strict=True) if each.failure]
    good = [(cases, each) for cases, each in zip(done, ran, strict=True) if not each.failure]
    found = both.differences(*map(list, zip(*good, strict=True))) if good else []
    unexplained = [d for d in found if not d.explained]
    joined = both.joined_otherwise(unexplained)
    for d in unexplained[:SHOWN]:
        if d.case.seed in joined:
            print(f"--only {d.case.seed}: a product is joined with a sum on one side only in\n    {d.case.code}")
    unexplained = [d for d in unexplained if d.case.seed not in joined]
    strays = [cases[i] for cases, each in good for i in each.warned if cases[i].open is None]
    for c in strays:
        print(f"--only {c.seed}: the emulator warned of\n    {c.code}")
    for cases, failure in failed:
        print(f"cases {cases[0].seed} to {cases[-1].seed} did not run: {failure}")
    for d, small in zip(unexplained[:SHOWN], both.smallest(unexplained[:SHOWN]), strict=True):
        print(f"--only {d.case.seed}: {d.lanes.size} of {LANES} lanes differ in\n    {d.case.code}")
        print(f"  smallest part:\n{small}")
    count, wanted = sum(len(cases) for cases, _ in good), sum(map(len, batches))
    explained = len({d.case.seed for d in found if d.explained})
    print(
        f"{count} of {wanted} cases, the emulator and {both.arch or 'Python (no GPU here)'}: "
        f"{len({d.case.seed for d in unexplained})} unexplained differences, {explained} explained, "
        f"{len(joined)} of a product joined otherwise, "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(bool(unexplained or strays or failed or count < wanted))


if __name__ == "__main__":
    sys.exit(main())
