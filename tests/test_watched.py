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
from ep_lib.emulator.accesses import (
    ATOMIC,
    BYTES,
    COUNT,
    LOADS,
    NIC,
    OF_PAIR,
    PLAIN,
    STORES,
    UPDATES,
    VOLATILE,
    WIDTHS,
)
from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import KernelCompileError
from ep_lib.jit.elf import SHN_UNDEF, Elf
from ep_lib.jit.toolkit import Compiler
from ep_lib.memory.arrays import describe
from ep_lib.runtime.accesses import accesses_of
from ep_lib.workshop import grader, watched
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader import grade
from ep_lib.workshop.hidden import load

EXERCISE = find("01")
PIECE = EXERCISE.pieces[0]
HIDDEN = Path(grader.__file__).with_name("hidden")
TESTS = grader._sources(load(EXERCISE.name, public=False))
SOLUTION = (EXERCISE.solution_dir / PIECE).read_text("utf-8")

COPY_AS = "template <> EP_DEVICE void lib::copy_as<8, int4>(char*, const char*, size_t, size_t, size_t) {}"
OUTSIDE = "}} {} namespace ep {{".format  # of namespace ep, which is where they are put
SWITCHES_OFF = {
    "an attribute": '__attribute__((no_sanitize("thread"))) inline void f(int* p) { *p = 1; }',
    "an attribute of C++": "[[gnu::no_sanitize_thread]] inline void f(int* p) { *p = 1; }",
    "pasted words": '#define JOIN(a, b) a##b\nJOIN(__attr, ibute__)((no_sanitize("thread"))) inline void f() {}',
    "the test's file": '#line 24 "hidden/grader.cuh"',
    "the test's file, as compilers say it": '# 24 "/x/hidden/grader.cuh"',
    "an attribute with its namespace apart": '[[using gnu: no_sanitize("thread")]] inline void f(int* p) { *p = 1; }',
    "an attribute with a space": "[ [gnu::no_sanitize_thread] ] inline void f(int* p) { *p = 1; }",
    "an attribute in digraphs": "<:<:gnu::no_sanitize_thread:>:> inline void f(int* p) { *p = 1; }",
}
CHEATS = {
    "assembly": 'inline void f(long* p) { asm volatile("movq $1, (%0)" ::"r"(p) : "memory"); }',
    "assembly by its other name": 'inline void f() { __asm__("nop"); }',
    "assembly over two lines": 'inline void f() { as\\\nm("nop"); }',
    "a pragma": '#pragma GCC optimize("no-sanitize")',
    "a pragma in a macro": '_Pragma("GCC push_options")',
    "the checker's functions": 'extern "C" void __tsan_write8(void*) {}',
    "the emulator's functions": 'extern "C" void epemu_check_end(void*);',
    "stores past the checker": "inline void f(long long* p) { __builtin_ia32_movnti64(p, 1); }",
    "stores past the checker, by a header": "#include <immintrin.h>",
    "behind a digit separator": 'int a_ = 1\'000; char c_ = \'"\'; auto s_ = "/*"; int f() { asm(""); } /* */',
    "behind a raw string": 'inline auto s_ = R"x(")x"; inline auto t_ = "/*"; int f() { asm(""); } /* */',
    "behind a carriage return": '// x \r/*\nint f() { asm(""); } /* */',
    "a pragma behind a joined line": '#define A \\ /* */\n#pragma GCC optimize("O0")',
    "behind the name of a header": '#if __has_include(<a/*b>)\n#endif\nint f() { asm(""); } /* */',
    "behind a letter that compilers refuse": '#define A 1\N{SUPERSCRIPT TWO}\'"\' /*\nint f() { asm(""); } /* */',
    "a macro of the test's word": "#define look_at(...)",
    "a macro of a keyword": "#define while if",
    "a macro taken away": "#undef GRADER_PART",
    "an overload of the test's call": "EP_DEVICE void let_others_run(int) {}",
    "an attribute in the brackets of a macro": "#define O [\n#define C ]\nO O gnu::optimize(0) C C inline void f() {}",
    "an overload with a trailing type": "EP_DEVICE auto let_others_run(int) -> void {}",
    "an overload behind a default argument": "template <int k = 0> EP_DEVICE void let_others_run(long) {}",
    "an overload behind a default type": "template <class T, class = T> EP_DEVICE void let_others_run(T) {}",
    "an overload behind a comparison": "template <> std::enable_if_t<1 <= 2, char*> peer_ptr(char*, int) {}",
    "an overload that is a template": "template <typename T> requires_<T> let_others_run(T) noexcept(true) {}",
    "an overload by a macro": "#define DEF(name) EP_DEVICE auto name(int) -> void\nDEF(let_others_run) {}",
    "an overload by another name": "#define NAME let_others_run\nEP_DEVICE auto NAME(int) -> void {}",
    "an overload in an inline namespace": "inline namespace v2 { EP_DEVICE auto let_others_run(int) -> void {} }",
    "an overload of a friend": "struct Own { friend auto let_others_run(Own) -> void {} };",
    "an overload behind a digraph that is none": "int a_ = f<::x>(1);\nEP_DEVICE auto let_others_run(int) -> void {}",
    "what the library calls in itself": "namespace detail { template <typename F> bool wait_until(F) {} }",
    "a special case by a namespace's other name": OUTSIDE(f"namespace lib = ep::detail; {COPY_AS}"),
    "a special case in brackets": OUTSIDE("namespace lib = ep; template <> char* (lib::own<char>)(char*, int) {}"),
    "a special case by a macro": "#define SPECIAL template <>\nSPECIAL int own_times<int>(int);",
    "a special case where a macro opens ep": OUTSIDE(
        f"\n#define NS namespace ep\nNS {{ {COPY_AS.replace('lib', 'detail')} }}"
    ),
    "an overload where macros open ep": OUTSIDE(
        "\n#define A ep\n#define B A\nnamespace B { void load_flag(const int*) {} }\n"
    ),
    "a special case of a class": OUTSIDE("namespace lib = ep; template <class T> struct lib::Sums<T*> {};"),
    "a special case of a variable": OUTSIDE("namespace lib = ep; template <class T> const int lib::most<T*> = 3;"),
    "a special case of CUDA's": OUTSIDE("using A = cuda::atomic_ref<int>; template <> void A::store(int) {}"),
    "a special case of C++'s": "namespace std { template <> struct hash<int4> {}; }",
    "the library's, made once more": OUTSIDE("namespace lib = ep; template void lib::put_warp<8>(void*);"),
    "what C++ finds by CUDA's types": OUTSIDE("EP_DEVICE int4 load_word(const int4* p, int = 0) { return *p; }"),
    "a macro of the library's word": "#define ld_acquire_sys_u64 own_load",
    "an operator for the test's types": "template <class E> EP_DEVICE int operator&(int64_t, E) { return 0; }",
    "an operator of auto": "EP_DEVICE int operator&(int64_t, auto) { return 0; }",
    "an operator by a macro": "#define OP operator&\ntemplate <class E> EP_DEVICE int OP(int64_t, E) { return 0; }",
    "CUDA's function before the library's headers": "EP_DEVICE void __syncthreads() {}",
    "a match for the headers' own types": "} EP_DEVICE int next(int4) { return 1; } namespace ep {",
    "a better match than CUDA's": "} EP_DEVICE int __syncthreads_or(bool) { return 1; } namespace ep {",
    "reads that are no loads": "inline bool f(const int* p) { int g = 5; return __builtin_memcmp(p, &g, 4) == 0; }",
    "a copy that is no loads": "inline void f(const void* p, char* t) { __builtin___memcpy_chk(t, p, 7, -1); }",
    "stores by an old name": "inline void f(void* p) { __builtin_bzero(p, 8); }",
    "stores with a size to check": "inline void f(void* p) { __builtin___memset_chk(p, 0, 8, -1); }",
    "stores of a text": 'inline void f(char* p) { strcpy(p, "1234567"); }',
    "stores of a text by a format": 'inline void f(char* p) { snprintf(p, 4, "123"); }',
    "a copy that returns its end": "inline void f(const void* p, void* t) { mempcpy(t, p, 8); }",
    "the thread's own memory": "inline void* f() { return __builtin_thread_pointer(); }",
    "the caller's frame by its layout": "inline void* f() { return __builtin_dwarf_cfa(); }",
    "a jump over frames": "inline void f(void** p) { __builtin_longjmp(p, 1); }",
    "the compiler's function of tomorrow": "inline void f(void* p) { __builtin_zero_non_value_bits(p); }",
    "atomics of clang++": "inline void f(_Atomic(int)* p) { __c11_atomic_store(p, 1, 0); }",
    "a copy by its old name": "inline void f(const void* p, char* t) { __builtin_bcopy(p, t, 7); }",
    "the compiler's atomics": "inline void f(uint64_t* p) { __atomic_store_n(p, 1, __ATOMIC_RELEASE); }",
    "the C++ library's atomics": "inline void f(std::atomic_uint* p) { p->store(1); }",
    "another meaning of the emulator's words": "#define EPEMU_SCOPE_DEVICE EPEMU_SCOPE_SYSTEM",
    "arguments made of memory": "inline void f(void* p) { __builtin_apply((void (*)(...))f, p, 64); }",
    "any number of arguments, taken": "inline int f(__builtin_va_list& l) { return __builtin_va_arg(l, int); }",
    "the caller's frame": "inline void* f() { return __builtin_frame_address(1); }",
    "the line of the call": "#include <experimental/source_location>",
    "the line of the call, taken": "inline int f(int line = __builtin_LINE()) { return line; }",
    "an overload of what the test calls in the library": "EP_DEVICE void signal_add(uint64_t*, int, int) {}",
}


