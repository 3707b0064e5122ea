"""Cheats that blind the checker: most are flagged, some refused; of what no word says, the writes are missed."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ep_lib
from ep_lib.emulator.accesses import ATOMIC, BYTES, COUNT, LOADS, NIC, OF_PAIR, PLAIN, STORES, UPDATES, VOLATILE, WIDTHS
from ep_lib.emulator.fabric import Fabric
from ep_lib.jit import closed
from ep_lib.jit.elf import SHN_UNDEF, Elf
from ep_lib.jit.toolkit import Compiler
from ep_lib.memory.arrays import describe
from ep_lib.runtime.accesses import accesses_of
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader import watched
from ep_lib.workshop.grader.grading import grade

EXERCISE = find("01")
PIECE = EXERCISE.pieces[0]
SOLUTION = (EXERCISE.solution_dir / PIECE).read_text("utf-8")

SWITCHES_OFF = {
    "an attribute": '__attribute__((no_sanitize("thread"))) inline void f(int* p) { *p = 1; }',
    "an attribute of C++": "[[gnu::no_sanitize_thread]] inline void f(int* p) { *p = 1; }",
    "pasted words": '#define JOIN(a, b) a##b\nJOIN(__attr, ibute__)((no_sanitize("thread"))) inline void f() {}',
    "an attribute in digraphs": "<:<:gnu::no_sanitize_thread:>:> inline void f(int* p) { *p = 1; }",
}
REACHES_BENEATH = {
    "assembly": 'inline void f(long* p) { asm volatile("movq $1, (%0)" ::"r"(p) : "memory"); }',
    "assembly by its other name": 'inline void f() { __asm__("nop"); }',
    "assembly over two lines": 'inline void f() { as\\\nm("nop"); }',
    "the checker's functions": 'extern "C" void __tsan_write8(void*) {}',
    "the emulator's functions": 'extern "C" void epemu_check_end(void*);',
    "behind a digit separator": 'int a_ = 1\'000; char c_ = \'"\'; auto s_ = "/*"; void f() { asm(""); } /* */',
    "behind a raw string": 'inline auto s_ = R"x(")x"; inline auto t_ = "/*"; void f() { asm(""); } /* */',
    "words put together": "#define JOIN(a, b) a##b",
    "reads that are no loads": "inline bool f(const int* p) { int g = 5; return __builtin_memcmp(p, &g, 4) == 0; }",
    "the caller's frame": "inline void* f() { return __builtin_frame_address(1); }",
}


def submitted(tmp_path: Path, top: str = "", old: str = "", new: str = "") -> Path:
    at = SOLUTION.index("namespace ep {") + len("namespace ep {")
    (tmp_path / PIECE).parent.mkdir(parents=True, exist_ok=True)
    assert old in SOLUTION
    (tmp_path / PIECE).write_text(f"{SOLUTION[:at]}\n{top}\n{SOLUTION[at:].replace(old, new, 1)}", "utf-8")
    return tmp_path


@pytest.mark.parametrize("cheat", REACHES_BENEATH)
def test_what_reaches_beneath_the_checker_is_flagged_with_its_line(cheat: str, tmp_path: Path) -> None:
    refused, looks = watched.look_through(EXERCISE, submitted(tmp_path, REACHES_BENEATH[cheat]))
    assert not refused and looks and looks[0].startswith(f"{PIECE}:"), looks


@pytest.mark.parametrize("cheat", SWITCHES_OFF)
def test_what_switches_the_checker_off_is_refused_with_its_line(cheat: str, tmp_path: Path) -> None:
    refused, _ = watched.look_through(EXERCISE, submitted(tmp_path, SWITCHES_OFF[cheat]))
    assert refused.startswith(f"{PIECE}:") and refused.endswith("leave it out."), refused


@pytest.mark.parametrize(
    "code",
    [
        "// asm volatile, __tsan_write8, no_sanitize",
        'constexpr const char* own_text = "no asm, no ##, no no_sanitize";',
        "#pragma GCC unroll 4\n#pragma unroll 4",
        "[[using gnu: hot, const]] static int helper(int a) { return a; }",
        "EP_DEVICE int own_bits(unsigned a) { return __builtin_popcount(a) + __builtin_clzll(a) + __builtin_ffs(a); }",
        "EP_DEVICE void let_others_run(int) {}\n#define look_at(...)",
    ],
)
def test_plain_code_is_not_flagged(code: str, tmp_path: Path) -> None:
    assert watched.look_through(EXERCISE, submitted(tmp_path, code)) == ("", [])


def test_bytes_count_as_seen_where_a_write_was() -> None:
    before = np.zeros(8, np.uint8)
    after = np.array([0, 1, 1, 1, 0, 0, 0, 1], np.uint8)
    writes = np.array([(98, 4), (107, 9)])
    assert watched.unseen_bytes(writes, [(100, before, after)]) == 2
    assert watched.unseen_bytes(np.vstack([writes, (102, 2)]), [(100, before, after)]) == 0
    assert watched.unseen_bytes(writes[:0], [(100, before, after)]) == 4


LOOKS = """
#include <ep/memory.cuh>
#include <ep/net.cuh>
extern "C" __global__ void looks(uint64_t* packet, unsigned long long* word) {
    uint64_t a, b;
    if (ep::rank() == 0) {
        for (int i = 0; i < 2; ++i) ep::st_relaxed_sys_u64x2(ep::peer_ptr(packet, 1), 5, 7);
        for (int i = 0; i < 2; ++i) ep::net_atomic_add_u64_nbi(packet + 2, 1, 1, 0);
        ep::net_quiet();
    } else {
        ep::ld_relaxed_sys_u64x2(packet, &a, &b);
    }
    atomicCAS(word, 1ull, 2ull);  // finds 0
    atomicAdd(word, 0ull);
    *reinterpret_cast<volatile unsigned*>(word) = 3;
    word[0] = word[0] + 1;
}
"""


def test_accesses_are_counted_by_kind_and_width() -> None:
    kernel = ep_lib.Kernel.from_source(LOOKS, "looks")
    at: dict[str, int] = {}

    def main(rank: ep_lib.Rank) -> None:
        packet, word = rank.symmetric(3, np.uint64), rank.to_device(np.zeros(1, np.uint64))
        kernel.launch(rank, 1, 1, packet, word)
        rank.synchronize()
        at.update({f"packet{rank.rank}": describe(packet).address, f"word{rank.rank}": describe(word).address})

    seen = accesses_of(main, 2, Fabric("rc", ranks_per_node=2))

    def kinds(name: str, size: int) -> dict[tuple[int, ...], int]:
        found = seen.kinds(at[name], size, 2)
        return {tuple(map(int, each)): int(found[tuple(each)]) for each in np.argwhere(found)}

    pairs, words = WIDTHS.index(8), (WIDTHS.index(4), WIDTHS.index(8))
    packet = kinds("packet1", 16)
    assert packet[0, STORES, OF_PAIR, pairs, COUNT] == 4 and packet[0, STORES, OF_PAIR, pairs, BYTES] == 32
    assert {each[:3] for each in packet} == {(0, STORES, OF_PAIR), (1, LOADS, OF_PAIR)}
    assert kinds("packet1", 24)[0, UPDATES, NIC, pairs, COUNT] == 2  # those of a NIC are who posted them
    assert {each: number for each, number in kinds("word0", 8).items() if each[-1] == COUNT} == {
        (0, UPDATES, ATOMIC, words[1], COUNT): 2,
        (0, STORES, VOLATILE, words[0], COUNT): 1,
        (0, LOADS, PLAIN, words[1], COUNT): 1,
        (0, STORES, PLAIN, words[1], COUNT): 1,
    }


TAKES = """
struct Byte { char it; };
__attribute__((noinline)) static __device__ void take(char* to, Byte byte) { *to = byte.it; }
"""
WAIT = "if (!wait_until_ge_warp(pipe.arrived, round + 1, {kPhaseSignal, peer, int64_t(slot)})) return false;"
COPY = "copy_bytes<kWarpUnroll>(target, pipe.slots + slot * pipe.slot_bytes, pipe.slot_bytes, lane_id(), kWarpSize);"
BY_VALUE = """while (ld_relaxed_sys_u64(pipe.arrived) < round + 1) sleep_ns(50);
    const Byte* from = reinterpret_cast<const Byte*>(pipe.slots + slot * pipe.slot_bytes);
    for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) take(static_cast<char*>(target) + i, from[i]);
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="clang++'s sanitizer does not see it")
def test_what_a_call_copies_is_a_read(tmp_path: Path) -> None:
    piece = submitted(tmp_path, TAKES, WAIT, BY_VALUE) / PIECE
    assert COPY in piece.read_text("utf-8")
    piece.write_text(piece.read_text("utf-8").replace(COPY, ""), "utf-8")
    (result,) = grade("01", tmp_path, tasks=[5]).tasks
    assert "race: rank" in (result.message or "") and "from[i]" in (result.message or ""), result.message


