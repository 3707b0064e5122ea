"""When blocks become resident: few at a time, and all of them where they wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ep_lib
from ep_lib import Fabric
from ep_lib.errors import DeadlockError
from ep_lib.runtime.emulated import make_machine, run_program

X = np.arange(4000 * 128, dtype=np.int32) % 1000
SOURCE = r"""
extern "C" __global__ void sums(const int* x, int* out) {
    __shared__ int part[128];
    part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
// Every block waits for all others, `rounds` times.
extern "C" __global__ void whole_grid(volatile unsigned* arrived, unsigned rounds) {
    for (unsigned round = 1; round <= rounds; round++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(const_cast<unsigned*>(arrived), 1);
            while (*arrived < round * gridDim.x) __nanosleep(20);
        }
        __syncthreads();
    }
}
// The first block comes last, and all others change memory while they wait: such a loop is never parked.
extern "C" __global__ void backwards(volatile unsigned* done, unsigned* tries) {
    if (threadIdx.x == 0) {
        while (*done != gridDim.x - 1 - blockIdx.x) atomicAdd(tries, 1);
        *done = *done + 1;
    }
}
extern "C" __global__ void backwards_parked(volatile unsigned* done) {
    if (threadIdx.x == 0) {
        while (*done != gridDim.x - 1 - blockIdx.x) {
        }
        *done = *done + 1;
    }
}
"""


def sums(rank: ep_lib.Rank, blocks: int) -> Any:
    x, out = rank.to_device(X[: 128 * blocks]), rank.to_device(np.zeros(blocks, np.int32))
    ep_lib.Kernel.from_source(SOURCE, "sums").launch(rank, blocks, 128, x, out)
    return rank.to_host(out).copy()


def run(name: str, grid: int, block: int, *words: int, seed: int = 0, checked: bool = False) -> tuple[Any, int]:
    """The arrays after the kernel, one of zeros for each 0 in ``words``, and how many blocks were resident at most."""
    machine = make_machine(1, seed=seed, fabric=Fabric())
    if checked:
        machine.begin_checks()

    def main(rank: ep_lib.Rank) -> Any:
        arguments = [word or rank.to_device(np.zeros(1, np.uint32)) for word in words]
        ep_lib.Kernel.from_source(SOURCE, name).launch(rank, grid, block, *arguments)
        rank.synchronize()
        return [int(a[0]) for a in arguments if isinstance(a, np.ndarray)]

    (result,) = run_program(main, machine, timeout=60)
    return result, machine.most_resident_blocks


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_that_wait_for_the_whole_grid_are_all_admitted(seed):
    arrived, resident = run("whole_grid", 132, 64, 0, 3, seed=seed)
    assert arrived == [3 * 132] and resident == 132


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loop_that_changes_memory_does_not_keep_the_next_block_out(seed):
    (done, tries), resident = run("backwards", 40, 32, 0, 0, seed=seed)
    assert done == resident == 40 and tries > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_grid_much_larger_than_what_is_resident(seed):
    machine = make_machine(1, seed=seed, fabric=Fabric())
    (found,) = run_program(sums, machine, (4000,))
    assert np.array_equal(found, X.reshape(4000, 128).sum(axis=1))
    assert machine.most_resident_blocks == 1024 // 128


def test_each_rank_has_a_block_from_the_start():
    machine = make_machine(4, seed=0, fabric=Fabric())
    run_program(sums, machine, (240,))
    assert 4 <= machine.most_resident_blocks <= 1024 // 128 + 4


def test_no_deadlock_is_reported_before_the_whole_grid_is_resident():
    assert run("backwards_parked", 132, 256, 0)[0] == [132]
    with pytest.raises(DeadlockError):  # 133 blocks of 1,024 threads do not fit, on a GPU of 132 SMs neither
        run("backwards_parked", 133, 1024, 0)


@pytest.mark.extended
def test_under_the_checker_all_blocks_that_fit_are_resident():
    assert run("whole_grid", 100, 32, 0, 1, checked=True)[1] == 100
    machine = make_machine(1, seed=0, fabric=Fabric())
    machine.begin_checks()
    run_program(sums, machine, (100,))
    assert machine.most_resident_blocks == 100
