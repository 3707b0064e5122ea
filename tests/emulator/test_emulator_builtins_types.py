"""half, bfloat16 and FP8 in kernels, bit for bit against NumPy and ml_dtypes: every pattern where that is feasible."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import TESTS
from support.alone import launched

import ep_lib

FILE = TESTS / "kernels" / "small_types.cu"
RNG = np.random.default_rng(3)
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def run(
    backend: str, name: str, n: int, outputs: list[tuple[Any, Any]], *inputs: Any, pass_n: bool = True
) -> list[Any]:
    """Launches a kernel over n elements; returns its outputs, given as (shape, dtype). Inputs come first."""
    outs = (np.zeros(*out) for out in outputs)
    kernel = ep_lib.Kernel.from_file(FILE, name)
    return launched(backend, kernel, -(-n // 128), 128, *inputs, *outs, *([n] if pass_n else []))[len(inputs) :]


def equal_floats(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Same bits, but any NaN is as good as another."""
    got, expected = np.asarray(got), np.asarray(expected)
    kind = {2: np.uint16, 4: np.uint32, 1: np.uint8}[got.dtype.itemsize]
    both_nan = np.isnan(got.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    wrong = np.nonzero((got.view(kind) != expected.view(kind)) & ~both_nan)[0]
    assert wrong.size == 0, f"{wrong.size} differ, first at {wrong[0]}: {got[wrong[0]]!r}, not {expected[wrong[0]]!r}"


def test_every_pattern_widens_to_the_right_float(backend: str) -> None:
    sizes = [1 << 16, 1 << 16, 256, 256]
    outs = run(backend, "widen", 1 << 16, [(size, np.float32) for size in sizes], pass_n=False)
    with np.errstate(all="ignore"):
        for got, kind in zip(outs, (np.float16, BF16, E4M3, E5M2), strict=True):
            patterns = np.arange(got.size, dtype=np.uint8 if got.size == 256 else np.uint16)
            equal_floats(got, patterns.view(kind).astype(np.float32))


def interesting_floats() -> np.ndarray[Any, Any]:
    """Every value of each small type, its neighbours, the ties in between, specials, and random floats."""
    with np.errstate(all="ignore"):
        edges = np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])  # of what bfloat16 cuts off
        bf16 = PATTERNS.astype(np.uint32)[:, None] << 16 | edges
        values = [PATTERNS.view(np.float16).astype(np.float32), bf16.ravel().view(np.float32)]
        eight = np.arange(256, dtype=np.uint8)
        for kind in (E4M3, E5M2):
            exact = np.sort(eight.view(kind).astype(np.float32))
            exact = exact[np.isfinite(exact)]
            values += [exact, (exact[1:] + exact[:-1]) / 2, np.nextafter(exact, np.float32(np.inf))]
        half = np.sort(values[0][np.isfinite(values[0])])
        values += [(half[1:] + half[:-1]) / 2, np.float32([448, 464, 465, 480, 57344, 61440, 65519, 65520, 1e-8, 3e38])]
        values.append(RNG.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32))
        return np.concatenate(values).astype(np.float32)


def directed(x: np.ndarray[Any, Any], kind: Any, mode: str) -> np.ndarray[Any, Any]:
    """x rounded to ``kind`` towards zero, up or down, by a step from the nearest."""
    near = x.astype(kind)
    wide = near.astype(np.float32)
    down = {"rz": np.abs(wide) > np.abs(x), "rd": wide > x, "ru": wide < x}[mode]
    target = {"rz": 0.0, "rd": -np.inf, "ru": np.inf}[mode]
    return np.where(down, np.nextafter(near, kind(target)), near)


