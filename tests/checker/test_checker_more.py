"""What a finding says of values, copies, masks and shuffles, and of accesses that the checker does not see."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.jit import diagnostics, toolkit, unseen
from ep_lib.jit.unseen import Unseen
from ep_lib.runtime.differences import describe_difference

FLOATS = """
__global__ void in_any_order(float* sum, int* fill) {
    atomicAdd(sum, 1.0f / (1 + threadIdx.x));
    fill[threadIdx.x / 32] = threadIdx.x;
}
"""


def test_values_that_differ_are_named() -> None:
    kernel = Kernel.from_source(FLOATS, "in_any_order")

    def main(rank: Rank, which: int) -> list[Any]:
        arrays = [rank.to_device(np.zeros(64, dtype)) for dtype in (np.float32, np.int32)]
        kernel.launch(rank, 1, 64, *arrays)
        return [0, rank.to_host(arrays[which]).copy()]

    [differ] = (f for f in ep_lib.check(main, 1, seeds=8, args=(0,)).findings if f.kind == "values differ")
    assert ", item 1, 1 of 64 elements, by rounding only (at most" in differ.message
    assert "add in a fixed order (floating-point atomics do not)" in differ.remedy
    [differ] = (f for f in ep_lib.check(main, 1, seeds=8, args=(1,)).findings if f.kind == "values differ")
    assert "item 1" in differ.message and "rounding" not in differ.message and "a race" in differ.remedy


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"x": 1, "y": [2, 3]}, {"x": 1, "y": [2, 4]}, ": on rank 1, 'y', item 1"),
        (np.zeros(3), np.zeros(4), ": on rank 1 (float64 (3,) and float64 (4,))"),
        (np.arange(3), np.arange(3)[::-1], ": on rank 1, 2 of 3 elements"),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), ": on rank 1, 1 of 2 elements"),
        ("a", "b", ": on rank 1"),
    ],
)
def test_where_results_differ(one: Any, other: Any, says: str) -> None:
    assert describe_difference([0, one], [0, other]).where == says


LONG_NAME = """
template <int... Numbers> struct List {};
template <class Numbers> __global__ void race(int* right) {
    __shared__ int tile[2];
    volatile int mine[1500];  // a third of the stack
    for (int i = 0; i < 1500; i++) mine[i] = i;
    __syncthreads();
    if (threadIdx.x >= 62) tile[threadIdx.x % 2] = tile[(threadIdx.x + 1) % 2];
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 1500; i++) sum += mine[i] == i;
    right[threadIdx.x] = sum;
}
"""


def test_a_finding_needs_no_stack_of_its_thread() -> None:
    # The name of `tile` has 600 letters, which are taken apart by 40 KB of stack: other threads' are not for that.
    numbers = ", ".join(str(number) for number in range(1000, 1060))
    kernel = Kernel.from_source(LONG_NAME, f"race<List<{numbers}>>")

    def main(rank: Rank) -> None:
        right = rank.empty(64, np.int32)
        kernel.launch(rank, 1, 64, right)
        assert rank.to_host(right).tolist() == [1500] * 64

    report = ep_lib.check(main, 1, seeds=1, compare_values=False)
    assert [finding.kind for finding in report.findings] == ["race"], str(report)
    assert "('tile')" in report.findings[0].where


COPIES = """
#include <ep/platform.cuh>
#include <algorithm>
#include <string>
struct Six {
    int numbers[6];
};
__device__ __noinline__ int third(Six six) { return six.numbers[2]; }
extern "C" __global__ void copies(int* x, int how) {
    if (blockIdx.x == 0) { x[2] = 7; return; }
    int sum = 0;
    if (how == 0) { Six six = *(const Six*)x; sum = six.numbers[2]; }
    if (how == 1) sum = third(*(const Six*)x);
    if (how == 2) { Six six; six = *(const Six*)x; sum = six.numbers[2]; }
    char seven[7];  // of such copies, g++ makes moves that its sanitizer does not see
    if (how == 3) { std::copy((const char*)(x + 2), (const char*)(x + 2) + 7, seven); sum = seven[0]; }
    if (how == 4) { std::char_traits<char>::copy(seven, (const char*)(x + 2), 7); sum = seven[0]; }
    x[8] = sum;
}
"""


@pytest.mark.parametrize("how", range(5))
def test_what_is_copied_is_read_where_it_is_copied(how: int) -> None:
    if how == 1 and toolkit.find_compiler().is_clang:
        pytest.skip("clang++'s sanitizer does not see what a call copies")
    kernel = Kernel.from_source(COPIES, "copies")

    def main(rank: Rank) -> None:
        kernel.launch(rank, 2, 1, rank.to_device(np.zeros(9, np.int32)), how)
        rank.synchronize()

    (found,) = ep_lib.check(main, 1, seeds=2).findings
    assert found.kind == "race" and found.first is not None and found.second is not None
    assert f"how == {how}" in found.first.source + found.second.source


WITH_CALLS = """
#include <ep/platform.cuh>
struct At {};
EP_DEVICE void* operator new(size_t, At, void* at) noexcept { return at; }
struct One { uint64_t it; };
struct Big { uint64_t it[4]; __device__ int operator,(One) const; };
struct Careful {
    uint64_t it[4];
    __device__ Careful() {}
    __device__ Careful(const Careful& other) { it[0] = other.it[0]; }
};
struct Two { One one; Big big; __device__ Two(int x) : one(), big() { big.it[0] = x; } };
__device__ __noinline__ uint64_t take(One one) { return one.it; }
__device__ __noinline__ uint64_t take(Big big) { return big.it[2]; }
__device__ __noinline__ One make_one(uint64_t it) { return {it}; }
__device__ __noinline__ Big make(uint64_t it) { Big big = {}; big.it[1] = it; return big; }
__device__ __noinline__ Careful make_careful() { Careful made; made.it[0] = 5; return made; }
__device__ __noinline__ Careful hand_on() { return make_careful(); }
__device__ __noinline__ void one(int i, uint64_t* x) { x[i] = 1; }
template <class F, class... Args> __device__ __noinline__ void each(int n, F f, Args... args) {
    for (int i = 0; i < n; ++i) f(i, args...);
}
__device__ __noinline__ Two both(uint64_t it) { Two two(3); two.big = make(it); return two; }
__shared__ Big tile[4];
__device__ Big all;
struct Fixed { int it; constexpr __device__ Fixed() : it(0) {} };
__shared__ const Fixed fixed[4];
constexpr int kTable[] = {4, 5, 6};
extern "C" __global__ void k(uint64_t* x, Big* big, Two* two, const volatile uint64_t* v, Big (*made)(int), int i) {
    Big tile[4] = {};
    new (At{}, big) Careful(hand_on());
    One one = __builtin_bit_cast(One, x[1]);
    Big some = make(1);
    *big = make(2);
    new (At{}, big + 1) Big(some);
    tile[i] = make(i);
    x[0] = take(one) + take(*big) + take(two->big) + take(__builtin_bit_cast(Big, tile[i]));
    printf("gimple_call <take, *p>, %s *p, \\"", "gimple_call <f, *p>\\n  gimple_call <f, *p>");
    two->big = make(4);
    *two = both(5);
    each(2, ::one, x);
    __shared__ const Fixed own[2];
    const_cast<Fixed*>(own)[i].it = kTable[i];
    x[6] = own[i].it;  // unseen
    x[7] = fixed[i].it;  // unseen
    x[1] = take(__builtin_bit_cast(One, *x));  // unseen
    x[2] = take(__builtin_bit_cast(One, *v));  // unseen
    x[3] = take(__builtin_bit_cast(Big, ::tile[i]));  // unseen
    x[4] = take(__builtin_bit_cast(Big, all));  // unseen
    x[5] = take(__builtin_bit_cast(Big, two->big));  // unseen
    new (At{}, x) One(make_one(4));  // unseen
    new (At{}, &two->big) Big(make(4));  // unseen
    new (At{}, &::tile[1]) Big(i ? make(4) : make(5));  // unseen
    new (At{}, big) Big(made(3));  // unseen
    new (At{}, big + i) Big([](int x) __attribute__((noinline)) { return make(x); }(4));  // unseen
}
"""


def noted_by_gxx(source: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Unseen]]:
    """What a note names: instructions of the machine, and accesses of which it says that they are not watched."""
    monkeypatch.setenv("EP_LIB_CXX", "g++")
    told: list[Any] = []
    note = diagnostics.unseen_note
    monkeypatch.setattr(
        diagnostics, "unseen_note", lambda *args, **more: (told.extend(args[1:3]), note(*args, **more))[1]
    )
    (said,) = Kernel.from_source(f"{source}// {folder}", "k", filename="unseen.cu").compile().unwatched
    assert re.search(says, said)
    return told


def lines_noted(source: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int | None, bool]:
    """The lines of these accesses, and whether each is a write."""
    return {each.line: each.is_write for each in noted_by_gxx(source, says, folder, monkeypatch)[1]}


@pytest.mark.skipif(shutil.which("g++") is None, reason="clang++'s sanitizer leaves out other accesses")
def test_calls_that_move_structs_unseen_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = r"^unseen.cu:\d+: `take` is passed a struct here straight from"
    lines = enumerate(WITH_CALLS.splitlines(), 1)
    assert lines_noted(WITH_CALLS, says, tmp_path, monkeypatch) == {
        n: " new (" in line for n, line in lines if "// unseen" in line
    }


# What g++ does not tell the sanitizer of since it takes the variable for the function's own, or for a constant.
BY_INDEX = """
#include <ep/platform.cuh>
#include <array>
#define NOINLINE __attribute__((noinline)) static
struct Tail { long n; char a[]; };
struct Rows { long n; int a[8]; };
struct Cube { long n; char a[][8][8]; };
struct Sized { long n; char a[4][8][8]; };
struct Triple { long a, b, c; };  // unseen: copied by a constructor that has this line
struct Triples { long n; Triple a[]; };
struct Bits { unsigned a : 3, b : 5; };
struct BitsBehind { int n; Bits a[]; };
template <int kCount> struct Table {
    char entries[kCount];
    constexpr __device__ const char& operator[](int64_t i) const { return entries[i]; }
};
template <class T> struct Holds { static constexpr T data[4] = {1, 2, 3, 4}; };
constexpr const int* kHeld = Holds<int>::data;
__device__ const Tail kTail = {1, {1, 2, 3}};
__device__ constexpr Table<64> kTable = {{1, 2, 3}};
__constant__ float kCoefficients[16];
constexpr int kPlain[16] = {1, 2};
constexpr std::array<int, 4> kStd = {1, 2, 3, 4};
extern const char kLater[];
extern __shared__ int behind[];
__shared__ int of_block[64];
template <class F> __device__ void each(F f) { for (int i = 0; i < 4; ++i) f(i); }
NOINLINE char later(const char* p) { return kLater[p - kLater]; }  // unseen
const char kLater[] = {1, 2, 3};
NOINLINE long taken(Tail tail, long i) { return tail.a[i] + tail.n; }  // unseen
NOINLINE char flexible(const char* p) { return kTail.a[p - kTail.a]; }  // unseen
NOINLINE char of_string(const char* p) { return (*(const char (*)[1L << 60])"abcdefg")[p - "abcdefg"]; }  // unseen
NOINLINE char of_static(const int* p) { return (*(const int (*)[1L << 60])kHeld)[p - kHeld]; }  // unseen
NOINLINE int cast(Tail tail, long i) { return (*reinterpret_cast<int (*)[1L << 60]>(tail.a))[i]; }  // unseen
NOINLINE Tail given(Tail tail, long i) {
    tail.a[i] = 7;  // unseen, a write
    return tail;
}
NOINLINE long another_check(Tail tail, char* p, long i, bool never) {
    char small[8], by_byte[256];
    if (never) small[i] = p[0];
    by_byte[static_cast<unsigned char>(i)] = p[1];
    (*reinterpret_cast<char (*)[1L << 62]>(p))[i] = 3;
    return tail.n + tail.a[i] + small[p[2] & 7] + by_byte[p[3] & 255];  // unseen
}
NOINLINE char narrow(Tail tail, int i) {
    char all[256] = {};
    all[i] = 1;
    return all[8] + tail.a[static_cast<signed char>(i)];  // unseen
}
NOINLINE long negative(Tail tail, long i) { return tail.n + tail.a[i & -8]; }  // unseen
NOINLINE long far(Tail tail, long i) { return tail.n + tail.a[1 << 20] + tail.a[i & 7]; }  // unseen
NOINLINE char cube(Cube all, long i) { return all.n + all.a[i & 4095][i & 7][7]; }  // unseen
NOINLINE char sized(Sized all, long i) { return all.n + all.a[i & 3][i & 7][7] + all.a[2][1][i]; }
NOINLINE Triple whole(Triples all, long i) { return all.a[i]; }
NOINLINE long bits(BitsBehind all, const Bits* p) { return all.a[p - all.a].b + all.n; }  // unseen
extern "C" __global__ void k(char* out, char* p, int j, Rows* many, Triple* triples, Tail* tail) {
    Rows rows = {3};
    for (int i = 0; i < 8; ++i) rows.a[i] = p[i];
    for (int i = 0; i < 8; ++i) rows.n += rows.a[i] * rows.a[j & 7] + kCoefficients[i] + kTable[i];
    rows.n += kPlain[j & 3] + kStd[j];
    union { int4 all; int words[4]; } u;
    u.all = reinterpret_cast<const int4*>(p)[j];
    for (int i = 0; i < 4; ++i) rows.n += u.words[i];
    int captured[4] = {1, 2, 3, 4};
    each([&](int i) { captured[i] += p[i]; });
    each([=, &rows](int i) { rows.n += captured[i]; });
    behind[threadIdx.x] = of_block[j] = 5;
    float square[3][4];
    for (int y = 0; y < 3; ++y)
        for (int x = 0; x < 4; ++x) square[y][x] = p[y * x];
    many[j].a[j] = square[j][j & 3] + behind[j ^ 1];
    many[j] = many[j + 1];
    const int of_bytes[256] = {1, 2};
    rows.n += of_bytes[static_cast<unsigned char>(p[0])] + of_bytes[p[1] & 255] + tail->a[j];
    p[8] = rows.n + later(p) + taken(*tail, j) + flexible(p) + of_string(p) + of_static(many->a) + cast(*tail, j);
    p[9] = given(*tail, j).n + another_check(*tail, p, j, false) + negative(*tail, j) + narrow(*tail, j);
    p[12] = cube({1}, j) + sized(*reinterpret_cast<Sized*>(p), j);
    p[11] = fminf(fmaxf(p[0], -INFINITY), INFINITY);
    p[10] = far(*tail, j) + bits({1}, reinterpret_cast<Bits*>(p));
    triples[0] = whole({1}, j);
}
"""
FAR_OFF = """
#include <ep/platform.cuh>
#define NOINLINE __attribute__((noinline)) static
struct Far { char gap[1L << 40]; char it; };
struct FarBehind { int n; Far a[]; };
struct Near { int n, a[4]; };
NOINLINE char element(FarBehind all) { return all.a[1].it + all.n; }  // unseen
extern "C" __global__ void k(char* x, Far* far, int j) {
    Near near = {1};
    for (int i = 0; i < 4; ++i) near.a[i] += x[i];
    x[0] = element({1}) + far[j].it + near.a[j];
}
"""
UNSEEN_PLACES = {
    "by an index": (BY_INDEX, "the race checker does not see this"),
    "far off": (FAR_OFF, "stays within the variable"),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="of g++'s sanitizer")
@pytest.mark.parametrize("how", UNSEEN_PLACES)
def test_accesses_of_what_looks_like_a_variable_of_ones_own(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, says = UNSEEN_PLACES[how]
    lines = enumerate(source.splitlines(), 1)
    assert lines_noted(source, says, tmp_path, monkeypatch) == {
        n: "a write" in line for n, line in lines if "// unseen" in line
    }


def test_lines_are_read_as_each_version_of_gxx_writes_them() -> None:
    dump = """
;; Function f (_Z1fv, decl_uid=7)
{
  <bb 2>:
  [k.cu:4:5%s] gimple_call <gD.8, _1, [k.cu:4:6%s] *_2>
"""
    for number in ("", " discrim 3"):  # g++ 12; 13 and later
        (found,) = unseen.accesses(dump % (number, number), "", unseen.Symbols([], {}))
        assert (found.file, found.line, found.name, found.function) == ("k.cu", 4, "g", "f")


MACHINES = """
#include "x86gprintrin.h"
#include "xmmintrin.h"
#include <cpuid.h>
#define STORE _mm_stream_pi
__attribute__((noinline)) void store(long long* to) { STORE((__m64*)to, __m64(to[1])); }  // unseen
extern "C" __global__ void k(long long* x, unsigned a, unsigned b, unsigned c) {
    asm volatile("" ::: "memory");
    const char* volatile text = "gimple_call <__builtin_ia32_movntqD.1, NULL, 5>";
    _fxsave64(x);  // unseen
    _m_maskmovq(__m64(x[0]), __m64(x[1]), (char*)x);  // unseen
    __cpuid(0, a, a, b, c);  // unseen, and assembly has its line
    store(x + (a ^ text[0]));
}
"""


@pytest.mark.skipif(shutil.which("g++") is None or platform.machine() != "x86_64", reason="instructions of x86")
def test_instructions_of_the_machine_are_noted_however_they_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, _ = noted_by_gxx(MACHINES, r"__builtin_ia32_.* GPUs do not have it, and the race", tmp_path, monkeypatch)
    of = {each.name: each.function for each in told if each.kind == "machine"}
    assert of.pop("asm") == "k" and of.pop("__builtin_ia32_fxsave64") == "k"
    assert "store" in of.pop("__builtin_ia32_movntq") and any("maskmov" in each for each in of)


RESTRICT = """
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>
template <typename T>
__global__ void k(T* __restrict__ out, {inbox}, T* mine, uint64_t* flag, bool also_mine) {{
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(mine, peer) = 40 + ep::rank();
    ep::signal_add(flag, 1, peer);
    if (!ep::wait_until_ge(flag, 1, {{ep::kPhaseSignal, peer, 0}})) return;
    out[0] = inbox[also_mine ? 0 : 1];
}}
"""
INBOXES = {
    "const T* __restrict__ inbox": True,
    "T const *__restrict inbox": True,
    "const T* const __restrict__ inbox": True,
    "const T* inbox": False,
    "T* __restrict__ inbox": False,
    "const T* inbox /* no __restrict__ */": False,
}


@pytest.mark.parametrize("reads_what_comes", [True, False])
@pytest.mark.parametrize("inbox", INBOXES)
def test_a_restrict_parameter_is_read_by_the_read_only_path(inbox: str, reads_what_comes: bool) -> None:
    """NVRTC makes ld.global.nc of such a load: what a peer writes meanwhile may be missed, also behind a wait."""
    kernel = ep_lib.Kernel.from_source(RESTRICT.format(inbox=inbox), "k<int>")

    def main(rank: ep_lib.Rank) -> None:
        box, flag = rank.symmetric(2, np.int32), rank.symmetric(1, np.uint64)
        kernel.launch(rank, 1, 1, rank.empty(1, np.int32), box, box, flag, reads_what_comes)
        rank.synchronize()

    report = ep_lib.check(main, 2, seeds=4, progress=False)
    if not (INBOXES[inbox] and reads_what_comes):
        assert report.ok, report
        return
    (finding,) = report.findings
    assert finding.kind == "read-only path"
    assert "without __restrict__" in finding.remedy
    assert finding.second is not None and "out[0] = inbox" in finding.second.source


SHUFFLES = {
    "of lanes that have left": (
        32,
        "if (me < 20) v = __shfl_xor_sync(~0u, v, 16);",
        "0xffffffff names lanes 20 to 31, which have ended: they",
    ),
    "of lanes that there never were": (
        40,
        "if (me >= 32) v = __shfl_down_sync(~0u, v, 4);",
        "0xffffffff names lanes 8 to 31, which the block does not have: they",
    ),
    "of a lane that left and others that never were": (
        36,
        "if (me >= 33) v = __shfl_down_sync(~0u, v, 2);",
        "0xffffffff names lane 0, which have ended, and lanes 4 to 31, which the block does not have: they",
    ),
    "of a lane that is not named": (
        32,
        "if (me < 20) v = __shfl_xor_sync(0xfffff, v, 16);",
        "0xfffff does not name lane 20",
    ),
}


MASKS = {  # lines of a warp of 32 lanes, and the lanes that they leave out
    "if (t >= 16) return;\nout[t] = __shfl_sync(~0u, t, 3) + __ballot_sync(~0u, 1);": "",
    "if (t >= 16) return;\nfor (int s = 8; s; s >>= 1) out[t] += __shfl_xor_sync(~0u, t, s);": "",
    "if (t / 32 == 0) {\nout[t] = __shfl_sync(~0u, t, 3);\n__syncwarp();\n}": "",
    "if (t < 16) {\nout[t] = 1;\n__syncwarp();\n} else {\n__syncwarp();\n}": "",
    "if (t < 16) {\nout[t] = __reduce_add_sync(~0u, t);\n}": "lanes 16 to 31",
    "if (t < 16) {\nout[t] = __shfl_down_sync(~0u, t, 8);\n}": "lanes 16 to 31",
    "if (t < 16 || t == 20)\nout[t] = __ballot_sync(~0u, 1);": "lanes 16 to 19, 21 to 31",
    "for (int i = t; i < 40; i += 32)\nout[t] += __shfl_sync(~0u, i, 3);": "lanes 8 to 31",
}


@pytest.mark.parametrize("body", MASKS)
def test_a_mask_names_who_ended_and_not_who_passes_by(body: str) -> None:
    kernel = ep_lib.Kernel.from_source(f"__global__ void k(int* out) {{\nconst int t = threadIdx.x;\n{body}\n}}", "k")

    def main(rank: ep_lib.Rank) -> str:
        kernel.launch(rank, 1, 32, rank.to_device(np.zeros(32, np.int32)))
        rank.synchronize()
        return "whatever a shuffle gives"

    findings = ep_lib.check(main, 1, seeds=3, progress=False).findings
    if not MASKS[body]:
        assert not findings, findings
        return
    (finding,) = findings
    assert finding.kind == "mask"
    assert f"names {MASKS[body]}, which do not come here" in finding.detail


@pytest.mark.parametrize("name", SHUFFLES)
def test_a_shuffle_says_why_its_source_takes_no_part(name: str) -> None:
    threads, line, says = SHUFFLES[name]
    kernel = ep_lib.Kernel.from_source(
        f"__global__ void k(int* o) {{ int me = threadIdx.x, v = me; {line} o[me] = v; }}", "k"
    )

    def main(rank: ep_lib.Rank) -> list[int]:
        out = rank.to_device(np.zeros(64, np.int32))
        kernel.launch(rank, 1, threads, out)
        rank.synchronize()
        return list(rank.to_host(out).tolist())

    findings = ep_lib.check(main, 1, seeds=3, progress=False).findings
    finding = next(f for f in findings if f.kind == "shuffle")
    assert says in finding.detail
    assert "its mask" not in finding.message
