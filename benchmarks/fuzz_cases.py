"""What benchmarks/fuzz.py tries: random expressions and small statements of CUDA C++, one for each seed.

What C++ leaves open and a GPU does not (a shift by the width or more, a cast out of range) stands at an expression's
root only, so that the two can be told apart lane by lane: :class:`OpenOp`. What is the compiler's choice everywhere is
not generated, as docs/emulator.md has it: division by 0, which of two products is joined with a sum, the bits of a NaN
read as an integer, and conclusions from a signed overflow (``a + 1 > a``). For that, signed numbers are added and
multiplied as unsigned ones wherever more is computed with the result. Nor is what a compiler makes wrong (the same
page): :meth:`Op.reads_apart` and :func:`_is_sum`.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

THREADS, BLOCKS, COPIES = 64, 4, 3  # of each type there are three variables
LANES = THREADS * BLOCKS
DEPTH = 4


class Type(NamedTuple):
    """``nan``: the bits of what is written for any NaN of a float."""

    name: str
    is_: str  # in C++, which has the name too
    bits: int
    signed: bool = False
    exponent: int = 0  # how many bits; 0: an integer
    nan: int = 0

    @property
    def is_integer(self) -> bool:
        return not self.exponent

    def wrap(self, value: int) -> int:
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        return (1 << (self.bits - self.signed)) - 1


I8, U8 = Type("i8", "signed char", 8, True), Type("u8", "unsigned char", 8)
I16, U16 = Type("i16", "short", 16, True), Type("u16", "unsigned short", 16)
I32, U32 = Type("i32", "int", 32, True), Type("u32", "unsigned", 32)
I64, U64 = Type("i64", "long long", 64, True), Type("u64", "unsigned long long", 64)
F32, F64 = Type("f32", "float", 32, True, 8, 0x7FFFFFFF), Type("f64", "double", 64, True, 11, (1 << 63) - 1)
F16, BF16 = Type("f16", "__half", 16, True, 5, 0x7FFF), Type("bf16", "__nv_bfloat16", 16, True, 8, 0x7FFF)
BOOL = Type("bool", "bool", 1)
INTEGERS, FLOATS = (I8, U8, I16, U16, I32, U32, I64, U64), (F32, F64)
SMALL = (F16, BF16)
WHOLE = INTEGERS[4:]
TYPES = {t.name: t for t in (*INTEGERS, *FLOATS, *SMALL, BOOL)}
INPUTS = (*INTEGERS, *FLOATS, *SMALL)


class Op(NamedTuple):
    """``value`` of Python numbers, a lane's operands or all lanes' (``of_a_warp``). ``wraps``: signed arithmetic whose
    overflow the compiler takes for impossible."""

    text: str
    takes: tuple[Type, ...]
    gives: Type
    value: Callable[..., Any] | None = None
    of_a_warp: bool = False
    wraps: bool = False
    product: bool = False
    joins: bool = False  # sums, in which a product below is rounded or not, and what only passes one on

    @property
    def reads_apart(self) -> bool:
        """Whether ptxas must not see where operands come from: it makes a signed conversion of an unsigned one if they
        are signed and narrower, and 0 of half of a constant where only the other half of a sum in a word is used."""
        return "__v" in self.text or (self.takes == (U32,) and not self.gives.is_integer)

    @property
    def is_negation(self) -> bool:
        return self.text == "(-{0})" and not self.gives.is_integer


class Expr(NamedTuple):
    """An operation; a leaf has none, but its text."""

    type: Type
    op: Op | None
    below: tuple[Expr, ...] = ()
    leaf: str = ""
    constant: float = 0  # of a leaf that is one

    def parts(self) -> Iterator[Expr]:
        yield self
        for part in self.below:
            yield from part.parts()


def promoted(t: Type) -> Type:
    return I32 if t.bits < 32 else t


def common(a: Type, b: Type) -> Type:
    """The type of ``a + b`` in C++."""
    a, b = promoted(a), promoted(b)
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return b if a.signed else a


# ---- operations of which there is one for each type ----
def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b or 1) * (1 if (a < 0) == ((b or 1) < 0) else -1)


def _f(t: Type) -> Any:
    return np.float32 if t is F32 else np.float64


def _in_common(t: Type, value: Callable[[int, int], Any]) -> Callable[..., Any]:
    return lambda a, b: value(t.wrap(a), t.wrap(b))


def _of_numbers(a: Any, b: Any, *, smaller: bool) -> Any:
    """A number wins over NaN, and -0 is smaller than 0."""
    if a != a or b != b:
        return b if a != a else a
    a_first = (a, not np.signbit(a)) < (b, not np.signbit(b))
    return a if a_first == smaller else b


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


def _integer_arithmetic() -> Iterator[tuple[str, Op]]:
    for a in INTEGERS:
        for b in INTEGERS:
            t = common(a, b)
            for sign, value in ARITHMETIC.items():
                yield "arithmetic", Op(f"({{0}} {sign} {{1}})", (a, b), t, value, wraps=t.signed and sign in "+-*")
            quotient = _in_common(t, _quotient)
            rest = _in_common(t, lambda a, b: a - (b or 1) * _quotient(a, b))
            yield "division", Op("({0} / nonzero({1}))", (a, b), t, quotient)
            yield "division", Op("({0} % nonzero({1}))", (a, b), t, rest)
            for sign, compare in COMPARISONS.items():
                yield "comparison", Op(f"({{0}} {sign} {{1}})", (a, b), BOOL, _in_common(t, compare))
            last = promoted(a).bits - 1
            left = lambda a, n, last=last: a << (n & last)  # noqa: E731
            right = lambda a, n, last=last: a >> (n & last)  # noqa: E731
            wraps = promoted(a).signed
            yield "shift", Op(f"({{0}} << ({{1}} & {last}))", (a, b), promoted(a), left, wraps=wraps)
            yield "shift", Op(f"({{0}} >> ({{1}} & {last}))", (a, b), promoted(a), right)
            yield "cast", Op(f"({a.name}){{0}}", (b,), a, lambda a: a)
        # Of an unsigned one apart: NVRTC negates what a cast to a byte would leave, and takes -(-128) for 128.
        minus = "(-{0})" if promoted(a).signed else "apart(-{0})"
        yield "unary", Op(minus, (a,), promoted(a), lambda a: -a, wraps=promoted(a).signed)
        yield "unary", Op("(~{0})", (a,), promoted(a), lambda a: ~a)
        yield "unary", Op("(!{0})", (a,), BOOL, lambda a: not a)
        # Apart: ptxas drops a conversion of 1 or 0 to half or bf16 in some kernels.
        yield "cast", Op(f"apart(({a.name}){{0}})", (BOOL,), a, int)
        yield "choice", Op("({0} ? {1} : {2})", (BOOL, a, a), a, lambda c, a, b: a if c else b)
    for a, b in ((I32, U32), (U32, I32), (I64, U64), (U64, I64), *zip(WHOLE, WHOLE, strict=True)):
        t = common(a, b)
        yield "min", Op("min({0}, {1})", (a, b), t, _in_common(t, min))
        yield "min", Op("max({0}, {1})", (a, b), t, _in_common(t, max))
    for sign, both in (("&&", lambda a, b: a and b), ("||", lambda a, b: a or b)):
        yield "logic", Op(f"({{0}} {sign} {{1}})", (BOOL, BOOL), BOOL, both)


def _float_arithmetic() -> Iterator[tuple[str, Op]]:
    for t in FLOATS:
        f = "f" if t is F32 else ""
        yield "arithmetic", Op("({0} + {1})", (t, t), t, lambda a, b: a + b, joins=True)
        yield "arithmetic", Op("({0} - {1})", (t, t), t, lambda a, b: a - b, joins=True)
        yield "arithmetic", Op("MUL({0}, {1})", (t, t), t, lambda a, b: a * b, product=True)
        yield "division", Op("({0} / {1})", (t, t), t, lambda a, b: a / b)
        yield "unary", Op("(-{0})", (t,), t, lambda a: -a, joins=True)
        yield "choice", Op("({0} ? {1} : {2})", (BOOL, t, t), t, lambda c, a, b: a if c else b, joins=True)
        for text in (
            "(MUL({0}, {1}) + {2})",
            "(MUL({0}, {1}) - {2})",
            "({2} - MUL({0}, {1}))",
            "({2} + MUL({0}, {1}))",
            "(-MUL({0}, {1}) + {2})",
        ):
            yield "fused", Op(text, (t, t, t), t, joins=True)
        for sign, compare in COMPARISONS.items():
            yield "comparison", Op(f"({{0}} {sign} {{1}})", (t, t), BOOL, compare)
        for name in ("isnan", "isinf", "isfinite"):
            yield "classes", Op(f"(bool){name}({{0}})", (t,), BOOL, getattr(np, name))
        yield "classes", Op("(bool)signbit(number({0}))", (t,), BOOL)
        for name in ("sqrt", "trunc", "floor", "ceil", "rint"):
            yield "round", Op(f"{name}{f}({{0}})", (t,), t, getattr(np, name))
        yield "round", Op(f"nearbyint{f}({{0}})", (t,), t, np.rint)
        yield "round", Op(f"round{f}({{0}})", (t,), t)
        yield "round", Op(f"fabs{f}({{0}})", (t,), t, abs)
        for name in ("fmod", "nextafter"):
            yield "rest", Op(f"{name}{f}({{0}}, {{1}})", (t, t), t, getattr(np, name))
        for name in ("remainder", "fdim"):
            yield "rest", Op(f"{name}{f}({{0}}, {{1}})", (t, t), t)
        yield "rest", Op(f"copysign{f}({{0}}, number({{1}}))", (t, t), t)
        yield "rest", Op(f"ldexp{f}({{0}}, {{1}})", (t, I16), t)
        yield "rest", Op(f"ilogb{f}(number({{0}}))", (t,), I32)
        for name in (f"fmin{f}", "min", f"fmax{f}", "max"):
            yield "min", Op(f"{name}({{0}}, {{1}})", (t, t), t, partial(_of_numbers, smaller="min" in name))
        yield "fused", Op(f"fma{f}({{0}}, {{1}}, {{2}})", (t, t, t), t)
        for a in INTEGERS:
            yield "cast", Op(f"({t.name}){{0}}", (a,), t, int)
            low, high = float(_f(t)(a.lowest - 1)), 2.0 ** (a.bits - a.signed)
            yield "to integer", Op(f"({a.name})inside({{0}}, {t.name}({low!r}), {t.name}({high!r}))", (t,), a)
    yield "cast", Op("(float){0}", (F64,), F32, np.float32)
    yield "cast", Op("(double){0}", (F32,), F64, np.float64)
    d, r = ("rn", "rz", "ru", "rd"), WHOLE
    for mode in d:
        for name in ("fadd", "fsub", "fmul", "fdiv"):
            yield "rounded", Op(f"__{name}_{mode}({{0}}, {{1}})", (F32, F32), F32)
        for name in ("dadd", "dsub", "dmul", "ddiv"):
            yield "rounded", Op(f"__{name}_{mode}({{0}}, {{1}})", (F64, F64), F64)
        yield "rounded", Op(f"__fmaf_{mode}({{0}}, {{1}}, {{2}})", (F32, F32, F32), F32)
        yield "rounded", Op(f"__fma_{mode}({{0}}, {{1}}, {{2}})", (F64, F64, F64), F64)
        for name, t in (("frcp", F32), ("fsqrt", F32), ("drcp", F64), ("dsqrt", F64)):
            yield "rounded", Op(f"__{name}_{mode}({{0}})", (t,), t)
        yield "rounded", Op(f"__double2float_{mode}({{0}})", (F64,), F32)
        for a, name in zip(r, ("int", "uint", "ll", "ull"), strict=True):
            yield "rounded", Op(f"__{name}2float_{mode}({{0}})", (a,), F32)
            yield "to integer", Op(f"__float2{name}_{mode}({{0}})", (F32,), a)
            yield "to integer", Op(f"__double2{name}_{mode}({{0}})", (F64,), a)
        yield "rounded", Op(f"__ll2double_{mode}({{0}})", (I64,), F64)
        yield "rounded", Op(f"__ull2double_{mode}({{0}})", (U64,), F64)


def _small_floats() -> Iterator[tuple[str, Op]]:
    for t, name in ((F16, "half"), (BF16, "bfloat16")):
        for call in (
            "__hadd",
            "__hsub",
            "__hmul_rn",
            "__hadd_sat",
            "__hsub_sat",
            "__hmul_sat",
            "__hmax",
            "__hmin",
            "__hmax_nan",
            "__hmin_nan",
        ):
            yield "arithmetic", Op(f"{call}({{0}}, {{1}})", (t, t), t)
        yield "arithmetic", Op("({0} + {1})", (t, t), t)
        yield "arithmetic", Op("({0} - {1})", (t, t), t)
        yield "division", Op("({0} / {1})", (t, t), t)
        yield "unary", Op("(-{0})", (t,), t)
        yield "unary", Op("__habs({0})", (t,), t)
        for call in ("__hfma", "__hfma_sat", "__hfma_relu"):
            yield "fused", Op(f"{call}({{0}}, {{1}}, {{2}})", (t, t, t), t)
        for sign in COMPARISONS:
            yield "comparison", Op(f"({{0}} {sign} {{1}})", (t, t), BOOL)
        for call in ("__hltu", "__hleu", "__hgtu", "__hgeu", "__hequ", "__hneu"):
            yield "comparison", Op(f"{call}({{0}}, {{1}})", (t, t), BOOL)
        yield "choice", Op("({0} ? {1} : {2})", (BOOL, t, t), t)
        for call in ("htrunc", "hceil", "hfloor", "hrint"):
            yield "round", Op(f"{call}({{0}})", (t,), t)
        yield "cast", Op(f"__{name}2float({{0}})", (t,), F32)
        yield "cast", Op(f"__double2{name}({{0}})", (F64,), t)
        for mode in ("rn", "rz", "ru", "rd"):
            yield "cast", Op(f"__float2{name}_{mode}({{0}})", (F32,), t)
            for a, from_ in zip(INTEGERS[2:], ("short", "ushort", "int", "uint", "ll", "ull"), strict=True):
                yield "cast", Op(f"__{from_}2{name}_{mode}({{0}})", (a,), t)
                yield "to integer", Op(f"__{name}2{from_}_{mode}({{0}})", (t,), a)
    for form in ("e4m3", "e5m2"):
        for t in (*FLOATS, *SMALL):
            yield "cast", Op(f"(float)__nv_fp8_{form}({{0}})", (t,), F32)
        yield "cast", Op(f"(unsigned char)__nv_fp8_{form}(number({{0}})).__x", (F32,), U8)
        yield "cast", Op(f"float(fp8<__nv_fp8_{form}>({{0}}))", (U8,), F32)


# ---- intrinsics, as "result name(operands)", and what Python says of some ----
def _signed(bits: int, value: int) -> int:
    return (value & (1 << bits) - 1) - ((value >> (bits - 1) & 1) << bits)


def _bytes_of(x: int, y: int, selector: int) -> int:
    both = y << 32 | x
    return sum((both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i for i in range(4))


def _lanes(bits: int, value: Callable[[int, int], int], signed: bool) -> Callable[[int, int], int]:
    def all_lanes(a: int, b: int) -> int:
        mask, result = (1 << bits) - 1, 0
        for at in range(0, 32, bits):
            x, y = (_signed(bits, w >> at) if signed else w >> at & mask for w in (a, b))
            result |= (value(x, y) & mask) << at
        return result

    return all_lanes


INTRINSICS: dict[str, Callable[..., Any] | None] = {
    "i32 __popc(u32)": lambda a: a.bit_count(),
    "i32 __popcll(u64)": lambda a: a.bit_count(),
    "i32 __clz(i32)": lambda a: 32 - (a & 0xFFFFFFFF).bit_length(),
    "i32 __clzll(i64)": lambda a: 64 - (a & (1 << 64) - 1).bit_length(),
    "i32 __ffs(i32)": lambda a: (a & -a).bit_length(),
    "i32 __ffsll(i64)": lambda a: (a & -a).bit_length(),
    "u32 __brev(u32)": lambda a: int(f"{a:032b}"[::-1], 2),
    "u64 __brevll(u64)": lambda a: int(f"{a:064b}"[::-1], 2),
    "u32 __byte_perm(u32, u32, u32)": _bytes_of,
    "u32 __funnelshift_l(u32, u32, u32)": lambda lo, hi, n: (hi << 32 | lo) << (n & 31) >> 32,
    "u32 __funnelshift_r(u32, u32, u32)": lambda lo, hi, n: (hi << 32 | lo) >> (n & 31),
    "u32 __funnelshift_lc(u32, u32, u32)": lambda lo, hi, n: (hi << 32 | lo) << min(n, 32) >> 32,
    "u32 __funnelshift_rc(u32, u32, u32)": lambda lo, hi, n: (hi << 32 | lo) >> min(n, 32),
    "i32 __mulhi(i32, i32)": lambda a, b: a * b >> 32,
    "u32 __umulhi(u32, u32)": lambda a, b: a * b >> 32,
    "i64 __mul64hi(i64, i64)": lambda a, b: a * b >> 64,
    "u64 __umul64hi(u64, u64)": lambda a, b: a * b >> 64,
    "i32 __mul24(i32, i32)": lambda a, b: _signed(24, a) * _signed(24, b),
    "u32 __umul24(u32, u32)": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "u32 __sad(i32, i32, u32)": lambda a, b, c: abs(a - b) + c,
    "u32 __usad(u32, u32, u32)": lambda a, b, c: abs(a - b) + c,
    "i32 __hadd(i32, i32)": lambda a, b: a + b >> 1,
    "i32 __rhadd(i32, i32)": lambda a, b: a + b + 1 >> 1,
    "u32 __uhadd(u32, u32)": lambda a, b: a + b >> 1,
    "u32 __urhadd(u32, u32)": lambda a, b: a + b + 1 >> 1,
    "i32 __dp4a(i32, i32, i32)": lambda a, b, c: (
        c + sum(_signed(8, a >> i) * _signed(8, b >> i) for i in (0, 8, 16, 24))
    ),
    "u32 __dp4a(u32, u32, u32)": lambda a, b, c: c + sum((a >> i & 255) * (b >> i & 255) for i in (0, 8, 16, 24)),
    "i32 __dp2a_lo(i32, i32, i32)": None,
    "u32 __dp2a_hi(u32, u32, u32)": None,
    "i32 abs(i32)": lambda a: abs(max(a, I32.lowest + 1)),
    "i64 llabs(i64)": lambda a: abs(max(a, I64.lowest + 1)),
    "u32 __vadd2(u32, u32)": _lanes(16, lambda x, y: x + y, True),
    "u32 __vsub4(u32, u32)": _lanes(8, lambda x, y: x - y, True),
    "u32 __vaddss2(u32, u32)": _lanes(16, lambda x, y: max(-(1 << 15), min((1 << 15) - 1, x + y)), True),
    "u32 __vsubus4(u32, u32)": _lanes(8, lambda x, y: max(0, x - y), False),
    "u32 __vavgu4(u32, u32)": _lanes(8, lambda x, y: x + y + 1 >> 1, False),
    "u32 __vmaxs4(u32, u32)": _lanes(8, max, True),
    "u32 __vminu2(u32, u32)": _lanes(16, min, False),
    "u32 __vabsdiffu4(u32, u32)": _lanes(8, lambda x, y: abs(x - y), False),
    "u32 __vabsdiffs2(u32, u32)": _lanes(16, lambda x, y: abs(x - y), True),
    "u32 __vcmpgts2(u32, u32)": _lanes(16, lambda x, y: -(x > y), True),
    "u32 __vcmpeq4(u32, u32)": _lanes(8, lambda x, y: -(x == y), False),
    "u32 __vsetltu4(u32, u32)": _lanes(8, lambda x, y: x < y, False),
    "u32 __vneg2(u32)": None,
    "u32 __vabsss4(u32)": None,
    "u32 __vsads4(u32, u32)": None,
    "u32 __vsadu2(u32, u32)": None,
    "i32 __vimax3_s32(i32, i32, i32)": lambda *of: max(of),
    "u32 __vimin3_u32(u32, u32, u32)": lambda *of: min(of),
    "u32 __viaddmax_u32(u32, u32, u32)": lambda a, b, c: max(a + b & 0xFFFFFFFF, c),
    "i32 __vimin_s32_relu(i32, i32)": lambda a, b: max(0, min(a, b)),
    "f32 __saturatef(f32)": None,
    "i32 __double2hiint(f64)": None,
    "f64 __hiloint2double(i32, i32)": None,
    "f32 __int_as_float(i32)": None,
    "f32 __uint_as_float(u32)": None,
    "f64 __longlong_as_double(i64)": None,
    "f16 __ushort_as_half(u16)": None,
    "bf16 __ushort_as_bfloat16(u16)": None,
}
_GIVEN = {
    "i32 __double2hiint(f64)": "number({})",  # it shows the bits of a NaN
    "i32 abs(i32)": "above_lowest({})",  # else it overflows
    "i64 llabs(i64)": "above_lowest({})",
}


def _intrinsics() -> Iterator[tuple[str, Op]]:
    for signature, value in INTRINSICS.items():
        gives, name, takes = re.fullmatch(r"(\w+) (\w+)\((.*)\)", signature).groups()  # type: ignore[union-attr]
        types = tuple(TYPES[t] for t in takes.split(", "))
        form = _GIVEN.get(signature, "{}")
        text = ", ".join(form.format(f"{{{i}}}") for i in range(len(types)))
        # ptxas takes 0 for the constant of which it is made where half of the result is used.
        whole = "apart({})" if name == "__vneg2" else "{}"
        yield "intrinsic", Op(whole.format(f"{name}({text})"), types, TYPES[gives], value)
    for t, name in ((U32, "__float_as_uint"), (I32, "__float_as_int")):
        yield "bits", Op(f"{name}(number({{0}}))", (F32,), t)
    yield "bits", Op("__double_as_longlong(number({0}))", (F64,), I64)
    yield "bits", Op("__half_as_ushort(number({0}))", (F16,), U16)
    yield "bits", Op("__bfloat16_as_ushort(number({0}))", (BF16,), U16)


def _of_warps() -> Iterator[tuple[str, Op]]:
    def from_lane(width: int, source: Callable[[int, int], int]) -> Callable[..., Any]:
        """``source(lane in its part, operand)``; outside of the part a lane keeps its own."""

        def value(values: Sequence[Any], other: Sequence[int]) -> list[Any]:
            taken = []
            for lane, (own, operand) in enumerate(zip(values, other, strict=True)):
                at, first = source(lane % width, operand), lane - lane % width
                taken.append(values[first + at] if 0 <= at < width else own)
            return taken

        return value

    def voted(value: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
        return lambda lanes: [value(lanes)] * len(lanes)

    for t in (*WHOLE, *FLOATS, *SMALL):
        for w in (4, 16, 32):
            yield (
                "warp",
                Op(f"__shfl_sync(~0u, {{0}}, {{1}}, {w})", (t, I32), t, from_lane(w, lambda _, n, w=w: n % w), True),
            )
            yield (
                "warp",
                Op(
                    f"__shfl_up_sync(~0u, {{0}}, {{1}} & 31u, {w})",
                    (t, U32),
                    t,
                    from_lane(w, lambda i, n: i - (n & 31)),
                    True,
                ),
            )
            yield (
                "warp",
                Op(
                    f"__shfl_down_sync(~0u, {{0}}, {{1}} & 31u, {w})",
                    (t, U32),
                    t,
                    from_lane(w, lambda i, n: i + (n & 31)),
                    True,
                ),
            )
        yield (
            "warp",
            Op("__shfl_xor_sync(~0u, {0}, {1} & 31)", (t, I32), t, from_lane(32, lambda i, n: i ^ (n & 31)), True),
        )
    yield (
        "warp",
        Op("__ballot_sync(~0u, {0})", (I32,), U32, voted(lambda v: sum(bool(x) << i for i, x in enumerate(v))), True),
    )
    yield "warp", Op("__any_sync(~0u, {0})", (BOOL,), I32, voted(lambda v: int(any(v))), True)
    yield "warp", Op("__all_sync(~0u, {0})", (BOOL,), I32, voted(lambda v: int(all(v))), True)
    for t in WHOLE:
        match = lambda v: [sum((x == y) << i for i, x in enumerate(v)) for y in v]  # noqa: E731
        yield "warp", Op("__match_any_sync(~0u, {0})", (t,), U32, match, True)
        yield "warp", Op("match_all({0})", (t,), U32, voted(lambda v: (1 << 32) - 1 if len(set(v)) == 1 else 0), True)
    for t in (I32, U32):
        for name, reduce in (("add", sum), ("min", min), ("max", max)):
            yield "warp", Op(f"__reduce_{name}_sync(~0u, {{0}})", (t,), t, voted(reduce), True)
    for name in ("and", "or", "xor"):
        yield "warp", Op(f"__reduce_{name}_sync(~0u, {{0}})", (U32,), U32, None, True)
    yield "warp", Op("__syncthreads_count({0})", (BOOL,), I32, None, True)


OPERATIONS: dict[Type, dict[str, list[Op]]] = {}
for _source in (_integer_arithmetic, _float_arithmetic, _small_floats, _intrinsics, _of_warps):
    for _family, _op in _source():
        OPERATIONS.setdefault(_op.gives, {}).setdefault(_family, []).append(_op)


# ---- from a seed to a case ----
@dataclass(frozen=True)
class Case:
    """``code``: the statements of a function, on one line; ``results``: the types that it puts, in this order.

    ``open``: of a shift or cast which C++ leaves open for some operands, what a GPU is said to give for two operands,
    the case's further results, or None.
    """

    seed: int
    code: str
    results: tuple[Type, ...]
    roots: tuple[Expr, ...]
    open: Callable[[Any, Any], int | None] | None = None
    is_expression: bool = False


def _leaf(r: random.Random, t: Type) -> Expr:
    if t is BOOL:
        of = r.choice(INTEGERS)
        op = r.choice([op for op in OPERATIONS[BOOL]["comparison"] if op.takes == (of, of)])
        return Expr(BOOL, op, (_leaf(r, of), _leaf(r, of)))
    if t in SMALL or r.random() < 0.75:
        return _variable(r, t)
    if t in FLOATS:
        value = r.choice((0.0, 1.0, -3.0, 0.5, 2.0, 3.0, 1e-3, -7.25, 16777216.0, 3e9, 1e-40, 1e30))
        return Expr(t, None, leaf=f"{t.name}({value!r})", constant=value)
    value = r.choice(
        (
            0,
            1,
            2,
            3,
            7,
            t.lowest,
            t.highest,
            t.highest // 2 + 1,
            t.wrap(-1),
            r.randrange(256),
            t.wrap(r.getrandbits(64)),
        )
    )
    value = t.wrap(value)
    suffix = {U32: "u", I64: "ll", U64: "ull"}.get(t, "")
    text = f"{value + 1}{suffix} - 1" if value == t.lowest and t.signed else f"{value}{suffix}"
    return Expr(t, None, leaf=f"{t.name}({text})", constant=value)


def _variable(r: random.Random, t: Type) -> Expr:
    return Expr(t, None, leaf=f"v.{t.name}{'abc'[r.randrange(COPIES)]}")


def _grow(r: random.Random, t: Type, depth: int, *, warps: bool, own: Expr | None = None) -> Expr:
    """``own``: a variable of the statement's, which stands for some leaves."""
    if depth <= 0 or r.random() < 0.15:
        return own if own is not None and own.type == t and r.random() < 0.7 else _leaf(r, t)
    return _operation(r, t, depth, warps=warps, own=own)


