"""Code that is guarded by CUDA's macros: what a GPU runs is what the emulator runs."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
from support.alone import launched
from support.clang import use_clang

import ep_lib
from ep_lib import errors

GUARDED = """
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDACC_VER_MAJOR__ >= 12 && __CUDACC_VER_MINOR__ >= 0
__global__ void k(int* o) {
    o[0] = __CUDA_ARCH__ >= 700;
#if __CUDA_ARCH__ < 900
    o[1] = 1;
#else
    o[1] = 2;
#endif
    o[2] = __CUDACC_VER_MAJOR__ >= 12;
}
#else
#error "this is for GPUs"
#endif
"""
TARGETS = """
#include <nv/target>
__device__ int pick() {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return 1;), (return 2;))
}
__global__ void k(int* o) {
    o[0] = pick();
    NV_IF_TARGET(NV_PROVIDES_SM_70, (o[1] = 70;))
    NV_DISPATCH_TARGET(NV_IS_HOST, (o[2] = 1;), NV_IS_EXACTLY_SM_53, (o[2] = 2;), NV_ANY_TARGET, (o[2] = 3;))
}
"""
# Of each root of CUDA's, and of the emulator's own: before the guarded code they change nothing of what it sees, and
# see nothing of it themselves.
HEADERS = (
    "nv/target", "cuda/atomic", "cuda/std/bit", "cuda/barrier", "cub/block/block_reduce.cuh", "cub/util_ptx.cuh",
    "cuda_fp4.h", "cuda_fp16.h", "mma.h", "cuda_runtime.h", "cooperative_groups.h", "cuda_pipeline.h",
)  # fmt: skip


def run(backend: str, source: str, **options: object) -> list[int]:
    kernel = ep_lib.Kernel.from_source(source, "k", **options)  # type: ignore[arg-type]
    return list(launched(backend, kernel, 1, 1, np.zeros(3, np.int32))[0].tolist())


def test_guarded_code_is_there(backend: str) -> None:
    got = run(backend, GUARDED)
    assert got[0] == got[2] == 1
    if backend == "emulator":
        assert got[1] == 2


@pytest.mark.extended(after=4)
@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_cuda_and_guards_go_together(header: str) -> None:
    assert run("emulator", f"#include <{header}>\n{GUARDED}") == [1, 2, 1]
    assert run("emulator", f"{GUARDED}\n#include <{header}>\n__device__ int arch = __CUDA_ARCH__;\n") == [1, 2, 1]


def test_clang_sees_them_too(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    use_clang(monkeypatch, rounds)
    assert run("emulator", f"#include <cuda/atomic>\n{GUARDED}") == [1, 2, 1]
    assert run("emulator", TARGETS) == [1, 70, 3]


def test_nv_target_takes_the_branch_of_the_device(backend: str) -> None:
    assert run(backend, TARGETS) == [1, 70, 3]


def test_macros_of_a_source_change_nothing_behind_it() -> None:
    """As of tutorials, which begin with `#define N 1024`."""
    words = [*string.ascii_uppercase, "Args", "args", "call", "count", "flags", "kind", "name", "rows", "size", "value"]
    source = "".join(f"#define {word} 3\n" for word in words)
    kernel = ep_lib.Kernel.from_source(
        f"{source}__global__ void k(int* o, float x, const double* y) {{ o[0] = N; }}", "k"
    )
    assert [len(kernel.compile(target).params) for target in ("emulator", "sm_90")] == [3, 3]


def test_a_header_of_ones_own_sees_them(tmp_path: Path) -> None:
    (tmp_path / "guard.cuh").write_text(f"#include <cuda/atomic>\n{GUARDED}")
    assert run("emulator", '#include "guard.cuh"\n', include=tmp_path) == [1, 2, 1]


def test_which_gpu_it_is_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("emulator", GUARDED) == [1, 2, 1]
    monkeypatch.setenv("EP_LIB_CUDA_ARCH", "sm_75")
    assert run("emulator", GUARDED) == [1, 1, 1]
    monkeypatch.setenv("EP_LIB_CUDA_ARCH", "Hopper")
    with pytest.raises(errors.ArgumentError, match=r"EP_LIB_CUDA_ARCH is 'Hopper'; it must be .* sm_90"):
        run("emulator", GUARDED)


def test_a_header_that_is_not_installed_has_a_sentence() -> None:
    with pytest.raises(errors.KernelCompileError, match="cuRAND's, which ep_lib does not install"):
        run("emulator", "#include <curand_kernel.h>\n__global__ void k(int* o) {}\n")
