"""What a process keeps of runs that are over: nothing, however they ended."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ep_lib
from ep_lib.emulator.machine import Machine, _Memory
from ep_lib.errors import ArgumentError, DeadlockError, EpError, KernelFault, KernelTimeout
from ep_lib.memory.arrays import BFLOAT16

SOURCE = """
#include <ep/signal.cuh>
__device__ int calls;
extern "C" __global__ void work(int* x, uint64_t* flag, int what) {
    x[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(&calls, 1);
    if (what == 1) x[(1ll << 40) + threadIdx.x] = 2;
    if (what == 2 && threadIdx.x == 0)
        while (ep::read_signal(flag) == 0) {
        }
    if (what == 3) __trap();
    if (what == 4)
        for (volatile int i = 0;; i = i + 1) {
        }
}
"""
KERNEL = ep_lib.Kernel.from_source(SOURCE, "work")
OUTCOMES = {0: None, 1: KernelFault, 2: DeadlockError, 3: KernelFault, 4: KernelTimeout}
TOUCHED = 1 << 18  # int32 of each rank


def program(rank: ep_lib.Rank, what: int) -> int:
    x, flag = rank.symmetric(TOUCHED, np.int32), rank.symmetric(1, np.uint64)
    KERNEL.launch(rank, 2, 64, x, flag, what)
    return int(rank.to_host(x).max())


def run_once(what: int, seed: int = 0) -> None:
    limit = 0.05 if OUTCOMES[what] is KernelTimeout else None
    try:
        ep_lib.spawn(program, 2, "emulator", seed=seed, args=(what,), timeout=limit)
    except EpError as error:
        assert type(error) is OUTCOMES[what]
    else:
        assert OUTCOMES[what] is None


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only reference counts free memory: the collector counts objects, and does not see what a machine weighs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def machines() -> int:
    return sum(isinstance(thing, (Machine, _Memory)) for thing in gc.get_objects())


@pytest.mark.parametrize("what", OUTCOMES)
def test_no_machine_outlives_its_run(what: int, without_collector: None) -> None:
    before = machines()
    run_once(what)
    assert machines() <= before


LAYER = {"num_experts": 4, "top_k": 1, "hidden": 128, "max_tokens": 4, "num_max_dispatch_tokens_per_rank": 4}


def layer(rank: ep_lib.Rank) -> None:
    buffer = ep_lib.Buffer(rank, **LAYER)
    x, idx = np.ones((4, 128), BFLOAT16), np.arange(4).reshape(4, 1)
    recv = buffer.low_latency_dispatch(x, idx, False, return_recv_hook=True)
    assert recv.hook is not None
    recv.hook()
    out = buffer.low_latency_combine(recv.recv_x, idx, np.ones((4, 1), np.float32), recv.handle).out
    rank.synchronize()
    assert (out == x).all()


@pytest.mark.parametrize("way", ["spawn", "init"])
def test_no_machine_outlives_a_buffer_that_was_not_closed(way: str, without_collector: None) -> None:
    before = machines()
    if way == "spawn":
        ep_lib.spawn(layer, 2, "emulator")
    else:
        layer(ep_lib.init("emulator"))
    assert machines() <= before


def test_no_machine_outlives_what_python_raised(without_collector: None) -> None:
    def main(rank: ep_lib.Rank) -> None:
        x = rank.symmetric(8, np.int32)
        rank.barrier()
        if rank.rank == 1:
            raise KeyError(len(x))
        rank.barrier()

    before = machines()
    with pytest.raises(KeyError):
        ep_lib.spawn(main, 3, "emulator")
    del main
    assert machines() <= before


@pytest.mark.parametrize("what", [0, 1, 2])
def test_no_machine_outlives_a_check(what: int, without_collector: None) -> None:
    before = machines()
    report = ep_lib.check(program, 2, seeds=2, args=(what,))
    assert bool(report.findings) == (what != 0)
    assert machines() <= before


def test_an_array_outlives_its_run_and_the_rest_does_not(without_collector: None) -> None:
    before = machines()
    array = ep_lib.spawn(lambda rank: rank.symmetric(4, np.int32, fill=7), 1, "emulator")[0]
    assert array.tolist() == [7] * 4
    assert machines() == before + 1, "the memory that the array looks at"
    del array
    assert machines() <= before


def test_an_error_that_is_kept_can_be_raised_again(without_collector: None) -> None:
    said = []

    def main(rank: ep_lib.Rank) -> None:
        x, flag = rank.symmetric(64, np.int32), rank.symmetric(1, np.uint64)
        KERNEL.launch(rank, 1, 64, x, flag, 1)
        for _ in range(2):
            with pytest.raises(KernelFault) as caught:
                rank.synchronize()
            said.append(str(caught.value))
            del caught

    with pytest.raises(KernelFault):
        ep_lib.spawn(main, 1, "emulator")
    assert said[0] == said[1] and "kernel 'work'" in said[0]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held() -> tuple[int, int]:
    """Descriptors and Python's threads: the runtime starts none, and pytest's workers have others."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


@pytest.mark.extended
@pytest.mark.slow
def test_many_runs_leave_memory_files_and_threads_flat(seeds: int) -> None:
    outcomes = [0, 1, 3] * 5 + [2]
    for what in OUTCOMES:
        run_once(what)
    before, files_and_threads = resident(), held()
    for seed in range(max(300, 15 * seeds)):
        run_once(outcomes[seed % len(outcomes)], seed)
    assert resident() - before < 20 << 20
    assert held() == files_and_threads


def test_empty_symmetric_arrays_are_freed_one_by_one() -> None:
    def main(rank: ep_lib.Rank) -> Any:
        arrays = [rank.symmetric(shape, np.float32) for shape in (0, (0, 4), (3, 0), 5)]
        assert len({array.__array_interface__["data"][0] for array in arrays}) == 4
        for array in arrays:
            rank.free(array)
        with pytest.raises(ArgumentError, match="freed before"):
            rank.free(arrays[0])

    ep_lib.spawn(main, 2, "emulator")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_combine_input_of_a_rank_that_received_nothing(kind: str) -> None:
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

    def main(rank: ep_lib.Rank) -> int:
        buffer = ep_lib.Buffer(rank, num_experts=2, top_k=1, hidden=64, max_tokens=4, dtype="float32", num_sms=2)
        x, choice = np.ones((4, 64), np.float32), np.zeros((4, 1), np.int64)  # all go to rank 0
        if kind == "torch":
            x, choice = torch.from_numpy(x), torch.from_numpy(choice)
        received = buffer.dispatch(x, choice)
        rows = buffer.combine_input(received.handle, x)
        rows[...] = received.x
        out = buffer.combine(rows, received.handle)
        assert np.array_equal(np.asarray(out), np.ones((4, 64), np.float32))
        return len(rows)

    assert ep_lib.spawn(main, 2, "emulator") == [8, 0]