def _operation(r: random.Random, t: Type, depth: int, *, warps: bool, own: Expr | None = None) -> Expr:
    families = [name for name in OPERATIONS[t] if warps or name != "warp"]
    (family,) = r.choices(families, [math.sqrt(len(OPERATIONS[t][name])) for name in families])
    op = r.choice(OPERATIONS[t][family])
    below = []
    for i, type_ in enumerate(op.takes):
        all_lanes = warps and not (i and family in ("choice", "logic"))
        # What is joined with a product is there before it: a branch between the two would be the compiler's choice.
        shallow = family == "fused" and op.joins and i == 2
        below.append(_grow(r, type_, 0 if shallow else depth - 1, warps=all_lanes, own=own))
    return Expr(t, op, tuple(below))


def _is_fused(op: Op) -> bool:
    return op.joins and len(op.takes) == 3 and op.takes[0] is not BOOL


def _folds(*factors: Expr) -> bool:
    """Whether nvcc may multiply by a constant within another operation, in the arms of its branches, before the sum."""
    constant = [not any(part.leaf.startswith("v.") for part in factor.parts()) for factor in factors]
    return any(constant) and any(factor.op is not None for factor in factors)


def _is_sum(e: Expr) -> bool:
    """Whose negation g++ may compute as ``-(a * b) - c``, which has another sign where it is 0."""
    return e.op is not None and (e.op.joins or e.op.text.startswith("fma"))


