"""NVRTC as a compile check: no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ep_lib.errors import BackendUnavailable
from ep_lib.jit import nvrtc, toolkit
from ep_lib.jit.elf import Elf
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.nvrtc import NvrtcImage

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")

SOURCE = (
    "#include <stdint.h>\n#include <cuda_fp16.h>\nstruct Args { double* p; char c; };\n"
    "template <typename T, int N> __global__ void k(T* out, const T* in, size_t n, uint64_t u, int16_t s, __half h,\n"
    "    char c, float f, bool b, Args args, int4 vec) { out[0] = in[n] + N + c + f + b + vec.x; }\n"
)


def compile_for(arch: str, source: str, name: str = "k", **options: object) -> NvrtcImage:
    image = Kernel.from_source(source, name, **options).compile(arch)  # type: ignore[arg-type]
    assert isinstance(image, NvrtcImage)
    return image


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_parameters_are_those_of_the_emulator(arch: str) -> None:
    """tests/jit/test_jit_gxx.py says which these are."""
    image = compile_for(arch, SOURCE, "k<float, 4>")
    assert image.params == Kernel.from_source(SOURCE, "k<float, 4>").compile().params and len(image.params) == 11
    assert image.path.read_bytes() == image.cubin
    functions = {symbol.name for symbol in Elf(image.cubin).symbols if symbol.type == 2}
    assert image.lowered_name in functions and image.lowered_name != "k"


@pytest.mark.slow
def test_sources_may_include_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = ["assert.h", "cassert", "climits", "cstddef", "cstdint", "cstdio", "cstring", "float.h", "limits.h"]
    headers += ["math.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"]
    source = "".join(f"#include <{header}>\n" for header in headers) + (
        "__global__ void k(unsigned char* p, std::size_t n) {\n"
        "    std::uint32_t a = UINT32_MAX; uint64_t b = UINT64_MAX; ptrdiff_t d = offsetof(int2, y);\n"
        '    assert(p != nullptr); printf("%d\\n", INT_MAX); memcpy(p, &a, sizeof(a)); std::memcpy(p, &b, sizeof(b));\n'
        "    p[0] = (unsigned char)(sqrtf(float(M_PI)) + FLT_MAX + d + n);\n}\n"
    )
    kernel = Kernel.from_source(source, "k")
    assert kernel.compile("sm_80").params == kernel.compile().params


@pytest.mark.extended
@pytest.mark.slow
def test_sources_may_include_the_cpp_library() -> None:
    headers = ["algorithm", "array", "cmath", "limits", "tuple", "type_traits", "utility"]
    source = "".join(f"#include <{header}>\n" for header in headers) + (
        "__global__ void k(double* p) {\n"
        "    static_assert(std::is_same_v<int, int> && std::numeric_limits<int>::max() > 0);\n"
        "    p[0] = std::sqrt(2.0) + std::max(1, 2) + std::get<0>(std::make_tuple(1, 2.0f));\n}\n"
    )
    kernel = Kernel.from_source(source, "k")
    assert kernel.compile("sm_80").params == kernel.compile().params


def test_options_and_defines_reach_nvrtc(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("#define MINE 1\n")
    source = "#include <mine.cuh>\n__global__ void k(float* p) { static_assert(A == 2 && B && MINE); *p = __sinf(*p); }"
    compile_for("sm_90", source, defines={"A": 2}, options=["-DB=1", f"-I{tmp_path}", "--use_fast_math"])
    with pytest.raises(BackendUnavailable, match="no-such-option"):
        compile_for("sm_90", "__global__ void k() {}", options=["--no-such-option"])


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="sm_11"):
        compile_for("sm_11", "__global__ void k() {}")


def test_the_second_time_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_for("sm_90", SOURCE, "k<int, 1>")
    monkeypatch.setattr(nvrtc, "compile_unit", None)
    assert compile_for("sm_90", SOURCE, "k<int, 1>") == first


def test_without_nvrtc_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "find_nvrtc", lambda: None)
    assert not nvrtc.available()
    for ask in (nvrtc.version, lambda: compile_for("sm_90", "__global__ void k() {}")):
        with pytest.raises(BackendUnavailable, match="pip install 'nvidia-cuda-nvrtc"):
            ask()
