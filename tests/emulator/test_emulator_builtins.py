"""Ordinary CUDA C++ compiles unchanged for the emulator and does what it does on a GPU: the language, its headers,
text and ends. The kernels are real CUDA: NVRTC compiles each of them as well."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support import TESTS
from support.alone import alone, launched

import ep_lib
from ep_lib import errors

FOLDER = TESTS / "kernels"
RNG = np.random.default_rng(6)


def language(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_file(FOLDER / "language.cu", name)


# ---- the language ---------------------------------------------------------------------------------------------
def test_indices_in_three_dimensions(backend: str) -> None:
    grid, block = (3, 2, 2), (4, 3, 2)
    total = 12 * 24
    outs = np.zeros((total, 3), np.uint32), np.zeros((total, 3), np.uint32), np.zeros((3, 3), np.uint32)
    thread, blocks, sizes = launched(backend, language("indices"), grid, block, *outs)
    order = [(x, y, z) for z in range(2) for y in range(3) for x in range(4)]
    assert thread.tolist() == [list(t) for t in order] * 12
    order = [(x, y, z) for z in range(2) for y in range(2) for x in range(3)]
    assert blocks.tolist() == [list(b) for b in order for _ in range(24)]
    assert sizes.tolist() == [[4, 3, 2], [3, 2, 2], [32, 1, 1]]


def test_indices_by_other_names(backend: str) -> None:
    """A member, a parameter, a reference, a copy, and with the global namespace before it."""
    (right,) = launched(backend, language("indices_by_other_names"), 2, (40, 2), np.zeros(160, np.uint32))
    assert right.tolist() == [4] * 160


@pytest.mark.parametrize(("c_type", "dtype"), [("float", np.float32), ("long long", np.int64), ("short", np.int16)])
def test_templates_in_namespaces(backend: str, c_type: str, dtype: Any) -> None:
    x = RNG.integers(-1000, 1000, 300).astype(dtype)
    out, _ = launched(backend, language(f"outer::scale<{c_type}, 3>"), 2, 256, np.zeros_like(x), x, x.size)
    np.testing.assert_array_equal(out, x * 3)
    (out,) = launched(backend, language("outer::functions"), 1, 8, np.zeros(8, np.int32))
    assert out.tolist() == [2 * i + 3 for i in range(8)]


def test_device_variables_belong_to_a_rank_and_live_between_launches(backend: str) -> None:
    def main(rank: ep_lib.Rank) -> list[list[int]]:
        kernel, results = language("globals"), []
        for _ in range(2 + rank.rank):
            out = rank.to_device(np.zeros(3, np.int32))
            kernel.launch(rank, 1, 32, out)
            results.append(rank.to_host(out).tolist())
        return results

    assert alone(backend, main) == [[35, 1, 4], [65, 2, 4]]


@pytest.mark.parametrize("threads", [32, 96, 256])
def test_static_shared_memory_in_a_template(backend: str, threads: int) -> None:
    sums, counts = launched(backend, language("static_shared"), 3, threads, np.zeros(3), np.zeros(3, np.int64))
    assert sums.tolist() == [sum(i + 0.5 for i in range(threads))] * 3
    assert counts.tolist() == [threads] * 3


def test_alignment_of_shared_variables(backend: str) -> None:
    (addresses,) = launched(backend, language("aligned_shared"), 1, 32, np.zeros(5, np.uint64))
    assert [int(a) % align for a, align in zip(addresses, (128, 64, 16, 16), strict=False)] == [0, 0, 0, 0]
    assert addresses[4] == 8 + 100 * 16


def test_dynamic_shared_memory_under_two_names(backend: str) -> None:
    (out,) = launched(backend, language("dynamic_shared"), 2, 64, np.zeros((2, 64), np.float32), shared_bytes=256)
    expected = np.roll(np.arange(64), -1)[None, :] + 1000 * np.arange(2)[:, None]
    np.testing.assert_array_equal(out, expected)


def test_dynamic_shared_memory_at_file_scope_is_aligned(backend: str) -> None:
    (out,) = launched(
        backend, language("dynamic_shared_at_file_scope"), 1, 48, np.zeros(48, np.int32), shared_bytes=48 * 16
    )
    assert out.tolist() == [47 - i + 6 for i in range(48)]


def test_a_struct_by_value(backend: str) -> None:
    layout = [("in", "u8"), ("out", "u8"), ("n", "i4"), ("factor", "f4"), ("padding", "u8"), ("extra", "i4", 4)]
    x = np.random.default_rng(7).standard_normal(50).astype(np.float32)

    def main(rank: ep_lib.Rank) -> np.ndarray[Any, Any]:
        a, b = rank.symmetric(x.shape, x.dtype), rank.symmetric(x.shape, x.dtype)
        a[:] = rank.to_device(x)
        args = np.zeros(1, np.dtype(layout))[0]
        for name, array in (("in", a), ("out", b)):
            args[name] = rank.peer_address(array, rank.rank)
        args["n"], args["factor"], args["extra"] = 50, 2.5, [0, 0, 0, 7]
        language("by_value").launch(rank, 1, 64, args)
        return rank.to_host(b).copy()

    # One rounding or two: the sum may be small where both terms are not.
    np.testing.assert_allclose(alone(backend, main), x * 2.5 + 7, rtol=1e-6, atol=1e-6)


def test_bulk_copies_of_structs_and_recursion(backend: str) -> None:
    rows = RNG.integers(0, 1 << 31, (6, 4)).astype(np.int32)
    out, _, factorials = launched(
        backend, language("bulk"), 1, 1, np.zeros((10, 4), np.int32), rows, 6, np.zeros(1, np.int32)
    )
    np.testing.assert_array_equal(out, np.concatenate([rows, rows[:4]]))
    assert factorials.tolist() == [120]


def test_min_and_max_next_to_the_standard_ones(backend: str) -> None:
    floats = np.array([9.0, -3.0], np.float32)
    args = [np.zeros(8, np.int64), -5, 7, -(1 << 40), 1 << 41, floats]
    out, f = launched(backend, language("extremes"), 1, 1, *args)
    largest = max(1 << 41, (1 << 64) - (1 << 40)) - (1 << 64)  # compared as unsigned, stored as signed
    assert out.tolist() == [-5, (1 << 32) - 5, -(1 << 40), largest, -5 + 4, 7, 0, 2 + 1]
    assert f.tolist() == [1.5, 1.25]


# ---- CUDA's headers -------------------------------------------------------------------------------------------
def test_cooperative_groups(backend: str) -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "headers.cu", "groups")
    (out,) = launched(backend, kernel, 1, 64, np.zeros((64, 5), np.int32))
    for i, (in_warp, largest, odd, first, last) in enumerate(out.tolist()):
        warp, quad = i // 32 * 32, i // 4 * 4
        assert in_warp == sum(range(warp, warp + 32))
        assert largest == quad + 3
        assert odd == (16 + 100 * (i % 32 // 2) + 10000 * (warp + 1) if i % 2 else 0)
        assert first == quad + 1 + 4000
        assert last == i // 4 + 100 * (i ^ 1)


def test_libcu_atomics(backend: str) -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "headers.cu", "libcu")
    outs = np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(3, np.int32), np.zeros(1, np.float32)
    total, flag, seen, floats = launched(backend, kernel, 2, 64, *outs)
    assert (int(total[0]), int(flag[0]), float(floats[0])) == (2 * sum(range(64)), 1, 64.0)
    assert seen.tolist() == [42, 42, 5]


# ---- memory ---------------------------------------------------------------------------------------------------
CACHED = {
    "char": (np.int8, 1),
    "unsigned char": (np.uint8, 1),
    "short": (np.int16, 1),
    "int": (np.int32, 1),
    "unsigned long": (np.uint64, 1),
    "long long": (np.int64, 1),
    "float": (np.float32, 1),
    "double": (np.float64, 1),
    "char4": (np.int8, 4),
    "ushort2": (np.uint16, 2),
    "int2": (np.int32, 2),
    "uint4": (np.uint32, 4),
    "longlong2": (np.int64, 2),
    "float2": (np.float32, 2),
    "float4": (np.float32, 4),
    "double2": (np.float64, 2),
    "__half": (np.float16, 1),
    "__nv_bfloat162": (np.uint16, 2),
}


@pytest.mark.parametrize("c_type", CACHED)
def test_cached_loads_and_stores(backend: str, c_type: str) -> None:
    dtype, width = CACHED[c_type]
    x = RNG.integers(0, 100, (16, width)).astype(dtype)
    kernel = ep_lib.Kernel.from_file(FOLDER / "memory.cu", "cached")
    out, _ = launched(backend, kernel, 1, 16, list(CACHED).index(c_type), np.zeros((10, 16, width), dtype), x)
    for row in out:
        np.testing.assert_array_equal(row, x)


def test_a_cached_load_past_the_end_is_a_fault() -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "memory.cu", "past_the_end")

    def main(rank: ep_lib.Rank) -> None:
        x, out = rank.to_device(np.zeros(32, np.int32)), rank.to_device(np.zeros(4, np.int32))
        kernel.launch(rank, 1, 1, x, out, x.size + (1 << 20))
        rank.synchronize()

    with pytest.raises(errors.KernelFault, match="__ldg") as caught:
        ep_lib.spawn(main, 1, "emulator")
    assert "memory.cu" in caught.value.location


def test_polling_with_cached_loads_ends_on_the_emulator() -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "memory.cu", "poll")
    _, out = launched("emulator", kernel, 3, 32, np.zeros(2, np.int32), np.zeros(2, np.int32))
    assert out.tolist() == [5, 6]


def test_address_spaces(backend: str) -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "memory.cu", "spaces")
    (out, _) = launched(backend, kernel, 1, 32, np.zeros(8, np.int32), np.zeros(1, np.int32))
    assert out.tolist() == [1, 0, 0, 1, 1, 1, 7, 0]


def test_clocks_move_forward(backend: str) -> None:
    kernel = ep_lib.Kernel.from_file(FOLDER / "memory.cu", "clocks")
    (out,) = launched(backend, kernel, 1, 32, np.zeros(3, np.int64))
    assert (out > 0).all()


# ---- text and ends --------------------------------------------------------------------------------------------
def ends(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_file(FOLDER / "ends.cu", name)


def line_of(text: str) -> int:
    lines = (FOLDER / "ends.cu").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_printf_reaches_python(capsys: pytest.CaptureFixture[str]) -> None:
    def main(rank: ep_lib.Rank) -> None:
        ends("speak").launch(rank, 1, 32, rank.rank)
        rank.synchronize()

    ep_lib.spawn(main, 2, "emulator")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"rank {r}: 3.50 0x2a text c -1234567890123 100%" for r in range(2))


def test_printf_returns_how_many_arguments_it_has(backend: str) -> None:
    kernel = ep_lib.Kernel.from_source(
        """
        #include <cstdio>
        __global__ void k(int* o) {
            o[0] = printf("none\\n");
            o[1] = std::printf("%d %s %f\\n", 1, "two", 3.0f);
        }""",
        "k",
    )
    (got,) = launched(backend, kernel, 1, 1, np.full(2, -1, np.int32))
    assert got.tolist() == [0, 3]


def test_a_kernel_may_be_ready_for_programmatic_dependent_launches(backend: str) -> None:
    kernel = ep_lib.Kernel.from_source(
        """
        #include <cuda_device_runtime_api.h>
        __global__ void k(int* o) {
            cudaGridDependencySynchronize();
            o[threadIdx.x] += threadIdx.x;
            cudaTriggerProgrammaticLaunchCompletion();
        }""",
        "k",
    )
    (got,) = launched(backend, kernel, 1, 32, np.ones(32, np.int32))
    assert got.tolist() == list(range(1, 33))


VARIABLES = """
__constant__ float weights[4];
__device__ int calls = 5;
namespace deep { namespace inside { __device__ short table[3]; } }
extern "C" __global__ void k(float* out) {
    out[threadIdx.x] = weights[threadIdx.x] * deep::inside::table[threadIdx.x % 3];
    if (threadIdx.x == 0) calls++;
}
"""


def test_variables_of_a_kernel_are_set_and_read_from_python(backend: str) -> None:
    kernel = ep_lib.Kernel.from_source(VARIABLES, "k")

    def main(rank: ep_lib.Rank) -> list[Any]:
        weights = kernel.get_global(rank, "weights", np.float32)
        weights[...] = rank.to_device(np.arange(1, 5, dtype=np.float32))
        kernel.get_global(rank, "deep::inside::table", np.int16)[...] = rank.to_device(np.array([1, 10, 100], np.int16))
        out = rank.to_device(np.zeros(4, np.float32))
        for _ in range(2):
            kernel.launch(rank, 1, 4, out)
        rank.synchronize()
        calls = kernel.get_global(rank, "calls", np.int32)
        return [rank.to_host(array).tolist() for array in (out, calls, weights)]

    assert alone(backend, main) == [[1.0, 20.0, 300.0, 4.0], [7], [1.0, 2.0, 3.0, 4.0]]


def test_each_rank_has_variables_of_its_own_which_outlive_it() -> None:
    kernel = ep_lib.Kernel.from_source(VARIABLES, "k")

    def main(rank: ep_lib.Rank) -> Any:
        calls = kernel.get_global(rank, "calls", np.int32)
        for _ in range(rank.rank):
            kernel.launch(rank, 1, 4, rank.empty(4, np.float32))
        rank.synchronize()
        return calls

    assert [calls.tolist() for calls in ep_lib.spawn(main, 3, "emulator")] == [[5], [6], [7]]


def test_a_variable_that_is_not_there_is_refused(backend: str) -> None:
    kernel = ep_lib.Kernel.from_source(VARIABLES, "k")

    def main(rank: ep_lib.Rank) -> None:
        for name in ("missing", "table", "k"):
            with pytest.raises(errors.KernelNotFoundError, match=f"has no variable '{name}'"):
                kernel.get_global(rank, name)
        with pytest.raises(errors.ArgumentError, match="has 6 bytes, which is no multiple of int32's"):
            kernel.get_global(rank, "deep::inside::table", np.int32)
        with pytest.raises(errors.ArgumentError, match="the Rank that main got"):
            kernel.get_global(3, "calls")  # type: ignore[arg-type]

    alone(backend, main)


def fault(name: str, value: int) -> errors.KernelFault:
    def main(rank: ep_lib.Rank) -> None:
        ends(name).launch(rank, 2, 64, value)
        rank.synchronize()

    with pytest.raises(errors.KernelFault) as caught:
        ep_lib.spawn(main, 1, "emulator")
    return caught.value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("asserts", "value < 40"),
        ("asserts_after_including_it_again", "value != 40"),
        ("traps", "__trap"),
        ("assumes", "value < 40"),
    ],
)
def test_ends_say_what_and_where(name: str, text: str) -> None:
    error = fault(name, 40)
    assert text in str(error)
    marker = f"// {name} here"
    assert re.search(rf"ends\.cu:{line_of(marker)}\b", error.location + str(error))
    assert error.thread is not None
    assert error.thread.thread == (33, 0, 0)


def test_assertions_that_hold_and_traps_not_reached_are_silent(backend: str) -> None:
    def main(rank: ep_lib.Rank) -> bool:
        for name in ("asserts", "traps", "assumes"):
            ends(name).launch(rank, 1, 64, 4)
        rank.synchronize()
        return True

    assert alone(backend, main)


GRID = """
#include <cooperative_groups.h>
extern "C" __global__ void neighbour(int* x, int* out) {
    const auto grid = cooperative_groups::this_grid();
    x[grid.thread_rank()] = grid.thread_rank();
    SYNC;
    out[grid.thread_rank()] = x[(grid.thread_rank() + 32) % grid.size()];
}
"""


def grid_program(sync: str, blocks: int) -> Any:
    kernel = ep_lib.Kernel.from_source(GRID, "neighbour", defines={"SYNC": sync})

    def main(rank: ep_lib.Rank) -> list[int]:
        x, out = (rank.to_device(np.zeros(32 * blocks, np.int32)) for _ in range(2))
        kernel.launch(rank, blocks, 32, x, out)
        kernel.launch(rank, blocks, 32, x, out)
        rank.synchronize()
        return list(rank.to_host(out).tolist())

    return main


def test_all_blocks_of_a_grid_meet(backend: str) -> None:
    assert alone(backend, grid_program("grid.sync()", 4)) == [(i + 32) % 128 for i in range(128)]


def test_a_grid_that_does_not_meet_is_a_race() -> None:
    assert ep_lib.check(grid_program("grid.sync()", 3), 1, seeds=10, progress=False).ok
    assert not ep_lib.check(grid_program("__syncthreads()", 3), 1, seeds=10, progress=False).ok


def test_a_grid_that_does_not_fit_never_meets(backend: str) -> None:
    """A GPU refuses it; the emulator says which blocks wait for a place."""
    error, words = {
        "emulator": (errors.DeadlockError, "have not started, of 5000 of kernel 'neighbour'"),
        "cuda": (errors.KernelLaunchError, "more blocks than this GPU runs at once"),
    }[backend]
    with pytest.raises(error, match=words):
        alone(backend, grid_program("grid.sync()", 5000))
