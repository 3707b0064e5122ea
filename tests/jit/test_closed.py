"""Somebody else's code beside a kernel, as an object of its own: nothing in it changes the kernel."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alone import launched

import ep_lib
from ep_lib.callers import short_path
from ep_lib.errors import KernelCompileError
from ep_lib.jit import runtime_library
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.source import KernelSource

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
# What NVRTC would refuse first is refused without it, too.
pytestmark = pytest.mark.skipif(not COMPILERS, reason="no compiler")

KERNEL = """
#include <ep/memory.cuh>
#include <ep/peer.cuh>
extern "C" __device__ int piece_answer(int x, int* out);
namespace {
struct Job { int64_t count; };
__device__ __noinline__ int twice(int x) { return 2 * x; }
}  // namespace
extern "C" __global__ void examine(int* out) {
    const Job job = {32};
    const int me = ep::thread_in_block();
    if (me < job.count) out[me] = twice(piece_answer(me, out)) + __shfl_sync(~0u, 0, 0);
}
"""
ANSWER = 'extern "C" __device__ int piece_answer(int x, int* out) { return x + 1; }\n'

# What a piece may say, however it is meant: all of it together, before and behind the answer.
BEFORE = """
#include <ep/detail/entry.cuh>
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#define examine zz
#define twice(x) 0
#define Job int
#define EP_KERNEL_ENTRY(...)
#pragma GCC visibility push(default)
#pragma weak examine
namespace { struct Job2 {}; __device__ int __counter; }
"""
BEHIND = """
EP_DEVICE int row(int x) { return x; }
namespace ep { EP_DEVICE int thread_in_block(long) { return 3; } EP_DEVICE int rank(long) { return 1; } }
EP_DEVICE int __shfl_sync(unsigned, short, short) { return 1; }
template <> inline float* ep::peer_ptr(float*, int) { return nullptr; }
template <> struct ep::detail::Describe<const int*, false> {
    static constexpr ParamKind kKind = kInt;
    static constexpr unsigned kFlags = 0;
};
template <class T> int64_t operator+(T, dim3) { return 7; }
template <class T, class U> bool operator<(T*, U) { return 0; }
#if 0
if (x) { don't
#endif
extern "C" {
__device__ int __my_helper(int x) { return x; }
void examine(int) {}
__attribute__((used)) void epemu_entry_0(void**) {}
__attribute__((used)) int ep_kernel_params_0[64] = {1};
int pause(int x) { return x; }
int _ZN12_GLOBAL__N_15twiceEi(int) { return 9; }
__attribute__((weak, used)) void weak_one() {}
}
template <class T> struct Unique { static int here; };
template <class T> int Unique<T>::here = 3;
int* unique() { return &Unique<int>::here; }
inline int& counted() { static int n; return n; }
int more() { return ++counted(); }
__device__ int counter;
void count() { ++counter; }
"""


def kernel_beside(piece: str, folder: Path) -> Kernel:
    file = folder / "piece.cu"
    file.write_text(piece)
    closed = KernelSource(piece, "piece", path=file, filename="piece.cu")
    return Kernel(KERNEL, "examine", path=None, filename="test.cu", closed=closed)


def answers(kernel: Kernel) -> np.ndarray:
    return launched("emulator", kernel, 1, 32, np.zeros(32, np.int32))[0]


def names_of(library: Path) -> set[str]:
    said = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in said.splitlines()}


def with_compiler(compiler: str, function: Callable[[Path], Any], folder: Path) -> Any:
    """In a process of its own: one that has loaded the emulator of a compiler keeps it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _choose, (compiler,)) as pool:
        return pool.submit(function, folder).result()


def _choose(compiler: str) -> None:
    runtime = runtime_library.build_runtime()  # by the default compiler: clang++ takes 40 s of CPU for it
    runtime_library.build_runtime = lambda: runtime
    os.environ["EP_LIB_CXX"] = compiler


def everything(folder: Path) -> tuple[np.ndarray, list[str], set[str]]:
    kernel = kernel_beside(BEFORE + ANSWER + BEHIND, folder)
    kinds = [param.kind for param in kernel.compile().params]
    return answers(kernel), kinds, names_of(kernel.compile().path)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_nothing_that_a_piece_declares_changes_the_kernel_beside_it(compiler: str, tmp_path: Path) -> None:
    told, kinds, defined = with_compiler(compiler, everything, tmp_path)
    assert np.array_equal(told, 2 * np.arange(1, 33)) and kinds == ["pointer"]
    assert "piece_answer" in defined
    assert not {name for name in defined if re.search("row|counte|helper|Unique|more|another|Job2|weak_one", name)}


