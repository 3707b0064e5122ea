"""Waits with a limit: they see what was published, and when they give up they say who waited for whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ep_lib import Kernel, Rank
from ep_lib.errors import KernelFault, PeerTimeout
from ep_lib.jit import device_state

Spmd = Callable[..., list[Any]]

SOURCE = """
#include <ep/signal.cuh>
// Lets 3 x 32 threads wait at one of three levels; each notes what it got.
extern "C" __global__ void wait(int level, const uint64_t* flag, uint64_t expected, int peer, int64_t slot, int* got) {
    const ep::WaitInfo info{ep::kPhaseUser, peer, slot};
    bool ok = false;
    if (level == 0) ok = ep::wait_until_ge(flag, expected, info);
    if (level == 1) ok = ep::wait_until_ge_warp(flag, expected, info);
    if (level == 2) ok = ep::wait_until_ge_block(flag, expected, info);
    if (level == 3) ok = ep::wait_until_eq(flag, expected, info);
    if (level == 4) {
        uint64_t value = 0;
        ok = ep::wait_until_nonzero(flag, &value, info) && value == expected;
    }
    got[threadIdx.x] = ok ? 1 : -1;
}
extern "C" __global__ void signal(uint64_t* flag, uint64_t first, uint64_t second, int peer, int add) {
    if (threadIdx.x != 0) return;
    if (add) ep::signal_add(flag, first, peer);
    if (!add) ep::signal_set(flag, first, peer);
    ep::sleep_ns(1000);
    if (second != 0) ep::signal_add(flag, second, peer);
}
extern "C" __global__ void faults(int64_t first_slot) {
    ep::record_fault(ep::kFaultTimeout, {ep::kPhaseCredit, 1, first_slot + threadIdx.x}, 3, 4);
}
"""
THREADS = 96


def run(rank: Rank) -> Any:
    """Rank 0 signals twice; rank 1 waits for both, except at levels 3 and 4, where the first is what it waits for."""
    results = []
    for level, add in itertools.product(range(5), (0, 1)):
        flag = rank.symmetric(3, np.uint64)
        got = rank.to_device(np.zeros(THREADS, np.int32))
        first, second = (4, 0) if level >= 3 else (4, 2)
        if rank.rank == 0:
            Kernel.from_source(SOURCE, "signal").launch(rank, 1, 32, flag[1:], first, second, 1, add)
        else:
            wait = Kernel.from_source(SOURCE, "wait")
            wait.launch(rank, 1, THREADS, level, flag[1:], first + second, 0, 1, got)
            results.append(set(rank.to_host(got).tolist()))
    return results


@pytest.mark.extended
def test_waits_end_when_the_signal_is_there(spmd: Spmd, backend: str) -> None:
    for seed in range(20) if backend == "emulator" else [0]:
        assert spmd(run, 2, seed=seed)[1] == [{1}] * 10, f"seed {seed}"


def run_in_vain(rank: Rank, level: int) -> Any:
    flag = rank.symmetric(1, np.uint64)
    if rank.rank == 0:
        flag[0] = 2
        got = rank.to_device(np.zeros(THREADS, np.int32))
        Kernel.from_source(SOURCE, "wait").launch(rank, 1, THREADS, level, flag, 3, 1, 17, got)
        with pytest.raises(PeerTimeout) as error:
            rank.synchronize()
        caught = error.value
        facts = (caught.rank, caught.peer, caught.phase, caught.slot, caught.seen, caught.expected)
        # Reported once; and the rank goes on working.
        flag[0] = 3
        Kernel.from_source(SOURCE, "wait").launch(rank, 1, THREADS, level, flag, 3, 1, 17, after := got.copy())
        return facts, rank.to_host(got).tolist(), rank.to_host(after).tolist(), str(caught)
    rank.barrier()
    return None


@pytest.mark.parametrize("level", range(3))
def test_a_wait_in_vain_is_a_peer_timeout_and_the_kernel_returns(spmd: Spmd, level: int) -> None:
    def main(rank: Rank) -> Any:
        result = run_in_vain(rank, level)
        if rank.rank == 0:
            rank.barrier()
        return result

    facts, got, after, message = spmd(main, 2, timeout=4)[0]
    assert facts == (0, 1, "user", 17, 2, 3)
    assert set(got) == {-1}, "every thread learnt that the wait failed"
    assert set(after) == {1}
    assert message.startswith(
        "rank 0 waited too long for rank 1 (user, slot 17): the signal is 2, at least 3 was expected"
    )


def run_faults(rank: Rank) -> tuple[int, str]:
    kernel = Kernel.from_source(SOURCE, "faults")
    kernel.launch(rank, 1, 1, 5)
    kernel.launch(rank, 1, 64, 100)
    with pytest.raises(PeerTimeout) as error:
        rank.synchronize()
    rank.synchronize()
    return error.value.slot, error.value.phase


def test_the_first_fault_wins_and_is_raised_once(spmd: Spmd) -> None:
    assert spmd(run_faults, 1)[0] == (5, "credit")


# ---- the host's half -------------------------------------------------------------------------------------------------
def record(**fields: int) -> bytes:
    data = np.zeros(1, device_state.FAULT_DTYPE)
    for name, value in fields.items():
        data[name] = value
    return data.tobytes()


def test_no_fault_decodes_to_none() -> None:
    assert device_state.decode_fault(bytes(device_state.HEADER_BYTES)) is None


def test_a_timeout_becomes_a_peer_timeout() -> None:
    fault = device_state.decode_fault(record(code=1, rank=3, peer=-1, phase=5, slot=-1, seen=2**63, expected=2**64 - 1))
    assert fault is not None
    error = device_state.to_error(fault)
    assert isinstance(error, PeerTimeout) and isinstance(error, TimeoutError)
    assert (error.peer, error.phase, error.seen, error.expected) == (-1, "dispatch", 2**63, 2**64 - 1)
    assert "its peers (dispatch)" in str(error)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (2, "of bytes 8 to 24 of rank 1's memory was refused: only 16 bytes"),
        (3, "it has 16 entries, entry 8 does not exist"),
        (9, "the thread that carries out this rank's commands has given up"),
        (99, "unknown fault (code 99)"),
    ],
)
def test_other_faults_become_kernel_faults(code: int, message: str) -> None:
    fault = device_state.decode_fault(record(code=code, rank=0, peer=1, phase=99, slot=8, seen=24, expected=16))
    assert fault is not None and fault.phase == "phase 99"
    error = device_state.to_error(fault)
    assert isinstance(error, KernelFault) and message in str(error)
