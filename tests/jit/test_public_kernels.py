"""Kernels as people write them, pasted as they are, give the right result: tests/cuda_forms/public.txt."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from support.alone import launched
from support.cuda_forms import forms

from ep_lib.errors import KernelCompileError
from ep_lib.jit import nvrtc, toolkit
from ep_lib.jit.kernel import Kernel

FORMS = {form.name: form.text for form in forms("public.txt")}
BF16, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
r = np.random.default_rng(0)


class Case(NamedTuple):
    """``right``: what the arguments of these places hold afterwards."""

    grid: Any
    block: Any
    args: list[Any]
    right: dict[int, Any]
    shared: int = 0


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def f32(*shape: int) -> np.ndarray:
    return r.standard_normal(shape, np.float32)


def ints(high: int, *shape: int, low: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return r.integers(low, high, shape).astype(dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@case
def matmul_tiled() -> Case:
    a, b = f32(13, 13), f32(13, 13)
    return Case((2, 2), (8, 8), [a, b, zeros(13, 13), 13], {2: a @ b})


@case
def reduce_shuffle() -> Case:
    x = ints(100, 500)
    return Case(2, 128, [x, zeros(1, dtype=np.int32), 500], {1: [x.sum()]})


@case
def reduce_last_block() -> Case:
    x = f32(250)
    return Case(4, 64, [x, zeros(4), zeros(1), 250], {2: [x.sum()]})


@case
def scan_blelloch() -> Case:
    x = f32(64)
    return Case(1, 32, [zeros(64), x, 64], {0: np.cumsum(x) - x}, shared=256)


@case
def scan_warp() -> Case:
    x = ints(9, 128)
    return Case(2, 64, [x, zeros(128, dtype=np.int32), 128], {1: x.reshape(-1, 32).cumsum(1).ravel()})


@case
def histogram() -> Case:
    x = ints(256, 300, dtype=np.uint8)
    return Case(2, 64, [x, zeros(16, dtype=np.uint32), 300], {1: np.bincount(x // 16, minlength=16)})


@case
def transpose() -> Case:
    x = f32(32, 32)
    return Case((2, 2), (16, 4), [zeros(32, 32), x], {0: x.T})


@case
def softmax_online() -> Case:
    x = f32(5, 70) * 3
    return Case(2, 128, [zeros(5, 70), x, 5, 70], {0: softmax(x)})


@case
def layernorm() -> Case:
    x, w, b = f32(5, 48), f32(48), f32(48)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    out = (x - mean[:, None]) * rstd[:, None] * w + b
    return Case(2, 128, [zeros(5, 48), zeros(5), zeros(5), x, w, b, 5, 48], {0: out, 1: mean, 2: rstd})


@case
def rmsnorm() -> Case:
    x, w = f32(3, 96).astype(np.float16), f32(96).astype(np.float16)
    wide = x.astype(np.float32)
    scaled = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    return Case(3, 64, [zeros(3, 96, dtype=np.float16), x, w, 1e-6, 96], {0: scaled.astype(np.float16) * w})


@case
def gelu() -> Case:
    x = f32(100)
    right = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return Case(2, 64, [zeros(100), x, 100], {0: right})


@case
def argmax() -> Case:
    x = f32(3, 100)
    x[1, 70] = x[1].max()
    return Case(3, 32, [x, zeros(3, dtype=np.int32), 100], {1: x.argmax(1)})


@case
def topk_gate() -> Case:
    x = r.random((3, 20), np.float32)
    ids = np.argsort(-x, 1)[:, :4]
    best = np.take_along_axis(x, ids, 1)
    right = best / best.sum(1, keepdims=True)
    return Case(3, 32, [x, zeros(3, 4), zeros(3, 4, dtype=np.int32), 20], {1: right, 2: ids})


@case
def moe_gate() -> Case:
    x = f32(5, 40)
    ids = np.argsort(-x, 1)[:, :6]
    best = np.take_along_axis(softmax(x), ids, 1)
    args = [x, zeros(5, 6), zeros(5, 6, dtype=np.int32), 5, 40, 6, True]
    return Case(3, (32, 2), args, {1: best / best.sum(1, keepdims=True), 2: ids})


@case
def expert_counts() -> Case:
    ids = ints(8, 100)
    counts = np.bincount(ids, minlength=8)
    args = [ids, 100, 8, zeros(8, dtype=np.int32), zeros(9, dtype=np.int32)]
    return Case(1, 64, args, {3: counts, 4: [0, *counts.cumsum()]}, shared=32)


@case
def permute_tokens() -> Case:
    x, order = f32(6, 16), r.permutation(12).astype(np.int32)
    return Case(12, 4, [x, order, zeros(12, 16), 2, 16], {2: x[order // 2]})


@case
def quantize_fp8() -> Case:
    x = f32(4, 32)
    scales = np.abs(x).max(1) / np.float32(448)
    return Case(4, 32, [x, zeros(4, 32, dtype=FP8), zeros(4), 32], {1: (x / scales[:, None]).astype(FP8), 2: scales})


@case
def bf16_vectorized() -> Case:
    a, b = f32(64).astype(BF16), f32(64).astype(BF16)
    right = a + b
    right[1::2] = (a * b)[1::2]
    return Case(1, 32, [zeros(64, dtype=BF16), a, b, 8], {0: right})


@case
def residual_half2() -> Case:
    a, b = f32(64).astype(np.float16), f32(64).astype(np.float16)
    right = (a.astype(np.float64) * 0.5 + b).astype(np.float16)
    return Case(1, 32, [zeros(64, dtype=np.float16), a, b, 0.5, 32], {0: right})


@case
def async_pipeline() -> Case:
    x = f32(3, 32, 4)
    return Case(1, 32, [x, zeros(3, 32, 4), 3], {1: 2 * x[:, ::-1]})


@case
def group_reduce() -> Case:
    x = ints(100, 128)
    parts = x.reshape(-1, 8)
    return Case(2, 64, [x, zeros(32, dtype=np.int32)], {1: np.stack([parts.sum(1), parts.max(1)], 1).ravel()})


@case
def flash_attention() -> Case:
    n, d, b = 16, 8, 8
    q, k, v = f32(1, 2, n, d), f32(1, 2, n, d), f32(1, 2, n, d)
    right = softmax(q @ k.swapaxes(2, 3) / np.float32(d**0.5)) @ v
    state = [zeros(1, 2, n), np.full((1, 2, n), -np.inf, np.float32), zeros(1, 2, n, d)]
    args = [q, k, v, n, d, n // b, n // b, b, b, d**-0.5, *state]
    return Case((1, 2), b, args, {12: right}, shared=(3 * b * d + b * b) * 4)


@case
def causal_scores() -> Case:
    q, k = f32(12, 8), f32(12, 8)
    right = np.where(np.tri(12) > 0, q @ k.T / np.sqrt(8), -np.inf)
    return Case(12, 12, [zeros(12, 12), q, k, 12, 8], {0: right})


@case
def kv_cache() -> Case:
    key, slots = f32(4, 20), np.array([5, -1, 0, 7], np.int64)
    right = zeros(8, 20)
    right[[5, 0, 7]] = key[[0, 2, 3]]
    return Case(4, 32, [key, zeros(8, 20), slots, 4, 20], {1: right})


@case
def bitonic_sort() -> Case:
    x = ints(1000, 64, low=-1000)
    return Case(1, 64, [x], {0: np.sort(x)}, shared=256)


@case
def life() -> Case:
    x = ints(2, 10, 12, dtype=np.uint8)
    n = sum(np.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - x
    return Case((2, 2), (8, 8), [x, np.zeros_like(x), 12, 10], {1: (n == 3) | ((n == 2) & (x > 0))})


@case
def nbody() -> Case:
    x = f32(64, 4)
    x[:, 3] = abs(x[:, 3])
    away = x[None, :, :3] - x[:, None, :3]
    a = (away * (x[None, :, 3] / ((away**2).sum(-1) + 1e-3) ** 1.5)[..., None]).sum(1)
    return Case(2, 32, [x, zeros(64, 4), 64], {1: np.pad(a, ((0, 0), (0, 1)))}, shared=512)


@case
def gather_rows() -> Case:
    x, at = f32(9, 10), ints(9, 20, dtype=np.int64)
    return Case(2, 64, [zeros(20, 10), x, at, 20, 10], {0: x[at]})


@case
def cross_entropy() -> Case:
    x, at = f32(4, 70), ints(70, 4)
    return Case(4, 32, [zeros(4), x, at, 70], {0: -np.log(softmax(x))[np.arange(4), at]})


@case
def conv1d() -> Case:
    x = f32(100)
    return Case(2, 64, [x, zeros(100), 5, 100], {1: np.convolve(x, [0.1, 0.2, 0.4, 0.2, 0.1], "same")})


@case
def maxpool2d() -> Case:
    x = f32(8, 12)
    return Case(1, (6, 4), [x, zeros(4, 6), 8, 12, 2, 2], {1: x.reshape(4, 2, 6, 2).max((1, 3))})


@case
def dequantize_int4() -> Case:
    q, s = ints(1 << 32, 40, dtype=np.uint32), f32(40).astype(np.float16)
    digits = (q[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(int) - 8
    right = digits.astype(np.float16) * s[:, None]
    return Case(1, 64, [q, zeros(40, 8, dtype=np.float16), s, 40], {1: right})


@case
def stream_compaction() -> Case:
    x = ints(10, 32, low=-10)
    kept = x[x > 0]
    args = [x, zeros(32, dtype=np.int32), zeros(1, dtype=np.int32), 32]
    return Case(1, 32, args, {1: np.pad(kept, (0, 32 - len(kept))), 2: [len(kept)]})


@case
def spin_lock() -> Case:
    return Case(8, 32, [zeros(1, dtype=np.int32), zeros(1, dtype=np.int32)], {0: [0], 1: [8]})


def doubled() -> Case:
    x = f32(64)
    return Case(2, 32, [zeros(64), x, 64], {0: 2 * x})


PROGRAMS = ("with_main", "of_the_standard_library", "of_launchers", "of_libraries", "of_branches", "for_torch")
CASES |= {f"program_{name}": doubled for name in PROGRAMS}


def test_each_has_its_case() -> None:
    assert CASES.keys() == FORMS.keys()


@pytest.mark.slow
@pytest.mark.cuda_rules
@pytest.mark.parametrize("name", CASES)
def test_a_public_kernel_gives_the_right_result(name: str, backend: str) -> None:
    """On the emulator NVRTC has to take it, too."""
    grid, block, args, right, shared = CASES[name]()
    kernel = Kernel.from_source(FORMS[name], name, filename=f"{name}.cu")

    given = [arg.view(np.uint8) if getattr(arg, "dtype", None) == FP8 else arg for arg in args]  # CuPy has no FP8
    left = iter(launched(backend, kernel, grid, block, *given, shared_bytes=shared))
    found = {i: next(left).view(arg.dtype) for i, arg in enumerate(args) if isinstance(arg, np.ndarray)}
    for i, expected in right.items():
        exact = args[i].dtype.kind in "iub"
        tolerance = 0 if exact else 0.13 if args[i].dtype == FP8 else 1e-2 if args[i].dtype.itemsize == 2 else 2e-4
        np.testing.assert_allclose(found[i].astype(float), np.asarray(expected).astype(float), tolerance, tolerance)


HEADERS = {
    "common/check.h": """#pragma once
        #include <map>
        #include "../names.h"
        inline void check(cudaError_t e) {
            if (e != cudaSuccess) fprintf(stderr, "%s", names().at(e).c_str()), exit(1);
        }
        """,
    "names.h": """
        #ifndef NAMES_H
        #define NAMES_H
        #include <string>
        inline std::map<int, std::string> names() { return {{1, "one"}}; }
        constexpr int kFactor = 2, kThreads = 32;
        template <typename T> struct Scale { T by; __device__ T operator()(T x) const { return by * x; } };
        #endif
        """,
    "kernel.cuh": """
        #include "common/check.h"
        extern "C" __global__ void doubles(float* y, const float* x, int n) {
            const int i = blockIdx.x * kThreads + threadIdx.x;
            if (i < n) y[i] = Scale<float>{kFactor}(x[i]);
        }
        struct Launcher {
            cudaStream_t stream;
            void run(float* y, float* x) { doubles<<<2, kThreads, 0, stream>>>(y, x, 64); }
        };
        """,
    "main.cu": """#include "kernel.cuh"
        int main() { Launcher{}.run(nullptr, nullptr); check(cudaDeviceSynchronize()); }
        """,
}


@pytest.mark.cuda_rules
@pytest.mark.parametrize("main_file", ["kernel.cuh", "main.cu"])
def test_headers_may_have_what_only_the_host_has(tmp_path: Path, main_file: str, backend: str) -> None:
    for name, text in HEADERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    kernel = Kernel.from_file(tmp_path / main_file, "doubles")
    if nvrtc.available():
        kernel.compile("sm_90")
    y, x = launched(backend, kernel, 2, 32, zeros(64), f32(64), 64)
    assert (y == 2 * x).all()


def test_errors_behind_what_was_set_aside_name_the_headers_own_line(tmp_path: Path) -> None:
    for name, text in HEADERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).replace("by * x", "bye * x"))
    with pytest.raises(KernelCompileError, match=r"names\.h:7: error: .*bye"):
        Kernel.from_file(tmp_path / "main.cu", "doubles").compile()


def test_a_library_of_the_host_in_cudas_folder_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuBLAS is, where it is installed: NVRTC names the functions of its headers."""
    if not nvrtc.available():
        pytest.skip("NVRTC is not installed")
    (tmp_path / "hostlib.h").write_text('#pragma once\n#include "hostlib_api.h"\n')
    (tmp_path / "hostlib_api.h").write_text("inline void hostlib_check(int status) { if (status) throw status; }\n")
    folders = (*toolkit.cuda_include_dirs(), tmp_path)
    monkeypatch.setattr(toolkit, "cuda_include_dirs", lambda: folders)
    source = "#include <hostlib.h>\n__global__ void k(float* y) { *y = 2; }\n"
    source += "int main() { hostlib_check(0); k<<<1, 1>>>(0); }\n"
    Kernel.from_source(source, "k").compile("sm_90")
    with pytest.raises(KernelCompileError, match="hostlib"):
        Kernel.from_source(source.replace("*y = 2", "hostlib_check(0)"), "k").compile("sm_90")