REFUSED = {
    "the name of a test's function": (
        'extern "C" void examine(int*); void again() { examine(nullptr); }\n',
        "calls, defines or takes the address of examine",
    ),
    "an entry of the test's": (
        'extern "C" void epemu_entry_0(void**); void again() { epemu_entry_0(nullptr); }\n',
        "epemu_entry_0",
    ),
    "an access of the sanitizer's": (
        'extern "C" void __tsan_write4(void*) {}\n',
        "your code defines __tsan_write4",
    ),
    "the same, for itself alone": (
        'extern "C" { static __attribute__((used)) void __tsan_read4(void*) {} }\n',
        "your code defines __tsan_read4",
    ),
    "shared memory of its own making": (
        'extern "C" void* __tls_get_addr(void*) { return nullptr; }\n',
        "your code defines __tls_get_addr",
    ),
    "a function of the emulator's that kernels do not have": (
        'extern "C" void epemu_run_block(void*); void again() { epemu_run_block(nullptr); }\n',
        "epemu_run_block",
    ),
    "a function of another library": (
        'extern "C" long strtol(const char*, char**, int);\n'
        "long number(const char* text) { return strtol(text, nullptr, 10); }\n",
        "strtol",
    ),
    "streams of the C++ library": (
        "#include <iostream>\nvoid f(int x) { std::cout << x; }\n",
        "'cout' is not a member",
    ),
    "other lines": ('#line 7 "test.cu"\n' + "void elsewhere(int* p) { *p = 1; }\n", "test.cu, which is not where"),
    "a constructor": (
        "struct G { int x; G() { x = int(size_t(&x)); } }; G g;\n",
        "this runs when the kernel is loaded",
    ),
}


@pytest.mark.parametrize(("addition", "why"), REFUSED.values(), ids=REFUSED)
def test_a_piece_that_reaches_around_the_kernels_calls_is_refused(addition: str, why: str, tmp_path: Path) -> None:
    piece = f"#include <ep/memory.cuh>\n{ANSWER}{addition}"
    with pytest.raises(KernelCompileError, match=why):
        kernel_beside(piece, tmp_path).compile()


def test_a_function_that_the_piece_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelCompileError, match="piece_answer"):
        kernel_beside("#include <ep/memory.cuh>\nint another() { return 1; }\n", tmp_path).compile()


def test_the_kernels_own_object_is_compiled_once_for_all_pieces(tmp_path: Path) -> None:
    halves = []
    for number in (1, 2):
        piece = f"#include <ep/memory.cuh>\n{ANSWER.replace('x + 1', f'x + {number}')}"
        kernel = kernel_beside(piece, tmp_path)
        assert np.array_equal(answers(kernel), 2 * np.arange(number, 32 + number))
        halves.append({entry.name for entry in (ep_lib.jit.cache.cache_dir() / "half").iterdir()})
    assert halves[0] == halves[1]


SHARED = """#include <ep/memory.cuh>
extern "C" __device__ int piece_answer(int x, int* out) {
    __shared__ int seen[32];
    seen[x] = x + 1;
    __syncthreads();
    const int other = seen[31 - x];
    out[40] = other;
    return other;
}
"""


def shared_and_raced(folder: Path) -> tuple[int, set[str]]:
    kernel = kernel_beside(SHARED, folder)

    def main(rank: ep_lib.Rank) -> None:
        kernel.launch(rank, 1, 32, rank.to_device(np.zeros(64, np.int32)))

    report = ep_lib.check(main, ranks=1, seeds=2)
    sides = (side for finding in report.findings for side in (finding.first, finding.second))
    return kernel.compile().static_shared_bytes, {side.location for side in sides if side}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_pieces_shared_memory_and_its_races_are_the_blocks(compiler: str, tmp_path: Path) -> None:
    assert with_compiler(compiler, shared_and_raced, tmp_path) == (128, {f"{short_path(tmp_path / 'piece.cu')}:7"})
