"""Hidden tests of exercise 07_sums: every bit of the arithmetic of combine, compared with NumPy's."""

from __future__ import annotations

import itertools
import platform
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from ep_lib.emulator.fabric import Fabric
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, of_kernels, on_fabrics, one, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of
from ep_lib.workshop.hidden.networks import RC, SRD

# Whether this processor has fused multiply-add, which rounds a product and a sum once, as on GPUs.
_JOINS = platform.machine() == "aarch64" or " fma " in Path("/proc/cpuinfo").read_text("utf-8", "replace")
_JOINED = "ex07_sums_joined.cu"
KERNELS = ((_JOINED, "join"),) if _JOINS else ()

_BF16 = ml_dtypes.bfloat16
_ODD = np.array([0, -0.0, 1, -1, 1e-40, 3e38, np.inf, -np.inf], np.float32)  # special cases of sums

_ODD_HALVES = (0, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF80, 0x7FC0)  # zeros, denormals, the largest, infinity, NaN
# The same for float32: values that round to zero, to a denormal, to infinity; NaN that an addition would change.
_ODD_BITS = (0x80000000, 0x00008000, 0x80018000, 0x7F7FFFFF, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF)

_Job = job_of(__file__)


def _floats(rng: Rng, *shape: int) -> Array:
    """Numbers of every size, some of them odd."""
    numbers = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(np.float32)
    odd = rng.random(shape) < 0.05
    numbers[odd] = rng.choice(_ODD, int(odd.sum()))
    return numbers


def _add(sums: Array, weight: Array | np.float32, values: Array) -> Array:
    with np.errstate(all="ignore"):
        added: Array = sums + (weight * values).astype(np.float32)
    return added


def _product_case(rng: Rng, joined: bool, count: int = 600) -> Case:
    """``joined``: with a compiler that fuses a product and a sum unless the piece keeps them apart."""
    every = np.array(list(itertools.product(_ODD, repeat=3)), np.float32)
    three = np.concatenate([every, _floats(rng, count, 3)])
    count = len(three)
    want = _add(three[:, 0], three[:, 1], three[:, 2])
    of_gpus = ", as GPUs' compilers join a product and a sum" if joined else ""
    case = _bits_case(1, _Job(count), three, want, f"add_weighted({{0:.9g}}, {{1:.9g}}, {{2:.9g}}){of_gpus}")
    if joined:
        launch = Launch(1, count, kernel="join")
        case = replace(case, scenario=replace(of_kernels(case), source=_JOINED, launches=launch))
    return case


