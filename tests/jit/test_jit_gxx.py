"""Kernels compiled for the emulator: what the shared library looks like, and how the cache behaves."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from support.alone import launched
from support.clang import use_clang

from ep_lib import Rank, processes, spawn
from ep_lib.errors import ArgumentError, BackendUnavailable, KernelCompileError
from ep_lib.jit import cache, runtime_library, toolkit, tools
from ep_lib.jit.elf import Elf
from ep_lib.jit.gxx import EmulatorImage
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.signature import Param

POINTER, CONST_POINTER = Param("pointer", 8, 8, False, "float", 4), Param("pointer", 8, 8, True, "float", 4)


def compile_source(source: str, name: str = "k", **options: object) -> EmulatorImage:
    return Kernel.from_source(source, name, **options).compile()  # type: ignore[arg-type]


@pytest.fixture(params=["g++", pytest.param("clang++", marks=pytest.mark.extended)])
def any_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, rounds: int) -> str:
    if request.param == "clang++":
        use_clang(monkeypatch, rounds)
    elif shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    else:
        monkeypatch.setenv("EP_LIB_CXX", "g++")
    return str(request.param)


def test_parameters_of_every_kind(any_compiler: str) -> None:
    image = compile_source(
        "struct Args { double* p; char c; };\n"
        "enum class Mode : unsigned short { kA };\n"
        "typedef unsigned long long u64;\n"
        "template <typename T, int N> __global__ void k(T* out, const T* const in, volatile int* v, u64 n, char c,\n"
        "    const int i, float f, double d, bool b, Args args, Mode mode, int4 vec, void* any) { out[0] = N; }\n",
        "k<float, 4>",
    )
    assert image.params == (
        POINTER,
        CONST_POINTER,
        Param("pointer", 8, 8, False, "int", 4),
        Param("uint", 8, 8),
        Param("int", 1, 1),
        Param("int", 4, 4),
        Param("float", 4, 4),
        Param("float", 8, 8),
        Param("bool", 1, 1),
        Param("struct", 16, 8),
        Param("uint", 2, 2),
        Param("struct", 16, 16),
        Param("pointer", 8, 8),
    )
    assert image.entry_symbol == "epemu_entry_0"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("__global__ void k() {}", "k"),
        ('extern "C" __global__ void k() {}', "k"),
        ("static __global__ void k() {}", "k"),
        ("namespace a { namespace { __global__ void __launch_bounds__(32, 1) k() {} } }", "a::k"),
        ("#define KERNEL(name) __global__ void name()\nKERNEL(k) {}", "k"),
        ("template <class A, class B> __global__ void k() {}", "k<int, unsigned long long>"),
    ],
)
def test_names(source: str, name: str) -> None:
    assert compile_source(source, name).params == ()


@pytest.mark.extended(after=1)
def test_shared_memory_layout(any_compiler: str) -> None:
    static = compile_source("__global__ void k(int* p) { __shared__ int a[100]; a[threadIdx.x] = 1; *p = a[3]; }")
    assert 400 <= static.static_shared_bytes < 512
    dynamic = compile_source(
        "extern __shared__ char bytes[];\nextern __shared__ int4 vectors[];\n"
        "__global__ void k(int* p) { __shared__ int a[100]; a[threadIdx.x] = bytes[0]; *p = a[3] + vectors[1].x; }"
    )
    assert dynamic.static_shared_bytes == 1024
    elf = Elf(dynamic.path.read_bytes())
    offsets = {symbol.name: symbol.value for symbol in elf.symbols if symbol.name in ("bytes", "vectors")}
    assert offsets == {"bytes": 1024, "vectors": 1024}
    only = compile_source("extern __shared__ int x[];\n__global__ void k(int* p) { *p = x[0]; }")
    assert only.static_shared_bytes == 0


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("declarations", "expected"),
    [
        ("", False),
        ("__constant__ const int table[2] = {1, 2};", False),
        ("constexpr int kSize = 3; template <int N> struct S { static constexpr int v = N; };", False),
        ("__device__ int counter;", True),
        ("__device__ int counter = 5;", True),
        ("static __device__ float weights[3];", True),
        ("__constant__ int table[2];", True),
    ],
)
def test_writable_globals(declarations: str, expected: bool) -> None:
    use = {"table": "table[threadIdx.x % 2]", "counter": "counter++", "weights": "(weights[0] += 1)"}
    value = next((code for word, code in use.items() if word in declarations), "1")
    source = f"{declarations}\n__global__ void k(int* p) {{ __shared__ int s; s = 1; *p = s + {value}; }}\n"
    assert compile_source(source).writable_globals is expected


def test_the_library_needs_our_runtime_and_no_libtsan(any_compiler: str) -> None:
    image = compile_source("struct Big { int4 v[9]; };\n__global__ void k(Big* p) { p[0] = p[1]; }")
    listing = subprocess.run(["readelf", "-dW", str(image.path)], capture_output=True, text=True, check=True).stdout
    assert str(runtime_library.build_runtime()) in listing and "libtsan" not in listing
    elf = Elf(image.path.read_bytes())
    undefined = {symbol.name for symbol in elf.symbols if symbol.section == 0}
    assert "__tsan_memcpy" in undefined and not {"memcpy", "__tls_get_addr"} & undefined


def test_bits_of_numbers_are_no_accesses(any_compiler: str) -> None:
    """The runtime is told of the arrays and of nothing else: a call for each local made a combine half as fast."""
    image = compile_source("""extern "C" __global__ void k(float* f, int* i, double* d, long long* s) {
        f[0] = __int_as_float(i[0] << 16) + __shfl_xor_sync(0xffffffff, f[1], 1);
        i[1] = __float_as_int(f[2]) + __shfl_sync(0xffffffff, i[2], 0) + __any_sync(0xffffffff, i[3] == 0);
        d[0] = __longlong_as_double(__double_as_longlong(d[1]) | 1);
        s[0] = __shfl_down_sync(0xffffffff, s[1], 1);
    }""")
    listed = ["objdump", "-d", "--disassemble=k", "--no-show-raw-insn", str(image.path)]
    code = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.partition("<k>:")[2]
    assert "__tsan_write4" in code and "mem" not in code


def test_cached_kernels_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__global__ void k(float* p) { *p = 17; }"
    first = compile_source(source)

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"started {args}")

    for name in ("run", "Popen"):
        monkeypatch.setattr(subprocess, name, forbidden)
    toolkit._identify.cache_clear()
    assert compile_source(source) == first


@pytest.mark.slow
def test_a_cached_kernel_takes_little_of_a_new_process(tmp_path: Path) -> None:
    """Some milliseconds; what is counted is Python's calls, since a machine may be busy. In a cache of its own: what is
    noted of many checkouts takes longer to read."""
    counted = (
        "import sys\nfrom ep_lib.jit.kernel import Kernel\ncalls = 0\n"
        "def count(frame, event, arg):\n    global calls\n    calls += event == 'call'\n"
        "source = '#include <ep/signal.cuh>\\n__global__ void k(float* p) { *p = 18; }'\n"
        "sys.setprofile(count)\nKernel.from_source(source, 'k').compile()\nsys.setprofile(None)\nprint(calls)\n"
    )
    command = [sys.executable, "-c", counted]
    own = {**os.environ, "EP_LIB_CACHE_DIR": str(tmp_path), "EP_LIB_SHARED_CACHE": str(cache.cache_dir())}
    runs = [subprocess.run(command, env=own, capture_output=True, text=True, check=True) for _ in range(2)]
    assert int(runs[1].stdout) < 10_000


def test_a_learners_header_replaces_ours(tmp_path: Path) -> None:
    (tmp_path / "ep").mkdir()
    (tmp_path / "ep/peer.cuh").write_text("#pragma once\n#define MY_PEER 1\n")
    source = "#include <ep/peer.cuh>\n#ifndef MY_PEER\n#error ours\n#endif\n__global__ void k() {}\n"
    assert compile_source(source, include=[tmp_path]).params == ()
    assert compile_source(source, options=[f"-I{tmp_path}"]).params == ()


def test_defines_reach_the_source() -> None:
    source = "__global__ void k() { static_assert(A == 2 && B && !C && D(3) == 4 && X == 7); }"
    compile_source(source, defines={"A": 2, "B": True, "C": False, "D(x)": "((x) + 1)"}, options=["-DX=7"])


def test_names_of_the_cpp_library_bring_its_headers(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("inline int larger(int a, int b) { return std::max(a, b); }\n")
    kernel = "__global__ void k(int* p) { *p = LARGER(p[0], p[1]); }\n"
    compile_source(kernel.replace("LARGER", "std::max"))
    compile_source('#include "mine.cuh"\n' + kernel.replace("LARGER", "larger"), include=[tmp_path])


@pytest.mark.parametrize(
    "bad", [{"defines": {"1A": 1}}, {"defines": {"A": "1\n2"}}, {"include": ["/proc/self/no-such"]}]
)
def test_bad_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Kernel.from_source("", "k", **bad)  # type: ignore[arg-type]


def test_a_kernel_tells_what_it_is_made_of() -> None:
    assert {"source", "name", "path", "filename", "include", "defines"} <= set(inspect.signature(Kernel).parameters)


def test_bad_targets_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="sm_90"):
        Kernel.from_source("__global__ void k() {}", "k").compile("hopper")
    with pytest.raises(ArgumentError, match="name"):
        Kernel.from_source("__global__ void k() {}", " ")
    with pytest.raises(ArgumentError, match=r"nothing\.cu"):
        Kernel.from_file(tmp_path / "nothing.cu", "k")


def test_kernels_travel_between_processes() -> None:
    kernel = Kernel.from_source("__global__ void k(int n) {}", "k")
    image = kernel.compile()
    assert pickle.loads(pickle.dumps(kernel)).compile() == image


def test_a_missing_compiler_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CXX", "c++-of-nobody")
    with pytest.raises(BackendUnavailable, match="c\\+\\+-of-nobody"):
        toolkit.find_compiler()
    monkeypatch.delenv("EP_LIB_CXX")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match="apt-get install g\\+\\+"):
        toolkit.find_compiler()


def test_an_interrupt_ends_the_compilers_of_the_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    first, compiles = threading.Lock(), threading.Event()
    ended = []

    def compiled(*_: object) -> None:
        if first.acquire(blocking=False):
            compiles.wait(60)
            raise KeyboardInterrupt
        compiles.set()
        try:
            processes.run(["sleep", "1e9"], cpu_s=1e9, idle_s=60)
        except processes.Stopped as stopped:
            ended.append(stopped)
            raise

    monkeypatch.setattr(runtime_library, "_headers", compiled)
    monkeypatch.setattr(runtime_library, "_object", compiled)
    with pytest.raises(KeyboardInterrupt):
        runtime_library.build_runtime()
    assert ended


@pytest.fixture
def small_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In place of the emulator's sources, which g++ takes seconds for."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    monkeypatch.setenv("EP_LIB_CXX", "g++")
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "precompiled.hpp").write_text("#pragma once\ninline int twice(int x) { return 2 * x; }\n")
    for n in range(runtime_library._HEADERS_PAY):
        (sources / f"{n}.cpp").write_text(f'#include "precompiled.hpp"\nint f{n}(int x) {{ return twice(x) + {n}; }}\n')
    monkeypatch.setattr(toolkit, "RUNTIME_SOURCES", sources)
    monkeypatch.setattr(runtime_library, "_ROOTS", [sources])
    return sources


def test_the_runtimes_headers_are_parsed_once(small_runtime: Path, tmp_path: Path) -> None:
    compiler, parsed = toolkit.find_compiler(), Future[Path]()
    parsed.set_result(runtime_library._headers(compiler, tmp_path))
    plain = runtime_library._object(compiler, "0.cpp").read_bytes()
    cache.clear()
    parsed.result().write_text("#error g++ does not take what it has parsed\n")
    assert runtime_library._object(compiler, "0.cpp", parsed).read_bytes() == plain
    cache.clear()
    Path(f"{parsed.result()}.gch").unlink()
    with pytest.raises(BackendUnavailable, match="g\\+\\+ does not take"):
        runtime_library._object(compiler, "0.cpp", parsed)


def test_a_runtime_keeps_no_parsed_headers(small_runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []
    real = tools.run

    def run(command: Sequence[str]) -> tuple[int, str]:
        commands.append(command)
        return real(command)

    monkeypatch.setattr(tools, "run", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    library = runtime_library.build_runtime()
    assert sum("-include" in command for command in commands) == runtime_library._HEADERS_PAY
    assert sorted(path.name for path in library.parent.iterdir()) == sorted([library.name, cache.MANIFEST])
    (small_runtime / "precompiled.hpp").write_text("#pragma once\ninline int twice(int x) { return x + x; }\n")
    (small_runtime / "0.cpp").unlink()
    commands.clear()
    assert runtime_library.build_runtime() != library  # a header changed: all files are compiled again
    assert len(commands) == runtime_library._HEADERS_PAY and not any("-include" in command for command in commands)


def _build_slowly(folder: str, log: str) -> None:
    os.environ["EP_LIB_CACHE_DIR"] = folder

    def build(partial: Path, final: Path) -> None:
        with Path(log).open("a") as file:
            file.write("built\n")
        (partial / "part").write_text("x")
        time.sleep(0.3)
        (partial / "done").write_text("y")

    entry = cache.entry("test", "0123", "done", build)
    assert (entry / "part").read_text() + (entry / "done").read_text() == "xy"


def test_concurrent_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"))
    processes = [context.Process(target=_build_slowly, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path))

    def fail(partial: Path, final: Path) -> None:
        (partial / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.entry("test", "key", "done", fail)
    assert list((tmp_path / "test").iterdir()) == []


PAIR = """
__device__ int counter;
extern "C" __global__ void first(int* out) { *out = ++counter; }
// extern "C" __global__ void none() {}
extern "C" __global__ void __launch_bounds__(32) second(int* out, float factor) { *out = counter + int(factor); }
template <int N> __global__ void third(int* out) { *out = N; }
"""


def test_the_kernels_of_a_source_are_compiled_together() -> None:
    first, second, third = (Kernel.from_source(PAIR, name).compile() for name in ("first", "second", "third<7>"))
    assert first.path == second.path != third.path
    assert [len(image.params) for image in (first, second, third)] == [1, 2, 1]
    assert [image.entry_symbol for image in (first, second, third)] == [
        "epemu_entry_0",
        "epemu_entry_1",
        "epemu_entry_0",
    ]

    def main(rank: Rank) -> list[int]:
        out = rank.to_device(np.zeros(3, np.int32))
        Kernel.from_source(PAIR, "first").launch(rank, 1, 1, out)
        Kernel.from_source(PAIR, "second").launch(rank, 1, 1, out[1:], 5.0)
        Kernel.from_source(PAIR, "third<7>").launch(rank, 1, 1, out[2:])
        return [int(value) for value in rank.to_host(out)]

    assert spawn(main, 1, "emulator") == [[1, 5, 7]], "each kernel has __device__ variables of its own, as on GPUs"


def test_kernels_that_a_macro_makes_are_compiled_together(tmp_path: Path) -> None:
    made = (
        '#define KERNEL(name) extern "C" __global__ void name(int* p)\n#define IN(name, type) void name(type* p)\n'
        "KERNEL(one) { *p = 1; }\n// KERNEL(none) {}\n"
        "__device__ IN(of_device, int) { *p = 3; }\nKERNEL(two) { of_device(p); }\n"
    )
    (tmp_path / "made.cu").write_text(made)
    (tmp_path / "lesson").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    one = Kernel.from_file(tmp_path / "made.cu", "one").compile()
    assert one == Kernel.from_file(tmp_path / "lesson" / ".." / "made.cu", "one").compile(), "one file, one compilation"
    two = Kernel.from_file(tmp_path / "link" / "made.cu", "two").compile()
    assert one.path == two.path and (one.entry_symbol, two.entry_symbol) == ("epemu_entry_0", "epemu_entry_1")


def test_a_kernel_that_only_looks_like_one_does_not_disturb_the_others() -> None:
    source = (
        'namespace inner {\nextern "C" __global__ void hidden(int* p) { *p = 1; }\n}\n'
        'extern "C" __global__ void plain(int* p) { *p = 2; }\n'
    )
    image = Kernel.from_source(source, "plain").compile()
    assert len(image.params) == 1


def test_inlined_functions_may_call_themselves(any_compiler: str) -> None:
    source = """
