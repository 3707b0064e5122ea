"""Hidden tests of exercise 08_fp8: every bit against :func:`ep_lib.reference.quantize_fp8`, rows under the checker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ep_lib import reference
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import drawn, one, several, under_checker

_LANES, _ELEMENTS, _GROUP = 32, 16, 128
_BF16 = np.dtype(ml_dtypes.bfloat16)
_LEAST_SCALE = np.finfo(np.float32).tiny

Floats = NDArray[np.float32]
Judge = Callable[[Outputs], str | None]


# ---- numbers to cast ------------------------------------------------------------------------------------------------
def _plain(rng: Rng, groups: int) -> Floats:
    return rng.standard_normal((groups, _GROUP)).astype(np.float32)


def _outliers(rng: Rng, groups: int) -> Floats:
    """One number of each group is far larger than the others, and half of these are negative."""
    x = _plain(rng, groups)
    places = rng.integers(0, _GROUP, groups)
    places[:2] = rng.integers(0, _GROUP // _ELEMENTS, places[:2].size) * _ELEMENTS + [_ELEMENTS - 1, 0][:groups]
    x[np.arange(groups), places] = rng.choice([-1, 1], groups) * rng.uniform(1e3, 1e6, groups)
    return x


def _zeros(rng: Rng, groups: int) -> Floats:
    """Zeros of both signs, whole groups of them and some in others."""
    x = _plain(rng, groups)
    x[rng.random(x.shape) < 0.3] = 0.0
    x[:: 2 if groups > 1 else 1] = 0.0
    signed = np.where(rng.random(x.shape) < 0.5, x, -x)
    if groups > 1:
        signed[0] = 0.0  # all its bytes are 0
    return signed


def _tiny(rng: Rng, groups: int) -> Floats:
    """Numbers around the smallest scale, and down to the smallest float32."""
    return _plain(rng, groups) * (10.0 ** rng.uniform(-40, -34, (groups, 1))).astype(np.float32)


def _huge(rng: Rng, groups: int) -> Floats:
    return np.clip(rng.standard_normal((groups, _GROUP)) * 1e38, -3.3e38, 3.3e38).astype(np.float32)


def _broken(rng: Rng, groups: int) -> Floats:
    """Infinities and NaN among other numbers; the first group has nothing else."""
    x = _outliers(rng, groups)
    odd = rng.choice(np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32), x.shape)
    x = np.where(rng.random(x.shape) < 0.05, odd, x)
    x[0] = odd[0]
    return x


def _largest(rng: Rng, groups: int) -> Floats:
    """One number of each group is the largest or the smallest float32; some groups also have infinities."""
    x = _plain(rng, groups)
    x[rng.random(x.shape) < 0.02] = np.inf
    x[0] = 0.0
    x[np.arange(groups), rng.integers(0, _GROUP, groups)] = rng.choice([-1, 1], groups) * np.finfo(np.float32).max
    return x


def _halfway(rng: Rng, groups: int) -> Floats:
    """Exactly in the middle between two E4M3 numbers, times a scale of 7 and powers of 2: all of them bfloat16 numbers.

    Divided by 7 they are exact; multiplied by 1 / 7 a quarter of them is not, which exposes code that rounds twice.
    """
    codes = np.arange(0x08, 0x7E, dtype=np.uint8)  # of normal numbers
    low, high = (code.view(reference.FP8).astype(np.float32) for code in (codes, codes + 1))
    group = np.concatenate([(low + high) / 2, np.full(_GROUP - codes.size, reference.FP8_MAX)]) * 7
    x = rng.permuted(np.tile(group, (groups, 1)), axis=1) * 2.0 ** rng.integers(-20, 20, (groups, 1))
    signed: Floats = (x * rng.choice([-1, 1], x.shape)).astype(np.float32)
    return signed


_KINDS = {
    "ordinary numbers": _plain,  # the public checks have the first three
    "infinities and NaN": _broken,
    "numbers half-way between two of E4M3": _halfway,
    "outliers": _outliers,
    "zeros of both signs": _zeros,
    "tiny numbers": _tiny,
    "huge numbers": _huge,
}
_OF_FLOAT32 = {**_KINDS, "numbers as large as kFp8LargestFloat": _largest}


# ---- one function alone ---------------------------------------------------------------------------------------------
def _finite_largest(x: Floats) -> Floats:
    """The largest finite magnitude of each group (the last axis)."""
    largest: Floats = np.max(np.abs(x), axis=-1, initial=0, where=np.isfinite(x)).astype(np.float32)
    return largest


def _scale_of(largest: Floats) -> Floats:
    scale = largest / np.float32(reference.FP8_MAX)
    return np.where(scale < _LEAST_SCALE, np.float32(1), scale)


def _largest_case(rng: Rng, kind: str, warps: int) -> Case:
    x = _OF_FLOAT32[kind](rng, 4 * warps)
    want = np.repeat(_finite_largest(x), _GROUP // _ELEMENTS)
    return Case(_scenario(x, lanes=want.size, scales=want.size), _floats_judge(want, f"of {kind}"))


def _scale_case(rng: Rng) -> Case:
    edge = np.array(
        [0, 448, _LEAST_SCALE, _LEAST_SCALE * 448, 5.2e-36, 5.3e-36, 1e-45, np.finfo(np.float32).max], np.float32
    )
    x = np.concatenate([edge, 10 ** rng.uniform(-38, 38, 56)]).astype(np.float32)
    scenario = _scenario(x, rows=x.size, lanes=x.size, called_by="thread", scales=x.size)
    return Case(scenario, _floats_judge(_scale_of(x), "of a group"))


def _pair_case(rng: Rng, kind: str) -> Case:
    groups = _OF_FLOAT32[kind](rng, 2)
    pairs, scales = groups.reshape(-1, 2), np.repeat(_scale_of(_finite_largest(groups)), _GROUP // 2)
    x = np.column_stack([pairs, scales]).astype(np.float32)
    with np.errstate(invalid="ignore"):
        divided = np.where(np.isfinite(pairs), pairs, np.float32(np.nan)) / scales[:, None]
    want = np.ascontiguousarray(divided.astype(reference.FP8)).view("<u2").ravel()

    def judge(out: Outputs) -> str | None:
        got = out["scales"][0][: len(want)].view(np.uint32)
        wrong = np.flatnonzero(got != want)
        if not wrong.size:
            return None
        at = int(wrong[0])
        if np.any(got >> 16):
            return f"the two bytes of {kind} have something above them: {int(got[at]):#x}"
        numbers = ", ".join(f"{value:g}" for value in pairs[at])
        first = f"({numbers}) over {scales[at]:g}: {got[at]:#06x}; {want[at]:#06x} is right"
        return f"{wrong.size} of {len(want)} pairs of {kind} are wrong; the first is {first}"

    return Case(_scenario(x, rows=len(x), lanes=len(x), called_by="thread", scales=len(x)), judge)


def _lanes_case(rng: Rng, kind: str, warps: int) -> Case:
    x = _KINDS[kind](rng, 4 * warps).astype(_BF16).reshape(1, -1)
    numbers, scales = reference.quantize_fp8(x)
    want = np.repeat(scales.ravel(), _GROUP // _ELEMENTS)
    judge_scales = _floats_judge(want, f"of {kind}")

    def judge(out: Outputs) -> str | None:
        return judge_scales(out) or _numbers_wrong(out["numbers"][0], x, numbers.view(np.uint8), kind)

    return Case(_scenario(x, lanes=want.size, numbers=x.size, scales=want.size), judge)


def _floats_judge(want: Floats, of: str) -> Judge:
    def judge(out: Outputs) -> str | None:
        got = out["scales"][0][: want.size]
        wrong = np.flatnonzero(got.view(np.uint32) != want.view(np.uint32))
        if not wrong.size:
            return None
        at = int(wrong[0])
        first = f"in lane {at % _LANES}: {got[at]:g}; {want[at]:g} is right"
        return f"{wrong.size} of {want.size} results {of} are wrong, the first {first}"

    return judge


def _numbers_wrong(got: Array, x: Array, want: Array, kind: str) -> str | None:
    wrong = np.flatnonzero(got.ravel() != want.ravel())
    if not wrong.size:
        return None
    at = int(wrong[0])
    what = f"element {at} of its row (it is {float(x.ravel()[at]):g})" if len(x) == 1 else f"element {at % x.shape[1]}"
    found, right = (each.ravel()[at : at + 1].view(reference.FP8).astype(np.float32)[0] for each in (got, want))
    first = f"{what}: {found:g} times its scale; {right:g} is right"
    return f"{wrong.size} of {got.size} elements of {kind} are wrong, the first is {first}"


# ---- rows -----------------------------------------------------------------------------------------------------------
def _rows_case(rng: Rng, kind: str, hidden: int, rows: int, blocks: int, warps: int) -> Case:
    x = _KINDS[kind](rng, rows * hidden // _GROUP).astype(_BF16).reshape(rows, hidden)
    want, want_scales = reference.quantize_fp8(x)
    shape = f"{rows} rows of {hidden}, blocks: {blocks}, warps in each: {warps}"

    def judge(out: Outputs) -> str | None:
        mine = out["scales"][0].view(np.uint32)
        wrong = int(np.sum(mine != want_scales.ravel().view(np.uint32)))
        if wrong:
            return f"{wrong} of {mine.size} scales of {kind} are wrong ({shape})"
        problem = _numbers_wrong(out["numbers"][0], x, want.view(np.uint8), kind)
        return f"{problem} ({shape})" if problem else None

    lanes = blocks * warps * _LANES
    scenario = _scenario(
        x, rows=rows, hidden=hidden, blocks=blocks, lanes=lanes, numbers=x.size, scales=want_scales.size
    )
    return Case(scenario, judge)


def _scenario(
    x: Array,
    *,
    lanes: int,
    scales: int,
    numbers: int = 1,
    rows: int = 0,
    hidden: int = 0,
    blocks: int = 1,
    called_by: str = "warp",
) -> Scenario:
    return Scenario(
        ranks=1,
        launches=Launch(blocks, lanes // blocks),
        called_by=called_by,
        outputs=("numbers", "scales"),
        local={
            "x": np.ascontiguousarray(x).view(np.uint8).ravel(),
            "numbers": Room(numbers, np.uint8),
            "scales": Room(scales, np.float32),
            "job": np.array([rows, hidden, lanes // blocks // _LANES], np.int64),
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _every_kind(rng: Rng, case: Callable[[Rng, str, int], Case], kinds: Iterable[str] = _OF_FLOAT32) -> Iterator[Case]:
    for seed, kind in enumerate(kinds):
        yield case(rng, kind, 1 + seed % 3)


# (hidden, rows, blocks, warps) of each kind; last, more elements than 16 bits count
_SIZES = (
    (128, 3, 1, 1),
    (384, 5, 1, 2),
    (512, 2, 2, 1),
    (640, 7, 2, 3),
    (896, 3, 1, 4),
    (1152, 4, 1, 1),
    (256, 2, 1, 1),
)
_ROWS = several(
    _rows_case,
    *((kind, *shape) for kind, shape in zip(_KINDS, _SIZES, strict=True)),
    ("ordinary numbers", 66_048, 1, 1, 1),
)
_SHORT_AND_LONG = several(
    _rows_case, ("outliers", 128, 3, 1, 2), ("infinities and NaN", 640, 3, 1, 2), ("zeros of both signs", 512, 3, 1, 2)
)

_LARGEST = "Only magnitudes, only of finite numbers, and only among the eight lanes of the group."
_SCALE = "The largest magnitude over 448, by __fdiv_rn; 1 if that is below kFp8LeastScale."
_PAIR = "Divide (no reciprocal), NaN for what is not finite, the first number in the lower byte."
_ORDER = "Element i is byte i: first.x holds elements 0 and 1, the result's v.x elements 0 to 3."
_ROW = "All 32 lanes call quantize_fp8 in every round; each stores what exists, and one lane of eight stores the scale."

BEHAVIOURS = (
    Behaviour(1, "every kind of numbers, several warps", _every_kind(_largest_case), _LARGEST),
    Behaviour(1, "some warps of a block call", under_checker(one(_largest_case, "outliers", 1), 2), _LARGEST),
    Behaviour(2, "from nothing to the largest float32", one(_scale_case), _SCALE),
    Behaviour(3, "every kind of numbers", _every_kind(lambda rng, kind, _: _pair_case(rng, kind)), _PAIR),
    Behaviour(4, "every kind of numbers, several warps", _every_kind(_lanes_case, _KINDS), _ORDER),
    Behaviour(4, "some warps of a block call", under_checker(one(_lanes_case, "outliers", 1), 2), _ORDER),
    Behaviour(5, "rows of every length, several warps and blocks", _ROWS, _ROW),
    Behaviour(5, "lanes do not write over each other", under_checker(_SHORT_AND_LONG, 3), _ROW),
)