def test_a_sentence_names_some_functions_and_says_how_many_more() -> None:
    named = ["_ZSt11_Hash_bytesPKvmm", "memcmp", *(f"f{number}" for number in range(40))]
    said = "std::_Hash_bytes(void const*, unsigned long, unsigned long), memcmp(), f0() and 39 more"
    assert closed._listed(named) == said


def test_what_a_compiler_does_not_show_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "find_compiler", lambda: Compiler("clang++", "clang++ 14", is_clang=True))
    assert "take g++" in watched.unwatched()[0]
    monkeypatch.setattr(watched, "find_compiler", lambda: Compiler("g++", "g++ 12", is_clang=False))
    assert watched.unwatched() == ()


VIRTUAL = """
#include <new>
struct Step { __device__ virtual int of(int a) const = 0; };
struct Twice : Step { __device__ int of(int a) const override { return 2 * a; } };
extern "C" __global__ void k(int* out) {
    __shared__ alignas(8) char place[8];
    if (out[threadIdx.x] != 0) new (place) Twice;
    const Twice own;
    const Step& step = own;
    out[threadIdx.x] = step.of(threadIdx.x);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_virtual_functions_are_a_kernels_own_and_objects_are_written() -> None:
    kernel = ep_lib.Kernel.from_source(VIRTUAL, "k")

    def main(rank: ep_lib.Rank, makes: int) -> list[int]:
        out = rank.to_device(np.full(3, makes, np.int32))
        kernel.launch(rank, 1, 3, out)
        return rank.to_host(out).tolist()

    assert ep_lib.check(main, 1, seeds=2, args=(0,)).ok and ep_lib.spawn(main, 1, "emulator", args=(0,)) == [[0, 2, 4]]
    (found,) = ep_lib.check(main, 1, seeds=2, args=(1,)).findings
    assert found.kind == "race" and "new (place) Twice" in str(found)


# How many functions of a library kernels may call: by value, or the end of the run. That of libm which has pointers
# writes through them, and reads nothing; compilers call it with their own.
MOST = {"libc.so.6": 17, "libm.so.6": 134, "libgcc_s.so.1": 140, "libstdc++.so.6": 30}
WRITES = {"frexp", "modf", "remquo", "sincos"}


@pytest.mark.parametrize("library", MOST)
def test_no_function_of_a_library_may_read_memory_unseen(library: str) -> None:
    ctypes.CDLL(library)
    (path,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if library in line}
    functions = [each.name for each in Elf(Path(path).read_bytes()).symbols if each.section != SHN_UNDEF]
    allowed = {name for name in functions if closed._is_of_kernels(name)}
    assert 0 < len(allowed) <= MOST[library], sorted(allowed)
    if library == "libc.so.6":
        ends = {"__assert_fail", "__stack_chk_fail", "abort"}
        assert allowed <= closed._MATHEMATICS | ends | {"abs", "labs"}, allowed - closed._MATHEMATICS
    elif library == "libm.so.6":
        assert allowed <= closed._MATHEMATICS | {"fegetround", "fesetround"}
    elif library == "libstdc++.so.6":
        assert all("__throw_" in name for name in allowed), allowed
    else:
        assert {"__popcountdi2", "__udivti3"} <= allowed
        assert not any(word in name for name in allowed for word in ("Unwind", "frame", "emutls", "cpu", "stack"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_no_function_of_mathematics_takes_a_pointer_to_read() -> None:
    said = subprocess.run(
        ["g++", "-E", "-xc++", "-"], input="#include <math.h>\n", capture_output=True, text=True, check=True
    ).stdout
    takes = {name: given for name, given in re.findall(r"\b(\w+) \(([^()]*)\)", said) if name in closed._MATHEMATICS}
    assert len(takes) > 100
    assert {name for name, given in takes.items() if "*" in given} <= WRITES | {f"{name}f" for name in WRITES}
    assert not any("const" in given for given in takes.values())