#include <ep/platform.cuh>
EP_DEVICE int odd_sum(const int* x, int n);
__device__ __forceinline__ int even_sum(const int* x, int n) { return n < 0 ? 0 : x[n] + odd_sum(x, n - 1); }
EP_DEVICE int odd_sum(const int* x, int n) { return n < 0 ? 0 : even_sum(x, n - 1) - x[n]; }
extern "C" __global__ void k(int* x) { x[8] = even_sum(x, 7); }
"""
    (x,) = launched("emulator", Kernel.from_source(source, "k"), 1, 1, np.arange(9, dtype=np.int32))
    assert x[8] == 4


def test_places_of_the_linker_are_no_variables() -> None:
    text = """
    extern "C" char _DYNAMIC[], __ehdr_start, _end, __TMC_END__;
    extern "C" __global__ void k(long* out) { out[0] = (&_end - _DYNAMIC) + (&__TMC_END__ - &__ehdr_start); }
    """
    with pytest.raises(
        KernelCompileError, match=r"^x.cu: error: nothing defines _DYNAMIC, __TMC_END__, __ehdr_start, _end"
    ):
        Kernel.from_source(text, "k", filename="x.cu").compile()


def test_names_that_c_reserves_are_names_like_others() -> None:
    source = """
    __device__ int __counter;
    extern "C" __device__ int __my_helper(int x) { return x + 1; }
    extern "C" __global__ void k(int* out) { *out = __my_helper(++__counter); }
    """
    assert launched("emulator", Kernel.from_source(source, "k"), 1, 1, np.zeros(1, np.int32)) == [2]


def test_a_kernel_larger_than_a_file_may_be_is_no_fault_of_the_machine() -> None:
    """The grader limits files, and the log of the compiler is gone when somebody reads of it."""
    source = '__device__ char big[12 << 20] = {1}; extern "C" __global__ void k(char* out) { *out = big[5]; }'
    compile_source(source.replace("12 << 20", "12"))  # what all kernels need
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, hard))
    try:
        with pytest.raises(KernelCompileError, match="larger than the 8 MiB that a file may have here"):
            compile_source(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
