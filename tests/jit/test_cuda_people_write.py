"""CUDA that people write, on the emulator: it compiles, computes what a GPU computes, and the checker sees it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import TESTS

import ep_lib
from ep_lib import Kernel, Rank, errors

pytestmark = pytest.mark.cuda_rules

FILE = TESTS / "kernels" / "cuda_people_write.cu"
CUB = TESTS / "kernels" / "cub_blocks.cu"
THREADS = 128


def main(rank: Rank, name: str, blocks: int, file: Path) -> Any:
    x, out = rank.to_device(np.arange(THREADS, dtype=np.int32)), rank.to_device(np.zeros(1024, np.int32))
    Kernel.from_file(file, name).launch(rank, blocks, THREADS, x, out)
    return rank.to_host(out).copy()


def run(name: str, blocks: int = 1, file: Path = FILE) -> np.ndarray[Any, Any]:
    """Right under the checker, in a few schedules, and then its result."""
    report = ep_lib.check(main, 1, "p2p", 4, (name, blocks, file), heap_bytes=1 << 20)
    assert report.ok, str(report)
    [out] = ep_lib.spawn(main, 1, "emulator", args=(name, blocks, file))
    return np.asarray(out)


def findings(name: str, blocks: int = 1) -> str:
    report = ep_lib.check(main, 1, "p2p", 12, (name, blocks, FILE), heap_bytes=1 << 20, compare_values=False)
    assert not report.ok, f"nothing is said of {name}"
    return str(report)


X = np.arange(THREADS)
EXPECTED = {
    "named_barriers": np.concatenate([X[:64][::-1], X[64:][::-1]]),
    "barrier_zero_is_syncthreads": X[::-1],
    "split_barrier": X[::-1],
    "copied_by_the_block": X[::-1],
    "copied_by_tiles": X.reshape(-1, 32)[:, ::-1].ravel(),
    "scans_of_a_tile": np.concatenate([np.cumsum(X[:32]), np.cumsum(X[:32]) - X[:32]]),
    "partitions": np.array([np.sum(X[:32][X[:32] % 3 == i % 3]) for i in range(32)] + [16] * 32),
    "reduced_coalesced": np.array([X[:32][X[:32] % 2 == 1].sum()]),
    "scan_on_an_atomic": np.array([100 + X[:32].sum()]),
    "nv_atomics": np.array([128, 127, 5, 7, 1, 100 + 128]),
    "nv_atomic_hand_over": np.array([42]),
    "wide_cas": np.array([128, 128]),
    "from_the_heap": X * 2,
    "new_and_delete": X + 1,
    "no_ordinary_numbers": X + 1,
    "special_registers": X % 32,
}
BLOCKS = {"nv_atomic_hand_over": 2}


@pytest.mark.parametrize("name", EXPECTED)
def test_it_computes_what_a_gpu_computes(name: str) -> None:
    expected = EXPECTED[name]
    assert run(name, BLOCKS.get(name, 1))[: len(expected)].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("block_reduce", CUB, [int(X.sum()), 127]),
        ("block_scan", CUB, (np.cumsum(X) - X).tolist()),
        ("warp_reduce", CUB, X.reshape(-1, 32).sum(axis=1).tolist()),
    ],
)
def test_cub_runs(name: str, file: Path, expected: list[int]) -> None:
    assert run(name, 1, file)[: len(expected)].tolist() == expected


@pytest.mark.parametrize(
    ("name", "blocks", "says"),
    [
        ("named_barrier_of_the_other_half", 1, "race"),
        ("copy_without_a_wait", 1, "race"),
        ("nv_atomic_without_release", 2, "without release"),
        ("wide_cas_without_acquire", 2, "lock"),
        ("used_after_free", 1, "in the heap of malloc, where nothing is allocated"),
        ("freed_twice", 1, "free already"),
        ("barrier_that_half_reaches", 1, "__barrier_sync"),
        ("shared_with_initial_values", 1, "uninitialised"),
    ],
)
def test_the_checker_sees_it(name: str, blocks: int, says: str) -> None:
    assert says in findings(name, blocks)


def test_a_heap_that_is_full_gives_null() -> None:
    assert run("more_than_the_heap_has")[:2].tolist() == [1, 0]


GROUPS = "#include <cooperative_groups.h>"
OUT = {
    "inline PTX": ('asm volatile("mov.u32 %0, %%laneid;" : "=r"(p[0]));', "<ep/memory.cuh>", ""),
    "wgmma": ('asm volatile("wgmma.fence.sync.aligned;\\n" ::: "memory");', "<ep/memory.cuh>", ""),
    "a texture": ("p[0] = tex2D<float>(0ull, 1.0f, 2.0f);", "use an array", ""),
    "a cluster": (
        "cooperative_groups::cluster_group g = cooperative_groups::this_cluster();",
        "use blocks and",
        GROUPS,
    ),
    "a large tile": (
        "__shared__ cooperative_groups::block_tile_memory<128> s; p[0] = sizeof s;",
        "tiles of more than 32",
        GROUPS,
    ),
    "a kernel's launch": ("k<<<1, 32>>>(p);", "launched from Python, by Kernel.launch", ""),
    "nvshmem.h": ("", "<ep/net.cuh>", "#include <nvshmem.h>"),
    "nvshmemx.h": ("", "<ep/net.cuh>", "#include <nvshmemx.h>"),
    "tensor cores": (
        "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, float> f;",
        "tensor cores are not emulated",
        "#include <mma.h>",
    ),
}


@functools.cache
def told(what: str) -> str:
    code, _, include = OUT[what]
    source = f"{include}\n__global__ void k(int* p) {{\n    {code}\n}}\n"
    with pytest.raises(errors.KernelCompileError) as caught:
        Kernel.from_source(source, "k").compile("emulator")
    return str(caught.value)


@pytest.mark.parametrize("what", OUT)
def test_what_stays_out_is_one_sentence_and_what_to_use(what: str) -> None:
    assert OUT[what][1] in told(what) and "assert" not in told(what).split("\n", 1)[0], told(what)