class Writer:
    """The text of expressions that stand in one function."""

    def __init__(self, *roots: Expr) -> None:
        below = (e for root in roots for e in root.parts())
        self._products = Counter(frozenset(e.below[:2]) for e in below if e.op and (e.op.product or _is_fused(e.op)))

    def __call__(self, root: Expr, *, goes_on: bool = True) -> str:
        """``goes_on``: more is computed with it."""
        return self._text(root, is_whole=not goes_on, joined=False)

    def _text(self, e: Expr, *, is_whole: bool, joined: bool) -> str:
        op = e.op
        if op is None:
            return e.leaf
        form, rounded = op.text, "__fmul_rn({}, {})" if e.type is F32 else "__dmul_rn({}, {})"
        if op.product and (joined or self._products[frozenset(e.below)] > 1):
            form = rounded.format("{0}", "{1}")
        elif _is_fused(op) and _folds(*e.below[:2]):
            form = form.replace("MUL({0}, {1})", rounded.format("{0}", "{1}"))
        elif op.is_negation and _is_sum(e.below[0]):
            form = rounded.format("{0}", "-1")
        elif op.wraps and not (is_whole and all(b.leaf.startswith("v.") for b in e.below)):
            form = f"{e.type.name}" + re.sub(r"\{(\d)\}", rf"u{e.type.bits}({{\1}})", op.text)
        if not op.joins:
            joins = [False] * len(e.below)
        elif _is_fused(op):
            joins = [False, False, True]
        else:
            joins = [joined or len(e.below) == 2] * len(e.below)
        parts = [self._text(b, is_whole=False, joined=j) for b, j in zip(e.below, joins, strict=True)]
        return form.format(*(f"apart({part})" for part in parts) if op.reads_apart else parts)


