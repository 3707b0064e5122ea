"""Intrinsics against Python: of integers, bits and SIMD in a word; of floats, stated roundings exactly."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.alone import launched

import ep_lib


@dataclass(frozen=True)
class Row:
    """``expression`` in the variables a, b, c; ``expected(a, b, c)``.

    The result may be off by so many ``ulps`` of its type, or by ``absolute``; by default not at all.
    """

    expression: str
    expected: Callable[..., float]
    ulps: int = 0
    absolute: float = 0.0

    def __str__(self) -> str:
        return self.expression


@dataclass
class Table:
    """Rows over the same inputs. ``c_type`` is that of a, b and c, ``out_type`` that of every result."""

    c_type: str
    out_type: str
    inputs: Sequence[np.ndarray[Any, Any]]
    rows: list[Row]

    def source(self) -> str:
        stores = "\n".join(f"    out[{i} * n + at] = ({self.out_type})({row});" for i, row in enumerate(self.rows))
        return f"""
typedef {self.c_type} In;
extern "C" __global__ void table(const In* as, const In* bs, const In* cs, {self.out_type}* out, int n) {{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const In a = as[at], b = bs[at], c = cs[at];
{stores}
}}
"""

    def results(self, backend: str) -> np.ndarray[Any, Any]:
        """All results as an array (row, input)."""
        inputs = [np.ascontiguousarray(x) for x in self.inputs]
        shape = (len(self.rows), inputs[0].size)
        dtype = {"long long": np.int64, "double": np.float64, "float": np.float32}[self.out_type]
        kernel = ep_lib.Kernel.from_source(self.source(), "table", filename="table.cu")
        return launched(backend, kernel, -(-shape[1] // 64), 64, *inputs, np.zeros(shape, dtype), shape[1])[-1]

    def check(self, backend: str) -> None:
        """Compares all results; fails naming each row that differs, with the first input for which it does."""
        wrong = []
        for row, results in zip(self.rows, self.results(backend), strict=True):
            for values, result in zip(zip(*self.inputs, strict=True), results, strict=True):
                a, b, c = (v.item() for v in values)
                expected = row.expected(a, b, c)
                if not same(expected, result.item(), row, self.out_type):
                    wrong.append(f"{row} with a={a!r}, b={b!r}, c={c!r}: {result.item()!r}, not {expected!r}")
                    break
        assert not wrong, "\n".join(wrong)


def same(expected: float, got: float, row: Row, out_type: str) -> bool:
    if expected != expected or got != got:
        return expected != expected and got != got
    if out_type == "long long":
        return int(expected) == int(got)
    if expected == got:
        return row.ulps > 0 or np.signbit(expected) == np.signbit(got)
    if not np.isfinite(expected) or not np.isfinite(got):
        return False
    spacing = np.spacing(np.float32(expected)) if out_type == "float" else np.spacing(expected)
    return abs(expected - got) <= max(row.ulps * abs(float(spacing)), row.absolute)


def cut(x: int, bits: int, signed: bool) -> int:
    """The low bits, as a number of that sort."""
    x = int(x) % (1 << bits)
    return x - (1 << bits) if signed and x >> bits - 1 else x


s32, u32, s64, u64 = (partial(cut, bits=bits, signed=signed) for bits in (32, 64) for signed in (True, False))


def f32(x: float) -> float:
    """x rounded to float32 and back."""
    with np.errstate(all="ignore"):
        return float(np.float32(x))


def lanes(x: int, size: int, signed: bool) -> list[int]:
    """The lanes of a 32-bit word, lowest first; ``size`` in bytes."""
    return [cut(x >> 8 * at, 8 * size, signed) for at in range(0, 4, size)]


def word(values: Sequence[int], size: int) -> int:
    """Lanes, cut to ``size`` bytes each, as a 32-bit word."""
    return sum((int(v) % (1 << 8 * size)) << (8 * size * i) for i, v in enumerate(values))


DRAWN = np.random.default_rng(1)
EDGES_32 = [0, 1, 2, 7, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x80008000, 0x00FF00FF]
INPUTS_32 = [
    np.array([*DRAWN.permutation(EDGES_32), *EDGES_32, *DRAWN.integers(0, 1 << 32, 100)], np.uint32) for _ in range(3)
]
EDGES_64 = [0, 1, 63, 64, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 32, 0xFFFFFFFF]
INPUTS_64 = [
    np.concatenate([DRAWN.permutation(np.array(EDGES_64, np.uint64)), DRAWN.integers(0, 1 << 64, 69, np.uint64)])
    for _ in range(3)
]


def byte_perm(x: int, y: int, selector: int) -> int:
    every = (y << 32 | x).to_bytes(8, "little")
    return int.from_bytes(bytes(every[selector >> 4 * i & 7] for i in range(4)), "little")


def s24(x: int) -> int:
    return s32(x << 8) >> 8


def ffs(x: int) -> int:
    return (x & -x).bit_length()


def dot(a: list[int], b: list[int], c: int) -> int:
    return c + sum(x * y for x, y in zip(a, b, strict=True))


WORDS = [
    Row("__popc(a)", lambda a, b, c: a.bit_count()),
    Row("__clz((int)a)", lambda a, b, c: 32 - a.bit_length()),
    Row("__ffs((int)a)", lambda a, b, c: ffs(a)),
    Row("__brev(a)", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    Row("__byte_perm(a, b, c)", byte_perm),
    Row("__byte_perm(a, b, 0x5410)", lambda a, b, c: (a & 0xFFFF) | (b & 0xFFFF) << 16),
    Row("__funnelshift_l(a, b, c)", lambda a, b, c: u32((b << 32 | a) << (c & 31) >> 32)),
    Row("__funnelshift_r(a, b, c)", lambda a, b, c: u32((b << 32 | a) >> (c & 31))),
    Row("__funnelshift_lc(a, b, c)", lambda a, b, c: u32((b << 32 | a) << min(c, 32) >> 32)),
    Row("__funnelshift_rc(a, b, c)", lambda a, b, c: u32((b << 32 | a) >> min(c, 32))),
    Row("__mulhi((int)a, (int)b)", lambda a, b, c: s32(a) * s32(b) >> 32),
    Row("__umulhi(a, b)", lambda a, b, c: a * b >> 32),
    Row("__mul24((int)a, (int)b)", lambda a, b, c: s32(s24(a) * s24(b))),
    Row("__umul24(a, b)", lambda a, b, c: u32((a & 0xFFFFFF) * (b & 0xFFFFFF))),
    Row("__sad((int)a, (int)b, c)", lambda a, b, c: u32(abs(s32(a) - s32(b)) + c)),
    Row("__usad(a, b, c)", lambda a, b, c: u32(abs(a - b) + c)),
    Row("__hadd((int)a, (int)b)", lambda a, b, c: s32(a) + s32(b) >> 1),
    Row("__rhadd((int)a, (int)b)", lambda a, b, c: s32(a) + s32(b) + 1 >> 1),
    Row("__uhadd(a, b)", lambda a, b, c: a + b >> 1),
    Row("__urhadd(a, b)", lambda a, b, c: a + b + 1 >> 1),
    Row("__dp4a((int)a, (int)b, (int)c)", lambda a, b, c: s32(dot(lanes(a, 1, True), lanes(b, 1, True), c))),
    Row("__dp4a(a, b, c)", lambda a, b, c: u32(dot(lanes(a, 1, False), lanes(b, 1, False), c))),
    Row("__dp2a_lo((int)a, (int)b, (int)c)", lambda a, b, c: s32(dot(lanes(a, 2, True), lanes(b, 1, True)[:2], c))),
    Row("__dp2a_hi(a, b, c)", lambda a, b, c: u32(dot(lanes(a, 2, False), lanes(b, 1, False)[2:], c))),
    Row("min((int)a, (int)b)", lambda a, b, c: min(s32(a), s32(b))),
    Row("max(a, b)", lambda a, b, c: max(a, b)),
    Row("min((int)a, b)", lambda a, b, c: min(a, b)),
    Row("max(a, (int)b)", lambda a, b, c: max(a, b)),
    Row("umax(a, b) - umin(a, b)", lambda a, b, c: abs(a - b)),
    Row("__vimax3_s32((int)a, (int)b, (int)c)", lambda a, b, c: max(map(s32, (a, b, c)))),
    Row("__vimin3_u32(a, b, c)", min),
    Row("__viaddmax_s32((int)a, (int)b, (int)c)", lambda a, b, c: max(s32(a + b), s32(c))),
    Row("__viaddmin_u32(a, b, c)", lambda a, b, c: min(u32(a + b), c)),
    Row("__vimax_s32_relu((int)a, (int)b)", lambda a, b, c: max(s32(a), s32(b), 0)),
]

LONGS = [
    Row("__popcll(a)", lambda a, b, c: a.bit_count()),
    Row("__clzll((long long)a)", lambda a, b, c: 64 - a.bit_length()),
    Row("__ffsll((long long)a)", lambda a, b, c: ffs(a)),
    Row("__brevll(a)", lambda a, b, c: s64(int(f"{a:064b}"[::-1], 2))),
    Row("__mul64hi((long long)a, (long long)b)", lambda a, b, c: s64(a) * s64(b) >> 64),
    Row("__umul64hi(a, b)", lambda a, b, c: s64(a * b >> 64)),
    Row("min((long long)a, (long long)b)", lambda a, b, c: min(s64(a), s64(b))),
    Row("max(a, b)", lambda a, b, c: s64(max(a, b))),
    Row("max((long long)a, b)", lambda a, b, c: s64(max(a, b))),
    Row("min((unsigned long)a, (unsigned long)b)", lambda a, b, c: s64(min(a, b))),
    Row("llmax((long long)a, (long long)b)", lambda a, b, c: max(s64(a), s64(b))),
    Row("__double_as_longlong(__longlong_as_double((long long)a))", lambda a, b, c: s64(a)),
    Row(
        "__double_as_longlong(__hiloint2double((int)a, (int)b))",
        lambda a, b, c: s64(u32(a) << 32 | u32(b)),
    ),
    Row("__double2hiint(__longlong_as_double((long long)a))", lambda a, b, c: s32(u64(a) >> 32)),
]


def saturate(x: int, size: int, signed: bool) -> int:
    low = -(1 << 8 * size - 1) if signed else 0
    return min(max(x, low), low + (1 << 8 * size) - 1)


def simd_rows() -> list[Row]:
    rows = []

    def add(name: str, size: int, signed: bool, f: Callable[[int, int], int]) -> None:
        def expected(a: int, b: int, c: int) -> int:
            pairs = zip(lanes(a, size, signed), lanes(b, size, signed), strict=True)
            return word([f(x, y) for x, y in pairs], size)

        rows.append(Row(f"{name}{4 // size}(a, b)", expected))

    for size in (1, 2):
        for sign, signed in (("s", True), ("u", False)):
            add(
                f"__vadd{sign}s" if signed else "__vaddus",
                size,
                signed,
                lambda x, y, z=size, s=signed: saturate(x + y, z, s),
            )
            add(f"__vsub{sign}s", size, signed, lambda x, y, z=size, s=signed: saturate(x - y, z, s))
            add(f"__vmax{sign}", size, signed, max)
            add(f"__vmin{sign}", size, signed, min)
            add(f"__vabsdiff{sign}", size, signed, lambda x, y: abs(x - y))
            for name, f in (("ge", int.__ge__), ("gt", int.__gt__), ("le", int.__le__), ("lt", int.__lt__)):
                add(f"__vcmp{name}{sign}", size, signed, lambda x, y, f=f: -int(f(x, y)))
                add(f"__vset{name}{sign}", size, signed, lambda x, y, f=f: int(f(x, y)))
            rows.append(
                Row(
                    f"__vsad{sign}{4 // size}(a, b)",
                    lambda a, b, c, z=size, s=signed: sum(
                        abs(x - y) for x, y in zip(lanes(a, z, s), lanes(b, z, s), strict=True)
                    ),
                )
            )
        add("__vadd", size, True, int.__add__)
        add("__vsub", size, True, int.__sub__)
        add("__vavgu", size, False, lambda x, y: x + y + 1 >> 1)
        add("__vhaddu", size, False, lambda x, y: x + y >> 1)
        add("__vcmpeq", size, False, lambda x, y: -int(x == y))
        add("__vsetne", size, False, lambda x, y: int(x != y))
        n = 4 // size
        rows.append(Row(f"__vneg{n}(a)", lambda a, b, c, z=size: word([-x for x in lanes(a, z, True)], z)))
        rows.append(Row(f"__vabs{n}(a)", lambda a, b, c, z=size: word([abs(x) for x in lanes(a, z, True)], z)))
        rows.append(
            Row(
                f"__vabsss{n}(a)",
                lambda a, b, c, z=size: word([saturate(abs(x), z, True) for x in lanes(a, z, True)], z),
            )
        )
    return rows


OF_INTEGERS = {
    "words": Table("unsigned", "long long", INPUTS_32, WORDS),
    "longs": Table("unsigned long long", "long long", INPUTS_64, LONGS),
    "simd": Table("unsigned", "long long", INPUTS_32, simd_rows()),
}


RNG = np.random.default_rng(2)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-40, -3e9, 3e9, 5e9, 1e19, -1e19])


def spread(n: int, decades: float) -> np.ndarray[Any, Any]:
    """Numbers of either sign whose size spans decades: sums lose bits, products round."""
    return RNG.choice([-1.0, 1.0], n) * 10 ** RNG.uniform(-decades, decades, n)


# ---- operations with a stated rounding ------------------------------------------------------------------------
def rounded(exact: Fraction, mode: str, kind: type[np.floating[Any]]) -> float:
    """The number of type ``kind`` that ``exact`` becomes; exact must be finite and neither tiny nor huge."""
    near = kind(float(exact)) if kind is np.float64 else nearest(exact)
    below = near if Fraction(float(near)) <= exact else np.nextafter(near, kind(-np.inf))
    above = near if Fraction(float(near)) >= exact else np.nextafter(near, kind(np.inf))
    toward_zero = below if exact > 0 else above
    return float({"rn": near, "rz": toward_zero, "ru": above, "rd": below}[mode])


def nearest(exact: Fraction) -> np.floating[Any]:
    """float32, ties to even; through float64 it could round twice."""
    near = np.float32(float(exact))
    candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    odd = {x: struct.unpack("<I", struct.pack("<f", x))[0] & 1 for x in candidates}
    return min(candidates, key=lambda x: (abs(Fraction(float(x)) - exact), odd[x]))


def square_root(x: float, mode: str, kind: type[np.floating[Any]]) -> float:
    scaled = Fraction(abs(x)) * 4**200  # an integer square root of enough digits; its own error only breaks ties
    root = Fraction(math.isqrt(int(scaled)), 2**200)
    exact_square = root * root == Fraction(abs(x))
    return rounded(root if exact_square else root + Fraction(1, 2**201), mode, kind)


def stated_roundings(kind: type[np.floating[Any]], names: dict[str, str]) -> list[Row]:
    rows = []
    for mode in ("rn", "rz", "ru", "rd"):
        operations: dict[str, tuple[str, Callable[..., Fraction]]] = {
            "add": ("(a, b)", lambda a, b, c: Fraction(a) + Fraction(b)),
            "sub": ("(a, b)", lambda a, b, c: Fraction(a) - Fraction(b)),
            "mul": ("(a, b)", lambda a, b, c: Fraction(a) * Fraction(b)),
            "div": ("(a, b)", lambda a, b, c: Fraction(a) / Fraction(b)),
            "fma": ("(a, b, c)", lambda a, b, c: Fraction(a) * Fraction(b) + Fraction(c)),
            "rcp": ("(a)", lambda a, b, c: 1 / Fraction(a)),
        }
        for name, (arguments, exact) in operations.items():
            rows.append(
                Row(
                    f"{names[name]}_{mode}{arguments}",
                    lambda a, b, c, exact=exact, mode=mode: rounded(exact(a, b, c), mode, kind),
                )
            )
        rows.append(
            Row(f"{names['sqrt']}_{mode}({names['abs']}(a))", lambda a, b, c, mode=mode: square_root(a, mode, kind))
        )
    return rows


FLOAT_NAMES = {name: f"__f{name}" for name in ("add", "sub", "mul", "div", "rcp", "sqrt")}
FLOAT_NAMES |= {"fma": "__fmaf", "abs": "fabsf"}
DOUBLE_NAMES = {name: f"__d{name}" for name in ("add", "sub", "mul", "div", "rcp", "sqrt")}
DOUBLE_NAMES |= {"fma": "__fma", "abs": "fabs"}
TO_FLOAT = [
    Row(f"__double2float_{m}(a)", lambda a, b, c, m=m: rounded(Fraction(a), m, np.float32))
    for m in ("rn", "rz", "ru", "rd")
]


# ---- float to integer, integer to float -----------------------------------------------------------------------
def to_integer(x: float, mode: str, bits: int, signed: bool, from_double: bool) -> int:
    if math.isnan(x):
        value = 1 << bits - 1 if bits == 64 or from_double else 0
    else:
        x = min(max(x, -1e30), 1e30)  # infinities, which are no integers
        value = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}[mode](x)
        value = saturate(value, bits // 8, signed)
    return cut(value, bits, signed or bits == 64)  # the table's results are signed


def conversions(source: str) -> list[Row]:
    rows = []
    for name, bits, signed in (("int", 32, True), ("uint", 32, False), ("ll", 64, True), ("ull", 64, False)):
        for mode in ("rn", "rz", "ru", "rd"):
            rows.append(
                Row(
                    f"__{source}2{name}_{mode}(a)",
                    lambda a, b, c, args=(mode, bits, signed, source == "double"): to_integer(a, *args),
                )
            )
    return rows


INTEGER_TO_FLOAT = [
    Row(
        f"__{name}2float_{mode}(({c_type})a)", lambda a, b, c, cut=cut, m=mode: rounded(Fraction(cut(a)), m, np.float32)
    )
    for name, c_type, cut in (
        ("int", "int", s32),
        ("uint", "unsigned", u32),
        ("ll", "long long", s64),
        ("ull", "unsigned long long", u64),
    )
    for mode in ("rn", "rz", "ru", "rd")
]


# ---- functions ------------------------------------------------------------------------------------------------
def f(function: Callable[..., float]) -> Callable[..., float]:
    """The function of the table's a (and b), rounded to float32."""
    return lambda a, b, c: f32(function(a, b))


