"""Compile errors point at the learner's own line, in the learner's own file, on both compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clang import use_clang

from ep_lib.errors import EpError, KernelCompileError, KernelNotFoundError
from ep_lib.jit import diagnostics, names, nvrtc
from ep_lib.jit.kernel import Kernel

KERNEL = "__global__ void k(int* p) {\n%s\n}\n"


@pytest.fixture(params=["emulator", pytest.param("clang++", marks=pytest.mark.extended), "sm_90"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, rounds: int) -> str:
    if request.param == "clang++":
        use_clang(monkeypatch, rounds)
        return "emulator"
    if request.param == "sm_90" and not nvrtc.available():
        pytest.skip("NVRTC or CuPy is not installed")
    return str(request.param)


def failure(source: str, target: str, name: str = "k", **options: object) -> EpError:
    with pytest.raises(EpError) as caught:
        Kernel.from_source(source, name, **options).compile(target)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        pytest.param(KERNEL % "  int x = 1;\n  p[0] = yy;", 3, "yy", id="undeclared"),
        pytest.param("#include <nothere.h>\n" + KERNEL % "", 1, "nothere.h", id="missing header"),
        pytest.param(KERNEL % "  if (p) {\n  p[0] = 1;\n", 2, "never closed", id="brace left open"),
        pytest.param(KERNEL % '  static_assert(sizeof(int) == 8, "eight");', 2, "eight", id="static_assert"),
        pytest.param("#include <ep/peer.cuh>\n" + KERNEL % "  ep::peer_ptr(3, 1);", 3, "peer_ptr", id="wrong call"),
        pytest.param("/* a\nb */" + KERNEL % '  p[0] = (1; // )\n  "{";', 3, ")", id="parenthesis"),
    ],
)
def test_line_and_first_error(source: str, line: int, text: str, target: str) -> None:
    error = failure(source, target, filename="cell 7")
    assert isinstance(error, KernelCompileError)
    assert (error.file, error.line) == ("cell 7", line)
    first, source_line = str(error).splitlines()[:2]
    assert first.startswith(f"cell 7:{line}: error: ") and text in first
    assert source_line.strip() == source.splitlines()[line - 1].strip()
    assert ".cache" not in str(error) and "ep_lib kernel entry" not in str(error)


def test_files_are_named_as_the_user_named_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.cu").write_text("\n\n" + KERNEL % "  oops;")
    with pytest.raises(KernelCompileError, match=r"^bad\.cu:4: error: .*oops") as caught:
        Kernel.from_file("bad.cu", "k").compile(target)
    assert (caught.value.file, caught.value.line) == ("bad.cu", 4)
    assert "oops" in caught.value.log


def test_an_error_in_the_learners_header_names_that_header(tmp_path: Path, target: str) -> None:
    (tmp_path / "mine.cuh").write_text("template <typename T> __device__ T twice(T x) {\n    return x.value;\n}\n")
    error = failure("#include <mine.cuh>\n" + KERNEL % "  p[0] = twice(3);", target, include=[tmp_path])
    assert isinstance(error, KernelCompileError)
    assert (error.file, error.line) == (str(tmp_path / "mine.cuh"), 2)


@pytest.mark.parametrize(
    ("end", "line", "says"),
    [
        ("int one() {\n    __syncthreads", 2, "this '{' is never closed"),
        ("int one() {}\nconstexpr int kTwo = 2  // two\n", 3, ""),
    ],
)
@pytest.mark.parametrize("after", ["__device__ int two() { return 2; }\n", "#include <ep/wait.cuh>\n", ""])
def test_a_header_that_ends_in_the_middle_is_named(
    tmp_path: Path, after: str, end: str, line: int, says: str, target: str
) -> None:
    (tmp_path / "mine.cuh").write_text(f"#pragma once\n__device__ {end}")
    error = failure("#include <mine.cuh>\n" + after + KERNEL % "", target, include=[tmp_path])
    assert isinstance(error, KernelCompileError)
    assert str(error).startswith(f"{tmp_path}/mine.cuh:{line}: error: {says}")
    assert (error.file, error.line) == (str(tmp_path / "mine.cuh"), line)


@pytest.mark.parametrize(("body", "says"), [("  p[0] = valu;", "valu"), ("  if (p[0]) { p[0] = 1;", "never closed")])
def test_mistakes_in_kernels_are_told_whatever_the_host_lacks(body: str, says: str, target: str) -> None:
    host = "#include <cublas_v2.h>\nint main() { cublasHandle_t h; cublasCreate(&h); k<<<1, 1>>>(nullptr); }\n"
    error = failure(host + KERNEL % body, target)
    assert isinstance(error, KernelCompileError) and error.line == 4 and says in str(error).splitlines()[0]
    assert ("left out: cublas_v2.h" in str(error)) == (says == "valu")


def test_an_error_inside_our_header_names_both_places(target: str) -> None:
    source = "#include <ep/detail/entry.cuh>\n" + KERNEL % "  ep::detail::Entry<int> e;"
    error = failure(source, target)
    assert isinstance(error, KernelCompileError)
    assert error.line == 3 and "<ep/detail/entry.cuh>:" in str(error)


def test_an_unknown_name_lists_those_there_are(target: str) -> None:
    source = "// __global__ void no()\n__global__ void send(int* p) {}\ntemplate <int N> __global__ void recv() {}\n"
    error = failure(source + "__device__ void helper() {}", target, "snd")
    assert isinstance(error, KernelNotFoundError) and isinstance(error, LookupError)
    assert "Did you mean 'send'?" in str(error) and "send, recv" in str(error) and " no" not in str(error)[20:]
    error = failure(source + "__device__ void helper() {}", target, "helper")
    assert isinstance(error, KernelNotFoundError) and "'helper' is not a __global__ function" in str(error)
    assert isinstance(failure("int x;", target), KernelNotFoundError)
    made = "#define KERNEL(n) __global__ void n()\nKERNEL(a) {}\n"
    assert isinstance(failure(made, target, "b"), KernelNotFoundError)


def test_ambiguous_names_say_what_to_do(target: str) -> None:
    overloaded = KERNEL % "" + "__global__ void k(float* p) {}\n"
    assert "overloaded" in str(failure(overloaded, target))
    template = "template <typename T> " + KERNEL % ""
    assert "'k<float>'" in str(failure(template, target))
    assert "not one instance" in str(failure(template, target, "k<3>"))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ('asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(p[1]) : "l"(p));', "<ep/memory.cuh>"),
        ("p[0] = __shfl(1, 0);", "the emulator has no __shfl: use __shfl_sync"),
    ],
)
def test_what_the_emulator_lacks_gets_a_hint(code: str, says: str) -> None:
    error = failure(KERNEL % f"\n  {code}", "emulator")
    assert isinstance(error, KernelCompileError)
    assert error.line == 3 and says in str(error)


def test_a_missing_definition_is_found_when_linking() -> None:
    error = failure("__device__ int elsewhere(int);\n" + KERNEL % "  p[0] = elsewhere(1);", "emulator")
    assert isinstance(error, KernelCompileError)
    assert error.line == 3 and "elsewhere" in str(error)
    kernel = Kernel.from_source(KERNEL % "", "k")
    for place in ("", "(.text+0x19):"):  # binutils 2.40; 2.44
        log = f"/usr/bin/ld: {kernel.source_path}:2:{place} undefined reference to `elsewhere(int)'"
        told = diagnostics.compile_error(
            kernel, log, target="emulator", roots=(), found=names.find_global_functions([])
        )
        assert isinstance(told, KernelCompileError) and told.line == 2


def test_names_in_difficult_sources() -> None:
    found = names.find_global_functions(
        [
            'extern "C" __global__ __launch_bounds__(f(1, 2), 2) void a(int) {}\n'
            "template <typename T>\n__global__ void __launch_bounds__(32)\nb(T* p);\n"
            "template <> __global__ void b<int>(int* p) {}\n"
            '/* __global__ void c() {} */ const char* s = "__global__ void d() {}"; char q = \'"\';\n'
            "__global__ static void e() {}\n"
        ]
    )
    assert found.names == ("a", "b", "e") and found.templates == {"b"} and found.is_complete
    assert not names.find_global_functions(["#define K(n) \\\n  __global__ void n()\n"]).is_complete
    assert names.base_name("ns::inner::copy<a::b, 4>") == "copy"
    assert names.unclosed_brace('{ "{" } // {\n{ /* { */') == 2


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("namespace ep {\nint f(int a,\n      int b) {\n    return a;\n\nint g() {\n}\n}", 3),  # another one follows
        (
            "namespace ep {\nint f(int a,\n      int b) {\n    return a;\n\n}  // namespace ep",
            3,
        ),  # the space's end follows
        ("int f() {\n    for (;;) {\n        f();\n}\nint g() {\n}", 2),  # what closes it is further left
        ("int f() {\n    switch (1) {\n    case 1: {\n    }\n    }\n\nint g() { return h({1, 2}); }", 1),
        ('extern "C" {\nint f() {\n    call([&] {\n    }, [&] { g({1}); });\n}', 1),
    ],
)
def test_the_brace_that_nothing_closes_is_found_by_indentation(source: str, line: int) -> None:
    assert names.unclosed_brace(source) == line