def _put(*texts: str) -> str:
    return " ".join(f"put(o, {i}, {text});" for i, text in enumerate(texts))


class OpenOp(Op):
    """A shift by any amount, or a cast of any value, of which C++ says nothing for some operands."""

    def on_gpu(self, value: Any, amount: Any) -> int | None:
        """What a GPU is said to give, or None where C++ says it. ``amount``: of a shift."""
        if len(self.takes) == 2:
            return _shifted(self.gives, value, amount, to_left="<<" in self.text)
        return _cast(self.gives, self.takes[0], float(value))


def _shifted(t: Type, value: int, amount: int, *, to_left: bool) -> int | None:
    if 0 <= amount < t.bits:
        return None
    amount &= 0xFFFFFFFF  # the instruction takes 32 bits
    if amount < t.bits:
        return t.wrap(value << amount if to_left else value >> amount)
    return -1 if not to_left and value < 0 else 0


def _cast(t: Type, of: Type, value: float) -> int | None:
    """By an instruction of 32 or 64 bits, which saturates; a smaller type has its low bits."""
    if math.isfinite(value) and t.lowest <= math.trunc(value) <= t.highest:
        return None
    wide = Type("", "", max(32, t.bits), t.signed)
    if math.isnan(value):
        return 0 if wide.bits == of.bits == 32 else t.wrap(1 << (wide.bits - 1))
    nearest = max(float(wide.lowest), min(float(wide.highest), value))
    return t.wrap(max(wide.lowest, min(wide.highest, math.trunc(nearest))))


