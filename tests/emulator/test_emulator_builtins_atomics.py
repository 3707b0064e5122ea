"""Atomic functions under contention: several blocks, several ranks, every scope and type."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from support import TESTS, Spmd
from support.alone import alone, launched

import ep_lib

FILE = TESTS / "kernels" / "atomics.cu"
RNG = np.random.default_rng(5)
BLOCKS, THREADS = 3, 96
N = BLOCKS * THREADS
TYPES = {
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
OVERLOADS = {
    "Add": ["int", "unsigned", "unsigned long long", "float", "double"],
    "Sub": ["int", "unsigned"],
    "Min": ["int", "unsigned", "long long", "unsigned long long"],
    "Max": ["int", "unsigned", "long long", "unsigned long long"],
    "And": ["int", "unsigned", "long long", "unsigned long long"],
    "Or": ["int", "unsigned", "long long", "unsigned long long"],
    "Xor": ["int", "unsigned", "long long", "unsigned long long"],
    "Inc": ["unsigned"],
    "Dec": ["unsigned"],
    "Exch": ["int", "unsigned", "unsigned long long", "float"],
}


SCOPES = {"device": "", "block": "_block", "system": "_system"}
FUNCTIONS = [
    (f"atomic{operation}{suffix}", c_type)
    for operation, types in OVERLOADS.items()
    for c_type in types
    for suffix in SCOPES.values()
]
CASES = "".join(
    f"        case {number}: (({c_type}*)found)[i] = {function}(({c_type}*)cell, (({c_type}*)values)[i]); break;\n"
    for number, (function, c_type) in enumerate(FUNCTIONS)
)
# Every thread applies its value to a cell and notes what it found there. Block scope: a cell a block.
CONTEND = f"""
extern "C" __global__ void contend(int number, void* cells, const void* values, void* found, int num_cells, int size) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    char* const cell = (char*)cells + blockIdx.x % num_cells * size;
    switch (number) {{
{CASES}    }}
}}
"""


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_file(FILE, name)


def step(operation: str, old: Any, value: Any) -> Any:
    """What one call leaves in the cell, with Python's numbers; unsigned wrap-around is the caller's."""
    if operation == "Inc":
        return 0 if old >= value else old + 1
    if operation == "Dec":
        return value if old == 0 or old > value else old - 1
    return {
        "Add": lambda: old + value,
        "Sub": lambda: old - value,
        "Min": lambda: min(old, value),
        "Max": lambda: max(old, value),
        "And": lambda: old & value,
        "Or": lambda: old | value,
        "Xor": lambda: old ^ value,
        "Exch": lambda: value,
    }[operation]()


def wrap(x: Any, dtype: Any) -> Any:
    """A Python number as the type holds it."""
    if np.issubdtype(dtype, np.floating):
        return float(x)
    bits = np.dtype(dtype).itemsize * 8
    x = int(x) % (1 << bits)
    return x - (1 << bits) if np.issubdtype(dtype, np.signedinteger) and x >> (bits - 1) else x


def inputs(operation: str, dtype: Any) -> np.ndarray[Any, Any]:
    if np.issubdtype(dtype, np.floating):
        return RNG.permutation(N).astype(dtype)  # distinct, and their sums are exact
    if operation in ("Inc", "Dec"):
        return np.full(N, 40, dtype)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)


def check_history(operation: str, start: Any, values: list[Any], found: list[Any], end: Any, dtype: Any) -> None:
    """The calls on one cell must fit some order: what each found is what the one before left."""
    after = [wrap(step(operation, f, v), dtype) for f, v in zip(found, values, strict=True)]
    assert sorted([*found, end]) == sorted([start, *after])
    if operation in ("Add", "Sub", "And", "Or", "Xor", "Min", "Max"):
        assert end == wrap(reduce(lambda old, v: step(operation, old, v), values, start), dtype)


@pytest.mark.cuda_rules
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("operation", OVERLOADS)
def test_every_atomic_fits_some_order(backend: str, operation: str, scope: str) -> None:
    num_cells = BLOCKS if scope == "block" else 1
    contend = ep_lib.Kernel.from_source(CONTEND, "contend")
    for c_type in OVERLOADS[operation]:
        dtype, number = TYPES[c_type], FUNCTIONS.index((f"atomic{operation}{SCOPES[scope]}", c_type))
        cells, values = np.full(num_cells, 37, dtype), inputs(operation, dtype)
        args = number, cells, values, np.zeros_like(values), num_cells, cells.itemsize
        end, _, found = launched(backend, contend, BLOCKS, THREADS, *args)
        for cell in range(num_cells):
            mine = slice(None) if num_cells == 1 else slice(cell * THREADS, (cell + 1) * THREADS)
            history = values[mine].tolist(), found[mine].tolist()
            check_history(operation, 37, *history, end[cell].item(), cells.dtype)


@pytest.mark.parametrize("c_type", ["int", "unsigned", "unsigned long long"])
@pytest.mark.parametrize("scope", [0, 1, 2])
def test_compare_and_swap_loops_lose_no_step(backend: str, c_type: str, scope: int) -> None:
    blocks, dtype = (1 if scope == 0 else BLOCKS), TYPES[c_type]

    (cell,) = launched(backend, kernel(f"cas_loop<{c_type}>"), blocks, THREADS, np.array([1], dtype), scope)
    expected = 1
    for _ in range(blocks * THREADS):
        expected = wrap(3 * expected + 1, dtype)
    assert cell == expected


def test_compare_and_swap_of_16_bits_leaves_the_neighbours_alone(backend: str) -> None:
    def main(rank: ep_lib.Rank) -> list[int]:
        cells = rank.to_device(np.array([11, 1, 22, 1], np.uint16))
        kernel("cas_loop_16").launch(rank, BLOCKS, THREADS, cells[1:2])
        kernel("cas_loop_16").launch(rank, BLOCKS, THREADS, cells[3:4])
        return list(rank.to_host(cells).tolist())

    expected = 1
    for _ in range(N):
        expected = (3 * expected + 1) % (1 << 16)
    assert alone(backend, main) == [11, expected, 22, expected]


def test_small_floats_and_pairs_add_up(backend: str) -> None:
    import ml_dtypes

    cells = [*np.zeros((4, 2), np.uint16), np.zeros(1, np.float32), np.zeros(1)]
    h, h2, b, b2, f, d = launched(backend, kernel("add_small"), 2, 64, *cells)
    assert h.view(np.float16).tolist() == [128, 0]
    assert h2.view(np.float16).tolist() == [128, 64]
    assert b.view(ml_dtypes.bfloat16).astype(float).tolist() == [128, 0]
    assert b2.view(ml_dtypes.bfloat16).astype(float).tolist() == [64, 128]
    assert (f.item(), d.item()) == (64, 32)


FIXED_WIDTH = """
#include <cstdint>
extern "C" __global__ void fixed_width(uint64_t* u, int64_t* s, uint32_t* w) {
    atomicAdd(u, 3);
    atomicMax(&u[1], uint64_t(threadIdx.x));
    atomicMin(s, -int64_t(threadIdx.x));
    atomicAdd_system(w, 1);
    while (atomicCAS(&u[2], uint64_t(threadIdx.x), uint64_t(threadIdx.x + 1)) != threadIdx.x) __nanosleep(20);
}
"""


def test_fixed_width_types_have_overloads(backend: str) -> None:
    """NVRTC and g++ call uint64_t by different names; a source must not notice."""

    cells = (np.zeros(3, dtype) for dtype in (np.uint64, np.int64, np.uint32))
    left = launched(backend, ep_lib.Kernel.from_source(FIXED_WIDTH, "fixed_width"), 1, 64, *cells)
    assert [cell.tolist() for cell in left] == [[192, 63, 64], [-63, 0, 0], [64, 0, 0]]


def test_a_ticket_lock_keeps_a_plain_counter(backend: str) -> None:
    lock, counter = np.zeros(2, np.uint32), np.zeros(1, np.int32)
    _, counter = launched(backend, kernel("ticket_lock"), BLOCKS, THREADS, lock, counter, 10)
    assert counter == BLOCKS * THREADS // 32 * 10


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_add_to_one_cell_of_the_symmetric_heap(spmd: Spmd, ranks: int) -> None:
    def main(rank: ep_lib.Rank) -> tuple[int, float, int]:
        total, floats = rank.symmetric(1, np.uint64), rank.symmetric(1, np.float32)
        largest = rank.symmetric(1, np.int32)
        rank.barrier()
        kernel("add_to_rank_0").launch(rank, 2, 64, total, floats, largest)
        rank.barrier()
        return tuple(rank.to_host(x)[0].item() for x in (total, floats, largest))

    results = spmd(main, ranks)
    values = [r * 1000 + i for r in range(ranks) for i in range(128)]
    assert results[0] == (sum(values), len(values), max(values))
    assert results[1:] == [(0, 0.0, 0)] * (ranks - 1)