# Tolerances are those of a GPU's approximations (CUDA programming guide, mathematical functions).
FUNCTIONS = [
    Row("__sinf(a)", f(lambda a, b: math.sin(a)), 8, 4e-6),
    Row("__cosf(a)", f(lambda a, b: math.cos(a)), 8, 4e-6),
    Row("__tanf(a)", f(lambda a, b: math.tan(a)), 1 << 16, 1e-4),
    Row("__expf(a)", f(lambda a, b: math.exp(a)), 32),
    Row("__exp10f(a)", f(lambda a, b: 10.0**a), 64),
    Row("exp2f(a)", f(lambda a, b: 2.0**a), 4),
    Row("exp10f(a)", f(lambda a, b: 10.0**a), 4),
    Row("__logf(b)", f(lambda a, b: math.log(b)), 8, 1e-6),
    Row("__log2f(b)", f(lambda a, b: math.log2(b)), 8, 1e-6),
    Row("__log10f(b)", f(lambda a, b: math.log10(b)), 8, 1e-6),
    Row("__powf(b, a)", f(lambda a, b: b**a), 1 << 10),
    Row("__fdividef(a, b)", f(lambda a, b: a / b), 4),
    Row("fdividef(a, b)", f(lambda a, b: a / b), 4),
    Row("__saturatef(a)", f(lambda a, b: min(max(a, 0.0), 1.0)), 1),
    Row("rsqrtf(b)", f(lambda a, b: 1 / math.sqrt(b)), 4),
    Row("rsqrt(b)", f(lambda a, b: 1 / math.sqrt(b)), 4),
    Row("__frsqrt_rn(b)", f(lambda a, b: 1 / math.sqrt(b)), 1),
    Row("rcbrtf(b)", f(lambda a, b: b ** (-1 / 3)), 4),
    Row("sinpif(a)", f(lambda a, b: math.sin(math.pi * a)), 16),
    Row("cospif(a)", f(lambda a, b: math.cos(math.pi * a)), 16),
    Row("normcdff(a)", f(lambda a, b: 0.5 * math.erfc(-a / math.sqrt(2))), 16),
    Row("rhypotf(a, b)", f(lambda a, b: 1 / math.hypot(a, b)), 4),
    Row("norm3df(a, b, 2.0f)", f(lambda a, b: math.hypot(a, b, 2.0)), 4),
    Row("rnorm4df(a, b, 2.0f, 3.0f)", f(lambda a, b: 1 / math.hypot(a, b, 2.0, 3.0)), 4),
    Row("fminf(a, b) + fmaxf(a, b)", f(lambda a, b: a + b), 1),
    Row("min(a, b)", f(lambda a, b: min(a, b))),
    Row("max(a, 1.0)", f(lambda a, b: max(a, 1.0))),
    Row("sqrt(b)", f(lambda a, b: math.sqrt(b)), 1),
    Row("abs(a) + fabsf(a)", f(lambda a, b: 2 * abs(a)), 1),
    Row("tanhf(a) + __tanhf(a)", f(lambda a, b: 2 * math.tanh(a)), 1 << 14),
    Row("__int_as_float(__float_as_int(a))", f(lambda a, b: a)),
    Row("__uint_as_float(__float_as_uint(a) ^ 0x80000000u)", f(lambda a, b: -a)),
]

