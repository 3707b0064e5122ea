"""What a GPU defines and C++ does not: the GPU's value, or a word about the line."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.alone import alone
from support.clang import use_clang

import ep_lib
from ep_lib.errors import KernelFault
from ep_lib.jit import gxx

INT_MIN, INT64_MIN = -(2**31), -(2**63)


def program(body: str, *arrays: Any, includes: str = "", parameters: str) -> Any:
    """A main that runs one thread of a kernel, and returns what it leaves in its first array."""
    kernel = ep_lib.Kernel.from_source(f"{includes}\n__global__ void k({parameters}) {{\n{body}\n}}\n", "k")

    def main(rank: ep_lib.Rank) -> list[Any]:
        passed = [rank.to_device(array) for array in arrays]
        kernel.launch(rank, 1, 1, *passed)
        rank.synchronize()
        return rank.to_host(passed[0]).tolist()

    return main


@pytest.fixture(params=["g++", pytest.param("clang++", marks=pytest.mark.extended)])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, rounds: int) -> str:
    if request.param == "clang++":
        use_clang(monkeypatch, rounds)
    return str(request.param)


SHIFTS = {
    "a lane mask of all": ("o[0] = (1u << n[0]) - 1u;", 32, "shifts 1 of type 'unsigned int' by 32"),
    "64 bits": ("o[0] = (int)(1ull << n[0]);", 64, "shifts 1 of type 'long long unsigned int' by 64"),
    "to the right": ("o[0] = -8 >> n[0];", 40, "shifts -8 of type 'int' by 40"),
    "by a negative amount": ("o[0] = 1 << n[0];", -1, "shifts 1 of type 'int' by -1"),
    "of a constant amount": ("constexpr int kBits = 32; o[0] = n[0] << kBits;", 5, "shifts 5 of type 'int' by 32"),
    "of a short, which is an int": ("o[0] = (unsigned char)n[0] << (n[0] + 30);", 2, "shifts 2 of type 'int' by 32"),
}
CASTS = {
    "too large": ("o[0] = (int)f[0];", 1e20, "casts 1e+20 of type 'float' to 'int'"),
    "not a number": ("o[0] = (int)f[0];", np.nan, "casts nan of type 'float' to 'int'"),
    "negative": ("o[0] = (int)(unsigned)f[0];", -1.0, "casts -1 of type 'float' to 'unsigned int'"),
    "of a double": ("o[0] = (int)(long long)(1e10 * f[0]);", 1e10, "casts 1e+20 of type 'double' to 'long long int'"),
    "of a floor": ("o[0] = (int)(long long)floorf(f[0]);", 1e20, "casts 1e+20 of type 'float' to 'long long int'"),
    "to a byte": ("o[0] = (signed char)f[0];", 200.0, "casts 200 of type 'float' to 'signed char'"),
}


@pytest.mark.parametrize("name", [*SHIFTS, *CASTS])
def test_a_value_that_cpp_leaves_open_is_never_silent(name: str, compiler: str) -> None:
    body, given, says = (SHIFTS | CASTS)[name]
    inputs = np.array([given], np.float32 if name in CASTS else np.int32)
    main = program(
        body,
        np.zeros(1, np.int32),
        inputs,
        parameters="int* o, const float* f" if name in CASTS else "int* o, const int* n",
    )
    if compiler == "clang++":
        says = says.replace("long long unsigned int", "unsigned long long").replace("long long int", "long long")

    (finding,) = ep_lib.check(main, 1, seeds=2, progress=False).findings
    assert finding.kind == ("cast range" if name in CASTS else "shift amount")
    assert finding.remedy
    assert finding.detail.startswith(f"{says} (column ")
    assert finding.first is not None
    assert finding.first.location == "<kernel>:3"
    assert finding.first.source == body

    with pytest.warns(RuntimeWarning, match="kernel 'k'") as told:
        ep_lib.spawn(main, 1, "emulator")
    (warning,) = told
    assert says in str(warning.message)
    assert warning.lineno == 3


WITHIN = {
    "shifts up to the width": ("o[0] = (1u << n[0]) >> n[0];", "", 31, 1),
    "a shift that is cut first": ("o[0] = 1 << (n[0] & 31);", "", 32, 1),
    "a fraction below zero": ("o[0] = (unsigned)(-0.5f * n[0]);", "", 1, 0),
    "a cast that saturates": ("o[0] = __float2int_rz(1e10f * n[0]);", "", 1, 2**31 - 1),
    "a header of NVIDIA's, with a shift and casts": (
        "o[0] = (int)__half2float(__float2half(1e9f * n[0])) == __half2int_rz(__float2half(65504.0f)) + 1;",
        "#include <cuda_fp16.h>",
        0,
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHIN)
def test_what_cpp_defines_is_no_finding(name: str, compiler: str) -> None:
    body, includes, given, right = WITHIN[name]
    main = program(
        body, np.zeros(1, np.int32), np.array([given], np.int32), includes=includes, parameters="int* o, const int* n"
    )
    report = ep_lib.check(main, 1, seeds=2, progress=False)
    assert report.ok, report
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ep_lib.spawn(main, 1, "emulator") == [[right]]


def test_a_header_of_a_library_is_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function is found in a header of one's own, and not in one among CUDA's."""
    from ep_lib.emulator import symbols

    (tmp_path / "mask.cuh").write_text(
        "#pragma once\n__device__ unsigned mask(int n) {\n    return (1u << n) - 1;\n}\n"
    )
    (tmp_path / "k.cu").write_text(
        '#include "mask.cuh"\n__global__ void k(unsigned* o, int n) {\n    o[0] = mask(n);\n}\n'
    )
    kernel = ep_lib.Kernel.from_file(tmp_path / "k.cu", "k")

    def main(rank: ep_lib.Rank) -> None:
        kernel.launch(rank, 1, 1, rank.to_device(np.zeros(1, np.uint32)), 32)
        rank.synchronize()

    (finding,) = ep_lib.check(main, 1, seeds=1, progress=False).findings
    assert finding.first is not None
    assert finding.first.location.endswith("mask.cuh:3")
    monkeypatch.setattr(symbols, "_cuda_headers", lambda: (tmp_path.resolve(),))
    symbols.is_of_a_library.cache_clear()
    assert ep_lib.check(main, 1, seeds=1, progress=False).ok
    symbols.is_of_a_library.cache_clear()