def test_floats_narrow_with_the_stated_rounding(backend: str) -> None:
    x = interesting_floats()
    n = x.size
    outs = run(backend, "narrow", n, [(4 * n, np.uint16), (4 * n, np.uint16), (3 * n, np.uint8), (3 * n, np.uint8)], x)
    half, bf16 = outs[0].view(np.float16).reshape(4, n), outs[1].view(BF16).reshape(4, n)
    e4m3, e5m2 = outs[2].view(E4M3).reshape(3, n), outs[3].view(E5M2).reshape(3, n)
    with np.errstate(all="ignore"):
        for got, kind in ((half, np.float16), (bf16, BF16)):
            equal_floats(got[0], x.astype(kind))
            for row, mode in enumerate(("rz", "ru", "rd"), 1):
                finite = np.isfinite(x)  # NumPy has no neighbour of infinity
                equal_floats(got[row][finite], directed(x[finite], kind, mode))
        for got, kind, largest in ((e4m3, E4M3, 448.0), (e5m2, E5M2, 57344.0)):
            saturated = np.clip(x, -largest, largest).astype(kind)  # NaN passes np.clip
            equal_floats(got[0], saturated)
            equal_floats(got[1], x.astype(kind))
            if kind is E4M3:
                equal_floats(got[2], saturated)
        equal_floats(e5m2[2], e4m3[0].astype(np.float32).astype(E5M2))


def operands(kind: Any, n: int = 20000) -> list[np.ndarray[Any, Any]]:
    """Pairs over all bit patterns, with a share of like-sized ones, whose sums and quotients round."""
    every = [RNG.integers(0, 1 << 16, n, dtype=np.uint16).view(kind) for _ in range(3)]
    close = [(RNG.choice([-1, 1], n) * 2.0 ** RNG.uniform(-3, 3, n)).astype(kind) for _ in range(3)]
    return [np.concatenate([a, b]) for a, b in zip(every, close, strict=True)]


def fused(a: Any, b: Any, c: Any, kind: Any) -> Any:
    """a * b + c rounded once, by fractions: slow."""
    if not all(np.isfinite(float(x)) for x in (a, b, c)):
        return None
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    with np.errstate(over="ignore"):
        near = kind(float(exact))
    if not np.isfinite(float(near)):
        return None
    candidates = [near, np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))]
    candidates = [x for x in candidates if np.isfinite(float(x))]
    return min(candidates, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.array(x).view(np.uint16)) & 1))


@pytest.mark.parametrize(("c_type", "kind"), [("__half", np.float16), ("__nv_bfloat16", BF16)])
def test_arithmetic_rounds_as_numpy_does(backend: str, c_type: str, kind: Any) -> None:
    a, b, c = operands(kind)
    n = a.size
    with np.errstate(all="ignore"):
        fa, fb = a.astype(np.float32), b.astype(np.float32)
        total, difference, product, quotient = ((x.astype(kind)) for x in (fa + fb, fa - fb, fa * fb, fa / fb))
        second_sum = (fb + c.astype(np.float32)).astype(kind)
        second_product = (fb * c.astype(np.float32)).astype(kind)
        number = np.where(np.isnan(fa), b, np.where(np.isnan(fb), a, a))
        smaller = np.where(np.isnan(fa) | np.isnan(fb), number, np.where(fa < fb, a, b))
        larger = np.where(np.isnan(fa) | np.isnan(fb), number, np.where(fa > fb, a, b))
        whole = {f: f(fa).astype(kind) for f in (np.floor, np.ceil, np.trunc, np.rint)}
        expected = [total, difference, product, quotient] * 2
        expected += [-a, total, None, None, None, total, second_sum, second_product, larger, smaller, np.abs(a), -b]
        expected += [np.sqrt(np.abs(fa).astype(np.float64)).astype(kind), None, *whole.values()]
        expected += [np.where(fa < fb, a, b), np.where(fa > fb, a, b), np.where(fa == fa, a, b)]
    inputs = [x.view(np.uint16) for x in (a, b, c)]
    (bits,) = run(backend, f"arithmetic<{c_type}>", n, [((len(expected), n), np.uint16)], *inputs)
    got = bits.view(kind)
    for index, (row, want) in enumerate(zip(got, expected, strict=True)):
        if want is None:
            continue
        if index in (16, 17):  # -0 and 0 are equal: either may win
            row, want = np.where(row == 0, kind(0), row), np.where(want == 0, kind(0), want)
        equal_floats(row, want)
    equal_floats(got[10], got[11])  # __hfma and the first lane of __hfma2
    for i in RNG.integers(0, n, 1500):
        exact = fused(a[i], b[i], c[i], kind)
        if exact is not None and exact != 0:
            assert got[10][i] == exact, f"__hfma({a[i]}, {b[i]}, {c[i]}) gave {got[10][i]}, not {exact}"