def expression(seed: int, root: Expr) -> Case:
    """The case of one expression, as :func:`case` makes it and as the parts of a failing one are tried."""
    if not isinstance(root.op, OpenOp):
        return Case(seed, _put(Writer(root)(root, goes_on=False)), (root.type,), (root,), is_expression=True)
    operands = (root.below[0], root.below[-1])
    text = Writer(root, *operands)
    code = _put(text(root), *map(text, operands))
    types = (root.type, *(e.type for e in operands))
    return Case(seed, code, types, (root,), root.op.on_gpu, is_expression=True)


def case(seed: int) -> Case:
    """The same for a seed everywhere."""
    r = random.Random(seed)
    kind = r.random()
    if kind < 0.06:
        t, n, sign = r.choice(INTEGERS), r.choice(INTEGERS), r.choice(("<<", ">>"))
        op = OpenOp(f"({{0}} {sign} {{1}})", (t, n), promoted(t))
        return expression(seed, Expr(op.gives, op, (_grow(r, t, 2, warps=True), _variable(r, n))))
    if kind < 0.12:
        t, of = r.choice(INTEGERS), r.choice(FLOATS)
        return expression(seed, Expr(t, OpenOp(f"({t.name}){{0}}", (of,), t), (_grow(r, of, 2, warps=True),)))
    if kind < 0.75:
        return expression(seed, _operation(r, r.choice(INPUTS), r.randint(1, DEPTH), warps=True))
    return r.choice(STATEMENTS)(seed, r)