def submitted(tmp_path: Path, top: str = "", old: str = "", new: str = "") -> Path:
    at = SOLUTION.index("namespace ep {") + len("namespace ep {")
    (tmp_path / PIECE).parent.mkdir(parents=True, exist_ok=True)
    assert old in SOLUTION
    (tmp_path / PIECE).write_text(f"{SOLUTION[:at]}\n{top}\n{SOLUTION[at:].replace(old, new, 1)}", "utf-8")
    return tmp_path


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_may_hide_from_the_checker_is_flagged_with_its_line(cheat: str, tmp_path: Path) -> None:
    refused, looks = watched.look_through(EXERCISE, submitted(tmp_path, CHEATS[cheat]), TESTS)
    assert not refused and looks and looks[0].startswith(f"{PIECE}:"), looks


@pytest.mark.parametrize("cheat", SWITCHES_OFF)
def test_what_switches_the_checker_off_is_refused_with_its_line(cheat: str, tmp_path: Path) -> None:
    refused, _ = watched.look_through(EXERCISE, submitted(tmp_path, SWITCHES_OFF[cheat]), TESTS)
    assert refused.startswith(f"{PIECE}:") and refused.endswith("leave it out."), refused


@pytest.mark.parametrize(
    "code",
    [
        "// asm volatile, __tsan_write8, #pragma GCC",
        "[[maybe_unused]] static int unused_one;",
        "#pragma unroll 4",
        "__attribute__((noinline)) static int helper(int a) { return a; }",
        "#define MINE(x) ((x) + 1)",
        'constexpr const char* own_text = "no asm, no ##, no #pragma, let_others_run(1)";',
        "#pragma GCC unroll 4",
        "[[gnu::always_inline]] static int helper(int a) { return a; }",
        "[[using gnu: hot, const]] static int helper(int a) { return a; }",
        "__attribute__((const)) static int helper(int a) { return a; }",
        "EP_DEVICE void own_caller(uint64_t* a) { if (a[1] < 2) let_others_run(3); }",
        "struct Own { EP_DEVICE int let_others_run() { return 3; } };",
        "#ifdef OWN\nEP_DEVICE int own() { return 1; }\n#else\nEP_DEVICE int own() { return 2; }\n#endif",
        "template <typename T> EP_DEVICE T own_helper(const T& a) { int b[2] = {0, 1}; return a + b[b[0]]; }",
        "EP_DEVICE auto a_lambda() { return [=] { return 3; }; }",
        "EP_DEVICE float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }",
        "struct Own { int n; EP_DEVICE int operator()(int a) const { return a + n; } friend int own_friend(Own); };",
        "template <class T> struct Own { T n; EP_DEVICE Own operator*(Own b) const { return {n * b.n}; } };",
        "using u64 = uint64_t;",
        "template <class T = int> EP_DEVICE T own_default(T a = 3) { return a; }",
        "__device__ const int own_most = min(3, 4), own_other = max(own_most, 5);",
        'static_assert(sizeof(Pipe) < 100, "small");',
        "#define ALL(...) own(__VA_ARGS__)\ntemplate <class... T> EP_DEVICE int own(T... a) { return (0 + ... + a); }",
        "EP_DEVICE int own_bits(unsigned a) { return __builtin_popcount(a) + __builtin_clzll(a) + __builtin_ffs(a); }",
        "EP_DEVICE int own_hint(int a) { if (__builtin_expect(a == 1, 0)) __builtin_unreachable(); return 3; }",
        "EP_DEVICE float own_value(float a) { return __builtin_isnan(a) ? __builtin_fabsf(a) : __builtin_inff(); }",
        "EP_DEVICE bool own_sum(int a, int* b) { return __builtin_add_overflow(a, 1, b); }",
        "template <class... F> EP_DEVICE void own(int n, F... f) { for (int i = 0; i < n; ++i) (f(i), ...); }",
        "template <class... F> EP_DEVICE int own(F... f) { (void)(f(), ...); (++f, ...); return ((f = f + 1), ...); }",
        "template <class T> EP_DEVICE T own(T a) { return a; }\n"
        "template <> EP_DEVICE int own<int>(int a) { return 1; }\n"
        "template <> EP_DEVICE char own(char a) { return a; } template short own<short>(short);",
        "template <class T, int n = 3> struct alignas(16) Own { T a[n]; EP_DEVICE T get() const; };\n"
        "template <class T, int n> EP_DEVICE T Own<T, n>::get() const { return a[0]; }\n"
        "template <class T> struct Own<T*, 3> { T* a; };\ntemplate <> struct __align__(8) Own<int, 1> final {};\n"
        "template <> EP_DEVICE float Own<float, 2>::get() const { return a[1]; }",
        "template <class T> constexpr int own = 8;\ntemplate <> constexpr int own<int> = 32;",
        "template <class T> EP_DEVICE std::enable_if_t<(sizeof(T) > 4), int> own(T) { return 1; }\n"
        "template <class T> EP_DEVICE auto owns(const T& a) -> decltype(a + 1) { return a + 1; }",
        "} namespace cg = cooperative_groups; namespace ep {",
        "struct Own { template <int n> EP_DEVICE int f(); };\ntemplate <> EP_DEVICE int Own::f<3>() { return 3; }",
        "template <int n> struct Own {};\ntemplate <class T = Own<(8 >> 1)>> struct Of {};\n"
        "template <> struct Of<Own<2>> {};",
        "} EP_DEVICE bool is_leader() { return threadIdx.x == 0; } EP_DEVICE int rank() { return 3; } namespace ep {",
        "struct __align__(16) Own { int n[4]; };\nEP_DEVICE unsigned own_vote() { return __ballot_sync(~0u, 1); }",
    ],
)
def test_plain_code_is_not_flagged(code: str, tmp_path: Path) -> None:
    assert watched.look_through(EXERCISE, submitted(tmp_path, code), TESTS) == ("", [])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_few_of_the_functions_that_a_compiler_has_are_free() -> None:
    place = subprocess.run(["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout
    data = Path(place.strip()).read_bytes()
    known = {name.decode() for name in re.findall(rb"\0(__(?:builtin|sync|atomic)_\w+)(?=\0)", data)}
    assert len(known) > 1000
    free = {name for name in known if not any(pattern.search(f"{name}(a)") for pattern, _ in watched._HIDES)}
    assert {"__builtin_popcountll", "__builtin_expect", "__builtin_sqrtf"} <= free and len(free) < 210, sorted(free)
    reach = re.compile(
        "mem|str|cpy|zero|copy(?!sign)|print|put|get|alloc|pointer|frame|return|jmp|stack|chk|cfa|va_|exec|chr"
    )
    assert not {name for name in free if reach.search(name)}


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


SIGNAL = "signal_add(signal, increment, peer);  // a release: it publishes this thread's stores before it"
WRITE = "put_thread(target, source, bytes, peer);"
HIDDEN_COPY = (
    '__attribute__((no_sanitize("thread"), noinline)) static void copy(char* to, const char* from, size_t n) {'
    " for (size_t i = 0; i < n; ++i) to[i] = from[i]; }"
)
UNSEEN = {
    "assembly": (
        "",
        "char* to = (char*)peer_ptr(target, peer); const void* from = source; size_t n = bytes;"
        ' asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");',
        "asm",
    ),
    "a copy without the sanitizer": (
        HIDDEN_COPY,
        "copy((char*)peer_ptr(target, peer), (const char*)source, bytes);",
        "your writes could not be watched",
    ),
    "functions of the checker": (
        'extern "C" __attribute__((visibility("default"))) void __tsan_write1(void*) {}',
        WRITE,
        "__tsan_write1: names that begin with two underscores",
    ),
    "functions of libraries, by templates too": (
        'extern "C" void swab(const void*, void*, ssize_t) noexcept;\n'
        "}\n#include <algorithm>\n#include <functional>\nnamespace ep {",
        "swab(source, (void*)source, 0);"
        "if (!std::equal((const char*)source, (const char*)source + 4, (const char*)target)"
        f" && std::_Hash_bytes(source, bytes, 7) != 3) {WRITE}",
        "std::_Hash_bytes(void const*, unsigned long, unsigned long), memcmp(), swab(), which kernels do not have",
    ),
    "the address of a library's function": (
        "",
        f"static char* volatile near; near = (char*)(long (*)(long))&labs; {WRITE}",
        "takes the address of labs(), which kernels do not have",
    ),
    "the test's own numbers changed": (
        "",
        f"*const_cast<char*>(static_cast<const char*>(source)) ^= 1; {WRITE}",
        "your code has written into 'source'",
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("cheat", UNSEEN)
def test_what_the_words_miss_is_seen_in_the_library_or_in_the_run(
    cheat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader, "read", lambda *_: ("", []))
    top, body, says = UNSEEN[cheat]
    result = grade("01", submitted(tmp_path, top, WRITE, body))
    assert not result.tasks[0].passed
    assert any(part in result.tasks[0].message for part in says.split("|")), result.tasks[0].message


TAKES = """
struct Byte { char it; };
__attribute__((noinline)) static void take(char* to, Byte byte) { *to = byte.it; }
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


def test_a_sentence_names_some_functions_and_says_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["_ZSt11_Hash_bytesPKvmm", "memcmp", *(f"f{number}" for number in range(40))]
    monkeypatch.setattr(watched, "strangers", lambda _: named)
    with pytest.raises(KernelCompileError) as raised:
        watched.require_kernels_own(Path("kernel.so"))
    assert "std::_Hash_bytes(void const*, unsigned long, unsigned long), memcmp(), f0() and 39 more," in str(
        raised.value
    )


def test_what_a_compiler_does_not_show_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "find_compiler", lambda: Compiler("clang++", "clang++ 14", is_clang=True))
    assert "take g++" in watched.unwatched()[0]
    monkeypatch.setattr(watched, "find_compiler", lambda: Compiler("g++", "g++ 12", is_clang=False))
    assert watched.unwatched() == ()


GIVEN = re.compile(r"^struct (?:alignas\(16\) )?(\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^    [\w ]+\*? (\w+);", re.MULTILINE)


def test_every_field_of_a_struct_that_is_given_is_held_by_the_tests() -> None:
    looked_at = 0
    for exercise in map(find, names()):
        for piece in exercise.pieces:
            text = (exercise.solution_dir / piece).read_text("utf-8")
            if (test := Path(HIDDEN, f"ex{exercise.name}.cu")).is_file() and piece.endswith(".cuh"):
                held = test.read_text("utf-8")
                for name, body in GIVEN.findall(text):
                    fields = FIELD.findall(body)
                    assert fields and re.search(rf"^GRADER_STRUCT\((\w+::)?{name}, \d+\);", held, re.MULTILINE), name
                    assert all(re.search(rf"FIELD\((\w+::)?{name}, {field}, ", held) for field in fields), name
                    looked_at += len(fields)
    assert looked_at > 30


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "int num_slots;",
            "struct { int n; operator int() const { return n; } } num_slots;",
            "leave num_slots as it",
        ),
        ("    size_t bytes;", "    size_t bytes; Write() {}", "the tests use it as well"),
    ],
)
def test_a_struct_that_is_given_stays_as_it_is(old: str, new: str, says: str, tmp_path: Path) -> None:
    result = grade("01", submitted(tmp_path, "", old, new), tasks=[1])
    assert not result.points and result.problem is not None
    assert says in result.problem and result.problem.endswith("as it is"), result.problem


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

    assert watched.strangers(kernel.compile("emulator").path) == []
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
    version = "@GCC_3.0" if library == "libgcc_s.so.1" else ""  # as it stands in what is linked with it
    allowed = {name for name in functions if watched.is_of_kernels(f"{name}{version}")}
    assert 0 < len(allowed) <= MOST[library], sorted(allowed)
    if library == "libc.so.6":
        of_every_library = {"__assert_fail", "__stack_chk_fail", "__cxa_finalize"}
        assert allowed <= watched._HARMLESS | watched._MATHEMATICS | of_every_library
    elif library == "libm.so.6":
        assert allowed <= watched._MATHEMATICS | watched._HARMLESS
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
    takes = {name: given for name, given in re.findall(r"\b(\w+) \(([^()]*)\)", said) if name in watched._MATHEMATICS}
    assert len(takes) > 100
    assert {name for name, given in takes.items() if "*" in given} <= WRITES | {f"{name}f" for name in WRITES}
    assert not any("const" in given for given in takes.values())