@pytest.mark.parametrize(("c_type", "kind"), [("__half", np.float16), ("__nv_bfloat16", BF16)])
def test_elementary_functions_are_within_an_ulp(backend: str, c_type: str, kind: Any) -> None:
    a = (RNG.choice([-1, 1], 4000) * 2.0 ** RNG.uniform(-4, 3, 4000)).astype(kind)
    (bits,) = run(backend, f"elementary<{c_type}>", a.size, [((10, a.size), np.uint16)], a.view(np.uint16))
    got = bits.view(kind).astype(np.float64)
    x = a.astype(np.float64)
    p = np.abs(x)
    expected = [np.exp(x), np.exp2(x), 10.0**x, np.log(p), np.log2(p), np.log10(p), np.sin(x), np.cos(x)]
    expected += [1 / np.sqrt(p), np.exp(p)]
    with np.errstate(all="ignore"):
        for row, want in zip(got, expected, strict=True):
            rounded = want.astype(kind)
            finite = np.isfinite(rounded.astype(np.float32))
            step = np.abs(np.nextafter(rounded, kind(np.inf)).astype(np.float64) - rounded.astype(np.float64))
            floor = 2.0**-10 if kind is np.float16 else 2.0**-7  # sine and logarithm near their zeros: absolute
            error = np.abs(row - want)[finite]
            assert (error <= np.maximum(2 * step[finite], floor)).all()


def test_integers(backend: str) -> None:
    (out,) = run(backend, "integers", 1 << 16, [((14, 1 << 16), np.int64)], PATTERNS)
    limits = {"int": (-(1 << 31), (1 << 31) - 1), "short": (-(1 << 15), (1 << 15) - 1), "ushort": (0, 65535)}
    limits |= {"uint": (0, (1 << 32) - 1), "ll": (-(1 << 63), (1 << 63) - 1)}
    rounding = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}
    plan = ["int_rn", "int_rz", "int_ru", "int_rd", "short_rn", "ushort_rd", "ll_ru", "uint_rn"]
    plan += ["int_rn", "int_rz", "int_ru", "int_rd", "short_rn", "uint_rd"]
    for row, (got, name) in enumerate(zip(out, plan, strict=True)):
        kind, mode = name.split("_")
        with np.errstate(all="ignore"):
            x = PATTERNS.view(np.float16 if row < 8 else BF16).astype(np.float64)
        number = ~np.isnan(x)
        low, high = limits[kind]
        wide = rounding[mode](x[number])
        expected = [low if v < low else high if v > high else int(v) for v in wide]
        np.testing.assert_array_equal(got[number], np.array(expected, np.int64), err_msg=f"row {row}: {name}")
        assert (got[~number] == (-(1 << 63) if kind == "ll" else 0)).all()


def test_from_integers(backend: str) -> None:
    x = RNG.integers(-(1 << 31), 1 << 31, 5000) >> RNG.integers(0, 31, 5000)
    (bits,) = run(backend, "from_integers", x.size, [((5, x.size), np.uint16)], x.astype(np.int32))
    with np.errstate(all="ignore"):
        equal_floats(bits[0].view(np.float16), x.astype(np.float64).astype(np.float16))
    for i, value in enumerate(x):
        exact = Fraction(int(value))
        for row, pick in ((1, None), (2, "rz"), (3, "ru"), (4, "rd")):
            got = bits[row, i : i + 1].view(BF16)[0]
            below, above = np.nextafter(got, BF16(-np.inf)), np.nextafter(got, BF16(np.inf))
            error = Fraction(float(got)) - exact
            if pick is None:
                assert abs(error) <= min(abs(Fraction(float(v)) - exact) for v in (below, above))
            elif pick == "ru" or (pick == "rz" and value < 0):
                assert error >= 0 and Fraction(float(below)) < exact
            else:
                assert error <= 0 and Fraction(float(above)) > exact


def test_vectors_of_pairs_through_cached_loads(backend: str) -> None:
    x = RNG.standard_normal((300, 8)).astype(BF16)
    n = x.shape[0]
    out, sums = run(backend, "vectors", n, [((n, 8), np.uint16), (n, np.float32)], x.view(np.uint16))
    equal_floats(out.view(BF16).ravel(), (x * BF16(2)).ravel())
    np.testing.assert_allclose(sums, x.astype(np.float32).sum(1), atol=1e-5)
