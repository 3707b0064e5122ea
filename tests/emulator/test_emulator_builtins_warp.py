"""Warp and block functions: shuffles of every type and width, divergent masks, votes, match, reductions."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from support import TESTS
from support.alone import launched

import ep_lib

FILE = TESTS / "kernels" / "warp.cu"
RNG = np.random.default_rng(4)
BLOCKS, THREADS = 2, 64
N = BLOCKS * THREADS

TYPES = {
    "int": np.int32,
    "unsigned": np.uint32,
    "long": np.int64,
    "unsigned long": np.uint64,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
    "__half": np.uint16,
    "__half2": np.uint32,
    "__nv_bfloat16": np.uint16,
    "__nv_bfloat162": np.uint32,
}


def number(c_type: str) -> int:
    """A type's number in the kernels."""
    return list(TYPES).index(c_type)


def run(backend: str, name: str, out: tuple[Any, Any], *args: Any, blocks: int = BLOCKS, threads: int = THREADS) -> Any:
    """Launches a kernel; its output, of shape and dtype ``out``, takes the place of ``...`` among the arguments."""
    passed = [np.zeros(*out) if arg is ... else arg for arg in args]
    return launched(backend, ep_lib.Kernel.from_file(FILE, name), blocks, threads, *passed)[-1]


def values(dtype: Any) -> np.ndarray[Any, Any]:
    """N different values of a type, as raw bits where the type is NumPy's only by size."""
    if np.issubdtype(dtype, np.floating):
        return RNG.standard_normal(N).astype(dtype)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)


def source_lanes(operation: str, arg: int, width: int) -> np.ndarray[Any, Any]:
    """For each lane of a warp, the lane whose value a shuffle gives it."""
    lane = np.arange(32)
    first = lane // width * width
    last = first + width - 1
    if operation == "idx":
        return first + arg % width
    source = {"up": lane - arg, "down": lane + arg, "xor": lane ^ arg}[operation]
    outside = source < first if operation == "up" else source > last
    return np.where(outside, lane, source)


def shuffled(x: np.ndarray[Any, Any], arg: int, width: int) -> np.ndarray[Any, Any]:
    warps = x.reshape(-1, 32)
    return np.stack([warps[:, source_lanes(op, arg, width)].ravel() for op in ("idx", "up", "down", "xor")])


@pytest.mark.parametrize("c_type", TYPES)
def test_shuffles_of_every_type(backend: str, c_type: str) -> None:
    x = values(TYPES[c_type])
    got = run(backend, "shuffles", ((4, N), x.dtype), number(c_type), x, ..., 5, 32)
    np.testing.assert_array_equal(got, shuffled(x, 5, 32))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_shuffles_of_every_width(backend: str, width: int) -> None:
    x = values(np.int32)
    for arg in (0, 1, 3, 9, 16, 31):
        got = run(backend, "shuffles", ((4, N), x.dtype), number("int"), x, ..., arg, width)
        np.testing.assert_array_equal(got, shuffled(x, arg, width), err_msg=f"argument {arg}")


@pytest.mark.parametrize("arg", [0, 1, 7, 15])
def test_two_halves_of_a_warp_shuffle_apart(backend: str, arg: int) -> None:
    x = values(np.float64)
    got = run(backend, "divergent_shuffles<double>", ((4, N), x.dtype), x, ..., arg)
    np.testing.assert_array_equal(got, shuffled(x, arg, 16))