def _halves_case(rng: Rng, count: int = 300) -> Case:
    words = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    words[: count // 4] &= 0xFFFF0000  # one half zero
    words[count // 4 : count // 2] &= 0xFFFF
    pairs = list(itertools.product(_ODD_HALVES, repeat=2))
    words[-len(pairs) :] = [low | high << 16 for low, high in pairs]
    halves = np.stack([words & 0xFFFF, words >> 16], axis=1).astype(np.uint16)
    want = halves.astype(np.uint32) << 16
    return _bits_case(2, _Job(count), words, want.view(np.float32), "the two halves of word {0:#x}")


def _rounding_case(rng: Rng, count: int = 400) -> Case:
    two = _floats(rng, count, 2)
    bits = two.view(np.uint32)
    bits[: count // 2] = bits[: count // 2] & 0xFFFF0000 | 0x8000  # exactly between two
    bits[count // 4 : count // 3] |= 1
    odd = list(itertools.product(_ODD_BITS, repeat=2))
    bits[-len(odd) :] = odd
    with np.errstate(invalid="ignore"):
        want = two.astype(_BF16).view(np.uint16).astype(np.uint32)
    words = (want[:, 0] | want[:, 1] << 16).astype(np.uint32)
    return _bits_case(3, _Job(count), two, words.view(np.float32), "bfloat16_word({0:.9g}, {1:.9g})")


def _weights_case(rng: Rng, ranks: int, per_rank: int, top_k: int, count: int = 90, first: int = 0) -> Case:
    """The weights of ``count`` tokens on each rank; ``first``: the number of earlier tokens, which are not asked
    for."""
    idx = np.argsort(rng.random((count, ranks * per_rank)), axis=1)[:, :top_k].astype(np.int32)
    idx[::9] = idx[::9, :1]  # a token may name an expert twice
    idx[rng.random(idx.shape) < 0.3] = -1
    weights = rng.standard_normal((count, top_k)).astype(np.float32)
    want = np.zeros((ranks, count), np.float32)
    for k in range(top_k):
        for rank in range(ranks):
            here = (idx[:, k] >= 0) & (idx[:, k] // per_rank == rank)
            want[rank, here] += weights[here, k]

    def judge(out: Outputs) -> str | None:
        wrong = np.argwhere(out["told"][0].reshape(ranks, count) != want.view(np.int32))
        if not wrong.size:
            return None
        rank, token = map(int, wrong[0])
        got = float(out["told"][0].view(np.float32).reshape(ranks, count)[rank, token])
        return (
            f"with experts {idx[token].tolist()}, {per_rank} on each rank, the weight on rank {rank} is {got:.9g}; "
            f"{float(want[rank, token]):.9g} is right"
        )

    job = _Job(count, top_k=top_k, experts_per_rank=per_rank, ranks=ranks, first=first)
    given = np.concatenate([np.zeros((first, top_k), np.int32), idx])
    all_weights = np.concatenate([np.full((first, top_k), 77, np.float32), weights])
    return Case(_scenario(job, given, all_weights, want.size), judge)


def _rows_case(rng: Rng, bfloat16: bool, rows: int = 5, vectors: int = 70) -> Case:
    weights = np.ones(rows, np.float32) if bfloat16 else rng.random(rows).astype(np.float32)  # task 1 has its own tests
    numbers = rng.standard_normal((rows, vectors * (8 if bfloat16 else 4))).astype(np.float32)
    given = numbers.astype(_BF16) if bfloat16 else numbers
    sums = np.zeros(numbers.shape[1], np.float32)
    for weight, row in zip(weights, given.astype(np.float32), strict=True):
        sums = _add(sums, weight, row)
    want = sums.astype(_BF16) if bfloat16 else sums

    def judge(out: Outputs) -> str | None:
        got = out["told"][0].view(want.dtype)
        wrong = int(np.sum(got.view(np.uint8) != want.view(np.uint8)))
        name = "bfloat16" if bfloat16 else "float32"
        return f"{wrong} of {want.nbytes} bytes of the sum of {rows} {name} rows are wrong" if wrong else None

    scenario = _scenario(_Job(vectors, rows=rows), given, weights, 4 * vectors, task=6 if bfloat16 else 5)
    return Case(scenario, judge)


def _bits_case(task: int, job: Job, given: Array, want: Array, what: str) -> Case:
    """``what``: the template of the message, filled with the given numbers of the first wrong answer."""

    def judge(out: Outputs) -> str | None:
        got = out["told"][0].reshape(want.shape).view(np.float32)
        same = (got.view(np.int32) == want.view(np.int32)) | (np.isnan(got) & np.isnan(want))
        if task == 3:
            same = _same_halves(got.view(np.uint32), want.view(np.uint32))
        wrong = np.argwhere(~same)
        if not wrong.size:
            return None
        numbers = given.reshape(len(given), -1)[wrong[:, 0]]
        finite = np.isfinite(numbers).all(axis=1) & np.isfinite(want[tuple(wrong.T)])
        first = tuple(wrong[np.argmax(finite)])  # an ordinary one, if any is wrong
        answer, right = (_shown(each[first], task) for each in (got, want))
        case = what.format(*np.atleast_1d(given[first[0]]).tolist())
        return f"{len(wrong)} of {want.size} answers are wrong; the first is {case}: {answer}; {right} is right"

    return Case(_scenario(job, given, np.zeros(1, np.float32), want.size), judge)


def _shown(number: np.float32, task: int) -> str:
    return f"{int(number.view(np.uint32)):#010x}" if task == 3 else f"{float(number):.9g}"


def _same_halves(got: Array, want: Array) -> Array:
    """Whether both halves of each word are equal, or NaN where NaN is wanted."""
    same = np.ones(got.shape, bool)
    for shift in (0, 16):
        a, b = ((each >> shift & 0xFFFF).astype(np.uint16) for each in (got, want))
        same &= (a == b) | ((a & 0x7FFF) > 0x7F80) & ((b & 0x7FFF) > 0x7F80)
    return same


def _scenario(job: Job, given: Array, weights: Array, told: int, task: int | None = None) -> Scenario:
    return Scenario(
        ranks=1,
        launches=Launch(1, job.count, task=task),
        called_by="thread",
        outputs=("told",),
        local={
            "given": np.ascontiguousarray(given).view(np.int32).ravel(),
            "weights": weights.ravel(),
            "told": Room(told, np.int32),
            "numbers": job_numbers(job),
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
_ROUND = "Round the product, then the sum: __fmul_rn and __fadd_rn, which no compiler joins."
_MOVE = "A bfloat16 is the upper half of a float32: move the bits, and leave none of the other number."
_NEAREST = "To the nearest, ties to even, and NaN stays NaN; the second number in the upper half, nothing of it below."
_THERE = "Only experts of this rank, and -1 is none; added from the first to the last, each addition rounded."

_PRODUCTS = several(_product_case, (False,), *([(True,)] if _JOINS else []))
_SMALL = several(_weights_case, (1, 4, 2), (4, 2, 3), (3, 5, 8), (8, 1, 4), (40, 10, 36))
_LARGE = one(_weights_case, 2, 40_000, 4, count=5, first=1 << 16)
_ROWS = under_checker(one(_rows_case, bfloat16=True), 2)

BEHAVIOURS = (
    Behaviour(1, "numbers of every size", _PRODUCTS, _ROUND),
    Behaviour(1, "the sum of float32 rows", under_checker(one(_rows_case, bfloat16=False), 1), _ROUND),
    Behaviour(2, "any bits", one(_halves_case), _MOVE),
    Behaviour(3, "numbers between two others", one(_rounding_case), _NEAREST),
    Behaviour(3, "the sum of bfloat16 rows", on_fabrics(_ROWS, Fabric("p2p"), RC, SRD), _NEAREST),
    Behaviour(4, "routings of every kind", all_of(_SMALL, _LARGE), _THERE),
)