def test_the_smallest_integer_divided_by_minus_one(compiler: str) -> None:
    """By a register, memory near and far, and on 32 and 64 bits: each is another form of the instruction."""
    body = """
    volatile int local[64];
    const int i = threadIdx.x;
    local[i + 3] = d[0];
    o[0] = n[0] / (int)d[0];
    o[1] = n[0] % (int)d[0];
    o[2] = q[0] / d[0];
    o[3] = q[0] % d[0];
    o[4] = n[0] / local[i + 3] + 1;
    o[5] = n[0] % local[i + 3];
    o[6] = q[0] / d[i];
    o[7] = (short)(h[0] / h[1]);
    o[8] = n[1] / (int)d[0];
    """
    given = (
        np.array([INT_MIN, 7], np.int32), np.array([-1]), np.array([INT64_MIN]), np.array([-(2**15), -1], np.int16),
    )  # fmt: skip
    main = program(
        body, np.zeros(9, np.int64), *given,
        parameters="long long* o, const int* n, const long long* d, const long long* q, const short* h",
    )  # fmt: skip
    assert ep_lib.check(main, 1, seeds=1, progress=False).ok
    right = [INT_MIN, 0, INT64_MIN, 0, INT_MIN + 1, 0, INT64_MIN, -(2**15), -7]
    assert ep_lib.spawn(main, 1, "emulator") == [right]


def test_signed_integers_wrap_around(compiler: str) -> None:
    body = "o[0] = n[0] + 1; o[1] = -n[1]; o[2] = n[0] * 2; o[3] = n[0] + 1 > n[0]; o[4] = abs(n[1]);"
    main = program(
        body, np.zeros(5, np.int32), np.array([2**31 - 1, INT_MIN], np.int32), parameters="int* o, const int* n"
    )
    assert ep_lib.spawn(main, 1, "emulator") == [[INT_MIN, INT_MIN, -2, 0, INT_MIN]]


@pytest.mark.parametrize("operation", ["/", "%"])
def test_an_integer_divided_by_zero_stops_the_run(operation: str, compiler: str) -> None:
    main = program(
        f"o[0] = 3 {operation} n[0];", np.zeros(1, np.int32), np.zeros(1, np.int32), parameters="int* o, const int* n"
    )
    with pytest.raises(KernelFault, match="divides an integer by zero, for which a GPU gives any value"):
        ep_lib.spawn(main, 1, "emulator")


PRODUCTS = """
const float a = x[0], b = x[1], c = x[2];
o[0] = a * b + c;
o[1] = -c - x[3] * b;
o[2] = __fadd_rn(__fmul_rn(a, b), c);
o[3] = __fmul_rn(x[3], b) + c;
float sum = c;
for (int i = 0; i < n; i++) sum += x[i] * x[i + 1];
o[4] = sum;
o[5] = fmaf(a, b, c);
o[6] = __fadd_rn(c, x[0] * x[3]);
o[7] = __fsub_rn(x[3] * x[3], x[0] * b);
"""