def _loop(seed: int, r: random.Random) -> Case:
    t = r.choice(INTEGERS)
    first, n = _grow(r, t, 2, warps=True), _grow(r, r.choice(INTEGERS), 1, warps=True)
    step = _operation(r, t, 3, warps=False, own=Expr(t, None, leaf="x"))
    text = Writer(first, n, step)
    turns = f"const int n = {text(n)} & 7; for (int i = 0; i < n; i++) x = {text(step)};"
    return Case(seed, f"{t.name} x = {text(first)}; {turns} {_put('x')}", (t,), (first, n))


def _local_array(seed: int, r: random.Random) -> Case:
    t = r.choice(INPUTS)
    items = [_grow(r, t, 2, warps=True) for _ in range(4)]
    at, read = (_grow(r, r.choice(INTEGERS), 2, warps=True) for _ in range(2))
    text = Writer(*items, at, read)
    filled = f"{t.name} x[4] = {{{', '.join(map(text, items))}}}; x[{text(at)} & 3] = x[0];"
    return Case(seed, f"{filled} {_put(f'x[{text(read)} & 3]')}", (t,), (*items, at, read))


# Lanes of a warp, and how one of them names another
PARTS = (("0xffffu", "lane() < 16", "{} & 15"), ("0xaaaaaaaau", "lane() & 1", "{} | 1"))


