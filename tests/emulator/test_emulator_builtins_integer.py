"""Integer, bit and SIMD-in-a-word intrinsics against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.builtins_table import Row, Table, lanes, s32, s64, u32, u64, word

RNG = np.random.default_rng(1)
EDGES_32 = [0, 1, 2, 7, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x80008000, 0x00FF00FF]
INPUTS_32 = [
    np.array([*RNG.permutation(EDGES_32), *EDGES_32, *RNG.integers(0, 1 << 32, 100)], np.uint32) for _ in range(3)
]
EDGES_64 = [0, 1, 63, 64, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 32, 0xFFFFFFFF]
INPUTS_64 = [
    np.concatenate([RNG.permutation(np.array(EDGES_64, np.uint64)), RNG.integers(0, 1 << 64, 69, np.uint64)])
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


TABLES = {
    "words": Table("unsigned", "long long", INPUTS_32, WORDS),
    "longs": Table("unsigned long long", "long long", INPUTS_64, LONGS),
    "simd": Table("unsigned", "long long", INPUTS_32, simd_rows()),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_what_python_says(backend: str, table: str) -> None:
    TABLES[table].check(backend)