def test_a_product_and_a_sum_are_rounded_once(compiler: str) -> None:
    """As nvcc and NVRTC have it by default, but for intrinsics that say how they round."""
    if gxx._contraction(compiler == "clang++") == ("-ffp-contract=off",):
        pytest.skip("this processor has no fused multiply-add")
    a = np.float32(1 + 2**-12)
    given = np.array([a, a, -1, a], np.float32)
    main = program(f"const int n = 1;{PRODUCTS}", np.zeros(8, np.float32), given, parameters="float* o, const float* x")
    once, twice = float(np.float32(float(a) ** 2 - 1)), float(a * a - np.float32(1))
    assert once != twice
    assert ep_lib.spawn(main, 1, "emulator") == [[once, -once, twice, twice, once, once, twice, 0.0]]


BEYOND = {  # NaN and the ends of formats, as CUDA's documentation has them
    "fminf(nan, 1.0f)": 1.0,
    "fmaxf(1.0f, nan)": 1.0,
    "min(nan, 1.0f)": 1.0,
    "fmin((double)nan, 2.0)": 2.0,
    "1.0f / fminf(half_ * 0.0f, half_ * -0.0f)": -np.inf,  # -0 is smaller than 0
    "1.0f / max(half_ * -0.0f, half_ * 0.0f)": np.inf,
    "1.0 / fmin(half_ * 0.0, half_ * -0.0)": -np.inf,
    "fmax(__longlong_as_double(0x7ff0000000000000 + (long long)(half_ * 2)), 2.0)": 2.0,  # a signaling NaN
    "nan < 1.0f || nan >= 1.0f || nan == nan": 0.0,
    "nan != nan": 1.0,
    "__half2float(__float2half(65519.0f))": 65504.0,
    "__half2float(__float2half(65520.0f))": np.inf,
    "__half2float(__float2half(2.98023224e-8f))": 0.0,
    "__half2float(__float2half(2.9802326e-8f))": 2.0**-24,
    "__bfloat162float(__float2bfloat16(3.3895314e38f))": 3.3895314e38,
    "__bfloat162float(__float2bfloat16(3.4028235e38f))": np.inf,
    "(float)__nv_fp8_e4m3(1e9f)": 448.0,
    "(float)__nv_fp8_e5m2(1e9f)": 57344.0,
    "isnan((float)__nv_fp8_e4m3(nan)) ? 1.0f : 0.0f": 1.0,
    "1.1754944e-38f * half_": 5.877472e-39,  # a denormal: kernels are compiled without -ftz
    "1.0f / (float)__hfma_relu(__float2half(half_), __float2half(-0.0f), __float2half(-0.0f))": np.inf,  # never -0
    "1.0f / (float)__hfma_relu(__float2bfloat16(half_), __float2bfloat16(-0.0f), __float2bfloat16(-0.0f))": np.inf,
    "1.0f / (float)__hmax_nan(__float2bfloat16(half_ * -0.0f), __float2bfloat16(half_ * 0.0f))": np.inf,
    "1.0f / (float)__hmin2_nan(__float2bfloat162_rn(half_ * 0.0f), __float2bfloat162_rn(half_ * -0.0f)).y": -np.inf,
    "added(&in_global, 1.1754944e-38f, -half_ * 1.1754944e-38f)": 1.1754944e-38,  # zero in place of a denormal
    "added(&in_global, 1.2e-38f, -1.1754944e-38f)": 0.0,
    "added(&in_shared, 1.1754944e-38f, -half_ * 1.1754944e-38f)": 5.877472e-39,
}
BEYOND_USES = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
__device__ float in_global;
__device__ float added(float* sum, float first, float second) {
    *sum = first;
    atomicAdd(sum, second);
    return *sum;
}
"""


def test_nan_denormals_and_the_ends_of_formats(backend: str, compiler: str) -> None:
    lines = "".join(f"o[{i}] = {expression};\n" for i, expression in enumerate(BEYOND))
    main = program(
        f"__shared__ float in_shared;\nconst float nan = x[0], half_ = x[1];\n{lines}",
        np.zeros(len(BEYOND), np.float32),
        np.array([np.nan, 0.5], np.float32),
        includes=BEYOND_USES,
        parameters="float* o, const float* x",
    )
    got = alone(backend, main)
    assert dict(zip(BEYOND, got, strict=True)) == {name: float(np.float32(value)) for name, value in BEYOND.items()}