FLOATS = [spread(200, 4).astype(np.float32) for _ in range(3)]
CLOSE = [sign(spread(200, 1)).astype(np.float32) for sign in (np.positive, np.abs, np.positive)]
CONVERTED = np.concatenate([SPECIAL, spread(60, 10), RNG.integers(-50, 50, 30) + 0.5])
INTEGERS = RNG.integers(1, 1 << 62, 100, np.uint64) >> RNG.integers(0, 62, 100, np.uint64)
INTEGERS = np.concatenate([INTEGERS, ~INTEGERS[:20]])

TABLES = {
    **OF_INTEGERS,
    "float": Table("float", "float", FLOATS, stated_roundings(np.float32, FLOAT_NAMES)),
    "double": Table("double", "double", [spread(150, 6) for _ in range(3)], stated_roundings(np.float64, DOUBLE_NAMES)),
    "narrowing": Table("double", "float", [spread(150, 6)] * 3, TO_FLOAT),
    "float to integer": Table("float", "long long", [CONVERTED.astype(np.float32)] * 3, conversions("float")),
    "double to integer": Table("double", "long long", [CONVERTED] * 3, conversions("double")),
    "integer to float": Table("unsigned long long", "float", [INTEGERS] * 3, INTEGER_TO_FLOAT),
    "functions": Table("float", "float", CLOSE, FUNCTIONS),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_what_python_says(backend: str, table: str) -> None:
    TABLES[table].check(backend)