def _branch(seed: int, r: random.Random) -> Case:
    """Some lanes of a warp shuffle or vote, the others compute."""
    t = r.choice(WHOLE)
    mask, condition, asked = r.choice(PARTS)
    voted = [op for op in OPERATIONS[t]["warp"] if op.text.count("~0u") == 1 and "shfl" not in op.text]
    op = r.choice([*voted, Op(f"__shfl_sync(~0u, {{0}}, {asked.format('{1}')})", (t, I32), t)])
    operands, other = [_grow(r, type_, 2, warps=False) for type_ in op.takes], _grow(r, t, 2, warps=False)
    text = Writer(*operands, other)
    together = op.text.replace("~0u", mask).format(*map(text, operands))
    code = f"{t.name} x; if ({condition}) x = {together}; else x = {text(other)}; __syncwarp(); {_put('x')}"
    return Case(seed, code, (t,), (*operands, other))


def _exchange(seed: int, r: random.Random) -> Case:
    t = r.choice(INPUTS)
    value = _grow(r, t, 2, warps=True)
    filled = f"__shared__ {t.name} s[{THREADS}]; s[threadIdx.x] = {Writer(value)(value)}; __syncthreads();"
    return Case(seed, f"{filled} {_put(f's[threadIdx.x ^ {r.randrange(THREADS)}]')}", (t,), (value,))


_EVERY = ("And", "Or", "Xor")
ATOMICS: dict[Type, tuple[str, ...]] = {
    I32: ("Add", "Sub", "Min", "Max", "Exch", "CAS", *_EVERY),
    U32: ("Add", "Sub", "Inc", "Dec", "Min", "Max", "Exch", "CAS", *_EVERY),
    I64: ("Min", "Max", *_EVERY),
    U64: ("Add", "Min", "Max", "Exch", "CAS", *_EVERY),
    F32: ("Add", "Exch"),
    F64: ("Add",),
    F16: ("Add",),
    BF16: ("Add",),
    U16: ("CAS",),
}


def _atomics_alone(seed: int, r: random.Random) -> Case:
    """Several on a word of the thread's own, in global or in shared memory."""
    t = r.choice(list(ATOMICS))
    in_shared = f"__shared__ {t.name} s[{THREADS}]; {t.name}* c = s + threadIdx.x;"
    names = r.choices(ATOMICS[t], k=r.randint(1, 3))
    first = _grow(r, t, 1, warps=True)
    taken = [[_grow(r, t, 1, warps=True) for _ in range(1 + (name == "CAS"))] for name in names]
    text = Writer(first, *(e for some in taken for e in some))
    calls = []
    for name, some in zip(names, taken, strict=True):
        given = [text(e) for e in some]
        if name == "CAS" and r.random() < 0.5:
            given[0] = "*c"
        scope = r.choice(("", "", "_block", "_system")) if t.bits > 16 else ""
        if name == "Sub":
            given = [f"apart({given[0]})"]
        calls.append(f"atomic{name}{scope}(c, {', '.join(given)})")
    where = r.choice((in_shared, f"{t.name}* c = ({t.name}*)cell;"))
    code = f"{where} *c = {text(first)}; {_put(*calls, '*c')}"
    return Case(seed, code, (t,) * (len(calls) + 1), (first, *(e for some in taken for e in some)))


def _atomics_together(seed: int, r: random.Random) -> Case:
    """All threads of a block on one word, whose end does not depend on their order."""
    t = r.choice(WHOLE)
    name = r.choice([name for name in ATOMICS[t] if name not in ("Exch", "CAS")])
    first, value = _leaf(r, t), _grow(r, t, 2, warps=True)
    text = Writer(first, value)
    around = {"Inc": "of_first({})", "Dec": "of_first({})", "Sub": "apart({})"}.get(name, "{}")
    each = around.format(text(value))
    before = f"__shared__ {t.name} s; if (threadIdx.x == 0) s = {text(first)}; const {t.name} x = {each};"
    code = f"{before} __syncthreads(); atomic{name}(&s, x); __syncthreads(); {_put('s')}"
    return Case(seed, code, (t,), (first, value))


STATEMENTS: tuple[Callable[[int, random.Random], Case], ...] = (
    _loop, _local_array, _branch, _exchange, _atomics_alone, _atomics_alone, _atomics_together,
)  # fmt: skip


# ---- what a batch of cases is compiled from, and given ----
_VARIABLES = [f"{t.name}{'abc'[i]}" for t in INPUTS for i in range(COPIES)]
_HEAD = f"""#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
{"".join(f"typedef {t.is_} {t.name};{chr(10)}" for t in INPUTS)}
#define MUL(a, b) ((a) * (b))
__device__ float rounded(float a, float b) {{ return __fmul_rn(a, b); }}
__device__ double rounded(double a, double b) {{ return __dmul_rn(a, b); }}
struct In {{ {" ".join(f"{name[:-1]} {name};" for name in _VARIABLES)} }};
__device__ u64 bits(bool x) {{ return x; }}
{"".join(f"__device__ u64 bits({t.name} x) {{ return (u{t.bits})x; }}{chr(10)}" for t in INTEGERS)}
__device__ u64 bits(float x) {{ return __float_as_uint(x); }}
__device__ u64 bits(double x) {{ return (u64)__double_as_longlong(x); }}
__device__ u64 bits(__half x) {{ return __half_as_ushort(x); }}
__device__ u64 bits(__nv_bfloat16 x) {{ return __bfloat16_as_ushort(x); }}
template <typename T> __device__ void put(u64* o, int i, T x) {{ o[i * {LANES}] = bits(x); }}
template <typename T> __device__ T nonzero(T x) {{ return x == T(0) ? T(1) : x; }}
__constant__ u32 zero;
template <typename T> __device__ T apart(T x) {{ return x ^ zero; }}
template <typename T> __device__ T above_lowest(T x) {{ return x < -T(~0ull >> (65 - 8 * sizeof(T))) ? x + 1 : x; }}
template <typename T> __device__ T number(T x) {{ return x == x ? x : T(2.5f); }}
template <typename T> __device__ T inside(T x, T low, T high) {{ return x > low && x < high ? x : T(1); }}
template <typename T> __device__ T fp8(u8 x) {{ T y; y.__x = x; return y; }}
template <typename T> __device__ T of_first(T x) {{
    __shared__ T s;
    if (threadIdx.x == 0) s = x;
    __syncthreads();
    x = s;
    __syncthreads();
    return x;
}}
template <typename T> __device__ unsigned match_all(T x) {{ int all; return __match_all_sync(~0u, x, &all); }}
__device__ int lane() {{ return threadIdx.x & 31; }}
"""
FIRST_LINE = _HEAD.count("\n") + 1