def masks() -> np.ndarray[Any, Any]:
    """Every lane's mask: each warp is cut into random parts, of which one may stay away."""
    out = np.zeros((N // 32, 32), np.uint32)
    for warp in out:
        part = RNG.integers(0, RNG.integers(1, 6), 32)
        for p in np.unique(part):
            if p != 3:
                warp[part == p] = sum(1 << int(lane) for lane in np.nonzero(part == p)[0])
    return out.ravel()


def members(own: np.ndarray[Any, Any], i: int) -> list[int]:
    """The threads that share thread i's mask."""
    first = i // 32 * 32
    return [first + lane for lane in range(32) if int(own[i]) >> lane & 1]


@pytest.mark.parametrize("kind", ["flags", "numbers"])
def test_votes_and_reductions_in_parts_of_a_warp(backend: str, kind: str) -> None:
    own = masks()
    p = RNG.integers(0, 2, N).astype(np.int32) if kind == "flags" else values(np.int32)
    got = run(backend, "votes", ((12, N), np.int32), own, p, ...)
    for i in np.nonzero(own)[0]:
        lanes = members(own, i)
        here = [int(p[j]) for j in lanes]
        unsigned = [v % (1 << 32) for v in here]
        ballot = sum((p[j] != 0) << (j % 32) for j in lanes)
        expected = [any(here), all(here), ballot, sum(here), min(here), max(here), min(unsigned), max(unsigned)]
        expected += [reduce(f, unsigned) for f in (int.__and__, int.__or__, int.__xor__)] + [sum(here)]
        assert [v % (1 << 32) for v in got[:, i].tolist()] == [int(v) % (1 << 32) for v in expected]


@pytest.mark.parametrize("c_type", ["int", "unsigned long long", "float", "double"])
def test_match(backend: str, c_type: str) -> None:
    own = masks()
    few = RNG.integers(0, 3, N).astype(TYPES[c_type]) * TYPES[c_type](1.0 if c_type in ("float", "double") else 7)
    few[:32] = 1  # one warp in which all are equal
    got = run(backend, "matches", ((3, N), np.uint32), number(c_type), own, few, ...)
    for i in np.nonzero(own)[0]:
        lanes = members(own, i)
        equal = sum(1 << (j % 32) for j in lanes if few[j] == few[i])
        everyone = len({few[j] for j in lanes}) == 1
        assert got[:, i].tolist() == [equal, int(own[i]) if everyone else 0, int(everyone)]


def test_lanes_that_leave_a_loop_leave_the_votes(backend: str) -> None:
    got = run(backend, "shrinking", (32, np.int32), ..., blocks=1, threads=32)
    assert got.tolist() == [sum(31 - r for r in range(lane)) for lane in range(32)]


@pytest.mark.parametrize("likely", [0.0, 0.5, 1.0])
def test_block_votes(backend: str, likely: float) -> None:
    p = (RNG.random(N) < likely).astype(np.int32) * 5
    got = run(backend, "block_votes", ((3, N), np.int32), p, ...)
    blocks = (p != 0).reshape(BLOCKS, THREADS)
    expected = [blocks.sum(1), blocks.all(1), blocks.any(1)]
    np.testing.assert_array_equal(got, np.stack([np.repeat(e, THREADS) for e in expected]))


@pytest.mark.parametrize("c_type", ["long long", "float"])
def test_block_sums_by_shuffles_and_shared_memory(backend: str, c_type: str) -> None:
    x = RNG.integers(0, 1000, (3, 256)).astype(TYPES[c_type])
    got = run(backend, f"block_sum<{c_type}>", (3, x.dtype), x, ..., blocks=3, threads=256)
    np.testing.assert_array_equal(got, x.sum(1))


LEAVERS = {"nobody leaves": 0, "the first leave": 0b111, "the last leave": 0xFFFF_FF00}


@pytest.mark.parametrize("leavers", LEAVERS.values(), ids=LEAVERS)
def test_a_full_mask_means_the_lanes_that_are_there(backend: str, leavers: int) -> None:
    for threads in (1, 20, 40):
        there = [i for i in range(threads) if not leavers >> i % 32 & 1]
        got = run(backend, "part_warps", ((6, threads), np.int32), leavers, ..., blocks=1, threads=threads)
        for i in there:
            lanes = [j for j in there if j // 32 == i // 32]
            mask = np.uint32(sum(1 << j % 32 for j in lanes)).view(np.int32)
            odd = all(j % 2 for j in lanes)
            expected = [mask, lanes[0] + lanes[-1], lanes[-1], sum(lanes), 1 + 2 * odd, 1]
            assert got[:, i].tolist() == expected, f"thread {i} of {threads}"


@pytest.mark.parametrize("how", [{"seeds": 4}, {"exhaustive": True}], ids=["seeds", "exhaustive"])
def test_the_checker_follows_part_warps_and_lanes_that_leave(how: dict[str, Any]) -> None:
    kernel = ep_lib.Kernel.from_file(FILE, "part_warps")

    def main(rank: ep_lib.Rank) -> None:
        kernel.launch(rank, 1, 4, 0b1000, rank.empty(24, np.int32))

    report = ep_lib.check(main, 1, **how)
    assert report.ok, report


@pytest.mark.parametrize("size", [2, 8, 32])
def test_groups_by_the_names_of_their_types(backend: str, size: int) -> None:
    """``thread_block_tile<32> warp = tiled_partition<32>(block)``, and sizes that are known at run time only."""
    got = run(backend, "named_groups", ((64, 6), np.int32), ..., size, blocks=1, threads=64)
    for me in range(64):
        first, half = me // size * size, size // 2
        total = sum(range(first, first + size)) if me == first else -1
        expected = [me % 32 + 3200, me // 8 * 8 + 1, me % size + 100 * size, me % half + 100 * half, total]
        assert got[me, :5].tolist() == expected, f"thread {me}"
    assert got[0, 5] == sum(range(64))


def test_parts_of_a_coalesced_group_go_by_ranks(backend: str) -> None:
    got = run(backend, "parts_of_coalesced", (32, np.int32), ..., blocks=1, threads=32)
    assert [got[3 * i] for i in range(11)] == [(400 if i < 8 else 300) + i % 4 for i in range(11)]


def test_a_group_of_no_possible_size_is_a_fault() -> None:
    kernel = ep_lib.Kernel.from_file(FILE, "named_groups")

    def main(rank: ep_lib.Rank) -> None:
        kernel.launch(rank, 1, 64, rank.empty(384, np.int32), 12)
        rank.synchronize()

    with pytest.raises(ep_lib.errors.KernelFault, match="groups that do not have 1, 2, 4, 8, 16 or 32 threads"):
        ep_lib.spawn(main, 1, "emulator")
