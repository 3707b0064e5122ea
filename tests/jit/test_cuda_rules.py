"""What is not CUDA is refused on the emulator, in NVRTC's words and with a remedy; and what that costs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from support.alone import launched

from ep_lib import Rank, spawn
from ep_lib.config import Config
from ep_lib.errors import KernelCompileError, KernelLaunchError
from ep_lib.jit import cuda_rules, gxx, nvrtc, toolkit
from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import grade

pytestmark = [pytest.mark.cuda_rules, pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")]


def refusal(source: str, name: str = "k") -> KernelCompileError:
    with pytest.raises(KernelCompileError) as caught:
        Kernel.from_source(source, name, filename="mine.cu").compile()
    return caught.value


@pytest.mark.parametrize(
    ("line", "says", "remedy"),
    [
        ("int f(int x) { return x; }\n__device__ int g() { return f(1); }", "one for the host", "write __device__"),
        ("__forceinline__ int f() { return 1; }\n__device__ int g() { return f(); }", "one for the host", "__device__"),
        ("__host__ int f() { return 1; }\n__device__ int g() { return f(); }", "a __host__ function", "in place of"),
        ("int counter = 5;\n__device__ int g() { return counter; }", "one of the host", "or __constant__"),
        ("__global__ void b(int* o) { __shared__ int s = 0; o[0] = s; }", "initializer not allowed", "one thread"),
        ("__global__ void b(int* o) { __shared__ int s[warpSize]; o[0] = s[0]; }", "constant value", "shared_bytes"),
        ("__constant__ int c; __global__ void b() { c = 1; }", "modifiable lvalue", "only read"),
        (
            "__device__ int* f(int* p) { return p; } __global__ void b(int* o) { f(o) = 1; }",
            "modifiable lvalue",
            "write `*` before it",
        ),
        (
            "__constant__ int c[2]; __global__ void b() { int unused; c[0] = 1; }",
            "a store to __constant__",
            "only read",
        ),
        ("__global__ void b(int* o) { __shared__ int s[15000]; o[0] = s[o[1]]; }", "too much shared data", "48 KiB"),
        (
            "__global__ void b(int* o) { int s[150000]; for (int i = 0; i < 150000; i++) s[i] = i * *o; *o = s[*o]; }",
            "uses too much local memory",
            "512 KiB",
        ),
        ("__global__ void b(int* o) { o[0] = rand(); }", '"rand" is undefined', "kernels have no rand"),
        ("__global__ void b(int* o) { o[0] = INT_MAX; }", '"INT_MAX" is undefined', "#include <limits.h>"),
        ("__global__ void b(half2* o) { o[0] = o[1]; }", '"half2" is undefined', "#include <cuda_fp16.h>"),
        ("__global__ void b(int* o) { o[0] = __shfl_down(o[1], 4); }", "is undefined", "__shfl_down_sync(0xffffffff"),
        ("#include <thrust/reduce.h>", "the host calls", "<cub/block/...>"),
        ("__global__ void b() { cudaDeviceSynchronize(); }", "is undefined", "in Python"),
        ("__global__ void b() { throw 1; }", "exception handling", "__trap()"),
        ("#include <cub/cub.cuh>", "<cub/block/block_reduce.cuh>", "as the header says"),
    ],
)
def test_the_learners_line_the_reason_and_the_remedy(line: str, says: str, remedy: str) -> None:
    error = refusal(f"\n{line}\n__global__ void k(int* o) {{ o[0] = 1; }}\n")
    assert str(error).startswith("mine.cu:2: error: no GPU takes this: ")
    assert says in str(error) and remedy in str(error) and error.line == 2


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("struct S { int n; int data[]; }; __device__ int g(S* s) { return s->data[1]; }", "give the array a size"),
        ("__device__ auto g(auto a, auto b) { return a + b; }", "write a template"),
        ("__device__ int g(int x) { __typeof__(x) y = x; return y; }", "decltype"),
        ("__device__ int g(int x) { return ({ int y = x; y + 1; }); }", "a lambda that is called at once"),
        ("__device__ int g(int x) { register int y = x; return y; }", "leave `register` out"),
        ("__device__ int g(int x) { return __builtin_clz(x); }", "__clz"),
        ("__device__ void g() { cudaGridDependencySynchronize(); }", "leave it out"),
        ('__device__ int g() { char c[strlen("four") + 1]; return sizeof(c); }', 'write sizeof("...") - 1'),
        ("__device__ float g() { float _Complex z = 1; return __real__ z; }", "<cuda/std/complex>"),
        (
            "__global__ void c(int* o);  __global__ void g(int* o) { c<<<1, 1>>>(o); }",
            "launched from Python, by Kernel.launch",
        ),
    ],
)
def test_what_nvcc_alone_takes_is_told_so_with_what_to_write(line: str, remedy: str) -> None:
    error = refusal(f"\n{line}\n__global__ void k(int* o) {{ o[0] = 1; }}\n")
    assert str(error).startswith("mine.cu:2: error: NVRTC does not take this, though nvcc does: ")
    assert remedy in str(error)


OF_THE_HOST = """
#include <iostream>
#include <vector>
constexpr int blocks(int rows) { return (rows + 31) / 32; }
struct Pair { int a, b; int sum() const { return a + b; } };
__host__ int twice(int x) { return 2 * x; }
int main() { printf("%d", twice(Pair{1, 2}.sum())); }
__global__ void k(int* o) {
    int seen[blocks(64)] = {};
    auto add = [&](auto x) { seen[1] += x; };
    add(3), add(4u);
    o[0] = (unsigned __int128)seen[1] << 64 >> 64;
}
"""


def test_functions_of_the_host_may_be_there_and_lambdas_take_anything() -> None:
    kernel = Kernel.from_source(OF_THE_HOST, "k")
    assert kernel.compile("sm_90").cubin
    assert launched("emulator", kernel, 1, 1, np.zeros(1, np.int32)) == [7]


def test_the_runtimes_header_brings_what_it_does_for_nvcc() -> None:
    kernel = Kernel.from_source(
        "#include <cuda_runtime.h>\n#define M_PI 3.14\n"
        "__global__ void k(float* o) { o[0] = o[1] < INFINITY && o[2] == INT_MAX ? M_PI : NAN; }",
        "k",
    )
    for target in ("emulator", "sm_90"):
        kernel.compile(target)


def test_what_a_header_of_the_host_has_is_not_for_kernels() -> None:
    assert "kernels have no cout" in str(refusal("#include <iostream>\n__global__ void k() { std::cout << 1; }"))
    error = refusal("#include <vector>\n__global__ void k(int* o) { std::vector<int> v; o[0] = v.size(); }")
    assert error.line == 2 and "kernels have no vector: is it the host's" in str(error)


def test_a_header_that_is_not_there_is_no_matter_of_the_emulators() -> None:
    error = str(refusal("#include <vectr>\n__global__ void k(int* o) { o[0] = 1; }"))
    assert error.startswith("mine.cu:1: error: vectr: No such file") or "'vectr' file not found" in error
    assert "leave it out if only the host needs it" in error


def test_what_a_gpu_takes_is_told_as_the_emulators_matter_in_one_sentence() -> None:
    error = refusal('__global__ void k(int* o) {\n  if (o[1]) __trap();\n  if (o[2]) asm("trap;");\n}')
    assert str(error).startswith("mine.cu:3: error: the emulator does not have this, which a GPU takes: inline PTX\n")
    assert str(error).count("error:") == 1
    surface = "__global__ void k(cudaSurfaceObject_t s) { int x; surf2Dread(&x, s, 0, 0); surf2Dwrite(x, s, 0, 1); }"
    assert "the emulator has no surf2Dread: textures and surfaces are not emulated" in str(refusal(surface))


def test_assembly_for_gpus_in_a_header_is_told_with_its_line(tmp_path: Path) -> None:
    fence = 'asm volatile("fence.acq_rel.sys;" ::: "memory");'
    (tmp_path / "mine.cuh").write_text(
        f'inline __device__ void f() {{ asm(""); }}\ninline __device__ void g() {{ {fence} }}'
    )
    with pytest.raises(KernelCompileError) as caught:
        Kernel.from_source('#include "mine.cuh"\n__global__ void k() { f(); g(); }', "k", include=[tmp_path]).compile()
    assert caught.value.line == 2 and "ep::fence_sys" in str(caught.value)


def test_errors_of_cpp_are_told_by_the_cpp_compiler() -> None:
    assert "did you mean" in str(refusal("__global__ void k(int* o) { int value = 1; o[0] = valeu; }"))


def test_a_block_with_more_threads_than_a_gpu_gives_it_is_refused() -> None:
    many = " + ".join(f"x[{i}] * x[{i + 1}]" for i in range(0, 150, 2))
    source = (
        'extern "C" __global__ void __launch_bounds__(32) few(float* p) { p[threadIdx.x] = 1; }\n'
        'extern "C" __global__ void wide(float* p) { float x[152]; for (int i = 0; i < 152; ++i) x[i] = p[i];\n'
        f"__syncthreads(); for (int i = 0; i < 152; ++i) p[i] = x[i] * 2; p[0] = {many}; }}\n"
    )
    few, wide = (Kernel.from_source(source, name) for name in ("few", "wide"))
    assert few.compile().most_threads == 32 and 128 <= wide.compile().most_threads < 1024

    def main(rank: Rank) -> None:
        out = rank.to_device(np.zeros(1024, np.float32))
        few.launch(rank, 1, 32, out)
        for kernel, threads in ((few, 64), (wide, 1024)):
            with pytest.raises(KernelLaunchError, match=rf"a block of {threads} threads; with its __launch_bounds__"):
                kernel.launch(rank, 1, threads, out)

    spawn(main, 1, backend="emulator")


def test_an_answer_that_no_gpu_takes_gets_no_points_and_the_reason(tmp_path: Path) -> None:
    exercise = find("00_first_kernel")
    text = (exercise.solution_dir / exercise.pieces[0]).read_text(encoding="utf-8")
    (tmp_path / exercise.pieces[0]).write_text(text.replace("EP_DEVICE", "inline"), encoding="utf-8")
    result = grade("00_first_kernel", tmp_path)
    assert result.points == 0 and "one for the host" in result.problem and "write __device__" in result.problem
    line = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("EP_DEVICE"))
    assert f"{Path(exercise.pieces[0]).name}:{line}" in result.problem


def test_a_verdict_is_kept_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__global__ void k(int* o) { o[0] = 70417; }"
    Kernel.from_source(source, "k").compile()
    monkeypatch.setattr(nvrtc, "compile_kernels", None)
    Kernel.from_source(source, "k").compile()


def test_own_kernels_are_asked_about_with_a_learners_header(tmp_path: Path) -> None:
    path = toolkit.PACKAGE / "moe/direct/dispatch_bulk.cu"
    config = Config.from_environment()
    assert cuda_rules.identity(Kernel.from_file(path, "k"), config) == ""
    assert cuda_rules.identity(Kernel.from_file(path, "k", include=[tmp_path]), config)
    assert cuda_rules.identity(Kernel.from_source("", "k"), config)


def test_without_nvrtc_it_is_said_once_that_nothing_was_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolkit, "find_nvrtc", lambda: None)
    cuda_rules._say_once.cache_clear()
    for number in (time.time_ns(), time.time_ns()):  # what is in the cache is not compiled
        source = f"int f() {{ return {number} & 7; }}\n__global__ void k(int* o) {{ o[0] = f() + 70418; }}"
        assert Kernel.from_source(source, "k").compile().most_threads == gxx.MAX_THREADS
    assert capsys.readouterr().err.count("CUDA's own rules are not checked") == 1


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "windows.cu"
    path.write_bytes(b"\xef\xbb\xbf__global__ void k(int* o) {\r\n\to[0] = 7;\r\n}\r\n")
    for target in ("emulator", "sm_90"):
        Kernel.from_file(path, "k").compile(target)
    (tmp_path / "windows.h").write_bytes(b"\xef\xbb\xbf#pragma once\r\n")
    header = Kernel.from_source('#include "windows.h"\n__global__ void k() {}', "k", include=[tmp_path])
    for target in ("emulator", "sm_90"):
        header.compile(target)


def test_limits_of_floats_where_cudas_library_leaves_them_to_the_host(tmp_path: Path) -> None:
    """As that of CUDA 13.0 does; the wheels' own is later."""
    (tmp_path / "cuda" / "std").mkdir(parents=True)
    (tmp_path / "cuda" / "std" / "cfloat").write_text("#include <float.h>\n")
    line = 'extern "C" __global__ void k(float* x) { x[0] = -FLT_MAX + DBL_EPSILON * FLT_DIG; }'
    Kernel.from_source(f"#include <cfloat>\n{line}", "k", include=[tmp_path]).compile("sm_90")