def source(cases: Sequence[Case], *, rounded: bool = False) -> str:
    """A kernel ``fuzz`` with a function for each case, on a line of its own: case i is on line ``FIRST_LINE + i``.

    ``rounded``: products are, so that no compiler joins one with a sum.
    """
    functions, calls, at = [], [], 0
    for i, c in enumerate(cases):
        functions.append(f"__device__ __noinline__ void case{i}(const In& v, u64* o, u64* cell) {{ {c.code} }}\n")
        calls.append(f"    case{i}(in[i], out + {at * LANES} + i, cells + i); __syncthreads();\n")
        at += len(c.results)
    head = 'extern "C" __global__ void fuzz(const In* in, u64* out, u64* cells) {\n'
    index = f"    const int i = blockIdx.x * {THREADS} + threadIdx.x;\n"
    top = _HEAD.replace("((a) * (b))", "rounded(a, b)") if rounded else _HEAD
    return "".join([top, *functions, head, index, *calls, "}\n"])


# fmt: off
_FLOAT_EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 127.5, 255.0, math.inf, -math.inf, math.nan,
    448.0, 464.0, 65504.0, 65520.0, 57344.0, 61440.0, 2.0**-24, 2.0**-25, 2.0**-9, 2.0**-16, 2.0**-17, 6e-8,
    16777217.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64,
    3.4028235e38, -3.4028235e38, 1.1754944e-38, 5.877472e-39, 1e-45, 1e300, 5e-324,
)
# fmt: on


def _given(r: random.Random, t: Type) -> int:
    """The bits of a value: an edge, a small one, or any."""
    kind = r.random()
    if t.is_integer:
        if kind < 0.3:
            near = r.choice((0, t.lowest, t.highest, 1 << r.randrange(t.bits), -(1 << r.randrange(t.bits))))
            value = near + r.choice((-1, 0, 1))
        elif kind < 0.6:
            value = r.randint(-3, 66)
        else:
            value = r.getrandbits(t.bits) >> r.randrange(t.bits)
        return value & ((1 << t.bits) - 1)
    if kind < 0.25:
        return r.getrandbits(t.bits)
    value = (
        r.choice(_FLOAT_EDGES)
        if kind < 0.6
        else r.choice((r.randint(-9, 9) / 2, r.gauss(0, 1), r.gauss(0, 1) * 10.0 ** r.randint(-6, 12)))
    )
    with np.errstate(all="ignore"):
        if t is BF16:
            return int(np.float32(value).view(np.uint32)) >> 16
        if t is F16:
            return int(np.float16(value).view(np.uint16))
        return int(_f(t)(value).view(f"u{t.bits // 8}"))


STRUCT = np.dtype([(name, f"u{TYPES[name[:-1]].bits // 8}") for name in _VARIABLES], align=True)


def inputs(seed: int) -> np.ndarray:
    """What each lane is given, as ``In``."""
    r = random.Random(f"inputs {seed}")
    lanes = np.zeros(LANES, STRUCT)
    for name in _VARIABLES:
        lanes[name] = [_given(r, TYPES[name[:-1]]) for _ in range(LANES)]
    return lanes


# ---- what Python says ----
def number(t: Type, bits: int) -> Any:
    """The value of bits that a case has put."""
    if t.is_integer:
        return t.wrap(bits)
    if t is BF16:
        return np.uint32(bits << 16).view(np.float32)
    return np.array(bits, f"u{t.bits // 8}").view(f"f{t.bits // 8}")[()]


def canonical(t: Type, bits: np.ndarray) -> np.ndarray:
    """Any NaN of a float type as the same one: its sign and payload are not compared."""
    if t.is_integer:
        return bits
    mantissa = t.bits - 1 - t.exponent
    magnitude = bits & np.uint64((1 << (t.bits - 1)) - 1)
    return np.where(magnitude > np.uint64(((1 << t.exponent) - 1) << mantissa), np.uint64(t.nan), bits)


def _to_type(t: Type, value: Any) -> Any:
    if t is BOOL:
        return bool(value)
    if t.is_integer:
        return t.wrap(int(value))
    if isinstance(value, int):
        return (np.uint64(value) if value >= 1 << 63 else np.int64(value)).astype(_f(t))
    return _f(t)(value)


def oracle(root: Expr, lanes: np.ndarray) -> np.ndarray | None:
    """The bits that ``root`` has in each lane, or None where Python does not know an operation of it."""
    if any(e.type in SMALL or (e.op and e.op.value is None) for e in root.parts()):
        return None

    def values(e: Expr) -> list[Any]:
        if e.op is None:
            if e.leaf.startswith("v."):
                return [number(e.type, int(bits)) for bits in lanes[e.leaf[2:]]]
            return [_to_type(e.type, e.constant)] * LANES
        assert e.op.value is not None
        below = [values(b) for b in e.below]
        if e.op.of_a_warp:
            warps = [e.op.value(*(b[i : i + 32] for b in below)) for i in range(0, LANES, 32)]
            found = [value for warp in warps for value in warp]
        else:
            found = [e.op.value(*operands) for operands in zip(*below, strict=True)]
        return [_to_type(e.type, value) for value in found]

    with np.errstate(all="ignore"):
        found = values(root)
    if root.type.is_integer:
        return np.array(
            [int(v) & (1 << 64) - 1 if root.type.bits == 64 else int(v) & (1 << root.type.bits) - 1 for v in found],
            np.uint64,
        )
    return np.array(found, _f(root.type)).view(f"u{root.type.bits // 8}").astype(np.uint64)
